"""A real mosquitto on its own port, which a test can start, kill and restart, and whose counters it can read.

Owns one child process, and a folder of the test for the configuration, the passwords and the log. The broker has no
persistence, so a restart loses its queues.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import paho.mqtt.client as paho
import pytest

from tests.servers import ports

_PROGRAM = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
_PASSWORDS = shutil.which("mosquitto_passwd")
_LIMIT = 20.0  # seconds; startup takes milliseconds


class Mosquitto:
    """A broker at `netloc`, with TLS if `certificate` is given. If `user` is given, only that user may connect."""

    def __init__(
        self,
        folder: Path,
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        user: str = "",
        password: str = "",
        config: str = "",
    ) -> None:
        if _PROGRAM is None:
            reason = "no mosquitto here; `apt install mosquitto` brings it"
            if os.environ.get("NETQ_FAULTS") == "must":
                pytest.fail(reason)
            pytest.skip(reason)
        folder.mkdir(parents=True, exist_ok=True)
        self.netloc = ports.free()
        self.folder = folder
        self._log = folder / "mosquitto.log"
        self._process: subprocess.Popen[bytes] | None = None
        lines = [
            f"listener {self.netloc.port} {self.netloc.host}",
            "persistence false",
            "sys_interval 1",
            "log_type all",
            "user root" if os.geteuid() == 0 else "",
        ]
        if certificate is not None:
            lines += [f"certfile {certificate}", f"keyfile {key}"]
        lines += self._passwords(user, password) if user else ["allow_anonymous true"]
        (folder / "mosquitto.conf").write_text("\n".join([*lines, config, ""]), encoding="utf-8")
        self.start()

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """The text of the log."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def start(self) -> None:
        """Start, and wait until it listens. Again after `kill`, at the same address."""
        with self._log.open("ab") as log:
            command = [*ports.DIES_WITH_US, str(_PROGRAM), "-c", str(self.folder / "mosquitto.conf")]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _LIMIT
        while not ports.listened(self.netloc):
            assert self._process.poll() is None, f"mosquitto ended: {self.log}"
            assert time.monotonic() < deadline, f"mosquitto does not listen: {self.log}"
            threading.Event().wait(0.01)

    def kill(self) -> None:
        """Kill it by SIGKILL; its queues are lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it by SIGTERM."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_LIMIT)
            self._process = None

    def memory(self, name: str = "VmRSS") -> int:
        """Return its resident memory in bytes; with VmHWM the peak."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith(name)).split()[1]) * 1024

    def counter(self, name: str) -> int:
        """Return a value below $SYS/broker. Retained (old) values are skipped; the broker publishes each second."""
        values: list[int] = []
        done = threading.Event()

        def on_message(client: paho.Client, data: object, message: paho.MQTTMessage) -> None:
            if not message.retain:
                values.append(int(message.payload))
                done.set()

        reader = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)  # type: ignore[attr-defined]
        reader.on_message = on_message
        reader.connect(*self.netloc)
        reader.subscribe(f"$SYS/broker/{name}")
        reader.loop_start()
        try:
            assert done.wait(_LIMIT), f"$SYS/broker/{name} is not told"
        finally:
            reader.disconnect()
            reader.loop_stop()
        return values[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _passwords(self, user: str, password: str) -> list[str]:
        path = self.folder / "passwords"
        path.touch(mode=0o600)
        subprocess.run([str(_PASSWORDS), "-b", str(path), user, password], check=True, capture_output=True)
        return ["allow_anonymous false", f"password_file {path}"]
