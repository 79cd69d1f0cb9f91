"""Where messages wait for get."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, TypeAlias

import pytest

import netq.runtime.inbox
from netq.errors import Closed
from netq.protocol.flow_control import CREDIT
from netq.protocol.memory import Memory
from netq.protocol.receiver import Item, Receiver
from netq.protocol.wire import OVERHEAD
from netq.runtime.inbox import Inbox, Waiter
from netq.testing import loopback
from netq.utils.stream import Stream

A, B, C = (uuid.UUID(int=number) for number in (1, 2, 3))
LIMIT = 20.0
Take: TypeAlias = Callable[..., tuple[uuid.UUID, str]]


class Maker:
    """Makes items as a session does: those of a peer lie one behind the other."""

    def __init__(self) -> None:
        self.receivers = {peer: Receiver(0, 2**20, Memory(), merge=True) for peer in (A, B, C)}
        self._last = dict.fromkeys(self.receivers, 0)

    def __call__(self, peer: uuid.UUID, text: str = "", size: int | None = None) -> Item:
        """Return the next; `size`: how long it is said to be."""
        self._last[peer] += (len(text) if size is None else size) + OVERHEAD
        return peer, Stream([text.encode()]), self.receivers[peer], self._last[peer]

    def consumed(self, peer: uuid.UUID) -> int:
        """How much is counted as taken."""
        receiver = self.receivers[peer]
        return receiver.announce_limit() - CREDIT


@pytest.fixture
def item() -> Maker:
    return Maker()


def arrive(inbox: Inbox, *items: Item) -> bool:
    """Let messages arrive in order, as a loop does; return whether a waiter was served."""
    inbox.arrived.extend(items)
    return inbox.serve_waiters()


def text(item: Item | None) -> str:
    assert item is not None
    assert isinstance(item[1], Stream)
    return bytes(item[1]).decode()


class Wait:
    """One wait in line, as netq/core.py does it."""

    def __init__(self, inbox: Inbox, *peers: uuid.UUID) -> None:
        self._inbox = inbox
        self._bed = threading.Lock()
        self._bed.acquire()
        self._waiter = Waiter(peers, self._wake)
        inbox.enter(self._waiter)

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it is awake already
            self._bed.release()

    def end(self, timeout: float = 0.0) -> Item:
        deadline = time.monotonic() + timeout
        try:
            while True:
                if self._inbox.is_ready(self._waiter):
                    return self._inbox.accept(self._waiter)
                if not self._bed.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
        finally:
            self._inbox.leave(self._waiter)


def in_line(inbox: Inbox, *peers: uuid.UUID) -> tuple[uuid.UUID, str]:
    item = Wait(inbox, *peers).end()
    return item[0], text(item)


def at_once(inbox: Inbox, *peers: uuid.UUID, ahead: bool = False) -> tuple[uuid.UUID, str]:
    item = inbox.take_now(peers, ahead=ahead)
    if item is None:
        raise TimeoutError
    return item[0], text(item)


def ahead(inbox: Inbox, *peers: uuid.UUID) -> tuple[uuid.UUID, str]:
    return at_once(inbox, *peers, ahead=True)


@pytest.fixture(params=[in_line, at_once, ahead])
def take(request: pytest.FixtureRequest) -> Take:
    """Each way to take what is there; TimeoutError if nothing is."""
    way: Take = request.param
    return way


@contextmanager
def each_step(function: Callable[[], object]) -> Iterator[None]:
    """Call a function before each bytecode of the inbox in this thread."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != netq.runtime.inbox.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            function()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def enter(inbox: Inbox, *peers: uuid.UUID) -> Waiter:
    waiter = Waiter(peers, lambda: None)
    inbox.enter(waiter)
    return waiter


def waiters(inbox: Inbox) -> set[Waiter]:
    return {waiter for line in inbox.waiters.values() for waiter in line.values()}


def waiting(threads: ThreadPoolExecutor, inbox: Inbox, *peers: uuid.UUID) -> Future[Item]:
    """Line up, and wait in another thread."""
    return threads.submit(Wait(inbox, *peers).end, LIMIT)


def test_messages_of_a_peer_come_in_order(item: Maker, take: Take) -> None:
    inbox = Inbox()
    arrive(inbox, item(A, "1"), item(A, "2"))
    arrive(inbox, item(A, "3"))
    assert [take(inbox)[1] for _ in range(3)] == ["1", "2", "3"]


def test_more_messages_are_taken_together(item: Maker, take: Take) -> None:
    inbox = Inbox()
    arrive(inbox, item(A, "1"), item(A, "2"), item(B, "3"), item(A, "4"))
    assert [text(each) for each in inbox.take_ready(2)] == ["1", "2"]
    assert [text(each) for each in inbox.take_ready(9)] == ["3", "4"]
    assert inbox.take_ready(9) == []
    assert item.consumed(A) == 3 * (1 + OVERHEAD)
    arrive(inbox, item(A, "5"))
    assert take(inbox) == (A, "5")


def test_more_messages_are_left_to_a_waiter(item: Maker) -> None:
    inbox = Inbox()
    wait = Wait(inbox, A)
    arrive(inbox, item(A, "1"), item(A, "2"))
    assert inbox.take_ready(9) == []
    assert text(wait.end(LIMIT)) == "1"
    assert [text(each) for each in inbox.take_ready(9)] == ["2"]


def test_peers_are_served_in_turn(item: Maker, take: Take) -> None:
    inbox = Inbox()
    arrive(inbox, *[item(A, str(number)) for number in range(4)])
    arrive(inbox, item(B, "0"), item(B, "1"), item(C, "0"))
    got = [take(inbox) for _ in range(7)]
    assert [peer for peer, _ in got] == [A, B, C, A, B, A, A]
    assert [data for peer, data in got if peer == A] == ["0", "1", "2", "3"]


def test_peers_that_are_named_are_served_in_turn_too(item: Maker, take: Take) -> None:
    inbox = Inbox()
    arrive(inbox, *[item(A, str(number)) for number in range(3)])
    arrive(inbox, item(B, "0"), item(C, "0"), item(B, "1"))
    assert [take(inbox, A, B) for _ in range(4)] == [(A, "0"), (B, "0"), (A, "1"), (B, "1")]
    assert take(inbox, C, B) == (C, "0")
    with pytest.raises(TimeoutError):
        take(inbox, B, C)
    assert take(inbox) == (A, "2")


def test_waiters_are_served_in_order_of_arrival(item: Maker) -> None:
    inbox = Inbox()
    with ThreadPoolExecutor() as threads:
        waits = [waiting(threads, inbox, *peers) for peers in ((A,), (), (A, B), (B,))]
        for number, (wait, peer) in enumerate(zip(waits, (A, B, A, B), strict=True)):
            arrive(inbox, item(peer, str(number)))
            assert len(waiters(inbox)) == len(waits) - number - 1
            assert text(wait.result(LIMIT)) == str(number)


def test_serve_waiters_returns_whether_any_was_served(item: Maker) -> None:
    inbox = Inbox()
    assert not arrive(inbox, item(A, "no waiter"))
    enter(inbox, A)
    waits = enter(inbox, B)
    assert not arrive(inbox, item(A, "no waiter for this, the first is there"))
    assert arrive(inbox, item(A, "another"), item(B))
    assert waits.ready
    assert not arrive(inbox, item(B))


def test_a_waiter_is_woken_once_and_takes_on_accept(item: Maker, take: Take) -> None:
    inbox, woken = Inbox(), list[None]()
    waiter = Waiter((A,), lambda: woken.append(None))
    inbox.enter(waiter)
    arrive(inbox, item(B))
    assert not waiter.ready
    first = item(A, "1")
    arrive(inbox, first, item(A, "2"))
    assert waiter.ready
    assert (len(woken), item.consumed(A)) == (1, 0)
    assert text(inbox.accept(waiter)) == "1"
    assert (len(woken), item.consumed(A)) == (1, first[-1])
    inbox.leave(waiter)
    assert take(inbox, A) == (A, "2")


def test_a_message_given_back_is_the_next_one(item: Maker, take: Take) -> None:
    inbox, woken = Inbox(), list[str]()
    first, second = (Waiter((), partial(woken.append, name)) for name in ("first", "second"))
    inbox.enter(first)
    inbox.enter(second)
    arrive(inbox, item(A, "1"), item(B, "1"), item(A, "2"))
    inbox.leave(first)
    assert woken == ["first", "second"]
    assert [take(inbox), take(inbox)] == [(A, "1"), (A, "2")]
    third = Waiter((), partial(woken.append, "third"))
    inbox.enter(third)
    inbox.leave(second)
    assert woken == ["first", "second", "third"]
    taken = inbox.accept(third)
    assert taken is not None
    assert taken[0] == B


@pytest.mark.parametrize("peers", [(), (A, B)])
def test_a_reservation_given_back_gives_the_turn_back(item: Maker, take: Take, peers: tuple[uuid.UUID, ...]) -> None:
    inbox = Inbox()
    waiter = enter(inbox, *peers)
    arrive(inbox, item(A), item(B))
    assert waiter.reserved == A.int
    inbox.leave(waiter)
    assert [take(inbox, *peers)[0] for _ in range(2)] == [A, B]


def test_a_waiter_that_left_is_not_served(item: Maker, take: Take) -> None:
    inbox, woken = Inbox(), list[None]()
    waiter = Waiter((), lambda: woken.append(None))
    inbox.enter(waiter)
    inbox.leave(waiter)
    arrive(inbox, item(A))
    assert not waiter.ready
    assert woken == []
    assert take(inbox)[0] == A


def test_finish_fails_waiters_for_that_peer_only_after_its_last(item: Maker, take: Take) -> None:
    inbox = Inbox()
    arrive(inbox, item(A, "last"))
    inbox.finish(A, Closed(A, "it has closed"))
    assert take(inbox, A) == (A, "last")
    with pytest.raises(Closed, match="it has closed") as raised:
        take(inbox, A)
    assert raised.value.peer == A
    with pytest.raises(TimeoutError):
        take(inbox, A, B)
    with pytest.raises(TimeoutError):
        take(inbox)
    inbox.finish(B, Closed(B))
    with pytest.raises(Closed):
        take(inbox, A, B)


def test_begin_makes_a_peer_expected_again(take: Take) -> None:
    inbox = Inbox()
    inbox.finish(A, Closed(A))
    inbox.expect(A)
    with pytest.raises(TimeoutError):
        take(inbox, A)


def test_close_is_raised_after_the_last_message_and_the_first_reason_stays(item: Maker, take: Take) -> None:
    inbox = Inbox()
    arrive(inbox, item(A, "last"))
    inbox.close(Closed(None, "first"))
    inbox.close(Closed(None, "second"))
    assert take(inbox) == (A, "last")
    for peers in ((), (A,), (A, B)):
        with pytest.raises(Closed, match="first"):
            take(inbox, *peers)


def test_each_waiter_gets_an_error_of_its_own(take: Take) -> None:
    inbox, cause = Inbox(), LookupError("why")
    error = Closed(None)
    error.__cause__ = cause
    inbox.close(error)
    raised = []
    for _ in range(2):
        with pytest.raises(Closed) as info:
            take(inbox)
        raised.append(info.value)
    assert raised[0] is not raised[1]
    assert raised[0].__cause__ is cause


def test_close_wakes_all_waiters(item: Maker) -> None:
    inbox = Inbox()
    with ThreadPoolExecutor() as threads:
        of_a, of_b = waiting(threads, inbox, A), waiting(threads, inbox, B)
        arrive(inbox, item(B))
        assert of_b.result(LIMIT)[0] == B
        of_any = waiting(threads, inbox)
        inbox.finish(A, Closed(A))
        assert isinstance(of_a.exception(LIMIT), Closed)
        assert not of_any.done()
        inbox.close(Closed(None))
        assert isinstance(of_any.exception(LIMIT), Closed)


def test_many_threads_take_each_message_once(item: Maker) -> None:
    inbox, got = Inbox(), list[tuple[uuid.UUID, str]]()

    def take_all() -> None:
        while True:
            try:
                taken = inbox.take_now(()) or Wait(inbox).end(LIMIT)
            except Closed:
                return
            got.append((taken[0], text(taken)))

    def deliver_all(peer: uuid.UUID) -> None:
        for number in range(500):
            arrive(inbox, item(peer, str(number)))

    with ThreadPoolExecutor(8) as threads:
        takers = [threads.submit(take_all) for _ in range(4)]
        for future in [threads.submit(deliver_all, peer) for peer in (A, B, C)]:
            future.result(LIMIT)
        inbox.close(Closed(None))
        for future in takers:
            assert future.exception(LIMIT) is None
    assert Counter(got) == Counter((peer, str(number)) for peer in (A, B, C) for number in range(500))


def test_messages_given_back_by_several_stay_in_order(item: Maker, take: Take) -> None:
    inbox = Inbox()
    waiters = [Waiter((A,), lambda: None) for _ in range(3)]
    for waiter in waiters:
        inbox.enter(waiter)
    arrive(inbox, *[item(A, str(number)) for number in range(4)])
    for number in (1, 0, 2):
        inbox.leave(waiters[number])
    assert [take(inbox)[1] for _ in range(4)] == ["0", "1", "2", "3"]


def test_accept_after_another_left_is_in_order(item: Maker, take: Take) -> None:
    inbox = Inbox()
    first, second, third = (enter(inbox, *peers) for peers in ((), (A,), (A, B)))
    arrive(inbox, *[item(A, str(number)) for number in range(4)])
    inbox.leave(first)
    assert [text(inbox.accept(waiter)) for waiter in (second, third)] == ["0", "1"]
    assert [take(inbox)[1] for _ in range(2)] == ["2", "3"]


def test_a_slow_accept_does_not_change_the_order(item: Maker, take: Take) -> None:
    inbox = Inbox()
    slow, fast = (enter(inbox) for _ in range(2))
    arrive(inbox, *[item(A, str(number)) for number in range(3)])
    assert text(inbox.accept(fast)) == "0"
    inbox.leave(slow)
    assert [take(inbox)[1] for _ in range(2)] == ["1", "2"]


@pytest.mark.parametrize("peers", [(), (A,), (A, B)])
def test_closed_is_not_raised_while_a_message_is_reserved(item: Maker, peers: tuple[uuid.UUID, ...]) -> None:
    inbox = Inbox()
    served, waits = enter(inbox, A), enter(inbox, *peers)
    arrive(inbox, item(A, "last"))
    inbox.finish(A, Closed(A))
    inbox.close(Closed(None))
    late = enter(inbox, *peers)
    assert not waits.ready
    assert not late.ready
    inbox.leave(served)
    assert text(inbox.accept(waits)) == "last"
    assert late.ready
    with pytest.raises(Closed):
        inbox.accept(late)


def test_closed_is_raised_when_the_last_message_is_taken(item: Maker) -> None:
    inbox = Inbox()
    first, second = enter(inbox, A), enter(inbox, B)
    of_a, of_both, of_any = enter(inbox, A), enter(inbox, A, B), enter(inbox)
    arrive(inbox, item(A), item(B))
    for peer in (A, B):
        inbox.finish(peer, Closed(peer, "it has closed"))
    inbox.accept(first)
    assert (of_a.ready, of_both.ready, of_any.ready) == (True, False, False)
    inbox.accept(second)
    assert (of_both.ready, of_any.ready) == (True, False)
    assert of_both.error is not None
    assert of_both.error.peer == A
    inbox.close(Closed(None))
    assert of_any.ready


def steps(others: int, *peers: uuid.UUID) -> dict[str, int]:
    """Count the bytecodes of each call while so many others wait for another peer."""
    inbox, counts, item = Inbox(), dict[str, int](), Maker()
    for number in range(others):
        enter(inbox, *(uuid.UUID(int=1000 + number + more) for more in range(3)))
    waiter, leaver = (Waiter(peers, lambda: None) for _ in range(2))
    calls: dict[str, Callable[[], object]] = {
        "enter": partial(inbox.enter, waiter),
        "enter behind": partial(inbox.enter, leaver),
        "settle": partial(arrive, inbox, item(A), item(A), item(A)),
        "served": partial(inbox.is_ready, waiter),
        "accept": partial(inbox.accept, waiter),
        "leave": partial(inbox.leave, leaver),
        "take": partial(inbox.take_now, peers),
        "take ahead": partial(inbox.take_now, peers, ahead=True),
        "finish": partial(inbox.finish, B, Closed(B)),
    }
    for name, call in calls.items():
        counted = list[None]()
        with each_step(partial(counted.append, None)):
            call()
        counts[name] = len(counted)
    assert len(waiters(inbox)) == others
    return counts


@pytest.mark.parametrize("peers", [(), (A,), (A, B)])
def test_cost_is_independent_of_waiters_for_other_peers(peers: tuple[uuid.UUID, ...]) -> None:
    few = steps(1, *peers)
    assert min(few.values()) > 5, "nothing was counted"
    assert steps(200, *peers) == few


def test_cost_is_independent_of_later_waiters(item: Maker) -> None:
    def count(others: int) -> int:
        inbox, counted = Inbox(), list[None]()
        first, *_, last = (enter(inbox) for _ in range(others))
        with each_step(partial(counted.append, None)):
            arrive(inbox, item(A))
            inbox.accept(first)
            inbox.leave(last)
        return len(counted)

    assert count(200) == count(3)


# What is put back.


def takes(inbox: Inbox, take: Take, count: int) -> list[tuple[uuid.UUID, str]]:
    """Take so many, and nothing else is there."""
    got = [take(inbox) for _ in range(count)]
    with pytest.raises(TimeoutError):
        take(inbox)
    assert not inbox.arrived
    assert not inbox.queues
    return got


def taken(inbox: Inbox, *peers: uuid.UUID) -> Item:
    item = inbox.take_now(peers)
    assert item is not None
    return item


@pytest.mark.parametrize("alone", [False, True], ids=["peers", "one_peer"])
def test_a_message_put_back_is_the_next_of_its_peer(item: Maker, take: Take, alone: bool) -> None:
    inbox = Inbox()
    inbox.expect(A)
    if not alone:
        inbox.expect(B)
    arrive(inbox, item(A, "0"), item(A, "1"))
    first = taken(inbox)
    arrive(inbox, item(A, "2"))
    inbox.put_back(first)
    assert takes(inbox, take, 3) == [(A, "0"), (A, "1"), (A, "2")]


def test_the_last_message_is_put_back(item: Maker, take: Take) -> None:
    inbox = Inbox()
    arrive(inbox, item(A, "0"))
    inbox.put_back(taken(inbox))
    assert takes(inbox, take, 1) == [(A, "0")]
    arrive(inbox, item(A, "1"), item(B, "0"))
    assert takes(inbox, take, 2) == [(A, "1"), (B, "0")]


def test_a_waiter_is_served_with_what_is_put_back(item: Maker) -> None:
    inbox = Inbox()
    arrive(inbox, item(A, "0"))
    first = taken(inbox)
    of_b, of_a, late = enter(inbox, B), enter(inbox, A), enter(inbox)
    inbox.put_back(first)
    assert (of_b.ready, of_a.ready, late.ready) == (False, True, False)
    arrive(inbox, item(A, "1"))
    assert late.ready
    assert (text(inbox.accept(of_a)), text(inbox.accept(late))) == ("0", "1")


def test_a_message_put_back_comes_before_closed(item: Maker, take: Take) -> None:
    inbox = Inbox()
    arrive(inbox, item(A, "0"))
    first = taken(inbox)
    inbox.finish(A, Closed(A))
    inbox.close(Closed(None))
    inbox.put_back(first)
    assert take(inbox, A) == (A, "0")
    for peers in ((), (A,)):
        with pytest.raises(Closed):
            take(inbox, *peers)


def test_room_of_a_message_put_back_counts_once(item: Maker, take: Take) -> None:
    inbox = Inbox()
    arrive(inbox, item(A, size=10), item(A, size=20))
    for _ in range(2):
        inbox.put_back(taken(inbox))
    assert takes(inbox, take, 2) == [(A, ""), (A, "")]
    assert item.consumed(A) == 30 + 2 * OVERHEAD


def test_room_of_later_messages_counts_after_a_message_is_put_back(item: Maker, take: Take) -> None:
    """Another thread has taken the next message meanwhile."""
    inbox = Inbox()
    arrive(inbox, item(A, size=10), item(A, size=20))
    first = taken(inbox)
    take(inbox)
    inbox.put_back(first)
    take(inbox)
    assert item.receivers[A].taken_room == 30 + 2 * OVERHEAD


# What is held.


def test_held_messages_are_not_given_before_release(item: Maker, take: Take) -> None:
    inbox = Inbox()
    arrive(inbox, item(A, "before"), item(A, "too"))
    assert take(inbox) == (A, "before")
    holds = [inbox.hold() for _ in range(2)]
    arrive(inbox, item(A, "0"), item(B, "0"))
    assert take(inbox) == (A, "too")
    for hold in holds:
        for peers in ((), (A,), (A, B)):
            with pytest.raises(TimeoutError):
                take(inbox, *peers)
        inbox.release(hold)
    assert takes(inbox, take, 2) == [(A, "0"), (B, "0")]


def test_waiters_are_served_on_release(item: Maker) -> None:
    inbox = Inbox()
    waiter = enter(inbox, A)
    hold = inbox.hold()
    assert not arrive(inbox, item(A, "held"))
    assert not inbox.is_ready(waiter)
    late = enter(inbox)
    inbox.release(hold)
    assert (waiter.ready, late.ready) == (True, False)
    assert text(inbox.accept(waiter)) == "held"


# The rest.


def test_take_now_leaves_waiters_their_messages_unless_ahead(item: Maker) -> None:
    for is_ahead in (False, True):
        inbox = Inbox()
        waiter = enter(inbox, A)
        inbox.arrived.append(item(A, "0"))
        taken = inbox.take_now((), ahead=is_ahead)
        assert (taken is not None, waiter.ready) == (is_ahead, not is_ahead)
        inbox.arrived.append(item(A, "1"))
        assert inbox.is_ready(waiter)
        assert text(inbox.accept(waiter)) == str(int(is_ahead))


def test_take_now_ahead_serves_waiters_with_the_rest(item: Maker) -> None:
    inbox = Inbox()
    of_a, of_b = enter(inbox, A), enter(inbox, B)
    inbox.arrived.extend([item(A, "0"), item(B, "0"), item(A, "1")])
    assert text(inbox.take_now((), ahead=True)) == "0"
    assert (of_a.ready, of_b.ready) == (True, True)
    assert text(inbox.accept(of_a)) == "1"


def test_take_now_is_refused_in_a_handler_on_top_of_it(item: Maker) -> None:
    inbox = Inbox()
    arrive(inbox, item(A))
    with inbox.lock, pytest.raises(RuntimeError, match="a signal handler has interrupted this very communicator"):
        inbox.take_now(())
    assert inbox.take_now(()) is not None


def test_a_handler_leaves_an_interrupted_sort_to_its_thread(item: Maker) -> None:
    """What it puts is sent at once, and the answer may come with that: those in line are served when it is over."""
    inbox = Inbox()
    waiter = enter(inbox)
    with inbox.lock:
        assert not arrive(inbox, item(A, "0"))
        assert not waiter.ready
        assert len(inbox.arrived) == 1
    assert inbox.is_ready(waiter)
    assert text(inbox.accept(waiter)) == "0"


def test_peers_that_are_over_are_forgotten_when_there_are_many(take: Take) -> None:
    inbox, many = Inbox(), netq.runtime.inbox._REMEMBERED
    peers = [uuid.UUID(int=1000 + number) for number in range(many + 1)]
    for peer in peers:
        inbox.finish(peer, Closed(peer))
    with pytest.raises(TimeoutError):
        take(inbox, peers[0])
    for peer in (peers[1], peers[-1]):
        with pytest.raises(Closed):
            take(inbox, peer)
    assert len(inbox._closed_peers) == many
    assert not inbox.waiters


def test_taken_messages_are_reported_in_steps(item: Maker, take: Take) -> None:
    """Of a window of which a quarter is the stride."""
    inbox, reported = Inbox(), list[int]()

    def attend(receiver: Receiver) -> None:
        assert not inbox.lock._is_owned()  # type: ignore[attr-defined]
        reported.append(receiver.announce_limit() - CREDIT)

    item.receivers[A] = Receiver(0, CREDIT, Memory(), merge=True, request_release=attend)
    size = CREDIT // 10
    arrive(inbox, *[item(A, size=size - OVERHEAD) for _ in range(7)])
    takes(inbox, take, 7)
    assert reported == [3 * size, 6 * size], "7 were taken, 1 is below the stride"


def test_timeout_says_how_long() -> None:
    with loopback.Server() as server:
        for peers in ((), (A,)):
            start = time.monotonic()
            with pytest.raises(TimeoutError, match=r"no message within 0\.03 s"):
                server.get(*peers, timeout=0.03)
            assert time.monotonic() - start >= 0.03


def test_closed_comes_after_the_last_message_though_another_peer_is_held(item: Maker) -> None:
    inbox = Inbox()
    inbox.expect(A)
    arrive(inbox, item(A, "1"), item(A, "2"))
    hold = inbox.hold()  # B begins
    inbox.finish(A, Closed(A, "it has closed"))
    assert inbox.take_now((A,)) is None
    waiter = enter(inbox, A)
    assert not waiter.ready
    inbox.expect(B)
    inbox.release(hold)
    assert text(inbox.accept(waiter)) == "1"
    assert text(inbox.take_now((A,))) == "2"
    with pytest.raises(Closed):
        inbox.take_now((A,))


def test_a_peer_that_ends_during_a_hold_fails_its_waiters_later(item: Maker) -> None:
    inbox = Inbox()
    inbox.expect(A)
    waiter = enter(inbox, A)
    hold = inbox.hold()
    arrive(inbox, item(B, "not yet"))
    inbox.finish(A, Closed(A, "it has closed"))
    assert not waiter.ready
    inbox.release(hold)
    with pytest.raises(Closed):
        inbox.accept(waiter)


def test_messages_of_a_single_peer_are_not_sorted(item: Maker) -> None:
    inbox = Inbox()
    inbox.expect(A)
    arrive(inbox, *(item(A, str(n)) for n in range(4)))
    assert text(inbox.take_now(())) == "0"
    assert not inbox.queues
    inbox.expect(B)
    arrive(inbox, item(B, "b"))
    assert [text(inbox.take_now(())) for _ in range(4)] == ["1", "b", "2", "3"]
