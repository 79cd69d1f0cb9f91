"""A mosquitto broker for the peers that need one: one for the whole run. Owns its process.

It runs with its default settings, except for its address and that it keeps nothing on disk. It is not pinned: with two
cores the system moves it between the two sides. No figure includes its processor time.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATH = "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin"  # where distributions install it
_LIMIT = 10.0  # seconds to wait until it listens


def program() -> str | None:
    """Return the path of mosquitto, if it is installed."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=_PATH)


def free_port() -> int:
    """Return a port at which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@contextmanager
def running(folder: Path) -> Iterator[int]:
    """Run a broker for a with statement; yield its port."""
    port = free_port()
    path = folder / "mosquitto.conf"
    lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "persistence false", f"user {folder.owner()}", ""]
    path.write_text("\n".join(lines))
    process = subprocess.Popen([str(program()), "-c", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _LIMIT
    while process.poll() is None and time.monotonic() < deadline:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.01)
    raise RuntimeError(f"mosquitto does not listen at port {port}")
