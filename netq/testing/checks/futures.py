"""The future of a put: when it is done, and its errors."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from netq.core import Communicator
from netq.errors import Closed, MessageTooLarge, QueueFull
from netq.runtime.delivery import Delivery
from netq.testing.fixtures import LIMIT, Communicators, Make, introduce

_E = TypeVar("_E", bound=Exception)

NARROW = 1  # window of one message: the second waits until the first is taken


def check_done_means_held(make: Make) -> None:
    """A future is done only when the peer has the message, which it can then get without waiting."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(window=NARROW)
        first, second = client.put("first"), client.put("second")
        first.result(LIMIT)
        _let_all_arrive(server, client)
        assert not second.done(), "done, though the peer had no room for it"
        assert server.get(timeout=0).data == "first"
        second.result(LIMIT)
        assert server.get(timeout=0).data == "second"


def check_cancel_queued(make: Make) -> None:
    """A queued message can be cancelled: the peer never gets it, and other messages are not affected."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(window=NARROW)
        first, second, third, fourth = (client.put(text) for text in ("first", "second", "third", "fourth"))
        first.result(LIMIT)
        assert second.cancel(), "it was queued, and could not be cancelled"
        assert third.cancel()
        assert second.cancelled()
        assert _is_raised(CancelledError, lambda: second.result(0))
        assert [server.get(timeout=LIMIT).data for _ in range(2)] == ["first", "fourth"]
        fourth.result(LIMIT)
        assert client.statistics()[server.id].messages_out == 3, "the greeting and two"


def check_cancel_begun(make: Make) -> None:
    """A message can be cancelled after a part of it was sent."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(window=100_000, transport_size=10_000)
        first = client.put(bytes(70_000))
        large = client.put(bytes(1_000_000), lane=1)
        first.result(LIMIT)
        cancelled = large.cancel()
        client.put("last", lane=1)
        sizes = [len(server.get(timeout=LIMIT).data) for _ in range(2 if cancelled else 3)]
        assert sorted(sizes) == [4, 70_000] + [1_000_000] * (not cancelled), f"{cancelled=}"
        assert large.cancelled() is cancelled


def check_cancel_frees(make: Make) -> None:
    """The memory of a cancelled message is released at once, whether it was queued or being sent."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(window=NARROW, memory=1)
        client.put("fills").result(LIMIT)
        begun, queued = bytearray(8 * 2**20), bytearray(8 * 2**20)
        futures = [client.put(begun, lane=1), client.put(queued, lane=1)]
        client.put("passes", lane=2)
        _let_all_arrive(server, client)
        assert all(future.cancel() for future in futures)
        client.statistics()  # waits for a turn of the loop, which handles the cancel
        begun.clear()  # raises BufferError while there is a view of it
        queued.clear()
        client.put("next", lane=1)
        assert sorted(server.get(timeout=LIMIT).data for _ in range(3)) == ["fills", "next", "passes"]


def check_cancel_too_late(make: Make) -> None:
    """A message that the peer has cannot be cancelled."""
    with Communicators(make) as communicators:
        server, client = communicators.pair()
        future = client.put("here")
        future.result(LIMIT)
        assert not future.cancel()
        assert server.get(timeout=0).data == "here"


def check_cancel_broadcast(make: Make) -> None:
    """Cancelling a put to several peers withdraws it from those that do not have it; True if none has it."""
    with Communicators(make) as communicators:
        server = communicators.server()
        narrow, wide = communicators.client(server.netloc, window=NARROW), communicators.client(server.netloc)
        introduce(server, narrow, wide)
        server.put("fills it", narrow.id).result(LIMIT)
        both = server.put("both", narrow.id, wide.id)
        to_narrow, to_wide = both.futures
        to_wide.result(LIMIT)
        assert not both.cancel(), "one of them has it"
        assert to_narrow.cancelled()
        both.result(LIMIT)
        assert wide.get(timeout=0).data == "both"
        one = server.put("to one, then cancelled", narrow.id)
        assert one.cancel()
        assert narrow.get(timeout=LIMIT).data == "fills it"
        server.put("next", narrow.id).result(LIMIT)
        assert narrow.get(timeout=0).data == "next"


def check_cancel_all(make: Make) -> None:
    """A put to several peers is cancelled if all of its futures are."""
    with Communicators(make) as communicators:
        server = communicators.server()
        clients = [communicators.client(server.netloc, window=NARROW) for _ in range(2)]
        introduce(server, *clients)
        server.put("fills them").result(LIMIT)
        both = server.put("to all")
        assert both.cancel()
        assert both.cancelled()
        assert _is_raised(CancelledError, lambda: both.result(LIMIT))
        for client in clients:
            assert client.get(timeout=LIMIT).data == "fills them"


def check_queue_full(make: Make) -> None:
    """Messages beyond queue_size fail with QueueFull; the earlier ones are delivered."""
    with Communicators(make) as communicators:
        server = communicators.server(window=NARROW)
        client = communicators.client(server.netloc, queue_size=3)
        introduce(server, client)
        client.put("held").result(LIMIT)
        futures = [client.put(number) for number in range(5)]
        for future in futures[3:]:
            error = _error(QueueFull, future)
            assert error.peer == server.id
            assert "3 messages" in str(error)
        assert [server.get(timeout=LIMIT).data for _ in range(4)] == ["held", 0, 1, 2]


def check_drop_oldest(make: Make) -> None:
    """With drop_oldest, the newest `queue_size` messages of a lane wait; the older ones fail with QueueFull."""
    with Communicators(make) as communicators:
        server = communicators.server(window=NARROW)
        client = communicators.client(server.netloc, queue_size=2, drop_oldest=True)
        introduce(server, client)
        client.put("held").result(LIMIT)
        client.put("held", lane=1).result(LIMIT)
        other = client.put("other", lane=1)
        futures = [client.put(number) for number in range(60)]
        for future in futures[:-2]:
            error = _error(QueueFull, future)
            assert error.peer == server.id
            assert error.dropped
        got = [server.get(timeout=LIMIT).data for _ in range(5)]
        assert sorted(map(str, got)) == ["58", "59", "held", "held", "other"]
        for future in (other, *futures[-2:]):
            future.result(LIMIT)


def check_message_too_large(make: Make) -> None:
    """A message above the peer's message_size fails, also if it was put before that size was known."""
    with Communicators(make) as communicators:
        netloc = communicators.unused_address()
        client = communicators.client(netloc)
        early, small = client.put(bytes(2000)), client.put("small")
        server = communicators.server(netloc, message_size=1000)
        small.result(LIMIT)
        for future in (early, client.put(bytes(3000))):
            error = _error(MessageTooLarge, future)
            assert error.peer == server.id
        assert server.get(timeout=LIMIT).data == "small"
        client.put("next").result(LIMIT)
        assert server.get(timeout=LIMIT).data == "next"


def check_unknown_peer(make: Make) -> None:
    """A put to an unknown id fails with Closed, which names the id; the other peers get the message."""
    with Communicators(make) as communicators:
        server, client = communicators.pair()
        unknown = uuid.uuid4()
        for communicator in (server, client):
            assert _error(Closed, communicator.put("?", unknown)).peer == unknown
        both = server.put("both", unknown, client.id)
        assert _error(Closed, both).peer == unknown
        assert both.futures[1].exception(LIMIT) is None
        assert client.get(timeout=LIMIT).data == "both"


def check_put_raises(make: Make) -> None:
    """Data that cannot be serialised and invalid lanes raise in put."""
    with Communicators(make) as communicators:
        server, client = communicators.pair()
        assert _is_raised(Exception, lambda: client.put(lambda: None))
        for lane in (-1, 16):
            assert _is_raised(ValueError, functools.partial(client.put, "x", lane=lane)), f"lane {lane}"
        client.put("good").result(LIMIT)
        assert server.get(timeout=LIMIT).data == "good"


def _let_all_arrive(server: Communicator, client: Communicator) -> None:
    """Send small messages both ways, so that everything that can arrive has arrived."""
    for _ in range(3):
        server.put("passing", client.id).result(LIMIT)
        assert client.get(timeout=LIMIT).data == "passing"


def _error(kind: type[_E], future: Delivery) -> _E:
    error = future.exception(LIMIT)
    assert isinstance(error, kind), f"expected {kind.__name__}, got {error!r}"
    return error


def _is_raised(kind: type[BaseException], function: Callable[[], Any]) -> bool:
    try:
        function()
    except kind:
        return True
    return False


CHECKS = (
    check_done_means_held,
    check_cancel_queued,
    check_cancel_begun,
    check_cancel_frees,
    check_cancel_too_late,
    check_cancel_broadcast,
    check_cancel_all,
    check_queue_full,
    check_drop_oldest,
    check_message_too_large,
    check_unknown_peer,
    check_put_raises,
)
