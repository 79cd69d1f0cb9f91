"""A real nginx on its own port, as a gRPC proxy, which a test can start, reload, stop and restart.

Owns one master process with one worker, and a folder of the test for the configuration, the log and temporary files.
SETTINGS are those that netq needs (docs/how-to/grpc.md gives the reasons); a test may change each of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from netq import NetworkLocation
from netq.security.certificates import Files
from tests.servers import ports

_PROGRAM = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
_LIMIT = 20.0  # seconds; startup takes milliseconds

SETTINGS = {
    "client_max_body_size": "0",
    "client_body_timeout": "1h",
    "grpc_read_timeout": "1h",
}

_CONFIG = """
daemon off;
{user}
worker_processes 1;
worker_shutdown_timeout 1s;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    {temporary}
    server {{
        listen {netloc.host}:{netloc.port} {listen};
        {tls}
        {settings}
        location /netq.Queue/ {{ grpc_pass grpc://{upstream.host}:{upstream.port}; }}
    }}
}}
"""


class Nginx:
    """A proxy at `netloc` for the server at `upstream`, with TLS if `files` are given."""

    def __init__(self, folder: Path, upstream: NetworkLocation, files: Files | None = None, **settings: str) -> None:
        if _PROGRAM is None:
            (pytest.fail if os.environ.get("NETQ_FAULTS") == "must" else pytest.skip)(
                "no nginx here; `apt install nginx-light` brings it"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.netloc = ports.free()
        self.upstream = upstream
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._write(files, SETTINGS | settings)
        self.start()

    @property
    def log(self) -> str:
        """The text of its output and its log."""
        return "".join([(self._folder / name).read_text() for name in ("output", "error.log")])

    def start(self) -> None:
        """Start, and wait until it listens. Again after `stop`, at the same address."""
        command = [*ports.DIES_WITH_US, str(_PROGRAM), "-p", str(self._folder), "-c", "nginx.conf", "-e", "error.log"]
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        deadline = time.monotonic() + _LIMIT
        while not ports.listened(self.netloc):
            assert self._process.poll() is None, f"nginx ended: {self.log}"
            assert time.monotonic() < deadline, f"nginx does not listen: {self.log}"
            threading.Event().wait(0.01)

    def reload(self) -> None:
        """Start a new worker. The old one ends within a second, and so do its connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """End the master and its worker."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_LIMIT)
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _write(self, files: Files | None, settings: dict[str, str]) -> None:
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        tls = f"ssl_certificate {files.certificate}; ssl_certificate_key {files.key};" if files else ""
        config = _CONFIG.format(
            folder=self._folder,
            user="user root;" if os.geteuid() == 0 else "",
            temporary=" ".join([f"{kind}_temp_path {self._folder}/{kind};" for kind in kinds]),
            netloc=self.netloc,
            listen="ssl http2" if files else "http2",
            tls=tls,
            settings=" ".join([f"{name} {value};" for name, value in settings.items()]),
            upstream=self.upstream,
        )
        (self._folder / "nginx.conf").write_text(config, encoding="utf-8")
