"""One thread that runs calls, timers and whatever waits for sockets, one after the other. Knows nothing of netq.

What a loop owns belongs to the holder of its baton (netq/io/baton.py). That is mostly the loop's own thread; users'
threads take the baton to send and receive messages. What sockets are watched is in netq/io/poller.py.

Any thread may `start`, `stop`, `call` and `ask`, and whatever a docstring says; all else is for the holder of the
baton. What the loop runs must not wait. An exception that comes out of a function it runs is a bug in that function:
the loop ends, and calls `crashed`.

A fork leaves the child without the thread. There the loop closes its copies of all that it watches, so that they do not
outlive the parent's. It is of no more use, and its baton says `forked`.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection
from typing import Any, NoReturn, TypeVar

from netq.io.baton import TICK, Baton, Phase
from netq.io.condition import LONGEST, Condition
from netq.io.poller import Ready, Ring
from netq.io.timers import Timer, Timers
from netq.log import thread as log_thread

# Calls that wait for the loop's thread. From so many on the caller yields, or it would keep the interpreter from the
# loop's thread, for 5 ms each time.
_AHEAD = 256
_PASSES = 2  # passes over the calls in one turn; the second runs what the first has asked for, such as one flush
_LONGEST = 86400.0  # seconds of one `select`: what every selector can take
_PAUSE, _PAUSES = 50e-6, 20  # seconds of a pause in which a user's thread gets the baton, and how many there are
_QUIET = 0.02  # seconds of one wait of a user, after which the loop's thread parks for long: see `_rest`
_BUSY = 0.1  # seconds for which an event loop that polls may be busy with other work
_T = TypeVar("_T")


class Loop:
    """A thread that polls, and the calls and timers that it runs. The options are those of Baton."""

    def __init__(
        self,
        name: str,
        crashed: Callable[[BaseException], object],
        *,
        shared: bool = False,
        serve: Callable[[], bool] = lambda: False,
        waiters: Collection[object] = (),
        lock: threading.RLock | None = None,
    ) -> None:
        self.baton = Baton(
            self._run_late,
            shared=shared,
            serve=serve,
            waiters=waiters,
            lock=threading.RLock() if lock is None else lock,
        )
        self._poller = self.baton.poller
        self._calls: collections.deque[tuple[Callable[..., object], tuple[Any, ...]]] = collections.deque()
        self._timers = Timers()
        self._crashed = crashed
        self._name = name
        self._runs = itertools.count()  # next() is atomic: one thread gets the 0, and runs the loop
        self._stop_by: float | None = None  # when to end, whatever is watched then
        self._ended = False  # nothing is run or watched any more
        self._end_condition = Condition()
        _loops.add(self)

    def start(self) -> None:
        """Begin; earlier calls run first. Raises RuntimeError if the system starts no more threads."""
        start(threading.Thread(target=self._run, name=self._name, daemon=True))

    def stop(self, within: float = 0.0) -> None:
        """End as soon as no socket is watched, and after `within` seconds at the latest."""
        self.call(self._stop, within)

    def end(self) -> None:
        """End the loop and wait for that, whether it was started, or a signal handler interrupted the start."""
        self.stop()
        try:
            self.start()  # perhaps for the second time: only one thread runs the loop
        except RuntimeError:
            self._run()  # what is left of it needs no thread of its own
        self.join()

    def join(self) -> None:
        """Wait until the loop has ended. Not by Thread.join, which a signal handler could deadlock."""
        self._end_condition.wait(lambda: self._ended)

    @property
    def is_own(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.get_ident() == self.baton.thread

    @property
    def is_current(self) -> bool:
        """Whether this is the loop's thread, or one that holds the baton at this moment."""
        return self.is_own or self.baton.is_held

    @property
    def queued(self) -> int:
        """How many calls wait for the loop's thread."""
        return len(self._calls)

    # For any thread.

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Run `function(*args)` in the loop's thread, soon, in the order of the calls. Never waits for the loop."""
        # First the append, then the look at `over`. At its end the loop's thread sets `over`, and then runs what is in
        # the queue. So one of the two threads runs this call; a lost one could be an `ask` that waits forever.
        self._calls.append((function, args))
        if self.baton.over:
            self._run_late()
        else:
            self.baton.wake()
        if len(self._calls) >= _AHEAD and not self.is_own:
            give_way()

    def ask(self, function: Callable[..., _T], *args: Any) -> _T:
        """Run `function(*args)` in the loop's thread and return what it returns, or raise what it raises."""
        if self.is_own:
            return function(*args)
        answer: list[Callable[[], _T]] = []
        condition = Condition()
        self.call(_answer, answer, condition, function, *args)
        condition.wait(lambda: bool(answer))
        return answer[0]()  # the result, or the error, raised in the thread that has asked

    # For the holder of the baton.

    def at(self, when: float, function: Callable[..., object], *args: Any) -> Timer:
        """Run `function(*args)` when time.monotonic() has reached `when`."""
        return self._timers.add(when, function, args)

    def watch(self, file: socket.socket, events: int, ready: Ready, *, shared: bool = False) -> None:
        """Run `ready(events)` whenever the socket is ready for any of `events`. Replaces an earlier watch.

        With `shared`, a user's thread that polls runs it, too. What only the loop's thread may do is left to that by
        `call`, or by `Baton.hand_over` if the socket stays ready.
        """
        self._poller.watch(file, events, ready, shared=shared)

    def forget(self, file: socket.socket) -> None:
        """Stop watching the socket; harmless if it is not watched."""
        self._poller.forget(file)

    def add_ring(self, ring: Ring) -> None:
        """Look into the ring while polling, until `remove_ring`."""
        self._poller.rings = (*self._poller.rings, ring)

    def remove_ring(self, ring: Ring) -> None:
        """Look into the ring no more; harmless if it was not added."""
        self._poller.rings = tuple([other for other in self._poller.rings if other is not ring])

    # The loop's thread.

    def _run(self) -> None:
        if next(self._runs):
            return
        baton = self.baton
        baton.thread = threading.get_ident()
        try:
            log_thread.attach()
            with baton.lock:
                baton.choose_phase()
            baton.run_deferred()  # what was deferred until now has not woken this thread
            while not self._is_over():
                self.turn()
        except BaseException as error:
            self._crashed(error)
        finally:
            # In this order. After `over` no user's thread begins to poll, and each new call runs in its caller's
            # thread; `_run_late` runs those from before. The descriptors are closed when no thread polls them any more.
            # Only then the threads that wait for the end are woken.
            baton.over = True
            with baton.lock:
                self._run_calls()
            baton.run_late_deferred()
            baton.thread = None  # another thread may get this identity
            until = time.monotonic() + 2 * LONGEST
            while baton.in_select and time.monotonic() < until:  # a user's `select` would end by itself by then
                self._poller.interrupt()
                baton.park(TICK)
            self._poller.close()
            log_thread.detach()
            self._ended = True
            self._end_condition.notify()

    def turn(self) -> None:
        """Wait for work, and do one round of it. Called by the loop's thread; by a test, if that was not started."""
        baton = self.baton
        found = self._rest()
        with baton.lock:
            parked, baton.phase = baton.phase is Phase.PARKED, Phase.WORKING
            worked = bool(found or self._calls)
            if baton.broken is not None:
                raise baton.broken
            for key, mask in found:
                if key.data.active:  # neither forgotten nor replaced in this turn
                    key.data.ready(mask)
            now = time.monotonic()
            worked |= self._timers.run(now)
            # Only the calls that are there when a pass begins. A busy link calls itself again for its next turn;
            # without the bound it would keep the loop from the sockets of all others.
            for _ in range(_PASSES):
                for _ in range(len(self._calls)):
                    function, args = self._calls.popleft()
                    function(*args)
            # A thread that was parked leaves fresh output to the users, whose next `put` or wait sends it with more. A
            # thread that polled has no user to rely on, and sends all.
            if baton.unflushed:
                baton.flush_waiting(time.monotonic() - TICK if parked else math.inf)
            baton.choose_phase()
            # No user looks into the rings now, and no descriptor announces their bytes while they are awake. So each
            # one is put to sleep, or read on in the next turn if bytes came meanwhile.
            for ring in () if baton.user_polls else self._poller.rings:
                if ring.awake and not ring.sleep():
                    ring.go_on()
        self._give_users_the_baton()
        worked |= baton.run_deferred()
        if worked and baton.user_polls:
            self._poller.interrupt()  # what was done may be for the thread that polls

    def _give_users_the_baton(self) -> None:
        """Pause while a user's thread wants the baton. Without this, the loop's thread would mostly win it again."""
        for _ in range(_PAUSES):
            if not self.baton.wanted:
                return
            _never.acquire(timeout=_PAUSE)
        self.baton.wanted = False

    def _rest(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for work: in the selector, or parked. Return the sockets that are ready."""
        # The phase is set already, so each thread that adds work from now on wakes this one (Baton.wake). What was
        # added before is found by `_is_busy` and `_timeout`. A parked thread goes on parking while users poll, as these
        # do its work. It ends the wait for a wake-up, a timer, an old output, and for users who have stopped polling.
        baton = self.baton
        if baton.phase is Phase.POLLING:
            return self._poller.select(0.0 if self._is_busy else self._timeout())
        longest = _BUSY if baton.event_loop_polls else LONGEST
        woken, quiet = False, 0.0
        while not (self._is_busy or baton.resumed):
            timeout = self._timeout()
            seconds = longest if baton.parked_long else baton.rest
            woken = baton.park(seconds if timeout is None else min(timeout, seconds))
            if woken or baton.parked_long or not baton.users_look or self._timeout() == 0.0:
                break
            # A long park has to be ended when the user goes on with other work, which costs a change of threads. So
            # only a user that waits for some milliseconds in one `select` makes the next park long.
            quiet = 0.0 if baton.choose_rest() or not baton.user_polls else quiet + seconds
            if quiet >= _QUIET:
                break
        if woken:
            baton.rest = TICK  # there may be output of a `put`
        # Only an asyncio event loop can lead and yet not look at the sockets for long, since a task of its own may
        # compute. After a tenth of a second without a sign of it this thread does one turn in its place.
        late = baton.parked_long and longest == _BUSY and not woken  # the event loop may be busy with other work
        baton.parked_long = False
        return [] if baton.users_look and not (late or baton.resumed) else self._poller.select(0)

    @property
    def _is_busy(self) -> bool:
        """Whether there is work that must not wait."""
        return bool(self._calls) or self.baton.has_deferred or self.baton.broken is not None

    def _timeout(self) -> float | None:
        """Return the seconds until the next timer or late flush; None if there is neither."""
        until = self._timers.next
        if self._stop_by is not None:
            until = min(until, self._stop_by)
        if self.baton.unflushed:
            # Without the baton: its holder may just have flushed the last.
            until = min(until, min(self.baton.unflushed.values(), default=math.inf) + self.baton.rest)
        return min(max(0.0, until - time.monotonic()), _LONGEST) if until < math.inf else None

    def _stop(self, within: float) -> None:
        self._stop_by = time.monotonic() + within

    def _is_over(self) -> bool:
        if self._stop_by is None or self._calls:
            return False
        return self._poller.is_idle or time.monotonic() >= self._stop_by

    def _run_late(self) -> None:
        """Run calls that come after the end, in the calling thread. They find everything ended."""
        self.baton.try_hold(self._run_calls)
        self.baton.run_late_deferred()

    def _run_calls(self) -> None:
        """Run all calls and flushes that wait."""
        for worker in list(self.baton.unflushed):
            self.baton.unflushed.pop(worker, None)
            self._calls.append((worker.flush, ()))
        while self._calls:
            try:
                function, args = self._calls.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                function(*args)
            except Exception as error:  # the next must run all the same: a thread may wait for it
                self._crashed(error)


def start(thread: threading.Thread) -> None:
    """Start a thread of a communicator. Raises RuntimeError, with what to do."""
    try:
        thread.start()
    except RuntimeError as error:
        advice = "end some threads of this process, or raise its limit (ulimit -u, TasksMax, pids.max)"
        raise RuntimeError(f"a thread of a communicator cannot be started: {error}; {advice}") from error


def give_way() -> None:
    """Let a thread that has just been woken run, before this one goes on."""
    _yield()


def _answer(answer: list[Callable[[], _T]], condition: Condition, function: Callable[..., _T], *args: Any) -> None:
    try:
        result = function(*args)
        answer.append(lambda: result)
    except Exception as error:
        answer.append(functools.partial(_raise, error))
    condition.notify()


def _raise(error: Exception) -> NoReturn:
    raise error


# Never released: to wait for it is a pause. time.sleep would not do: libfaketime stretches it to a day if the clock
# jumps.
_never = threading.Lock()
_never.acquire()
_yield: Callable[[], object] = getattr(os, "sched_yield", functools.partial(time.sleep, 0))
_loops: weakref.WeakSet[Loop] = weakref.WeakSet()


def _abandon_all() -> None:
    # Only the thread that forks exists in the child. The other loops and their peers stay as they were at that moment,
    # perhaps in the middle of a step, so nothing here may use them. `forked` makes each call of a user fail instead.
    for loop in list(_loops):
        loop.baton.abandon()


if hasattr(os, "register_at_fork"):  # where there is a fork
    os.register_at_fork(after_in_child=_abandon_all)
