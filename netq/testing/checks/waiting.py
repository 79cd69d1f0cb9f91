"""Waiting in get: for which peers, and for how long."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from netq.core import Communicator, Message
from netq.errors import Closed
from netq.testing.fixtures import LIMIT, Communicators, Make, introduce


def check_get_from(make: Make) -> None:
    """A get with peers returns messages of these peers only, and keeps the others."""
    with Communicators(make) as communicators:
        server = communicators.server()
        one, two, three = clients = [communicators.client(server.netloc) for _ in range(3)]
        introduce(server, *clients)
        for client, text in zip(clients, ("one", "two", "three"), strict=True):
            client.put(text).result(LIMIT)
        assert server.get(two.id, timeout=0) == (two.id, "two")
        assert {server.get(one.id, three.id, timeout=0).data for _ in range(2)} == {"one", "three"}
        assert _times_out(server, one.id, timeout=0)


def check_get_is_fair(make: Make) -> None:
    """A peer with many messages does not delay those of others."""
    with Communicators(make) as communicators:
        server = communicators.server()
        busy, quiet = clients = [communicators.client(server.netloc) for _ in range(2)]
        introduce(server, *clients)
        for future in [busy.put(number) for number in range(100)]:
            future.result(LIMIT)
        for future in [quiet.put(number) for number in range(3)]:
            future.result(LIMIT)
        first = [server.get(timeout=0).peer for _ in range(6)]
        assert first.count(quiet.id) == 3, "one of the two was served by far more often"


def check_get_timeout(make: Make) -> None:
    """Get raises TimeoutError, not before its timeout, and a later message is not lost."""
    with Communicators(make) as communicators:
        server, client = communicators.pair()
        start = time.monotonic()
        assert _times_out(server, timeout=0.05)
        assert time.monotonic() - start >= 0.05
        assert _times_out(server, client.id, timeout=0)
        client.put("later")
        assert server.get(timeout=LIMIT).data == "later"


def check_several_getters(make: Make) -> None:
    """Several waiting threads get different messages."""
    with Communicators(make) as communicators, ThreadPoolExecutor(4) as threads:
        server, client = communicators.pair()
        waiting = [threads.submit(_get, server, 50) for _ in range(4)]
        for number in range(200):
            client.put(number)
        got = sorted(number for future in waiting for number in future.result(LIMIT))
        assert got == list(range(200))


def check_getters_of_different_peers(make: Make) -> None:
    """Each thread gets the messages of the peer that it waits for."""
    with Communicators(make) as communicators, ThreadPoolExecutor(4) as threads:
        server = communicators.server()
        clients = [communicators.client(server.netloc) for _ in range(4)]
        introduce(server, *clients)
        waiting: dict[Communicator, Future[Message]] = {
            client: threads.submit(server.get, client.id, timeout=LIMIT) for client in clients
        }
        for client in reversed(clients):
            client.put(client.id)
        for client, future in waiting.items():
            assert future.result(LIMIT) == (client.id, client.id)


def check_many_threads(make: Make) -> None:
    """Many threads put and get at once, both ways: each message arrives once, in the order of its thread."""
    with Communicators(make) as communicators, ThreadPoolExecutor(8) as threads:
        server, client = communicators.pair()
        getting = [threads.submit(_get, communicator, 400) for communicator in (server, client)]
        for sender in (server, client):
            for thread in range(3):
                threads.submit(_put, sender, thread, 100)
            _put(sender, 3, 100)
        for future in getting:
            got = future.result(LIMIT)
            assert len(set(got)) == 400
            for thread in range(4):
                numbers = [number for other, number in got if other == thread]
                assert numbers == list(range(100)), f"thread {thread}: {numbers}"


def check_getter_learns_of_close(make: Make) -> None:
    """A waiting get raises Closed when no more messages can come."""
    with Communicators(make) as communicators, ThreadPoolExecutor(2) as threads:
        server, client = communicators.pair()
        of_server = threads.submit(client.get)
        of_client = threads.submit(server.get, client.id)
        client.close(LIMIT)
        assert isinstance(of_server.exception(LIMIT), Closed)
        error = of_client.exception(LIMIT)
        assert isinstance(error, Closed)
        assert error.peer == client.id


def _get(communicator: Communicator, count: int) -> list[Any]:
    return [communicator.get(timeout=LIMIT).data for _ in range(count)]


def _put(communicator: Communicator, thread: int, count: int) -> None:
    for number in range(count):
        communicator.put((thread, number))


def _times_out(communicator: Communicator, *peers: Any, timeout: float) -> bool:
    try:
        communicator.get(*peers, timeout=timeout)
    except TimeoutError:
        return True
    return False


CHECKS = (
    check_get_from,
    check_get_is_fair,
    check_get_timeout,
    check_several_getters,
    check_getters_of_different_peers,
    check_many_threads,
    check_getter_learns_of_close,
)
