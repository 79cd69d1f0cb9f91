"""Builds examples/c for its tests, runs it, and plays a server that sends what tests say, byte by byte."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

import netq

SOURCE = Path(__file__).parents[3] / "examples/c/netq.c"
HARNESS = Path(__file__).parent / "harness.c"
LIMIT = 30.0  # seconds for anything
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
CHECKED = [*STRICT, "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
TLS = ["-DNETQ_TLS", "-lssl", "-lcrypto"]
INI, MSG, ACK, DROP, PING, FIN = range(1, 7)
RESUME, LEAVING, ANSWER = 1, 1, 2
SERVER = uuid.UUID("ffeeddcc-bbaa-9988-7766-554433221100")


def compiler() -> str:
    """Return the C compiler; skips the test without one."""
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler here; `apt install gcc` brings one")
    return found


def build(folder: Path, flags: Iterable[str], source: Path = SOURCE) -> Path:
    """Compile a program. A warning is an error, and fails the test."""
    program = folder / "program"
    first, last = [f for f in flags if not f.startswith("-l")], [f for f in flags if f.startswith("-l")]
    command = [compiler(), *first, "-o", str(program), str(source), *last, "-lm"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    return program


def has_openssl() -> bool:
    """Return whether programs can be built with OpenSSL."""
    test = [compiler(), "-E", "-include", "openssl/ssl.h", "-x", "c", "/dev/null"]
    return subprocess.run(test, capture_output=True).returncode == 0


class Programs:
    """Starts the client, and kills at the end what still runs."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self._stack = ExitStack()

    def start(self, command: str, netloc: tuple[str, int], *words: object) -> subprocess.Popen[str]:
        """Start a subcommand."""
        parts = [str(self.program), command, netloc[0], str(netloc[1]), *map(str, words)]
        pipe = subprocess.PIPE
        process = self._stack.enter_context(subprocess.Popen(parts, stdout=pipe, stderr=pipe, text=True))
        self._stack.callback(process.kill)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end of a program; return its status and what it said."""
    _, errors = process.communicate(timeout=LIMIT)
    return process.returncode, errors


def peer_of(server: netq.core.Communicator) -> uuid.UUID:
    """Wait for the client."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if peers := list(server.statistics()):
            return peers[0]
        time.sleep(0.005)
    raise TimeoutError("no client has connected")


def frame(kind: int, number: int = 0, value: int = 0, body: bytes = b"", *, flags: int = 0, lane: int = 0) -> bytes:
    """Return a frame (protocol.md, section 1)."""
    return struct.pack("<BBHIQQ", kind, flags, lane, len(body), number, value) + body


def greeting(
    epoch: int,
    cursors: bytes = b"",
    *,
    flags: int = 0,
    magic: bytes = b"NETQ",
    version: int = 1,
    server: uuid.UUID = SERVER,
    message_size: int = 2**40,
    credit: int = 2**18,
    heartbeat: int = 10_000,
    count: int | None = None,
) -> bytes:
    """Return an INI (section 3), with a token of zeros: clients do not compare it."""
    head = struct.pack("<4sHH16s16s", magic, version, len(cursors) // 32 if count is None else count, server.bytes, b"")
    return frame(1, body=head + struct.pack("<QQII", message_size, credit, heartbeat, epoch) + cursors, flags=flags)


def cursor(lane: int, held: int, partial: int, limit: int, reserved: int = 0) -> bytes:
    """Return a cursor of an INI."""
    return struct.pack("<HHIQQQ", lane, reserved, 0, held, partial, limit)


class Listener:
    """A server's socket, whose links a test serves by hand."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(LIMIT)
        self.netloc: tuple[str, int] = self._socket.getsockname()

    def accept(self) -> Link:
        """Return the client's next link."""
        connection, _ = self._socket.accept()
        connection.settimeout(LIMIT)
        return Link(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class Link:
    """A link to a client."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, data: bytes) -> None:
        """Send bytes. That the client has hung up does not matter."""
        with suppress(OSError):
            self.socket.sendall(data)

    def take(self, size: int) -> bytes:
        """Return that many bytes of the client."""
        data = b""
        while len(data) < size and (piece := self.socket.recv(size - len(data))):
            data += piece
        assert len(data) == size, f"the client has closed after {data!r}"
        return data

    def frame(self) -> bytes:
        """Return the client's next frame."""
        header = self.take(24)
        return header + self.take(int.from_bytes(header[4:8], "little"))

    def rest(self) -> bytes:
        """Return what the client sends until it closes."""
        data = b""
        try:
            while piece := self.socket.recv(65536):
                data += piece
        except ConnectionResetError:  # it has closed before it read all that we sent
            pass
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
