"""Where messages wait for get."""

from __future__ import annotations

import itertools
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
from typing import Any

import pytest

import netq.inbox
from netq.errors import Closed
from netq.inbox import Inbox, Waiter
from netq.room import Item, Room
from netq.utils.stream import Stream

A, B, C = (uuid.UUID(int=number) for number in (1, 2, 3))
LIMIT = 20.0


def item(peer: uuid.UUID, text: str = "", room: Room | None = None, cost: int = 1) -> Item:
    return Item(peer, Stream([text.encode()]), room or Room(lambda cost: None, 2**60), cost)


def take(inbox: Inbox, *peers: uuid.UUID) -> tuple[uuid.UUID, str]:
    taken = inbox.take(*peers, timeout=0)
    return taken.peer, bytes(taken.stream).decode()


@contextmanager
def each_step(function: Callable[[], object], step: str = "opcode") -> Iterator[None]:
    """Call a function before each bytecode of netq/inbox.py in this thread; or at each "call" of what is there."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != netq.inbox.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == step:
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
    return {waiter for line in tuple(inbox._lines.values()) for waiter in tuple(line.values())}


def waiting(threads: ThreadPoolExecutor, inbox: Inbox, *peers: uuid.UUID) -> Future[Item]:
    """Start to take, and return when it waits."""
    before = len(waiters(inbox))
    future = threads.submit(inbox.take, *peers, timeout=LIMIT)
    while len(waiters(inbox)) == before and not future.done():
        threading.Event().wait(0.001)
    return future


def test_messages_of_a_peer_come_in_order() -> None:
    inbox = Inbox()
    inbox.deliver([item(A, "1"), item(A, "2")])
    inbox.deliver([item(A, "3")])
    assert [take(inbox)[1] for _ in range(3)] == ["1", "2", "3"]


def test_peers_are_served_in_turn() -> None:
    inbox = Inbox()
    inbox.deliver([item(A, str(number)) for number in range(4)])
    inbox.deliver([item(B, "0"), item(B, "1"), item(C, "0")])
    got = [take(inbox) for _ in range(7)]
    assert [peer for peer, _ in got] == [A, B, C, A, B, A, A]
    assert [text for peer, text in got if peer == A] == ["0", "1", "2", "3"]


def test_peers_that_are_named_are_served_in_turn_too() -> None:
    inbox = Inbox()
    inbox.deliver([item(A, str(number)) for number in range(3)])
    inbox.deliver([item(B, "0"), item(C, "0"), item(B, "1")])
    assert [take(inbox, A, B) for _ in range(4)] == [(A, "0"), (B, "0"), (A, "1"), (B, "1")]
    assert take(inbox, C, B) == (C, "0")
    with pytest.raises(TimeoutError):
        take(inbox, B, C)
    assert take(inbox) == (A, "2")


def test_those_who_wait_are_served_in_the_order_of_their_coming() -> None:
    inbox = Inbox()
    with ThreadPoolExecutor() as threads:
        waits = [waiting(threads, inbox, *peers) for peers in ((A,), (), (A, B), (B,))]
        for number, (wait, peer) in enumerate(zip(waits, (A, B, A, B), strict=True)):
            inbox.deliver([item(peer, str(number))])
            assert len(waiters(inbox)) == len(waits) - number - 1
            assert bytes(wait.result(LIMIT).stream) == str(number).encode()


def test_deliver_says_whether_somebody_waited_for_it() -> None:
    inbox = Inbox()
    assert not inbox.deliver([item(A, "nobody waits")])
    enter(inbox, A)
    waits = enter(inbox, B)
    assert not inbox.deliver([item(A, "nobody waits for this, the first is there")])
    assert inbox.deliver([item(A, "another"), item(B)])
    assert waits.served
    assert not inbox.deliver([item(B)])


def test_a_waiter_is_woken_once_and_takes_for_good_when_it_accepts() -> None:
    inbox, woken, reported = Inbox(), list[None](), list[int]()
    waiter = Waiter((A,), lambda: woken.append(None))
    inbox.enter(waiter)
    inbox.deliver([item(B)])
    assert not waiter.served
    inbox.deliver([item(A, "1", Room(reported.append, 1), 5), item(A, "2")])
    assert waiter.served
    assert (len(woken), reported) == (1, [])
    assert bytes(inbox.accept(waiter).stream) == b"1"
    assert (len(woken), reported) == (1, [5])
    inbox.leave(waiter)
    assert take(inbox, A) == (A, "2")


def test_what_a_waiter_leaves_comes_first_to_the_next() -> None:
    inbox, woken = Inbox(), list[str]()
    first, second = (Waiter((), partial(woken.append, name)) for name in ("first", "second"))
    inbox.enter(first)
    inbox.enter(second)
    inbox.deliver([item(A, "1"), item(B, "1"), item(A, "2")])
    inbox.leave(first)
    assert woken == ["first", "second"]
    assert [take(inbox), take(inbox)] == [(A, "1"), (A, "2")]
    third = Waiter((), partial(woken.append, "third"))
    inbox.enter(third)
    inbox.leave(second)
    assert woken == ["first", "second", "third"]
    assert inbox.accept(third).peer == B


def test_a_waiter_that_left_is_not_served() -> None:
    inbox, woken = Inbox(), list[None]()
    waiter = Waiter((), lambda: woken.append(None))
    inbox.enter(waiter)
    inbox.leave(waiter)
    inbox.deliver([item(A)])
    assert not waiter.served
    assert woken == []
    assert take(inbox)[0] == A


def test_timeout_says_how_long() -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no message within 0\.03 s"):
        Inbox().take(timeout=0.03)
    assert time.monotonic() - start >= 0.03


def test_finish_is_raised_after_the_last_message_to_those_who_wait_for_nobody_else() -> None:
    inbox = Inbox()
    inbox.deliver([item(A, "last")])
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


def test_begin_makes_a_peer_expected_again() -> None:
    inbox = Inbox()
    inbox.finish(A, Closed(A))
    inbox.begin(A)
    with pytest.raises(TimeoutError):
        take(inbox, A)


def test_close_is_raised_after_the_last_message_and_the_first_reason_stays() -> None:
    inbox = Inbox()
    inbox.deliver([item(A, "last")])
    inbox.close(Closed(None, "first"))
    inbox.close(Closed(None, "second"))
    assert take(inbox) == (A, "last")
    for peers in ((), (A,), (A, B)):
        with pytest.raises(Closed, match="first"):
            take(inbox, *peers)


def test_each_who_is_told_has_an_error_of_his_own() -> None:
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


def test_those_who_wait_are_woken() -> None:
    inbox = Inbox()
    with ThreadPoolExecutor() as threads:
        of_a, of_b = waiting(threads, inbox, A), waiting(threads, inbox, B)
        inbox.deliver([item(B)])
        assert of_b.result(LIMIT).peer == B
        of_any = waiting(threads, inbox)
        inbox.finish(A, Closed(A))
        assert isinstance(of_a.exception(LIMIT), Closed)
        assert not of_any.done()
        inbox.close(Closed(None))
        assert isinstance(of_any.exception(LIMIT), Closed)


def test_many_threads_take_each_message_once() -> None:
    inbox, got = Inbox(), list[tuple[uuid.UUID, str]]()

    def take_all() -> None:
        while True:
            try:
                taken = inbox.take(timeout=LIMIT)
            except Closed:
                return
            got.append((taken.peer, bytes(taken.stream).decode()))

    def deliver_all(peer: uuid.UUID) -> None:
        for number in range(500):
            inbox.deliver([item(peer, str(number))])

    with ThreadPoolExecutor(8) as threads:
        takers = [threads.submit(take_all) for _ in range(4)]
        for future in [threads.submit(deliver_all, peer) for peer in (A, B, C)]:
            future.result(LIMIT)
        inbox.close(Closed(None))
        for future in takers:
            assert future.exception(LIMIT) is None
    assert Counter(got) == Counter((peer, str(number)) for peer in (A, B, C) for number in range(500))


def test_room_is_reported_in_strides_and_nothing_is_forgotten() -> None:
    inbox, reported = Inbox(), list[int]()
    room = Room(reported.append, stride=10)
    inbox.deliver([item(A, room=room, cost=4) for _ in range(7)])
    for _ in range(7):
        inbox.take(timeout=0)
    assert reported == [12, 12], "28 were taken, 4 are below the stride"


def test_what_several_give_back_comes_in_order_again() -> None:
    inbox = Inbox()
    waiters = [Waiter((A,), lambda: None) for _ in range(3)]
    for waiter in waiters:
        inbox.enter(waiter)
    inbox.deliver([item(A, str(number)) for number in range(4)])
    for number in (1, 0, 2):
        inbox.leave(waiters[number])
    assert [take(inbox)[1] for _ in range(4)] == ["0", "1", "2", "3"]


def test_who_takes_after_another_has_left_takes_in_order() -> None:
    inbox = Inbox()
    first, second, third = (enter(inbox, *peers) for peers in ((), (A,), (A, B)))
    inbox.deliver([item(A, str(number)) for number in range(4)])
    inbox.leave(first)
    assert [bytes(inbox.accept(waiter).stream) for waiter in (second, third)] == [b"0", b"1"]
    assert [take(inbox)[1] for _ in range(2)] == ["2", "3"]


def test_who_is_slow_to_accept_does_not_upset_the_order() -> None:
    inbox = Inbox()
    slow, fast = (enter(inbox) for _ in range(2))
    inbox.deliver([item(A, str(number)) for number in range(3)])
    assert bytes(inbox.accept(fast).stream) == b"0"
    inbox.leave(slow)
    assert [take(inbox)[1] for _ in range(2)] == ["1", "2"]


@pytest.mark.parametrize("peers", [(), (A,), (A, B)])
def test_nobody_is_told_the_end_while_a_message_may_be_given_back(peers: tuple[uuid.UUID, ...]) -> None:
    inbox = Inbox()
    served, waits = enter(inbox, A), enter(inbox, *peers)
    inbox.deliver([item(A, "last")])
    inbox.finish(A, Closed(A))
    inbox.close(Closed(None))
    late = enter(inbox, *peers)
    assert not waits.served
    assert not late.served
    inbox.leave(served)
    assert bytes(inbox.accept(waits).stream) == b"last"
    assert late.served
    with pytest.raises(Closed):
        inbox.accept(late)


def test_the_end_is_told_when_the_last_message_is_taken() -> None:
    inbox = Inbox()
    first, second = enter(inbox, A), enter(inbox, B)
    of_a, of_both, of_any = enter(inbox, A), enter(inbox, A, B), enter(inbox)
    inbox.deliver([item(A), item(B)])
    for peer in (A, B):
        inbox.finish(peer, Closed(peer, "it has closed"))
    inbox.accept(first)
    assert (of_a.served, of_both.served, of_any.served) == (True, False, False)
    inbox.accept(second)
    assert (of_both.served, of_any.served) == (True, False)
    assert of_both.error is not None
    assert of_both.error.peer == A
    inbox.close(Closed(None))
    assert of_any.served


def steps(others: int, *peers: uuid.UUID) -> dict[str, int]:
    """How many bytecodes each call runs while so many others wait for somebody else."""
    inbox, counts = Inbox(), dict[str, int]()
    for number in range(others):
        enter(inbox, *(uuid.UUID(int=1000 + number + more) for more in range(3)))
    waiter, leaver = (Waiter(peers, lambda: None) for _ in range(2))
    calls: dict[str, Callable[[], object]] = {
        "enter": partial(inbox.enter, waiter),
        "enter behind": partial(inbox.enter, leaver),
        "deliver": partial(inbox.deliver, [item(A), item(A)]),
        "accept": partial(inbox.accept, waiter),
        "leave": partial(inbox.leave, leaver),
        "take": partial(inbox.take, *peers),
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
def test_what_an_event_costs_does_not_depend_on_how_many_wait_for_others(peers: tuple[uuid.UUID, ...]) -> None:
    few = steps(1, *peers)
    assert min(few.values()) > 10, "nothing was counted"
    assert steps(200, *peers) == few


def test_what_an_event_costs_does_not_depend_on_how_many_wait_behind() -> None:
    def count(others: int) -> int:
        inbox, counted = Inbox(), list[None]()
        first, *_, last = (enter(inbox) for _ in range(others))
        with each_step(partial(counted.append, None)):
            inbox.deliver([item(A)])
            inbox.accept(first)
            inbox.leave(last)
        return len(counted)

    assert count(200) == count(3)


class Interrupted(Exception):
    """What a signal handler raises."""


def interrupt(step: int, call: Callable[[], object], of: str = "opcode") -> bool:
    """Call, and raise at this step; return whether it came to that."""
    left = itertools.count(step, -1)

    def count() -> None:
        if next(left) == 0:
            raise Interrupted

    try:
        with each_step(count, of):
            call()
    except Interrupted:
        return True
    return False


def test_leave_that_is_interrupted_at_any_step_is_carried_on_by_whoever_comes_next() -> None:
    for step in itertools.count():
        inbox = Inbox()
        first, second, third = enter(inbox), enter(inbox, A), enter(inbox, A, B)
        inbox.deliver([item(A, "0"), item(A, "1")])
        interrupted = interrupt(step, partial(inbox.leave, first))
        inbox.begin(C)  # whoever comes next
        assert (first.served, second.served, third.served) in ((True, True, False), (False, True, True)), f"step {step}"
        assert len(waiters(inbox)) == (not third.served)
        assert interrupted or third.served
        served = [waiter for waiter in (first, second, third) if waiter.served]
        assert [bytes(inbox.accept(waiter).stream) for waiter in served] == [b"0", b"1"], f"step {step}"
        if not interrupted:
            assert step > 100, "hardly a step was interrupted"
            return


def test_take_that_is_interrupted_at_any_step_loses_at_most_what_it_was_returning() -> None:
    for step in itertools.count():
        inbox = Inbox()
        first = enter(inbox)
        inbox.deliver([item(A, str(number)) for number in range(4)])
        interrupted = interrupt(step, partial(inbox.take, A))
        got = [bytes(inbox.accept(first).stream)] + [bytes(inbox.take(timeout=0).stream) for _ in range(2)]
        with suppress(TimeoutError):
            got.append(bytes(inbox.take(timeout=0).stream))
        assert got in ([b"0", b"1", b"2", b"3"], [b"1", b"2", b"3"]), f"step {step}"
        assert not inbox._queues
        if not interrupted:
            assert len(got) == 3
            assert step > 100, "hardly a step was interrupted"
            return


def test_a_take_whose_time_is_up_leaves_nobody_in_line_however_it_is_interrupted() -> None:
    """Where CPython lets a signal handler in: as a function begins."""

    def take(inbox: Inbox) -> None:
        with suppress(TimeoutError):
            inbox.take(A, timeout=0)

    for step in itertools.count():
        inbox = Inbox()
        interrupted = interrupt(step, partial(take, inbox), "call")
        inbox.deliver([item(A)])
        assert bytes(inbox.take(A, timeout=0).stream) == b"", f"step {step}"
        if not interrupted:
            assert step > 5, "hardly a step was interrupted"
            return


def test_the_last_take_that_is_interrupted_at_any_step_tells_the_others_the_end() -> None:
    for step in itertools.count():
        inbox = Inbox()
        first, second = enter(inbox, A), enter(inbox, A)
        inbox.deliver([item(A)])
        inbox.finish(A, Closed(A))

        def accept(inbox: Inbox = inbox, first: Waiter = first) -> None:
            inbox.accept(first)

        interrupted = interrupt(step, accept)
        inbox.leave(first)  # as everybody does whom an exception ends
        assert second.served, f"step {step}"
        assert (second.promised is None) == (second.error is not None)
        if not interrupted:
            assert step > 50, "hardly a step was interrupted"
            return
