"""Servers and clients of the transport under test, which close at the end of a test.

No check sleeps. It waits for futures and in `get`, never longer than LIMIT.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from netq.core import Communicator
from netq.options import CommunicatorOptions, ConnectionOptions, NetworkLocation, Purpose

LIMIT = 30.0  # seconds for steps that take milliseconds: a machine may be busy

Make = Callable[[Purpose, CommunicatorOptions], Communicator]

_CONNECTION = {field.name for field in dataclasses.fields(ConnectionOptions)}
_HERE = NetworkLocation("127.0.0.1", 0)
# Reconnects are fast, and an id whose client has died is free at once. Heartbeats are slower than LIMIT: they must not
# hide that a wake-up was lost.
_DEFAULTS = {"retry_min": 0.01, "retry_max": 0.1, "heartbeat": 2 * LIMIT, "takeover_grace": 0.0}


class Communicators:
    """Opens communicators, and closes them at its end, clients first. What has not failed by then must be delivered."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._open: list[Communicator] = []  # in the order in which they will be closed
        self._held = contextlib.ExitStack()  # ports at which no server listens

    def server(self, netloc: NetworkLocation = _HERE, **options: Any) -> Communicator:
        """Return a server; `options` are those of CommunicatorOptions and of ConnectionOptions."""
        server = self._make(Purpose.SERVER, _options(netloc, options))
        self._open.append(server)
        return server

    def client(self, netloc: NetworkLocation, **options: Any) -> Communicator:
        """Return a client of the server at an address, which may start later."""
        client = self._make(Purpose.CLIENT, _options(netloc, options))
        self._open.insert(0, client)
        return client

    def pair(self, **options: Any) -> tuple[Communicator, Communicator]:
        """Return a server and a client with a session; the options are for both."""
        server = self.server(**options)
        client = self.client(server.netloc, **options)
        introduce(server, client)
        return server, client

    def unused_address(self) -> NetworkLocation:
        """Return an address at which no server listens, and one can."""
        server = self.server()
        self.abort(server)
        held = self._held.enter_context(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # a broker listens there
            held.bind(server.netloc)  # so that no other process is given this port
        return server.netloc

    def abort(self, communicator: Communicator) -> int:
        """Close a communicator at once, also if it has unsent messages; return how many are lost."""
        self.release(communicator)
        return communicator.close(timeout=0)

    def release(self, communicator: Communicator) -> None:
        """Do not close this communicator at the end."""
        self._open.remove(communicator)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.close()
        failed = [communicator._endpoint.undelivered.count for communicator in self._open]
        left = [
            each.close(LIMIT if error is None else 0) - before for each, before in zip(self._open, failed, strict=True)
        ]
        assert error is not None or not any(left), f"closing lost {left} messages, clients first"


def introduce(server: Communicator, *clients: Communicator) -> None:
    """Send a message from each client, so that it has a session and nothing is in transit."""
    for client in clients:
        future = client.put("hello")
        assert server.get(client.id, timeout=LIMIT) == (client.id, "hello")
        future.result(LIMIT)


def _options(netloc: NetworkLocation, given: dict[str, Any]) -> CommunicatorOptions:
    connection = _DEFAULTS | {name: value for name, value in given.items() if name in _CONNECTION}
    others = {name: value for name, value in given.items() if name not in _CONNECTION}
    return CommunicatorOptions(netloc=netloc, connection=ConnectionOptions(**connection), **others)
