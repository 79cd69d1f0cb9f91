"""Real forward proxies on a port of their own: tinyproxy for HTTP CONNECT, microsocks for SOCKS5.

Each owns one child process, which ends with the test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from netq import NetworkLocation
from tests.servers import ports

_LIMIT = 20.0  # seconds; startup takes milliseconds


@contextmanager
def tinyproxy(
    folder: Path, host: str = "127.0.0.1", *, allow: int | None = None, login: str = ""
) -> Iterator[NetworkLocation]:
    """Run an HTTP proxy. `allow`: the only port that it connects to; `login`: "user password"."""
    netloc = NetworkLocation(host, ports.free().port)
    lines = [f"Port {netloc.port}", f"Listen {netloc.host}", "Timeout 60", f'LogFile "{folder}/tinyproxy.log"']
    lines += [] if allow is None else [f"ConnectPort {allow}"]
    lines += [f"BasicAuth {login}"] if login else []
    (folder / "tinyproxy.conf").write_text("\n".join([*lines, ""]))
    with _running("tinyproxy", ["-d", "-c", str(folder / "tinyproxy.conf")], netloc):
        yield netloc


@contextmanager
def microsocks(*, login: str = "") -> Iterator[NetworkLocation]:
    """Run a SOCKS5 proxy. `login`: "user password"."""
    netloc = ports.free()
    user, _, password = login.partition(" ")
    options = ["-i", netloc.host, "-p", str(netloc.port), *(["-u", user, "-P", password] if login else [])]
    with _running("microsocks", options, netloc):
        yield netloc


@contextmanager
def _running(name: str, options: Sequence[str], netloc: NetworkLocation) -> Iterator[None]:
    program = shutil.which(name)
    if program is None:
        reason = f"no {name} here; `apt install {name}` brings it"
        (pytest.fail if os.environ.get("NETQ_FAULTS") == "must" else pytest.skip)(reason)
    command = [*ports.DIES_WITH_US, program, *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _LIMIT
        while not ports.listened(netloc):
            assert process.poll() is None, f"{name} ended"
            assert time.monotonic() < deadline, f"{name} does not listen"
            threading.Event().wait(0.01)
        yield
    finally:
        process.terminate()
        process.wait(_LIMIT)
