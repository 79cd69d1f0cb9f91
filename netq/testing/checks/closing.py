"""Closing: queued messages are delivered, arrived ones can still be got, all other futures fail."""

from __future__ import annotations

import functools
import queue
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from netq.core import Communicator
from netq.errors import Closed
from netq.options import EventOptions
from netq.testing.checks.futures import NARROW
from netq.testing.fixtures import LIMIT, Communicators, Make, introduce


def check_with(make: Make) -> None:
    """The end of a with statement closes the communicator, also after an error."""
    with Communicators(make) as communicators:
        with communicators.server() as server:
            with communicators.client(server.netloc) as client:
                client.put("inside")
            assert server.get(timeout=LIMIT).data == "inside"
            assert _is_closed(client)
        assert _is_closed(server)
        other = communicators.client(server.netloc)
        try:
            with other:
                raise LookupError
        except LookupError:
            assert _is_closed(other)


def check_close_flushes(make: Make) -> None:
    """Close delivers queued messages. The peer can get them afterwards, then get raises Closed."""
    with Communicators(make) as communicators:
        server, client = communicators.pair()
        futures = [client.put(number) for number in range(200)]
        assert client.close(LIMIT) == 0
        assert all(future.done() and future.exception() is None for future in futures)
        assert [server.get(client.id, timeout=LIMIT).data for _ in range(200)] == list(range(200))
        error = _closed(lambda: server.get(client.id, timeout=LIMIT))
        assert error.peer == client.id


def check_close_of_both(make: Make) -> None:
    """Two sides close at once, each with more unsent than a window: neither waits for the other to read."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(window=NARROW)
        futures = [each.put(number) for number in range(20) for each in (server, client)]
        with ThreadPoolExecutor() as pool:
            closing = [pool.submit(each.close, LIMIT) for each in (server, client)]
            assert [each.result() for each in closing] == [0, 0]
        assert all(future.exception(0) is None for future in futures)
        for each in (server, client):
            assert [each.get(timeout=LIMIT).data for _ in range(20)] == list(range(20))


def check_close_waits_for_clients(make: Make) -> None:
    """A closing server delivers its messages, receives those of its clients, and waits for the clients to close."""
    with Communicators(make) as communicators, ThreadPoolExecutor() as pool:
        server = communicators.server()
        clients = [communicators.client(server.netloc) for _ in range(3)]
        introduce(server, *clients)
        outward = [server.put(number) for number in range(100)]
        closing = pool.submit(server.close, LIMIT)
        for client in clients:
            assert [client.get(timeout=LIMIT).data for _ in range(100)] == list(range(100))
            assert _closed(functools.partial(client.get, timeout=LIMIT)).peer == server.id
        for future in [client.put(number) for number in range(2) for client in clients]:
            future.result(LIMIT)
        for late in (server.put("too late"), server.put("too late", clients[0].id)):
            assert isinstance(late.exception(LIMIT), Closed), "a closing server put a new message"
        for client in clients:
            assert [server.get(client.id, timeout=LIMIT).data for _ in range(2)] == [0, 1]
        assert [client.close(LIMIT) for client in clients[1:]] == [0, 0]
        assert not closing.done(), "one client is still connected"
        clients[0].put("the last").result(LIMIT)
        assert clients[0].close(LIMIT) == 0
        assert closing.result(LIMIT) == 2, "the late ones"
        assert all(future.done() and future.exception() is None for future in outward)
        assert server.get(timeout=LIMIT).data == "the last"
        _closed(lambda: server.get(timeout=LIMIT))


def check_close_of_a_server_gives_up(make: Make) -> None:
    """After `timeout` seconds a closing server ends the sessions of its clients, and they do not retry."""
    with Communicators(make) as communicators:
        ended_peers: queue.SimpleQueue[uuid.UUID] = queue.SimpleQueue()
        for unsent in (0, 3):
            server = communicators.server()
            client = communicators.client(
                server.netloc, window=NARROW, linger=10 * LIMIT, events=EventOptions(fin=ended_peers.put)
            )
            introduce(server, client)
            server.put("fills it").result(LIMIT)
            futures = [server.put("never") for _ in range(unsent)]
            assert server.close(timeout=0.05) == unsent
            assert all(isinstance(future.exception(LIMIT), Closed) for future in futures)
            assert ended_peers.get(timeout=LIMIT) == server.id
            error = client.put("too late").exception(LIMIT)
            assert isinstance(error, Closed)
            assert error.args == (server.id,)
            assert client.get(timeout=LIMIT).data == "fills it"
            assert _closed(functools.partial(client.get, timeout=LIMIT)).peer == server.id
            communicators.release(server)


def check_get_after_close(make: Make) -> None:
    """Messages that arrived before close can be got after it."""
    with Communicators(make) as communicators:
        server, client = communicators.pair()
        for future in [server.put(number) for number in range(10)]:
            future.result(LIMIT)
        assert client.close(LIMIT) == 0
        assert [client.get(timeout=0).data for _ in range(10)] == list(range(10))
        for _ in range(2):
            _closed(lambda: client.get(timeout=LIMIT))


def check_put_after_close(make: Make) -> None:
    """A put after close does not raise; its future fails with Closed."""
    with Communicators(make) as communicators:
        server, client = communicators.pair()
        client.close(LIMIT)
        assert isinstance(client.put("too late").exception(LIMIT), Closed)
        assert isinstance(server.put("too late", client.id).exception(LIMIT), Closed)
        server.close(LIMIT)
        for late in (server.put("too late"), server.put("too late", client.id), client.put("too late")):
            error = late.exception(LIMIT)
            assert isinstance(error, Closed)
            assert "this communicator is closed" in str(error)


def check_close_twice(make: Make) -> None:
    """Closing again, and from several threads at once, is harmless."""
    with Communicators(make) as communicators, ThreadPoolExecutor(8) as threads:
        server, client = communicators.pair()
        client.put("last").result(LIMIT)
        closing = [threads.submit(communicator.close, LIMIT) for communicator in (client, server) * 4]
        assert [future.result(LIMIT) for future in closing] == [0] * 8
        assert client.close() == server.close() == 0
        assert server.get(timeout=LIMIT).data == "last"


def check_close_unused(make: Make) -> None:
    """A communicator without a peer closes at once."""
    with Communicators(make) as communicators:
        netloc = communicators.unused_address()
        assert communicators.client(netloc).close(LIMIT) == 0
        assert communicators.server().close(LIMIT) == 0


def check_close_timeout(make: Make) -> None:
    """After its timeout, close returns the number of undelivered messages; their futures fail with Closed."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(window=NARROW)
        held, *waiting = [client.put(number) for number in range(4)]
        held.result(LIMIT)
        waiting.pop().cancel()
        assert client.close(timeout=0.01) == 2, "one is held, two wait, one is cancelled"
        for future in waiting:
            error = future.exception(LIMIT)
            assert isinstance(error, Closed)
            assert error.peer == server.id
        assert server.get(timeout=LIMIT).data == 0
        assert isinstance(client.put("too late").exception(LIMIT), Closed)
        communicators.release(client)


def check_close_without_server(make: Make) -> None:
    """A client that never reached a server gives up after `linger` seconds."""
    with Communicators(make) as communicators:
        client = communicators.client(communicators.unused_address(), linger=0.05)
        future = client.put("no server listens")
        assert client.close(LIMIT) == 1
        error = future.exception(LIMIT)
        assert isinstance(error, Closed)
        assert error.peer is None
        communicators.release(client)


def check_close_in_loop(make: Make) -> None:
    """Close waits for the loop, so it raises when it is called in the loop."""
    with Communicators(make) as communicators:
        raised: list[Exception] = []

        def close(peer: uuid.UUID) -> None:
            try:
                server.close()
            except RuntimeError as error:
                raised.append(error)

        server = communicators.server(events=EventOptions(ini=close))
        introduce(server, communicators.client(server.netloc))
        assert len(raised) == 1, "an event function closed its communicator, which waits for the event"


def _is_closed(communicator: Communicator) -> bool:
    _closed(lambda: communicator.get(timeout=LIMIT))
    return isinstance(communicator.put("x", communicator.id).exception(LIMIT), Closed)


def _closed(function: Callable[[], object]) -> Closed:
    try:
        result = function()
    except Closed as error:
        return error
    raise AssertionError(f"expected Closed, got {result}")


CHECKS = (
    check_with,
    check_close_flushes,
    check_close_of_both,
    check_close_waits_for_clients,
    check_close_of_a_server_gives_up,
    check_get_after_close,
    check_put_after_close,
    check_close_twice,
    check_close_unused,
    check_close_timeout,
    check_close_without_server,
    check_close_in_loop,
)
