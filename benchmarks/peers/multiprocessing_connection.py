"""multiprocessing.connection over TCP: objects by send and recv, arrays by send_bytes and recv_bytes_into.

https://docs.python.org/3/library/multiprocessing.html#multiprocessing.connection.Connection: the `_bytes` calls take
any buffer, and fill one that is reused.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from benchmarks.task import Place


def listen(place: Place, ready: Callable[[], None]) -> Arrays | Objects:
    with Listener((place.host, place.port)) as listener:
        ready()
        return _wire(place, listener.accept())


def connect(place: Place) -> Arrays | Objects:
    return _wire(place, Client((place.host, place.port)))


def _wire(place: Place, connection: Any) -> Arrays | Objects:
    return Arrays(connection) if place.kind == "array" else Objects(connection)


class Arrays:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._view = memoryview(bytearray(64))

    def send(self, message: Any) -> None:
        self._connection.send_bytes(message)

    def receive(self, size: int) -> memoryview:
        if len(self._view) < size:
            self._view = memoryview(bytearray(size))
        return self._view[: self._connection.recv_bytes_into(self._view)]

    def close(self) -> None:
        self._connection.close()


class Objects:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: Any) -> None:
        self._connection.send(message)

    def receive(self, size: int) -> Any:
        return self._connection.recv()

    def close(self) -> None:
        self._connection.close()
