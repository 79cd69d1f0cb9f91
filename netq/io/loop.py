"""One thread and one selector that own what they are told about; users' threads may stand in for it. Knows nothing of
netq.

What a loop owns belongs to the holder of its baton, which is mostly the loop's own thread. A user's thread takes the
baton to send (`try_run`), and polls the selector itself while it waits (`poll`), because a change of threads costs more
than all else that a small message needs. Then the loop's thread parks, and goes on a millisecond after the last user
has been seen. No thread holds the baton while it polls.

    phase     the loop's thread                          the baton is
    POLLING   waits in the selector                      free, or held by a user for some microseconds
    WORKING   does what has come, timers, calls          its own
    PARKED    sleeps, as users work; looks each ms, or   free, or held by a user
              after a second while a user waits long

A signal handler may raise in a user's thread anywhere. So it takes the baton by `with` alone, which cannot be left
locked, and says in `working_on` whose state it works on: the loop's thread repairs what it finds there. A handler that
runs on top of a thread that holds the baton finds that out by `RLock._is_owned`.

Any thread may `start`, `stop`, `call`, `try_run`, `flush_later`, `flush_soon`, `poll`, `wait` and `ask`, and what its
docstring says; all else belongs to who holds the baton. What the loop runs must not wait. An error that comes out of a
function it runs is a bug in that function: the loop ends, and `crashed` is told.

A fork leaves the child without the thread. There the loop closes its copies of all it watches, so that they live no
longer than the parent's, and is `forked`: it is of no more use.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import itertools
import math
import operator
import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection
from typing import Any, NoReturn, Protocol, TypeVar, cast

from netq.io.condition import LONGEST, Condition
from netq.io.selector import READ, new_selector
from netq.io.signal_handlers import raised_by_handler, suppress
from netq.io.timers import Timer, Timers

_AHEAD = 256  # calls that wait; then who calls gives way, or keeps the interpreter from the loop, 5 ms each time
_PASSES = 2  # through what was called, in one turn: the second does what the first asks for, as a flush for all puts
_LONGEST = 86400.0  # seconds of one sleep: what every selector can take
TICK = 0.001  # seconds for which users are waited for, and for which what is owed may wait for company
_HANDOVER, _HANDOVERS = 50e-6, 20  # seconds of a pause in which who waits for the baton gets it; and how many
_BUSY = 0.1  # seconds in which an event loop that polls may be busy with other things
_SPIN = 50e-6 if (os.cpu_count() or 1) > 1 else 0.0  # seconds in which a peer on another core may answer
Ready = Callable[[int], None]
_T = TypeVar("_T")


class Ring(Protocol):
    """What cannot be watched while it is awake: somebody has to look."""

    awake: bool  # nobody is told when something comes
    look: Callable[[], bool]  # whether something has come; in any thread, at any time

    def receive(self) -> bool:
        """Receive what a user's thread may; return False if the loop's has to go on."""

    def sleep(self) -> bool:
        """Wish to be told when something comes; return False if something is there already."""

    def go_on(self) -> None:
        """Receive in the loop's thread, soon."""


class EventLoopPoller:
    """What stands for an event loop that polls, as its wait_lock for a user's thread."""

    def __init__(self) -> None:
        self.taken = False

    def locked(self) -> bool:
        """Whether the event loop polls."""
        return self.taken


class Phase(enum.Enum):
    """What the loop's thread does; see the table above."""

    POLLING = enum.auto()
    WORKING = enum.auto()
    PARKED = enum.auto()


_POLLING, _WORKING, _PARKED = Phase


class Worker(Protocol):
    """What a user's thread works on."""

    @property
    def inline(self) -> bool:
        """Whether a user's thread may call `flush`."""

    def flush(self) -> None:
        """Send what waits."""

    def repair(self) -> None:
        """Put right what an interrupted thread has left. In the loop's thread."""


class Loop:
    """Runs calls, timers and what waits for sockets, one after the other.

    `shared`: users' threads may stand in for it. `settle` is called after each turn, without the baton; it returns
    whether one of those has been served who wait in `line`, whom `settle` alone can serve. It takes `lock`: who holds
    that must not wait for a loop.
    """

    def __init__(
        self,
        name: str,
        crashed: Callable[[BaseException], object],
        *,
        shared: bool = False,
        settle: Callable[[], bool] = lambda: False,
        line: Collection[object] = (),
        lock: threading.RLock | None = None,
    ) -> None:
        self.forked = False  # this process is a child of the one whose loop it is
        self.baton = threading.RLock()
        self.unflushed: dict[Worker, float] = {}  # who has something to send that waits for company, and since when
        self._crashed = crashed
        self._settle = settle
        self._line = line
        self._lock = threading.RLock() if lock is None else lock
        self._shared = shared
        self._phase = _WORKING
        self.working_on: Worker | None = None  # whose state a user's thread is working on
        self._afterwards: collections.deque[tuple[Callable[..., object], tuple[Any, ...]]] = collections.deque()
        self._wait_locks = threading.local()
        # The wait lock of the user's thread that polls. While it is locked the loop's thread leaves the sockets to that
        # thread, so a thread that takes its wait lock for another wait clears this first.
        self._leader: threading.Lock | EventLoopPoller | None = None
        self._polls = self._polls_seen = 0  # of users
        self._polled = False  # one of them uses the selector at this moment
        self._user_seen = -math.inf  # when a user was at work last
        self._waits_are_short = False  # users who wait have waited for less than TICK of late: they should poll
        self._served = -math.inf  # when one of them was served last
        self._park_lock = threading.Lock()  # the loop's thread sleeps on it when it is parked
        self._park_lock.acquire()
        # Never released: to wait for it is a pause. libfaketime would stretch time.sleep to a day if the clock jumps.
        self._pause = threading.Lock()
        self._pause.acquire()
        self.parked_long = False  # the loop's thread is parked for a second: a user's thread polls, and nothing is owed
        self.needs_wake = True  # the loop's thread polls or is parked for long: it does not look each millisecond
        self._resumed = False  # it should poll next, whoever else does
        # A user's thread waits for the baton. A lock is not fair, so the loop's thread pauses then. Each user's thread
        # sets this before `with baton` and clears it as the first thing in it: to call a function for that costs more.
        self.baton_wanted = False
        self._calls: collections.deque[tuple[Callable[..., object], tuple[Any, ...]]] = collections.deque()
        self._timers = Timers()
        self._selector = new_selector()
        self._watched: dict[int, selectors.SelectorKey] = {}  # what it has, to look up quickly
        self._rings: tuple[Ring, ...] = ()
        self._quick: dict[int, Callable[[], bool]] = {}  # what a user's thread may do for it
        self._waker, self._wakee = socket.socketpair()
        self._sleeps = self._woken = 0  # times that it has slept; the sleep from which somebody has woken it
        self._stop_by: float | None = None
        self._over = False  # who calls now runs it
        self._done = False
        self._ended_condition = Condition()  # of the same
        for end in (self._waker, self._wakee):
            end.setblocking(False)
        self.watch(self._wakee, READ, self._drain, self._drain_quickly)
        self._name = name
        self._runs = itertools.count()
        self._ident: int | None = None  # of its thread, while there is one
        _loops.add(self)

    def start(self) -> None:
        """Begin; what was called before is done first."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def stop(self, within: float = 0.0) -> None:
        """End as soon as nothing is watched any more, after `within` seconds at the latest."""
        self.call(self._stop, within)

    def end(self) -> None:
        """End it whether it has begun or not, or whoever began it was interrupted meanwhile, and wait for that."""
        self.stop()
        self.start()  # once more, maybe: only one runs
        self.join()

    def join(self) -> None:
        """Wait until nothing is run or watched any more; not by Thread.join, which a signal handler could deadlock."""
        self._ended_condition.wait(lambda: self._done)

    @property
    def is_current(self) -> bool:
        """Whether this is the loop's thread, or one that stands in for it at this moment."""
        return threading.get_ident() == self._ident or _is_owned(self.baton)

    @property
    def is_own(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.get_ident() == self._ident

    @property
    def reply_expected(self) -> bool:
        """Whether who waits is likely to have an answer soon, and to send what is owed with it."""
        return self._waits_are_short and bool(self._line)

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Run `function(*args)` in the loop's thread, soon, in the order of the calls. Never waits for the loop."""
        self._calls.append((function, args))
        if self._over:
            self._run_late()
        else:
            self.wake()
        if len(self._calls) >= _AHEAD and threading.get_ident() != self._ident:
            give_way()

    def wake(self) -> None:
        """Let the loop's thread look what there is to do."""
        phase = self._phase
        if phase is _PARKED:
            _release(self._park_lock)
        elif phase is _POLLING and self._woken != (sleep := self._sleeps):
            self._interrupt()
            self._woken = sleep  # not before: in between a signal handler might call, and not wake it

    def call_without_baton(self, function: Callable[..., object], *args: Any) -> None:
        """Run `function(*args)`, which may be the user's and wait, in the loop's thread and without the baton."""
        self._afterwards.append((function, args))
        if self._over:
            self.run_remaining()
        elif not self.is_own:
            self.wake()

    def run_remaining(self) -> None:
        """Run what is to run afterwards, if the loop is over and nobody else will; not while the baton is held."""
        if self._over and self._afterwards and not _is_owned(self.baton):
            self._end_turn()

    # For users' threads.

    def try_run(self, worker: Worker, function: Callable[[], object]) -> bool:
        """Run `function()`, which works on the state of `worker`, here and now; return False if that cannot be."""
        if self._phase is _WORKING or not self._shared or _is_owned(self.baton):
            return False
        try:
            with self.baton:
                if self.working_on is not None or self._over:
                    return False
                self.working_on = worker
                function()
                self.working_on = None
        except BaseException as error:
            self._interrupted(error)
            raise
        if self._line:
            self._settle()
        return True

    def flush_later(self, worker: Worker) -> None:
        """Have `worker.flush` called within a millisecond or so, by whoever comes first. In any thread."""
        self._user_seen = now = time.monotonic()
        self.unflushed.setdefault(worker, now)
        if self.needs_wake:
            self.wake()

    def flush_later_from_loop(self, worker: Worker) -> None:
        """Have `worker.flush` called within a millisecond or so. In the loop's thread: it goes on polling."""
        self.unflushed.setdefault(worker, time.monotonic())

    def flush_soon(self, worker: Worker) -> None:
        """Have `worker.flush` called by the loop's thread, soon. In any thread."""
        self.unflushed[worker] = -math.inf
        if self._over:
            self._run_late()
        else:
            self.wake()

    def resume(self) -> None:
        """Let the loop's thread poll again. In any thread."""
        self._user_seen = -math.inf
        self._resumed = True
        self.wake()

    def wait(
        self,
        come: Callable[[], bool],
        deadline: float,
        line_up: Callable[[Callable[[], object]], object],
        leave: Callable[[], object],
        name: str,
    ) -> bool:
        """Wait until `come()`, but not beyond `deadline`; return whether it has.

        `line_up` is to note what wakes this thread when `come` should be asked again; `leave` takes it back.
        """
        bed = threading.Lock()
        bed.acquire()
        wait_lock = self.wait_lock(name)
        if self._leader is wait_lock:
            self._leader = None  # before it is taken again: this thread polls no more
        with wait_lock:
            try:
                line_up(functools.partial(_release, bed))
                return _wait_until(come, bed, deadline)
            finally:
                leave()

    def wake_poller(self) -> None:
        """Let a thread that polls look at what another user's thread has received."""
        if self._user_polls:
            self._interrupt()

    def stop_polling(self) -> None:
        """Let others poll: the thread that has done it goes on with other things."""
        if self._line:
            self.resume()
        elif self.parked_long:
            self.wake()

    def check(self, name: str) -> None:
        """Raise RuntimeError where nobody can wait: in the loop's thread, and in a handler that interrupts a wait."""
        self.wait_lock(name)

    def wait_lock(self, name: str) -> threading.Lock:
        """Return what this thread holds while it waits."""
        if threading.get_ident() == self._ident or _is_owned(self.baton) or _is_owned(self._lock):
            raise RuntimeError(
                f"{name}() waits for a loop: it cannot be called in one, by an event or a callback, nor by a signal "
                "handler that has interrupted it; let the handler set an Event, or call request_close()"
            )
        try:
            wait_lock: threading.Lock = self._wait_locks.lock
        except AttributeError:
            wait_lock = self._wait_locks.lock = threading.Lock()
        if wait_lock.locked():
            raise RuntimeError(
                f"{name}(): a signal handler has interrupted this very communicator, which waits; let the handler set "
                "an Event, or call request_close()"
            )
        return wait_lock

    def poll(self, wait_lock: threading.Lock, deadline: float) -> bool:
        """Poll once, for a second at most; return False if that is for the loop's thread, or for another that does it
        already, or if it is late. What the thread waits for may have come before: it is to look once more.

        The thread holds its wait_lock, and calls `stop_polling` when it has let it go.
        """
        seconds = LONGEST if deadline == math.inf else min(deadline - time.monotonic(), LONGEST)
        if seconds <= 0:
            return False
        try:
            self.baton_wanted = True
            with self.baton:
                self.baton_wanted = False
                if not self._may_lead(wait_lock):
                    if self._leader is wait_lock:
                        self._leader = None
                    return False
                if self._leader is not wait_lock:
                    self._leader = wait_lock
                    return True  # what has come before is not to be waited for: ask once more
                self._polls += 1
                if self.unflushed:
                    self._flush_unflushed()
                self._polled = True
            ring = self._spin() if self._rings else None
            ready = self._selector.select(seconds) if ring is None else []
            self._polled = False
            if ready or ring is not None:
                self.baton_wanted = True
                with self.baton:
                    self.baton_wanted = False
                    self._do_quickly(ready, ring)
        except BaseException as error:
            self._polled = False
            self._interrupted(error)
            raise
        if self._line:
            self._settle()
        return True

    def _may_lead(self, wait_lock: threading.Lock | EventLoopPoller) -> bool:
        """Whether the thread of this wait_lock may poll. If not, note whether users come back soon."""
        if self._phase is _POLLING or self._resumed or self.working_on is not None or not self._shared or self._over:
            self._waits_are_short = time.monotonic() - self._served < TICK
            return False
        leader = self._leader
        return leader is wait_lock or leader is None or not leader.locked()

    # For an event loop that polls: `fileno` can be read when `poll_ready` has something to do.

    def fileno(self) -> int:
        """Return the selector's own descriptor."""
        return self._selector.fileno()

    def start_polling(self, poller: EventLoopPoller) -> bool:
        """Let an event loop poll; return whether it may. `poller.taken = False` and `resume` give the poller back."""
        self.baton_wanted = True
        with self.baton:
            self.baton_wanted = False
            poller.taken = hasattr(self._selector, "fileno") and not self._rings and self._may_lead(poller)
            if poller.taken:
                self._leader = poller
        return poller.taken

    def poll_ready(self, poller: EventLoopPoller) -> bool:
        """Do what there is to do; return False if the loop's thread goes on with that, and the poller is given back."""
        try:
            self.baton_wanted = True
            with self.baton:
                self.baton_wanted = False
                self._polls += 1
                if self._leader is poller and not self._over:
                    self._do_quickly(self._selector.select(0), None)
                poller.taken = self._leader is poller and not self._over
        except BaseException as error:
            self._interrupted(error)
            raise
        self._settle()
        return poller.taken

    def _flush_unflushed(self) -> None:
        """Send what is owed; in a user's thread."""
        for worker, since in list(self.unflushed.items()):
            if since > -math.inf and worker.inline:
                self.working_on = worker
                worker.flush()
                self.working_on = None

    def _spin(self) -> Ring | None:
        """Return a ring to which something comes within some microseconds; have the others tell it from then on."""
        until = time.perf_counter() + _SPIN
        while True:
            for ring in self._rings:
                if ring.look():
                    return ring
            if time.perf_counter() >= until:
                break
        with self.baton:
            return next((ring for ring in self._rings if ring.awake and not ring.sleep()), None)

    def _do_quickly(self, ready: list[tuple[selectors.SelectorKey, int]], ring: Ring | None) -> None:
        """Do what a user's thread may; let the loop's thread do the rest."""
        self._user_seen = time.monotonic()
        if self._over:
            return
        all_done = self.working_on is None and (ring is None or ring.receive())
        for key, mask in ready if all_done else ():
            quick = self._quick.get(key.fd)
            if quick is None or mask != READ or self._watched.get(key.fd) is not key or not quick():
                all_done = False
        if not all_done:
            self._leader = None  # this thread, which will wait until it is woken
            self.resume()

    def _interrupted(self, error: BaseException) -> None:
        """Let the loop's thread mend what is left by an exception in a user's."""
        if isinstance(error, Exception) and raised_by_handler(error) is None:
            self.call(_raise, error)  # a bug of ours
        else:
            self.resume()

    def ask(self, function: Callable[..., _T], *args: Any) -> _T:
        """Run `function(*args)` in the loop's thread and return what it returns, or raise what it raises."""
        if threading.get_ident() == self._ident:
            return function(*args)
        answer: list[Callable[[], _T]] = []
        condition = Condition()
        self.call(_answer, answer, condition, function, *args)
        condition.wait(lambda: bool(answer))
        return answer[0]()

    def at(self, when: float, function: Callable[..., object], *args: Any) -> Timer:
        """Run `function(*args)` when time.monotonic() has reached `when`."""
        return self._timers.add(when, function, args)

    def watch(self, file: socket.socket, events: int, ready: Ready, quick: Callable[[], bool] | None = None) -> None:
        """Run `ready(events)` whenever the socket is ready for any of `events`; replaces an earlier watch.

        A user's thread that polls runs `quick()` instead, if that is given, when the socket can be read; it returns
        False if it could not do all that is to be done.
        """
        if quick is None:
            self._quick.pop(file.fileno(), None)
        else:
            self._quick[file.fileno()] = quick
        try:
            key = self._selector.modify(file, events, ready)
        except KeyError:
            key = self._selector.register(file, events, ready)
        self._watched[key.fd] = key

    def add_ring(self, ring: Ring) -> None:
        """Look into the ring too; until `remove_ring`."""
        self._rings = (*self._rings, ring)

    def remove_ring(self, ring: Ring) -> None:
        """Harmless if it is not looked into."""
        self._rings = tuple([other for other in self._rings if other is not ring])

    def forget(self, file: socket.socket) -> None:
        """Watch the socket no more; harmless if it is not watched."""
        self._quick.pop(file.fileno(), None)
        with contextlib.suppress(KeyError, ValueError):  # ValueError: it is closed already
            del self._watched[self._selector.unregister(file).fd]

    def abandon(self) -> None:
        """Close what is watched, in a child process. Nothing is said to anybody: it is the parent's."""
        self.forked = True
        self.baton = threading.RLock()  # another thread of the parent's may have held it
        for key in (self._selector.get_map() or {}).values():
            cast(socket.socket, key.fileobj).close()
        self._selector.close()
        self._waker.close()

    def _run(self) -> None:
        if next(self._runs):
            return
        self._ident = threading.get_ident()
        try:
            with self.baton:
                self._choose()
            while not self._ended():
                self._turn()
        except BaseException as error:
            self._crashed(error)
        finally:
            self._over = True
            self._run_late()
            self._ident = None  # another thread may have it next
            until = time.monotonic() + 2 * LONGEST
            while self._polled and time.monotonic() < until:  # its wait ends now, and would end by itself by then
                self._interrupt()
                self._park_lock.acquire(timeout=TICK)
            for key in list(self._selector.get_map().values()):
                cast(socket.socket, key.fileobj).close()  # nobody else will
            self._selector.close()
            self._waker.close()
            self._done = True
            self._ended_condition.notify()

    def _turn(self) -> None:
        ready = self._rest()
        with self.baton:
            parked, self._phase = self._phase is _PARKED, _WORKING
            worked = bool(ready or self._calls)
            if self.working_on is not None:
                worker, self.working_on = self.working_on, None
                worker.repair()
            for key, mask in ready:
                if self._watched.get(key.fd) is key:  # not forgotten, nor replaced, in this turn
                    key.data(mask)
            now = time.monotonic()
            worked |= self._timers.run(now)
            for _ in range(_PASSES):
                for _ in range(len(self._calls)):
                    function, args = self._calls.popleft()
                    function(*args)
            if self.unflushed:
                self._flush_late(time.monotonic() - TICK if parked else math.inf)
            self._choose()
            for ring in () if self._user_polls else self._rings:
                if ring.awake and not ring.sleep():
                    ring.go_on()
        for _ in range(_HANDOVERS):
            if not self.baton_wanted:
                break
            self._pause.acquire(timeout=_HANDOVER)
        else:
            self.baton_wanted = False
        worked |= self._end_turn()
        if worked and self._user_polls:
            self._interrupt()  # what was done may be for who polls

    @property
    def _user_polls(self) -> bool:
        """Whether a user's thread polls, or works on what it has found."""
        leader = self._leader
        return leader is not None and leader.locked()

    def _choose(self) -> None:
        """Decide what to do next: poll, or leave that to the users."""
        led = self._user_polls
        parked = self._shared and not self._resumed and (led or time.monotonic() - self._user_seen < TICK)
        self.parked_long = (
            parked and led and self._polls == self._polls_seen and not self.unflushed
        )  # it may poll for long
        self.needs_wake = not parked or self.parked_long
        self._polls_seen = self._polls
        self._sleeps += 1
        self._phase = _PARKED if parked else _POLLING
        if not parked:
            self._resumed = False

    def _rest(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for something to do."""
        if self._phase is _POLLING:
            return self._selector.select(0.0 if self._busy else self._timeout())
        longest = _BUSY if isinstance(self._leader, EventLoopPoller) else LONGEST
        woken = False
        while not (self._busy or self._resumed):
            timeout = self._timeout()
            seconds = longest if self.parked_long else TICK
            woken = self._park_lock.acquire(timeout=seconds if timeout is None else min(timeout, seconds))
            if woken or self.parked_long or self._polls == self._polls_seen or (timeout is not None and timeout < TICK):
                break
            self._polls_seen = self._polls  # users have polled in this millisecond, and may go on
        late = self.parked_long and longest == _BUSY and not woken  # the event loop may be busy with other things
        self.parked_long = False
        return [] if self._user_polls and not late else self._selector.select(0)

    @property
    def _busy(self) -> bool:
        """Whether there is something to do that is not to wait."""
        return bool(self._calls) or self.working_on is not None

    def _flush_late(self, since: float) -> None:
        for worker, when in list(self.unflushed.items()):
            if when <= since:
                worker.flush()

    def _end_turn(self) -> bool:
        """Do what must not be done with the baton; return whether there was anything."""
        worked = bool(self._afterwards)
        while self._afterwards:
            function, args = self._afterwards.popleft()
            function(*args)
        if self._settle():
            self._served = time.monotonic()
            if self._waits_are_short:
                self._user_seen = self._served
                with self.baton:
                    self._choose()
        return worked

    def _run_late(self) -> None:
        """Run what is called after the end, in whatever thread: nobody else will. It finds all ended."""
        with self.baton:
            self._run_calls()
        self.run_remaining()

    def _run_calls(self) -> None:
        for worker in list(self.unflushed):
            self.unflushed.pop(worker, None)
            self._calls.append((worker.flush, ()))
        while self._calls:
            try:
                function, args = self._calls.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                function(*args)
            except Exception as error:  # the next must run all the same: somebody may wait for it
                self._crashed(error)

    def _timeout(self) -> float | None:
        """How long there is nothing to do but what comes; None: for ever."""
        until = self._timers.next
        if self._stop_by is not None:
            until = min(until, self._stop_by)
        if self.unflushed:
            until = min(until, min(self.unflushed.values()) + TICK)
        return min(max(0.0, until - time.monotonic()), _LONGEST) if until < math.inf else None

    def _stop(self, within: float) -> None:
        self._stop_by = time.monotonic() + within

    def _ended(self) -> bool:
        if self._stop_by is None or self._calls:
            return False
        return len(self._watched) == 1 or time.monotonic() >= self._stop_by

    def _interrupt(self) -> None:
        with suppress(OSError):  # it is being woken already, or has ended
            self._waker.send(b"\0")

    def _drain(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakee.recv(4096)

    def _drain_quickly(self) -> bool:
        if self._phase is _POLLING:  # it is for the loop's thread, which would sleep on without it
            return False
        self._drain(READ)
        return True


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


def _wait_until(come: Callable[[], bool], bed: threading.Lock, deadline: float) -> bool:
    """Wait until `come()`, asking again whenever `bed` is released; return whether it has come before `deadline`."""
    while not come():
        left = min(deadline - time.monotonic(), LONGEST)
        if left <= 0:
            return False
        bed.acquire(timeout=left)
    return True


def _release(lock: threading.Lock) -> None:
    if lock.locked():
        with suppress(RuntimeError):  # another thread was faster
            lock.release()


_is_owned: Callable[[Any], bool] = operator.methodcaller("_is_owned")
_yield: Callable[[], object] = getattr(os, "sched_yield", functools.partial(time.sleep, 0))
_loops: weakref.WeakSet[Loop] = weakref.WeakSet()


def _abandon_all() -> None:
    for loop in list(_loops):
        loop.abandon()


if hasattr(os, "register_at_fork"):  # where there is a fork
    os.register_at_fork(after_in_child=_abandon_all)
