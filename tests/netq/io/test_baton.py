"""How users' threads stand in for the loop's thread."""

from __future__ import annotations

import functools
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from netq.io.baton import TICK, Phase, StepBroken
from netq.io.loop import Loop
from netq.io.selector import READ
from tests.netq.io.stage import LIMIT, Stage


class Output:
    """Something that users' threads may work on, and which threads have flushed it."""

    inline = True

    def __init__(self, loop: Loop) -> None:
        self.flushed: queue.SimpleQueue[bool] = queue.SimpleQueue()  # in the loop's thread?
        self._loop = loop

    def flush(self) -> None:
        self._loop.baton.unflushed.pop(self, None)
        assert self._loop.baton.lock._is_owned()  # type: ignore[attr-defined]
        self.flushed.put(self._loop.is_own)


class Surprised(Loop):
    """Runs `surprise` in another thread just when the loop goes to rest."""

    surprise: Callable[[], object] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._choose_phase, self.baton.choose_phase = self.baton.choose_phase, self._be_surprised  # type: ignore[method-assign]

    def _be_surprised(self) -> None:
        surprise, self.surprise = self.surprise, None
        if surprise is not None:
            thread = threading.Thread(target=surprise)
            thread.start()
            thread.join(LIMIT)
        self._choose_phase()


class Reentered(Loop):
    """Runs `finalizer` in its own thread just before it sleeps, as the garbage collector may."""

    finalizer: Callable[[], object] | None = None

    def _timeout(self) -> float | None:
        timeout = super()._timeout()
        finalizer, self.finalizer = self.finalizer, None
        if finalizer is not None:
            finalizer()
        return timeout


@pytest.fixture
def shared() -> Iterator[Stage]:
    stage = Stage(Surprised, shared=True)
    stage.loop.start()
    yield stage
    stage.loop.stop()
    stage.loop.join()
    assert stage.crashes.empty()


def run_on(loop: Loop, function: Callable[[], object]) -> None:
    """Take a step as soon as the loop rests."""
    while not loop.baton.try_run(function):
        pass


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make waits end by what they wait for: by themselves they would look once in a second."""
    for module in ("loop", "baton"):
        monkeypatch.setattr(f"netq.io.{module}.LONGEST", 10 * LIMIT)


def lead(loop: Loop, come: Callable[[], bool]) -> None:
    """Wait as `get` does, but poll in any case: as soon as the loop's thread leaves that to the users."""
    wait_lock, deadline, output = loop.baton.wait_lock("lead"), time.monotonic() + LIMIT, Output(loop)
    with wait_lock:
        while not come() and time.monotonic() < deadline:
            if not loop.baton.poll(wait_lock, deadline):
                loop.baton.flush_later(output)  # a user has been seen
    loop.baton.stop_polling()


def test_try_run_runs_here_and_now_with_the_baton(shared: Stage) -> None:
    found: list[tuple[bool, bool, bool]] = []
    loop = shared.loop
    run_on(loop, lambda: found.append((loop.is_own, loop.is_current, loop.baton.try_run(int))))
    assert found == [(False, True, False)], "the second is one too many"
    assert not loop.is_current


def test_try_run_refuses_where_it_is_not_allowed(stage: Stage, shared: Stage) -> None:
    stage.rest()
    assert not stage.loop.baton.try_run(int), "it is not shared"
    assert shared.loop.ask(lambda: shared.loop.baton.try_run(int)) is False, "it is at work"
    with shared.loop.baton.lock:
        assert not shared.loop.baton.try_run(int), "as in a signal handler"


def handler(number: int, frame: object) -> None:
    raise Alarm


class Alarm(Exception):
    pass


@pytest.mark.parametrize("act", [lambda: 1 // 0, lambda: signal.raise_signal(signal.SIGUSR1)], ids=["bug", "handler"])
def test_an_exception_in_a_step_ends_the_loop(act: Callable[[], object]) -> None:
    stage = Stage(shared=True)
    loop = stage.loop
    loop.start()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises((ZeroDivisionError, Alarm)) as raised:
            run_on(loop, act)
    finally:
        signal.signal(signal.SIGUSR1, before)
    loop.join()
    error = stage.crashes.get(timeout=LIMIT)
    if raised.type is Alarm:
        assert isinstance(error, StepBroken)
        assert error.__cause__ is raised.value
        assert "a signal handler has raised Alarm in the middle of a step" in str(error)
        assert "netq.outside_steps(handler)" in str(error)
    else:
        assert error is raised.value
    assert not loop.baton.try_run(int)


@pytest.mark.parametrize("how", ["flush_later", "flush_with_next", "flush_soon"])
def test_pending_output_is_flushed_soon_in_any_phase(shared: Stage, how: str) -> None:
    loop = shared.loop
    for _ in range(200):
        output = Output(loop)
        getattr(loop.baton, how)(output)
        assert output.flushed.get(timeout=LIMIT) is True
    assert not loop.baton.unflushed


@pytest.mark.usefixtures("long_waits")
@pytest.mark.parametrize("seen", [False, True], ids=["polls", "parks"])
@pytest.mark.parametrize("how", ["flush_later", "flush_with_next", "flush_soon"])
def test_output_queued_as_the_loop_goes_to_rest_is_flushed_soon(shared: Stage, how: str, seen: bool) -> None:
    loop = shared.loop
    assert isinstance(loop, Surprised)
    for _ in range(5):
        output = Output(loop)
        loop.surprise = lambda output=output: getattr(loop.baton, how)(output)
        if seen:
            loop.baton.flush_later(Output(loop))
        loop.call(int)
        assert output.flushed.get(timeout=LIMIT) is True


def test_parked_thread_rests_longer_while_users_poll_often() -> None:
    stage, rests = Stage(Loop, shared=True), []
    baton = stage.loop.baton
    for polls in (1, 1, 2, 9, 9, 3, 0):
        baton._polls = polls
        assert baton.choose_rest() == polls
        rests.append(round(baton.rest / TICK))
        assert baton.needs_wake is (baton.rest > TICK), "a `put` must wake a thread that rests for longer"
    assert rests == [2, 4, 8, 8, 8, 1, 1]
    stage.loop.end()


@pytest.mark.usefixtures("long_waits")
def test_a_call_just_when_the_loop_goes_to_rest_is_run_soon(shared: Stage) -> None:
    loop, done = shared.loop, queue.SimpleQueue[str]()
    assert isinstance(loop, Surprised)
    for method in (loop.call, loop.baton.defer):
        loop.surprise = lambda method=method: method(done.put, "done")
        loop.call(int)
        assert done.get(timeout=LIMIT) == "done"


@pytest.mark.parametrize("way", ["call", "defer"])
def test_what_a_finalizer_adds_as_the_loop_goes_to_sleep_is_run(way: str) -> None:
    stage, done = Stage(Reentered), queue.SimpleQueue[str]()
    loop = stage.loop
    assert isinstance(loop, Reentered)
    loop.start()
    stage.rest()
    loop.finalizer = lambda: (loop.call if way == "call" else loop.baton.defer)(done.put, "done")
    loop.call(int)
    try:
        assert done.get(timeout=LIMIT) == "done"
    finally:
        loop.stop()
        loop.join()


def test_deferred_calls_run_in_the_loops_thread_without_the_baton(shared: Stage) -> None:
    loop, found = shared.loop, queue.SimpleQueue[tuple[bool, bool]]()

    def record() -> None:
        found.put((loop.is_own, loop.baton.lock._is_owned()))  # type: ignore[attr-defined]

    loop.baton.defer(record)
    loop.call(loop.baton.defer, record)
    run_on(loop, lambda: loop.baton.defer(record))
    assert [found.get(timeout=LIMIT) for _ in range(3)] == [(True, False)] * 3


@pytest.mark.slow
def test_a_polling_user_leaves_the_rest_to_the_loop(
    shared: Stage, sockets: tuple[socket.socket, socket.socket]
) -> None:
    one, other = sockets
    loop, taken, output = shared.loop, list[tuple[bytes, bool]](), Output(shared.loop)

    def take(flags: int = 0) -> bytes:
        try:
            return one.recv(1, flags)
        except BlockingIOError:  # the other was faster
            return b""

    def ready(mask: int) -> None:
        if loop.is_own or take(socket.MSG_PEEK) != b"s":
            taken.append((take(), loop.is_own))
        else:
            loop.baton.hand_over()

    loop.ask(functools.partial(loop.watch, one, READ, ready, shared=True))
    with ThreadPoolExecutor(1) as threads:
        for _ in range(50):
            for data in (b"q", b"s"):
                taken.clear()
                leading = threads.submit(lead, loop, lambda data=data: data in dict(taken))  # type: ignore[misc]
                while loop.baton.phase is not Phase.PARKED and not leading.done():
                    loop.baton.flush_later(output)  # one: thousands would keep the loop's thread at work
                other.send(data)
                leading.result(LIMIT)
                assert dict(taken)[data] or data == b"q", "a user's thread has done what it must not"
    loop.ask(loop.forget, one)


def test_a_polling_user_leaves_the_wake_up_to_a_polling_loop() -> None:
    """Otherwise the caller waits for the loop's next timer."""
    loop = Loop("turned by hand", print, shared=True)
    with loop.baton.lock:
        loop.baton.choose_phase()
    assert loop.baton.phase is Phase.POLLING
    loop.call(int)  # by another thread, while a user is in the selector since the loop was parked
    (key,) = loop._poller._selector.get_map().values()
    with loop.baton.lock:
        loop.baton._work([(key, READ)])
    left = [found.fileobj is loop._poller._wakee for found, _ in loop._poller.select(0)]
    loop.end()
    assert left == [True]


@pytest.mark.usefixtures("long_waits")
def test_the_loop_polls_when_the_last_poller_sleeps(
    shared: Stage, sockets: tuple[socket.socket, socket.socket]
) -> None:
    one, other = sockets
    loop, came, wakes = shared.loop, list[bytes](), list[Callable[[], object]]()

    def ready(mask: int) -> None:
        came.append(one.recv(1))
        wakes[0]()

    loop.ask(loop.watch, one, READ, ready)
    calls = iter([False, False])
    lead(loop, lambda: next(calls, True))

    def line_up(wake: Callable[[], object]) -> None:
        wakes.append(wake)
        other.send(b"x")

    deadline = time.monotonic() + LIMIT
    assert loop.baton.wait(lambda: bool(came), deadline, line_up, wakes.clear, "sleep"), "the loop did not look"
    assert wakes == []
    loop.ask(loop.forget, one)


def test_wait_ends_at_its_deadline_and_unsubscribes(shared: Stage) -> None:
    left: list[str] = []
    start = time.monotonic()
    assert not shared.loop.baton.wait(
        lambda: False, start + 0.03, lambda wake: None, lambda: left.append("left"), "sleep"
    )
    assert 0.03 <= time.monotonic() - start < LIMIT
    assert left == ["left"]


def test_a_thread_that_cannot_wait_gets_an_error(shared: Stage) -> None:
    loop = shared.loop
    with pytest.raises(RuntimeError, match=r"get\(\) waits for a loop: it cannot be called in one"):
        loop.ask(loop.baton.check, "get")
    with loop.baton.lock, pytest.raises(RuntimeError, match="nor by a signal handler that has interrupted it"):
        loop.baton.check("get")
    with (
        loop.baton.wait_lock("get"),
        pytest.raises(RuntimeError, match=r"result\(\): a signal handler has interrupted"),
    ):
        loop.baton.check("result")
    loop.baton.check("get")
