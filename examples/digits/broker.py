"""The demo's broker, for --protocol mqtt: a mosquitto of its own, on this machine, under TLS.

Called by examples/digits/federation.py, which owns the process.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from netq.security.certificates import Files

_PATH = "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin"  # where distributions put it
_LIMIT = 10.0  # seconds until it listens


def program() -> str | None:
    """Return the path of mosquitto, if it is installed."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=_PATH)


def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def configuration(folder: Path, files: Files, port: int) -> Path:
    """Write what mosquitto needs to know: it asks for no password, and keeps nothing."""
    path = folder / "mosquitto.conf"
    path.write_text(f"""\
listener {port} 127.0.0.1
certfile {files.certificate}
keyfile {files.key}
allow_anonymous true
persistence false
user {folder.owner()}
""")
    return path


async def listening(port: int, alive: Callable[[], bool]) -> bool:
    """Wait until it listens; return False if it ends before."""
    async with asyncio.timeout(_LIMIT):
        while alive():
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
            else:
                writer.close()
                await writer.wait_closed()
                return True
    return False
