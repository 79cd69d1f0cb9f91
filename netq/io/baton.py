"""The baton: the right to work on what a loop owns, and how users' threads take it. Knows nothing of netq.

A change of threads costs more than all else that a small message needs. So a user's thread takes the baton to send
(`try_run`), and polls the selector itself while it waits (`poll`), for messages of every size. The loop's thread parks
meanwhile, and goes on some milliseconds after a user was active last. No thread holds the baton while it polls. At most
one user's thread polls, the leader; the others wait until they are woken (the Leader/Followers pattern, D. Schmidt et
al., 2000).

    phase     the loop's thread                              the baton is
    POLLING   waits in the selector                          free, or held by a user
    WORKING   runs what is ready, timers and calls           held by the loop's thread
    PARKED    sleeps while users work; looks each            free, or held by a user
              millisecond, each eighth one while a user
              polls, or each second while a user waits
              for long

What a user's thread does with the baton is a step: no exception of a signal handler comes out of it
(netq/io/interrupts.py). If one does, or netq has a bug, the exception is kept in `broken`, and the loop ends. A handler
that runs on top of the baton's holder sees that (`is_held`), and leaves its work to the loop's thread.

A thread that puts may hold locks of the user, as a logging handler does. The collector may run a finalizer on top of
the baton's holder that wants the same lock, or the baton of another loop. So a thread that puts waits for the baton for
a moment only, and then leaves its work to the loop's thread.

Each user's thread holds a wait lock of its own while it waits. So others can see whether the leader still polls, and a
signal handler on top of a waiting thread can see that it must not wait as well.

This class has more mutable attributes than others here. They are read and written for each small message, and an
object between would cost each of these accesses a look-up.
"""

from __future__ import annotations

import collections
import enum
import functools
import math
import selectors
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from netq.io.condition import LONGEST
from netq.io.interrupts import has_broken_step, interruptible, protect, suppress
from netq.io.locks import is_owned, let_go
from netq.io.poller import Poller, Ring
from netq.io.spin import SpinTime
from netq.validate import check_not_forked

TICK = 0.001  # seconds: how often a parked thread looks, and how long output may wait to be sent with more
# Seconds for which the loop's thread stays parked after a user was active. To pickle and send a megabyte takes as long;
# if the loop's thread came back meanwhile, the user's next wait would cost a change of threads.
_PAUSE = 0.002
# Seconds. While a user's thread is in the selector, or users poll as often as this, on the average, each rest of the
# parked thread is twice as long as the one before, up to the longest.
_OFTEN, _LONGEST_REST = 0.002, 0.008
_WAIT = 0.002  # seconds for which a thread that puts waits for the baton; its holders have it for microseconds
_SOCKETS = 16  # rounds with bytes in a ring after which a thread that polls looks at the sockets, too
_Found = list[tuple[selectors.SelectorKey, int]]


class EventLoopPoller:
    """Stands for an asyncio event loop that polls, as a wait lock stands for a user's thread."""

    def __init__(self) -> None:
        self.active = False

    def locked(self) -> bool:
        """Return whether the event loop polls."""
        return self.active


class StepBroken(RuntimeError):
    """A signal handler has raised in the middle of a step: the state is unknown."""


class Phase(enum.Enum):
    """What the loop's thread does; see the table above."""

    POLLING = enum.auto()
    WORKING = enum.auto()
    PARKED = enum.auto()


_POLLING, _WORKING, _PARKED = Phase


class Worker(Protocol):
    """State that a user's thread may work on, and that may have output to send."""

    @property
    def inline(self) -> bool:
        """Whether a user's thread may call `flush`."""

    def flush(self) -> None:
        """Send the output."""


class Baton:
    """Lets users' threads stand in for the loop's thread, if `shared`.

    `serve` hands what has come to the `waiters`, without the baton; it returns whether one of them was served. It takes
    `lock`: a thread that holds that must not wait for the loop. `run_late` runs, after the end of the loop, what waits
    for its thread.
    """

    def __init__(
        self,
        run_late: Callable[[], None],
        *,
        shared: bool,
        serve: Callable[[], bool],
        waiters: Collection[object],
        lock: threading.RLock,
    ) -> None:
        # The baton itself.
        self.lock = threading.RLock()
        # A user's thread wants the baton. A lock is not fair, so the loop's thread pauses then. Each user's thread sets
        # this before `with lock`, and clears it first thing in it: a function for that would cost more than the rest.
        self.wanted = False
        self.broken: BaseException | None = None  # what has come out of a step: the loop ends with it
        self.unflushed: dict[Worker, float] = {}  # what has output that waits, and since when
        self.over = False  # the loop has ended
        self.ledger: Any = None  # the owner's: what the calls that use this baton account to
        self.forked = False  # this process is a fork of the one whose loop it is
        # The loop's thread: what it does, and whether it must be woken.
        self.phase = _WORKING
        self.thread: int | None = None  # the identity of the loop's thread, while there is one
        self.parked_long = False  # the loop's thread is parked for a second: a user polls, and no output waits
        self.needs_wake = True  # the loop's thread does not look each millisecond: it polls, or rests for longer
        self.rest = TICK  # seconds after which the parked thread looks; longer while users poll much
        self.resumed = False  # the loop's thread should poll next, even if a user polls
        self._park_lock = threading.Lock()  # the loop's thread waits for it when it is parked
        self._park_lock.acquire()
        # Users' threads: which of them polls, and how active they were lately.
        self._polls = 0  # how often users' threads have polled since the loop's thread looked last
        self.user_seen = -math.inf  # when a user was active last
        self.polled_at = -math.inf  # when a user polled last
        self.in_select = False  # a user's thread uses the selector at this moment
        self._rounds = 0  # in a row in which a ring had bytes
        self._spin_time = SpinTime()
        self.poller = Poller(lambda: self.phase is _POLLING)
        # The wait lock of the user's thread that polls. While it is locked the loop's thread leaves the sockets to that
        # thread, so a thread that takes its wait lock for another wait clears this first.
        self._leader: threading.Lock | EventLoopPoller | None = None
        self._wait_locks = threading.local()
        self.waits_are_short = False  # waits of users have lately ended within TICK: users should poll
        self._served = -math.inf  # when a waiter was served last
        # Wiring, and calls that wait for the loop's thread.
        self._deferred: collections.deque[tuple[Callable[..., object], tuple[Any, ...]]] = collections.deque()
        self._run_late = run_late
        self._shared = shared
        self._serve = serve
        self._waiters = waiters
        self._waiters_lock = lock

    @property
    def is_held(self) -> bool:
        """Whether this thread holds the baton."""
        return is_owned(self.lock)

    @property
    def has_deferred(self) -> bool:
        """Whether something is deferred that has not begun to run."""
        return bool(self._deferred)

    @property
    def reply_expected(self) -> bool:
        """Whether a user is likely to put an answer soon, which can carry what is to be sent now."""
        return self.waits_are_short and bool(self._waiters)

    @property
    def user_polls(self) -> bool:
        """Whether a user's thread or event loop polls, or works on what it has found."""
        leader = self._leader
        return leader is not None and leader.locked()

    @property
    def users_look(self) -> bool:
        """Whether a user polls, or has polled a short time ago and may do so again."""
        return self.user_polls or time.monotonic() - self.polled_at < _PAUSE

    @property
    def event_loop_polls(self) -> bool:
        """Whether an event loop polls; it may be busy with other things."""
        return isinstance(self._leader, EventLoopPoller)

    # For any thread.

    def wake(self) -> None:
        """Make the loop's thread look for work."""
        # The caller has added its work before, and reads the phase without the baton. The loop's thread sets its phase
        # first, and then looks for work once more before it sleeps (Loop._rest). So either it finds the work, or this
        # sees that it is about to sleep. In the phase WORKING it needs no wake-up, which would cost a system call.
        phase = self.phase
        if phase is _PARKED:
            _release(self._park_lock)
        elif phase is _POLLING:
            self.poller.wake()

    def resume(self) -> None:
        """Make the loop's thread poll again."""
        self.user_seen = self.polled_at = -math.inf
        self.resumed = True
        self.wake()

    def wake_poller(self) -> None:
        """Make the thread that polls look at what another user's thread has received."""
        if self.user_polls:
            self.poller.interrupt()

    def try_run(self, function: Callable[[], object]) -> bool:
        """Run `function()` with the baton, in this thread; return False if that cannot be now."""
        # While the loop's thread works, waiting for the baton could take a whole turn, and `put` must not wait. A
        # thread that owns the lock here is in a signal handler, on top of its own half-done change: the lock is
        # reentrant, and would let the handler into that change.
        lock = self.lock
        if self.phase is _WORKING or not self._shared or is_owned(lock):
            return False
        protect()
        try:
            # At once in most cases: a timeout costs more than the rest.
            if not (lock.acquire(False) or lock.acquire(timeout=_WAIT)):
                return False
            try:
                if self.broken or self.over:
                    return False
                function()
            finally:
                lock.release()
        except BaseException as error:
            let_go(lock)  # a signal handler may have raised before the `try`, or in the `finally`
            self.end_by(error)
            raise
        if self._waiters:
            self._serve()  # after the release: it takes the inbox's lock, and no thread holds both
        else:
            self.user_seen = time.monotonic()
        return True

    def try_hold(self, function: Callable[[], object], seconds: float = _WAIT) -> bool:
        """Run `function()` with the baton; return False if another thread holds that for so long.

        After the end of the loop no thread is left that would do the work instead: it is done without the baton then.
        """
        lock = self.lock
        if is_owned(lock):
            function()
            return True
        protect()
        try:
            try:
                within = LONGEST if self.over else seconds
                if not (lock.acquire(False) or self._acquire(within)) and not self.over:
                    return False
                function()
                return True
            finally:
                let_go(lock)
        except BaseException as error:
            let_go(lock)
            if has_broken_step(error):  # others are the function's, which the caller gets
                self.end_by(error)
            raise

    def end_by(self, error: BaseException) -> None:
        """End the loop with an error that has come out of a step."""
        if has_broken_step(error):
            broken: BaseException = StepBroken(
                f"a signal handler has raised {type(error).__name__} in the middle of a step of this communicator; "
                "install it as netq.outside_steps(handler), or let it set an Event, or call request_close()"
            )
            broken.__cause__ = error
        else:
            broken = error  # a bug of ours
        self.broken = self.broken or broken
        self.resume()

    def _acquire(self, seconds: float) -> bool:
        """Take the baton within so many seconds; return whether this thread has it.

        The caller releases it in a `finally`, and again in an `except`: a handler may raise in the `finally`.
        """
        self.wanted = True
        # At the end of the process a thread that holds the baton never runs again.
        held = self.lock.acquire(timeout=0.0 if sys.is_finalizing() else seconds)
        self.wanted = False
        return held

    def flush_later(self, worker: Worker, *, more: bool = False) -> None:
        """Have `worker.flush` called within a millisecond or so, by the first thread that comes.

        With `more`, the caller has others to flush, and calls `wake_to_flush` after the last.
        """
        # As in `wake`: this adds the worker, then reads `needs_wake`. The loop's thread sets `needs_wake`, then
        # computes its timeout from `unflushed`. Otherwise it could park for a second with this output unsent.
        self.user_seen = now = time.monotonic()
        self.unflushed.setdefault(worker, now)
        if self.needs_wake and not more:
            self.wake()

    def wake_to_flush(self) -> None:
        """See `flush_later`."""
        if self.needs_wake:
            self.wake()

    def flush_with_next(self, worker: Worker) -> None:
        """Have `worker.flush` called by the first thread that comes, or a rest later: an ACK is not urgent."""
        self.unflushed.setdefault(worker, time.monotonic())
        if self.parked_long or self.phase is _POLLING:
            self.wake()

    def flush_soon(self, worker: Worker) -> None:
        """Have `worker.flush` called by the loop's thread, soon."""
        # This time is in the past for `flush_waiting` and for the loop's timeout. It also makes a user's thread
        # that polls leave this worker to the loop's thread (`_flush_inline`).
        self.unflushed[worker] = -math.inf
        if self.over:
            self._run_late()
        else:
            self.wake()

    def defer(self, function: Callable[..., object], *args: Any) -> None:
        """Run `function(*args)` in the loop's thread without the baton: it may be a user's function, and may wait."""
        self._deferred.append((function, args))
        if self.over:
            self.run_late_deferred()
        else:
            self.wake()  # also in the loop's thread: a finalizer may run on top of its way to sleep

    def run_late_deferred(self) -> None:
        """Run what is deferred, if the loop is over: its thread will not. Does nothing while the baton is held."""
        if self.over and self._deferred and not is_owned(self.lock):
            self.run_deferred()

    # For users' threads that wait.

    def check(self, name: str) -> None:
        """Raise RuntimeError where nothing can wait: in the loop's thread, a handler that interrupts a wait, a fork."""
        protect()
        self.wait_lock(name)

    def check_not_forked(self, what: str) -> None:
        """Raise RuntimeError in a fork of the process that has made the loop."""
        check_not_forked(what, self.forked)

    def wait_lock(self, name: str) -> threading.Lock:
        """Return the lock that this thread holds while it waits in the function `name`."""
        if self.forked:
            self.check_not_forked(f"{name}()")
        if threading.get_ident() == self.thread or is_owned(self.lock) or is_owned(self._waiters_lock):
            raise RuntimeError(
                f"{name}() waits for a loop: it cannot be called in one, by an event or a callback, nor by a signal "
                "handler that has interrupted it; let the handler set an Event, or call request_close()"
            )
        try:
            lock: threading.Lock = self._wait_locks.lock
        except AttributeError:
            lock = self._wait_locks.lock = threading.Lock()
        if lock.locked():
            raise RuntimeError(
                f"{name}(): a signal handler has interrupted this very communicator, which waits; let the handler set "
                "an Event, or call request_close()"
            )
        return lock

    def poll(self, wait_lock: threading.Lock, deadline: float) -> bool:
        """Poll once, for a second at most. After True the caller looks for what it waits for, and polls again.

        Returns False at the deadline, and if the loop's thread or another user's polls. The caller holds its wait lock,
        and calls `stop_polling` after it has released it.
        """
        seconds = LONGEST if deadline == math.inf else min(deadline - time.monotonic(), LONGEST)
        if seconds <= 0:
            return False
        lock, in_step = self.lock, True
        try:
            try:
                if not (lock.acquire(False) or self._acquire(seconds)):
                    return True
                if not self._may_lead(wait_lock):
                    # This thread polls no more, and holds its wait lock for a moment longer: the loop's thread must not
                    # take it for the one that polls (`user_polls`), and leave the sockets to it.
                    if self._leader is wait_lock:
                        self._leader = None
                    return False
                if self._leader is not wait_lock:
                    self._leader = wait_lock
                    return True  # what came before this thread led does not wake the selector: the caller looks again
                self._polls += 1
                self.polled_at = time.monotonic()
                # A thread that begins to wait puts nothing more for now. So output that waited for more is sent here:
                # above all the ACK of what this user has just taken.
                if self.unflushed:
                    self._flush_inline()
                # Set with the baton, after `over` was tested. The loop's thread sets `over`, takes the baton once, and
                # then waits for this flag before it closes the selector. So no thread polls a closed descriptor, whose
                # number may belong to another file by then.
                self.in_select = True
                lock.release()
                in_step = False
                if self.poller.rings:
                    found, rings = self._look_into_rings(seconds)
                else:
                    found, rings = self.poller.select(seconds), []
                in_step = True
                self.in_select = False
                # Between `select` and here other threads may have worked, also on the sockets that were found: `_work`
                # tests whether a watch is still active. A socket that was emptied meanwhile costs one needless `recv`.
                if (found or rings) and (lock.acquire(False) or self._acquire(seconds)):
                    self._work(found, rings)
            finally:
                let_go(lock)
        except BaseException as error:
            let_go(lock)
            self.in_select = False
            if in_step or has_broken_step(error):
                self.end_by(error)
            raise
        if self._waiters:
            self._serve()
        return True

    def stop_polling(self) -> None:
        """Let others poll, as this thread goes on with other work."""
        # The waiters do not poll, so the loop's thread has to. Without waiters a park of a millisecond may run out:
        # this user probably comes back before. A long one is ended, or for a second no thread would look at the
        # sockets.
        if self._waiters:
            self.resume()
        elif self.parked_long:
            self.wake()

    def wait(
        self,
        predicate: Callable[[], bool],
        deadline: float,
        subscribe: Callable[[Callable[[], object]], object],
        unsubscribe: Callable[[], object],
        name: str,
    ) -> bool:
        """Wait without polling until `predicate()` or the deadline; return whether it came true.

        `subscribe(wake)` arranges that `wake` is called when `predicate` should be tested again.
        """
        # A lock that is held from the beginning, and not an Event: `wake` only releases it, which never waits and
        # cannot be interrupted. An Event has a lock of its own, and a signal handler that interrupts its holder and
        # sets the same Event would wait for itself.
        wakeup = threading.Lock()
        wakeup.acquire()
        wait_lock = self.wait_lock(name)
        if self._leader is wait_lock:
            self._leader = None  # before the lock is taken again: this thread does not poll any more
        with wait_lock:
            try:
                subscribe(functools.partial(_release, wakeup))
                return _wait_for_release(predicate, wakeup, deadline)
            finally:
                unsubscribe()

    # For an asyncio event loop that polls: it watches the selector's descriptor, and calls `poll_ready`.

    def start_polling(self, event_loop: EventLoopPoller) -> bool:
        """Let an event loop poll; return whether it may. To stop, set `active` to False, and call `resume`."""
        self.wanted = True
        with self.lock:
            self.wanted = False
            event_loop.active = self.poller.has_descriptor and self._may_lead(event_loop)
            if event_loop.active:
                self._leader = event_loop
        return event_loop.active

    def poll_ready(self, event_loop: EventLoopPoller) -> bool:
        """Run what is ready; return False if the loop's thread goes on, and the event loop does not poll any more."""
        try:
            self.wanted = True
            with self.lock:
                self.wanted = False
                self._polls += 1
                if self._leader is event_loop and not self.over:
                    self._work(self.poller.select(0))
                event_loop.active = self._leader is event_loop and not self.over
        except BaseException as error:
            self.end_by(error)
            raise
        self._serve()
        return event_loop.active

    def _may_lead(self, wait_lock: threading.Lock | EventLoopPoller) -> bool:
        """Return whether the thread of this lock may poll. If not, note whether users' waits are short."""
        # A thread that comes while the loop's thread polls becomes a waiter, and costs a change of threads for each
        # message. If a waiter was served within the last millisecond, messages come quickly: then `run_deferred` parks
        # the loop's thread after it has served the next one, and that user's next wait polls.
        if self.phase is _POLLING or self.resumed or self.broken or not self._shared or self.over:
            self.waits_are_short = time.monotonic() - self._served < TICK
            return False
        leader = self._leader
        return leader is wait_lock or leader is None or not leader.locked()

    def _flush_inline(self) -> None:
        """Send what a user's thread may send."""
        for worker, since in list(self.unflushed.items()):
            if since > -math.inf and worker.inline:
                worker.flush()

    def _look_into_rings(self, seconds: float) -> tuple[_Found, list[Ring]]:
        """Wait as `select` does, without the baton, and return the rings that have data, too."""
        began = time.perf_counter()
        rings = self._spin(began + self._spin_time.seconds)
        self._rounds = self._rounds + 1 if rings else 0
        found = [] if self._rounds % _SOCKETS else self.poller.select(0.0 if rings else seconds)
        if not rings:
            self._spin_time.record(time.perf_counter() - began)
        return found, rings

    def _spin(self, until: float) -> list[Ring]:
        """Return the rings that get data until then. If none does, have each peer send wake-ups from now on."""
        rings = self.poller.rings
        while not (ready := [ring for ring in rings if ring.look()]) and time.perf_counter() < until:
            pass
        if not ready:
            # From here on this thread sleeps in `select`, so each peer has to send a wake-up when it writes. A ring
            # that refuses to sleep has got data since the last look: that is received now, as no wake-up comes for it.
            self.try_hold(lambda: ready.extend(ring for ring in rings if ring.awake and not ring.sleep()), LONGEST)
        return ready

    def _work(self, found: _Found, rings: Iterable[Ring] = ()) -> None:
        """Run what is ready. With the baton."""
        if self.over or self.broken:
            return
        for ring in rings:
            ring.receive()
        for key, mask in found:
            watch = key.data
            if not watch.active:
                continue
            if watch.shared:
                watch.ready(mask)
            else:
                self.hand_over()  # whose selector reports it again
        self.user_seen = self.polled_at = time.monotonic()

    def hand_over(self) -> None:
        """Have the loop's thread go on, and not the thread that polls: that one waits until it is woken."""
        self._leader = None
        self.resume()

    # For the loop's thread.

    def choose_phase(self) -> None:
        """Decide whether to poll or to leave that to the users. With the baton."""
        # Parked: a user polls, or one was active a short time ago and may poll again. Polling in that gap would
        # let the loop's thread receive the next message, with a change of threads, and keep the user from polling.
        # Parked for long: the user has been in one `select` since the last look, and nothing waits to be sent; to look
        # each millisecond would only cost processor time.
        active = self.user_polls or time.monotonic() - self.user_seen < _PAUSE
        parked = self._shared and not self.resumed and active
        self.parked_long = parked and self.user_polls and not (self._polls or self.unflushed)
        self._polls = 0
        self.needs_wake = not parked or self.parked_long or self.rest > TICK
        self.poller.begin_sleep()
        self.phase = _PARKED if parked else _POLLING
        if not parked:
            self.resumed = False
            self.rest = TICK

    def choose_rest(self) -> int:
        """Decide how long the parked thread rests next; return how often users have polled since the last call."""
        # To look costs the users the interpreter, and two changes of threads. Threads that poll much send what waits,
        # and one in the selector receives what comes; an event loop does not send.
        polls, self._polls = self._polls, 0
        longer = (self.in_select or polls * _OFTEN >= self.rest) and not self.event_loop_polls
        self.rest = min(2 * self.rest, _LONGEST_REST) if longer else TICK
        self.needs_wake = self.rest > TICK
        return polls

    def park(self, seconds: float) -> bool:
        """Sleep until `wake` is called, or for so long; return whether it was called."""
        return self._park_lock.acquire(timeout=seconds)

    def flush_waiting(self, since: float) -> None:
        """Flush the output that has waited since then or longer. With the baton."""
        for worker, when in list(self.unflushed.items()):
            if when <= since:
                worker.flush()

    def run_deferred(self) -> bool:
        """Run what is deferred, and serve the waiters. Without the baton. Returns whether something was deferred."""
        worked = bool(self._deferred)
        while self._deferred:
            try:
                function, args = self._deferred.popleft()
            except IndexError:  # after the end of the loop: another thread was faster
                break
            function(*args)
        if self._serve():
            self._served = time.monotonic()
            if self.waits_are_short:
                self.user_seen = self._served
                with self.lock:
                    self.choose_phase()
        return worked

    def abandon(self) -> None:
        """Close our copies of what is watched, in a child process, and send nothing: it is all the parent's."""
        self.forked = True
        self.lock = threading.RLock()  # another thread of the parent may have held it, and would never release it here
        self.poller.close()


def _wait_for_release(predicate: Callable[[], bool], wakeup: threading.Lock, deadline: float) -> bool:
    """Wait until `predicate()` or the deadline; test it each time that `wakeup` is released, and each second."""
    while not predicate():
        left = min(deadline - time.monotonic(), LONGEST)
        if left <= 0:
            return False
        _sleep(wakeup, left)
    return True


@interruptible
def _sleep(wakeup: threading.Lock, seconds: float) -> None:
    wakeup.acquire(timeout=seconds)


def _release(lock: threading.Lock) -> None:
    # Two threads may wake one: the second finds the lock released between its test and its `release`.
    if lock.locked():
        with suppress(RuntimeError):  # another thread was faster
            lock.release()
