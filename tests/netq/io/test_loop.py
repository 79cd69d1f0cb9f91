"""One thread that runs calls, timers and what waits for sockets."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from netq.io.baton import Phase
from netq.io.loop import Loop
from netq.io.poller import Poller
from netq.io.selector import READ, WRITE
from tests.netq.io.stage import LIMIT, Stage


def test_calls_run_in_the_order_of_the_calls(stage: Stage) -> None:
    done: list[int] = []
    for number in range(1000):
        stage.loop.call(done.append, number)
    stage.rest()
    assert done == list(range(1000))


def test_calls_of_each_thread_run_in_its_order(stage: Stage) -> None:
    done: list[tuple[int, int]] = []

    def call(thread: int) -> None:
        for number in range(500):
            stage.loop.call(done.append, (thread, number))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(call, range(4)))
    stage.rest()
    for thread in range(4):
        assert [number for other, number in done if other == thread] == list(range(500))


def test_calls_before_start_run_first() -> None:
    stage, done = Stage(), list[str]()
    stage.loop.call(done.append, "before")
    stage.loop.start()
    stage.loop.call(done.append, "after")
    stage.rest()
    stage.loop.stop()
    stage.loop.join()
    assert done == ["before", "after"]


def test_a_call_wakes_a_sleeping_loop(stage: Stage) -> None:
    for _ in range(100):
        stage.rest()  # it would hang for ever
        assert stage.loop.ask(lambda: 7) == 7


def test_a_loop_is_woken_once_from_each_sleep() -> None:
    loop = Loop("asleep", print)
    loop.baton.phase = Phase.POLLING
    for sleep in (1, 2, 3):
        loop._poller._sleep = sleep
        for _ in range(10):
            loop.call(int)
        assert len(loop._poller._wakee.recv(100)) == 1
    loop.end()


def test_concurrent_calls_always_wake_the_loop(stage: Stage) -> None:
    def ask(thread: int) -> None:
        for number in range(1000):
            assert stage.loop.ask(abs, -number) == number

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(4)))


def test_a_thread_with_many_calls_yields_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[bool] = []
    loop = Loop("behind", print)
    monkeypatch.setattr("netq.io.loop.give_way", lambda: ways.append(loop.is_current))
    for _ in range(300):
        loop.call(int)
    assert len(ways) == 300 - 255
    loop.call(lambda: deque(map(loop.call, [int] * 300), 0))
    ways.clear()
    loop.end()
    assert ways in ([], [False])  # but for `stop`, which comes behind all that waits


def test_nested_calls_run_after_earlier_calls(stage: Stage) -> None:
    done: list[str] = []

    def first() -> None:
        done.append("first")
        stage.loop.call(done.append, "called by the first")

    hold = threading.Event()
    stage.loop.call(hold.wait, LIMIT)
    stage.loop.call(first)
    stage.loop.call(done.append, "second")
    hold.set()
    stage.rest()
    stage.rest()
    assert done == ["first", "second", "called by the first"]


def test_ask_returns_raises_and_works_in_the_loop_itself(stage: Stage) -> None:
    assert stage.loop.ask(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        stage.loop.ask(divmod, 1, 0)
    assert stage.loop.ask(lambda: stage.loop.ask(lambda: stage.loop.is_current))
    assert not stage.loop.is_current


def test_timers_run_in_the_order_of_their_times(stage: Stage) -> None:
    done: queue.SimpleQueue[int] = queue.SimpleQueue()
    now = time.monotonic()

    def set_timers() -> None:
        for number in (3, 1, 2):
            stage.loop.at(now + number * 0.01, done.put, number)
        stage.loop.at(now - 1, done.put, 0)
        stage.loop.at(now + 0.005, done.put, 99).cancel()

    stage.loop.call(set_timers)
    assert [done.get(timeout=LIMIT) for _ in range(4)] == [0, 1, 2, 3]
    assert time.monotonic() >= now + 0.03
    assert done.empty()


def test_cancelling_a_timer_that_has_run_is_harmless(stage: Stage) -> None:
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    timer = stage.loop.ask(lambda: stage.loop.at(0.0, done.put, "ran"))
    assert done.get(timeout=LIMIT) == "ran"
    stage.loop.ask(timer.cancel)


def test_a_ready_socket_runs_its_callback(stage: Stage, sockets: tuple[socket.socket, socket.socket]) -> None:
    one, other = sockets
    got: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    stage.loop.call(stage.loop.watch, one, READ, lambda mask: got.put(one.recv(10)))
    other.send(b"x")
    assert got.get(timeout=LIMIT) == b"x"
    masks: queue.SimpleQueue[int] = queue.SimpleQueue()

    def writable(mask: int) -> None:
        masks.put(mask)
        stage.loop.forget(one)

    stage.loop.call(stage.loop.watch, one, READ | WRITE, writable)  # replaces the first
    assert masks.get(timeout=LIMIT) == WRITE
    other.send(b"y")
    stage.rest()
    assert got.empty()


def test_a_socket_forgotten_in_a_turn_is_not_run_in_it(stage: Stage) -> None:
    """Both are ready at once; whichever is served first forgets, and closes, the other."""
    pairs = [socket.socketpair() for _ in range(2)]
    told: list[int] = []

    def ready(number: int) -> Callable[[int], None]:
        def serve(mask: int) -> None:
            told.append(number)
            for one, _ in pairs:
                stage.loop.forget(one)
                one.close()

        return serve

    def watch() -> None:
        for number, (one, other) in enumerate(pairs):
            other.send(b"x")
            stage.loop.watch(one, READ, ready(number))

    stage.loop.ask(watch)
    stage.rest()
    stage.rest()
    assert len(told) == 1
    for _, other in pairs:
        other.close()


def test_forgetting_an_unwatched_or_closed_socket_is_harmless(
    stage: Stage, sockets: tuple[socket.socket, socket.socket]
) -> None:
    one, _ = sockets
    stage.loop.ask(stage.loop.forget, one)
    one.close()
    stage.loop.ask(stage.loop.forget, one)


def test_output_that_another_thread_sends_meanwhile_is_waited_for_no_more() -> None:
    class Sent(dict[Any, float]):
        """The holder of the baton takes what is left as soon as another thread has seen that there is something."""

        def __bool__(self) -> bool:
            before = len(self) > 0
            self.clear()
            return before

    loop = Loop("parks", print)
    loop.baton.unflushed = Sent({object(): time.monotonic()})
    assert loop._timeout() is None
    loop.end()


def test_a_crash_is_reported_and_later_calls_still_run() -> None:
    stage, done = Stage(), list[str]()

    def fail(*args: Any) -> None:
        raise LookupError("a bug")

    stage.loop.call(fail)
    stage.loop.call(done.append, "queued behind it")
    stage.loop.call(fail)
    stage.loop.call(done.append, "and behind another")
    stage.loop.start()
    stage.loop.join()
    assert isinstance(stage.crashes.get(timeout=LIMIT), LookupError)
    assert isinstance(stage.crashes.get(timeout=LIMIT), LookupError)
    assert done == ["queued behind it", "and behind another"]
    stage.loop.call(done.append, "after the end")
    assert done[-1] == "after the end"
    assert stage.loop.ask(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        stage.loop.ask(divmod, 1, 0)


def test_stop_ends_at_once_when_nothing_is_watched() -> None:
    stage, done = Stage(), list[str]()
    stage.loop.start()
    stage.loop.call(done.append, "before")
    stage.loop.stop(within=LIMIT)
    start = time.monotonic()
    stage.loop.join()
    assert time.monotonic() - start < LIMIT / 2
    assert done == ["before"]


def test_stop_waits_for_watched_sockets_up_to_its_limit(sockets: tuple[socket.socket, socket.socket]) -> None:
    one, _ = sockets
    stage = Stage()
    stage.loop.start()
    stage.loop.ask(stage.loop.watch, one, READ, lambda mask: None)
    start = time.monotonic()
    stage.loop.stop(within=0.05)
    stage.loop.join()
    assert 0.05 <= time.monotonic() - start < LIMIT
    assert one.fileno() == -1, "no other object closes what it watched"


def test_stop_ends_when_the_last_is_forgotten(sockets: tuple[socket.socket, socket.socket]) -> None:
    one, other = sockets
    stage = Stage()
    stage.loop.start()
    stage.loop.ask(stage.loop.watch, one, READ, lambda mask: stage.loop.forget(one))
    stage.loop.stop(within=LIMIT)
    start = time.monotonic()
    other.send(b"x")
    stage.loop.join()
    assert time.monotonic() - start < LIMIT / 2
    assert one.fileno() != -1


def test_sockets_that_are_not_watched_are_not_shown() -> None:
    """Their text has the bytes of an abstract Unix socket's name, which `python -bb` refuses."""
    loop = Loop("test", print)
    with NeverShown() as sock:
        loop.forget(sock)
        loop.watch(sock, READ, lambda mask: None)
        loop.watch(sock, WRITE, lambda mask: None)
        loop.forget(sock)
        loop.forget(sock)
    loop.end()


class NeverShown(socket.socket):
    def __repr__(self) -> str:
        raise AssertionError


def test_a_socket_that_the_selector_has_forgotten_is_closed() -> None:
    """selectors.BaseSelector.modify forgets a socket if it is interrupted."""
    poller = Poller(lambda: False)
    ours, theirs = socket.socketpair()
    with theirs:
        poller.watch(ours, READ, lambda mask: None)
        poller._selector.unregister(ours)
        poller.close()
        theirs.setblocking(False)
        assert theirs.recv(1) == b""
