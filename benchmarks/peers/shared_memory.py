"""multiprocessing.shared_memory, and the least that makes messages of it: two slots each way, and tokens in a socket.

https://docs.python.org/3/library/multiprocessing.shared_memory.html. The sender waits until one of the two slots of its
block is free, copies the message there, and sends its length through a Unix socket. The receiver gets a view of the
slot, and sends a token back when the next message is asked for. So there is one copy, and a message costs each side two
system calls. Both ends wait in the kernel. Each direction has a socket of its own.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from benchmarks.task import Place

LENGTH = struct.Struct("=q")
SLOTS = 2
LEAST = 64 * 1024  # bytes of a slot, for the small control messages of a task


async def open(place: Place) -> Wire:
    slot, names = max(place.size, LEAST), [f"netq-benchmark-{place.port}-{way}" for way in ("up", "down")]
    path = str(place.folder / f"tokens-{place.port}")
    if place.is_server:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            blocks = [SharedMemory(name, create=True, size=SLOTS * slot) for name in names]
            place.ready()
            sockets = [listener.accept()[0] for _ in names]
        sockets[0].recv(1)  # the client has both blocks open
        for block in blocks:
            block.unlink()
    else:
        blocks, sockets = [SharedMemory(name) for name in names], [socket.socket(socket.AF_UNIX) for _ in names]
        for block, sock in zip(blocks, sockets, strict=True):
            resource_tracker.unregister(f"/{block.name}", "shared_memory")  # the server removes it
            sock.connect(path)
        sockets[0].sendall(b".")
    up, down = (Way(block, sock, slot) for block, sock in zip(blocks, sockets, strict=True))
    return Wire(down, up) if place.is_server else Wire(up, down)


class Way:
    """A block for one direction, and its socket."""

    def __init__(self, block: SharedMemory, tokens: socket.socket, slot: int) -> None:
        self._block, self._tokens, self._slot, self._count = block, tokens, slot, 0
        self._view = memoryview(b"")

    def send(self, message: Any) -> None:
        if self._count >= SLOTS and not self._tokens.recv(1):
            raise EOFError("the other side has closed")
        with self._next(len(message)) as slot:
            slot[:] = memoryview(message)
        self._tokens.sendall(LENGTH.pack(len(message)))

    def receive(self) -> memoryview:
        if self._count:
            self._view.release()
            with suppress(BrokenPipeError):  # the other side has closed, and what it has sent is here
                self._tokens.sendall(b".")
        length = self._tokens.recv(LENGTH.size, socket.MSG_WAITALL)
        if not length:
            raise EOFError("the other side has closed")
        self._view = self._next(LENGTH.unpack(length)[0])
        return self._view

    def _next(self, length: int) -> memoryview:
        start = self._count % SLOTS * self._slot
        self._count += 1
        assert self._block.buf is not None
        return self._block.buf[start : start + length]

    def close(self) -> None:
        self._view.release()
        self._tokens.close()
        self._block.close()


class Wire:
    def __init__(self, sends: Way, receives: Way) -> None:
        self._sends, self._receives = sends, receives

    async def send(self, message: Any) -> None:
        self._sends.send(message)

    async def receive(self, size: int) -> memoryview:
        return self._receives.receive()

    async def close(self) -> None:
        self._sends.close()
        self._receives.close()
