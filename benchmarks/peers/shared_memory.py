"""multiprocessing.shared_memory, and the least that makes messages of it: two slots each way, and tokens in a socket.

https://docs.python.org/3/library/multiprocessing.shared_memory.html. The sender waits until one of the two slots of its
block is free, copies the message there, and sends its length through a Unix socket. The receiver gets a view of the
slot, and sends a token back when the next message is asked for. So there is one copy, and a message costs each side two
system calls. Both ends wait in the kernel. Each direction has a socket of its own.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from benchmarks.task import Place

LENGTH = struct.Struct("=q")
SLOTS = 2
LEAST = 64 * 1024  # bytes of a slot, for the small control messages of a task


def listen(place: Place, ready: Callable[[], None]) -> Wire:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(_path(place))
        listener.listen()
        blocks = [SharedMemory(_name(place, way), create=True, size=SLOTS * _slot(place)) for way in (0, 1)]
        ready()
        takes, puts = listener.accept()[0], listener.accept()[0]
    takes.recv(1)  # the client has both blocks open
    for block in blocks:
        block.unlink()
    return Wire(Sender(blocks[1], puts, _slot(place)), Receiver(blocks[0], takes, _slot(place)))


def connect(place: Place) -> Wire:
    blocks = [SharedMemory(_name(place, way)) for way in (0, 1)]
    for block in blocks:
        resource_tracker.unregister(f"/{block.name}", "shared_memory")  # the server removes it
    puts, takes = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    for sock in (puts, takes):
        sock.connect(_path(place))
    puts.sendall(b".")
    return Wire(Sender(blocks[0], puts, _slot(place)), Receiver(blocks[1], takes, _slot(place)))


def _path(place: Place) -> str:
    return str(place.folder / f"tokens-{place.port}")


def _name(place: Place, way: int) -> str:
    return f"netq-benchmark-{place.port}-{way}"


def _slot(place: Place) -> int:
    return max(place.size, LEAST)


class Sender:
    def __init__(self, block: SharedMemory, tokens: socket.socket, slot: int) -> None:
        self._block, self._tokens, self._slot, self._count = block, tokens, slot, 0

    def send(self, message: Any) -> None:
        if self._count >= SLOTS and not self._tokens.recv(1):
            raise EOFError("the other side has closed")
        start = self._count % SLOTS * self._slot
        self._count += 1
        assert self._block.buf is not None
        self._block.buf[start : start + len(message)] = memoryview(message)
        self._tokens.sendall(LENGTH.pack(len(message)))

    def close(self) -> None:
        self._tokens.close()
        self._block.close()


class Receiver:
    def __init__(self, block: SharedMemory, tokens: socket.socket, slot: int) -> None:
        self._block, self._tokens, self._slot, self._count = block, tokens, slot, 0
        self._view = memoryview(b"")

    def receive(self) -> memoryview:
        if self._count:
            self._view.release()
            self._tokens.sendall(b".")
        length = self._tokens.recv(LENGTH.size, socket.MSG_WAITALL)
        if not length:
            raise EOFError("the other side has closed")
        start = self._count % SLOTS * self._slot
        self._count += 1
        assert self._block.buf is not None
        self._view = self._block.buf[start : start + LENGTH.unpack(length)[0]]
        return self._view

    def close(self) -> None:
        self._view.release()
        self._tokens.close()
        self._block.close()


class Wire:
    def __init__(self, sender: Sender, receiver: Receiver) -> None:
        self._sender, self._receiver = sender, receiver
        self.send = sender.send  # no call in between

    def receive(self, size: int) -> memoryview:
        return self._receiver.receive()

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()
