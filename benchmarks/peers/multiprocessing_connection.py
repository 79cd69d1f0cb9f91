"""multiprocessing.connection over TCP: objects by send and recv, arrays by send_bytes and recv_bytes_into.

https://docs.python.org/3/library/multiprocessing.html#multiprocessing.connection.Connection: the `_bytes` calls take
any buffer, and fill one that is reused.
"""

from __future__ import annotations

from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from benchmarks.task import Place


async def open(place: Place) -> Arrays | Objects:
    kind: Any = Arrays if place.kind == "array" else Objects
    if not place.is_server:
        return kind(Client((place.host, place.port)))  # type: ignore[no-any-return]
    with Listener((place.host, place.port)) as listener:
        place.ready()
        return kind(listener.accept())  # type: ignore[no-any-return]


class Arrays:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._view = memoryview(bytearray(64))

    async def send(self, message: Any) -> None:
        self._connection.send_bytes(message)

    async def receive(self, size: int) -> memoryview:
        if len(self._view) < size:
            self._view = memoryview(bytearray(size))
        return self._view[: self._connection.recv_bytes_into(self._view)]

    async def close(self) -> None:
        self._connection.close()


class Objects:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def send(self, message: Any) -> None:
        self._connection.send(message)

    async def receive(self, size: int) -> Any:
        return self._connection.recv()

    async def close(self) -> None:
        self._connection.close()
