"""What put returns."""

from __future__ import annotations

import asyncio
import collections
import queue
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, cast

import pytest

from netq.errors import Closed
from netq.io.baton import Baton
from netq.io.locks import is_owned
from netq.io.loop import Loop
from netq.protocol.codec import Outgoing, settle
from netq.runtime.delivery import Copy, Delivery, Guard, gather
from netq.runtime.undelivered import Undelivered
from netq.testing.log import LogRecorder
from netq.utils.stream import Stream

A, B, C = (uuid.UUID(int=number) for number in (1, 2, 3))
LIMIT = 20.0


class AtOnce:
    """A guard without a loop: what is to be done afterwards is done at once, or when the lock is free."""

    wanted = False
    forked = False

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ledger = Undelivered(cast(Any, None))
        self.ledger.closing = True  # it has no loop to log in
        self._afterwards: collections.deque[tuple[Callable[..., object], tuple[Any, ...]]] = collections.deque()

    def check_not_forked(self, what: str) -> None:
        pass

    def defer(self, function: Callable[..., object], *args: Any) -> None:
        self._afterwards.append((function, args))
        self.run_late_deferred()

    def turn(self) -> None:
        while self._afterwards:
            function, args = self._afterwards.popleft()
            function(*args)

    def wait_lock(self, name: str) -> threading.Lock:
        return threading.Lock()

    def poll(self, wait_lock: threading.Lock, deadline: float) -> bool:
        return False

    def try_hold(self, function: Callable[[], object], seconds: float = 0.0) -> bool:
        with self.lock:
            function()
        self.run_late_deferred()
        return True

    def run_late_deferred(self) -> None:
        if not is_owned(self.lock):
            self.turn()

    def stop_polling(self) -> None:
        pass

    def wait(
        self,
        come: Callable[[], bool],
        deadline: float,
        line_up: Callable[[Callable[[], object]], object],
        leave: Callable[[], object],
        name: str,
    ) -> bool:
        """Look again when it is woken, and only then."""
        bed = threading.Lock()
        bed.acquire()
        line_up(bed.release)
        try:
            while not come():
                if not bed.acquire(timeout=min(max(0.0, deadline - time.monotonic()), LIMIT)):
                    return False
            return True
        finally:
            leave()


class Later(AtOnce):
    """One whose loop is busy: what is to be done afterwards is done in the next turn."""

    def run_late_deferred(self) -> None:
        pass


class Elsewhere(AtOnce):
    """One with a thread for what is to be done afterwards."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        super().__init__()
        self._thread = thread

    def defer(self, function: Callable[..., object], *args: Any) -> None:
        self._thread.submit(function, *args)


@pytest.fixture(params=["another thread", "a loop of its own", "a loop that is shared"])
def guard(request: pytest.FixtureRequest) -> Iterator[Guard]:
    """A guard for tests of several threads."""
    if request.param == "another thread":
        with ThreadPoolExecutor(1) as thread:
            yield Elsewhere(thread)
        return
    crashes: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    loop = Loop("test", crashes.put, shared=request.param == "a loop that is shared")
    loop.baton.ledger = Undelivered(loop)
    loop.start()
    yield loop.baton
    loop.stop()
    loop.join()
    assert crashes.empty()


def message(
    peer: uuid.UUID | None = A, guard: Guard | None = None, recall: Callable[..., object] | None = None
) -> Delivery:
    made = Delivery(Stream([b"a message"]))
    made.peer, made.guard, made.recall = peer, guard or AtOnce(), recall
    return made


def deliveries(guard: Guard | None = None) -> list[Delivery]:
    return [message(peer, guard) for peer in (A, B, C)]


def ack(part: Delivery) -> None:
    with part.guard.lock:
        part.acked()
    part.guard.run_late_deferred()


def leave(part: Delivery) -> bool:
    """Send the last of its bytes, as the sender does; return whether it has not been cancelled."""
    with part.guard.lock:
        part.left = not part.withdrawn
        return part.left


def submit(guard: Guard, threads: ThreadPoolExecutor, function: Callable[[], object]) -> None:
    """Run it in another thread: in the loop's if that is shared, because only that wakes a user's thread that polls."""
    if isinstance(guard, Baton) and guard._shared:
        guard.defer(function)
    else:
        threads.submit(function)


def as_completed(parts: list[Delivery]) -> Iterator[Delivery]:
    return futures.as_completed(parts, LIMIT)  # type: ignore[arg-type,return-value]


def test_one_is_itself() -> None:
    one = message()
    assert gather(AtOnce(), [one]) is one
    assert one.futures == (one,)


def test_none_is_done() -> None:
    gather(AtOnce(), []).result(0)


def test_repr_says_to_whom() -> None:
    wholes = [gather(AtOnce(), parts) for parts in (deliveries(), deliveries()[:1], [])]
    assert [repr(whole) for whole in (*wholes, message(None))] == [
        "<Delivery to 3 peers state=pending>",
        f"<Delivery to {A} state=pending>",
        "<Delivery to 0 peers state=finished>",
        "<Delivery to the server state=pending>",
    ]


def test_several_are_done_when_all_are() -> None:
    parts = deliveries()
    whole = gather(AtOnce(), parts)
    assert whole.futures == tuple(parts)
    for part in parts:
        assert not whole.done()
        ack(part)
    whole.result(0)


def test_the_first_error_by_peer_is_raised_when_all_are_done() -> None:
    parts = deliveries()
    whole = gather(AtOnce(), parts)
    parts[2].fail(Closed(C))
    parts[1].fail(Closed(B))
    assert not whole.done()
    ack(parts[0])
    with pytest.raises(Closed) as raised:
        whole.result(0)
    assert raised.value.peer == B


def test_a_timeout_of_result_leaves_nothing_behind() -> None:
    part = message()
    with pytest.raises(TimeoutError):
        part.result(0)
    assert not part._listeners
    ack(part)
    part.result(0)


def test_cancel_withdraws_once_and_frees_the_memory() -> None:
    recalled: list[Outgoing] = []
    one = message(recall=recalled.append)
    assert one.cancel()
    assert one.cancelled()
    assert one._state == "CANCELLED_AND_NOTIFIED"
    assert (one.withdrawn, len(one.data), one.size) == (True, 0, len(b"a message"))
    one.cancel()
    assert recalled == [one]


def test_a_message_that_has_left_cannot_be_cancelled() -> None:
    recalled: list[Outgoing] = []
    one = message(recall=recalled.append)
    assert not one.running()
    assert leave(one)
    assert one.running()
    assert not one.cancel()
    ack(one)
    assert not one.running()
    assert not one.cancel()
    assert recalled == []
    assert len(one.data) == 0


def test_a_handler_cannot_cancel_while_its_thread_sends() -> None:
    recalled: list[Outgoing] = []
    one = message(recall=recalled.append)
    with one.guard.lock:
        assert not one.cancel()
    assert (one.done(), one.withdrawn, recalled) == (False, False, [])
    assert one.cancel()


def test_a_failed_delivery_stays_failed() -> None:
    one, first = message(), Closed(A)
    assert one.fail(first)
    assert not one.fail(Closed(B))
    assert not one.cancel()
    ack(one)
    assert one.exception(0) is first
    assert len(one.data) == 0


def test_a_whole_is_cancelled_when_all_parts_are() -> None:
    parts = deliveries()
    whole = gather(AtOnce(), parts)
    assert whole.cancel()
    assert all(part.cancelled() for part in parts)
    with pytest.raises(CancelledError):
        whole.result(0)


@pytest.mark.parametrize("looked", [False, True], ids=["", "after futures.wait"])
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_cancel_takes_effect_at_once_on_a_busy_loop(several: bool, looked: bool) -> None:
    guard = Later()
    parts = deliveries(guard) if several else [message(A, guard)]
    whole = gather(guard, parts)
    if looked:
        assert futures.wait([whole, *parts], 0).done == set()
    assert whole.cancel()
    assert [part._state for part in parts] == ["CANCELLED_AND_NOTIFIED"] * len(parts)
    assert whole._state == "CANCELLED_AND_NOTIFIED"
    guard.turn()
    assert whole.cancelled()


def test_cancel_takes_back_the_parts_that_it_can() -> None:
    parts = deliveries()
    whole = gather(AtOnce(), parts)
    leave(parts[1])
    assert not whole.cancel()
    assert [part.cancelled() for part in parts] == [True, False, True]
    assert not whole.done()
    ack(parts[1])
    whole.result(0)


def test_an_error_counts_though_the_others_are_cancelled() -> None:
    parts = deliveries()
    whole = gather(AtOnce(), parts)
    leave(parts[0])
    whole.cancel()
    parts[0].fail(Closed(A))
    assert isinstance(whole.exception(0), Closed)


def test_the_last_two_may_be_done_at_once_in_two_threads() -> None:
    with ThreadPoolExecutor(3) as threads:
        for number in range(300):
            parts = deliveries()  # each with a guard of its own, as if it had a loop of its own
            whole = gather(AtOnce(), parts)
            gate = threading.Barrier(3)

            def finish(part: Delivery, gate: threading.Barrier = gate, cancel: bool = bool(number % 2)) -> None:
                gate.wait(LIMIT)
                if cancel:
                    part.cancel()
                else:
                    ack(part)

            finishing = [threads.submit(finish, part) for part in parts]
            for future in finishing:
                assert future.exception(LIMIT) is None
            assert whole.done()
            assert whole.cancelled() is bool(number % 2)


def test_a_callback_that_ends_the_thread_ends_only_itself(log: LogRecorder) -> None:
    (part,) = deliveries()[:1]
    leave(part)
    called: list[futures.Future[None]] = []
    part.add_done_callback(lambda future: sys.exit("out"))
    part.add_done_callback(called.append)
    ack(part)
    assert part.done()
    assert called == [part]
    log.wait("a callback of a delivery failed")


def test_concurrent_futures_wait_sees_the_end() -> None:
    parts = deliveries()
    ack(parts[0])
    assert futures.wait(parts, 0).done == {parts[0]}
    one_by_one = as_completed(parts)
    assert next(one_by_one) is parts[0]
    parts[2].fail(Closed(C))
    assert next(one_by_one) is parts[2]
    assert futures.wait(parts, 0, futures.FIRST_EXCEPTION).not_done == {parts[1]}
    parts[1].cancel()
    assert next(one_by_one) is parts[1]
    assert futures.wait(parts, 0).not_done == set()


async def _hear(part: Delivery) -> None:
    await asyncio.wait_for(asyncio.wrap_future(part), LIMIT)


def _called(part: Delivery) -> threading.Event:
    event = threading.Event()
    part.add_done_callback(lambda future: event.set())
    return event


WAYS: list[Callable[[Delivery], object]] = [
    lambda part: part.result(LIMIT),
    lambda part: futures.wait([part], LIMIT).not_done or "done",
    lambda part: list(as_completed([part])) == [part],
    lambda part: _called(part).wait(LIMIT),
    lambda part: asyncio.run(_hear(part)),
]


def test_all_ways_to_hear_of_it_at_the_moment_when_it_comes(guard: Guard) -> None:
    """Each begins to listen while another thread settles: none misses it."""
    with ThreadPoolExecutor(1) as threads:
        for number in range(600):
            part, gate, settled = message(A, guard), threading.Barrier(2), threading.Event()
            leave(part)

            def settle(
                part: Delivery = part, gate: threading.Barrier = gate, settled: threading.Event = settled
            ) -> None:
                gate.wait(LIMIT)
                ack(part)
                settled.set()

            submit(guard, threads, settle)
            gate.wait(LIMIT)
            assert WAYS[number % len(WAYS)](part) in (None, "done", True)
            assert settled.wait(LIMIT)


def test_two_ways_to_hear_of_it_at_the_moment_when_it_comes(guard: Guard) -> None:
    """One listens already, with the library of futures."""
    with ThreadPoolExecutor(1) as threads:
        for number in range(600):
            part, gate, settled = message(A, guard), threading.Barrier(2), threading.Event()
            leave(part)
            assert futures.wait([part], 0).not_done == {part}

            def settle(
                part: Delivery = part, gate: threading.Barrier = gate, settled: threading.Event = settled
            ) -> None:
                gate.wait(LIMIT)
                ack(part)
                settled.set()

            submit(guard, threads, settle)
            gate.wait(LIMIT)
            assert WAYS[number % len(WAYS)](part) in (None, "done", True)
            assert settled.wait(LIMIT)


def test_wait_sees_parts_that_end_in_each_way(guard: Guard) -> None:
    with ThreadPoolExecutor(2) as threads:
        for number in range(200):
            parts, gate, finished = deliveries(guard), threading.Barrier(2), threading.Semaphore(0)
            whole = gather(guard, parts)
            leave(parts[0])

            def settle(
                parts: list[Delivery] = parts,
                gate: threading.Barrier = gate,
                finished: threading.Semaphore = finished,
            ) -> None:
                gate.wait(LIMIT)
                ack(parts[0])
                parts[1].fail(Closed(B))
                finished.release()

            submit(guard, threads, settle)
            gate.wait(LIMIT)
            cancelling = threads.submit(parts[2].cancel)
            waited: list[Delivery] = [*parts, whole]
            if number % 2:
                assert futures.wait(waited, LIMIT).not_done == set()
            else:
                found = list(as_completed(waited))
                assert len(found) == len(waited)
                assert set(found) == set(waited)
            assert cancelling.result(LIMIT)
            assert finished.acquire(timeout=LIMIT)
            assert parts[0].exception(0) is None
            assert isinstance(parts[1].exception(0), Closed)
            assert parts[2].cancelled()
            assert isinstance(whole.exception(0), Closed)


def test_cancel_or_leave_just_one_of_them_wins() -> None:
    with ThreadPoolExecutor(2) as threads:
        for _ in range(600):
            part, gate = message(), threading.Barrier(2)

            def send(part: Delivery = part, gate: threading.Barrier = gate) -> bool:
                gate.wait(LIMIT)
                return leave(part)

            sending = threads.submit(send)
            gate.wait(LIMIT)
            assert part.cancel() is not sending.result(LIMIT)
            assert part.cancelled() is not part.running()


def test_a_callback_runs_exactly_once() -> None:
    """Or concurrent.futures.wait counts it twice, and returns while another is pending."""
    part, states = message(), list[str]()

    class Watched(threading.Condition):
        def __enter__(self) -> bool:
            states.append(part._state)
            return super().__enter__()

    assert part._condition
    cast(Any, part)._made = Watched()
    leave(part)
    ack(part)
    assert states == ["PENDING"], "it is not done before it has the lock of the waiting threads"
    assert part.done()


def test_a_callback_added_during_the_end_runs() -> None:
    guard = Later()
    part = message(A, guard)
    leave(part)
    assert futures.wait([part], 0).not_done == {part}  # a thread has looked, and may look again
    ack(part)
    assert not part.cancel()
    called: list[futures.Future[None]] = []
    part.add_done_callback(called.append)
    guard.turn()
    assert futures.wait([part], 0).done == {part}
    assert called == [part]


def test_the_first_end_counts_however_busy_the_loop_is() -> None:
    guard = Later()
    acked, failed = message(A, guard), message(B, guard)
    assert futures.wait([acked, failed], 0).done == set()
    first = Closed(B)
    ack(acked)
    assert failed.fail(first)
    late = [acked.fail(Closed(A)), failed.fail(Closed(C)), failed.cancel()]
    ack(failed)
    guard.turn()
    assert acked.exception(0) is None
    assert failed.exception(0) is first
    assert late == [False, False, False]


def test_an_exception_of_a_callback_does_not_reach_cancel(log: LogRecorder) -> None:
    part = message()
    part.add_done_callback(_interrupted)
    assert part.cancel()
    assert part.cancelled()
    log.wait("a callback of a delivery failed")


def test_an_interrupt_in_a_callback_reaches_the_thread_that_adds_it() -> None:
    part = message()
    part.cancel()
    with pytest.raises(KeyboardInterrupt):
        part.add_done_callback(_interrupted)


def test_signal_handler_in_a_callback_interrupts_the_caller() -> None:
    class TimeIsUp(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise TimeIsUp

    part = message()
    part.cancel()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeIsUp):
            part.add_done_callback(lambda future: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)


def _interrupted(part: object) -> None:
    raise KeyboardInterrupt


def test_a_copy_tells_its_failure_once_and_frees_its_bytes() -> None:
    guard, told = Later(), list[tuple[uuid.UUID, Exception]]()
    copy = Copy(Stream([b"a message"]), 0, (A, B))
    copy.peer, copy.guard, copy.failed = A, guard, lambda peer, error: told.append((peer, error))
    assert copy.fail(first := Closed(A))
    assert not copy.fail(Closed(B))
    assert (told, len(copy.data)) == ([], 0)  # the loop tells it, without the baton
    guard.turn()
    assert told == [(A, first)]


def test_a_copy_that_was_acknowledged_cannot_fail() -> None:
    told: list[uuid.UUID] = []
    copy = Copy(b"a message")
    copy.peer, copy.guard, copy.failed = A, AtOnce(), lambda peer, error: told.append(peer)
    copy.number = 1
    assert settle(collections.deque([copy]), 1) == (1, 9)
    assert not copy.fail(Closed(A))
    assert (told, len(copy.data)) == ([], 0)


def test_settle_ends_a_delivery_whether_it_is_watched_or_not() -> None:
    plain, called, waited = (message() for _ in range(3))
    told: list[object] = []
    called.add_done_callback(told.append)
    assert waited._condition
    assert [one.watched for one in (plain, called, waited)] == [False, True, True]
    with waited.guard.lock:
        assert settle(collections.deque([plain, called, waited]), 0) == (3, 27)
    assert (plain.done(), called.done(), told) == (True, True, [called])
    assert not waited.done(), "it is not done before it has the lock of the waiting threads"
    waited.guard.run_late_deferred()
    assert all(one.done() and one.exception(0) is None for one in (plain, called, waited))
