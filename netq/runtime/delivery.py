"""What `put` returns: the message on its way to one peer, which is its own future; or the future of several.

A message to one peer is one Delivery. For several peers there is a Delivery for each, and one more that has those in
`futures` and is done when all of them are. A Copy is a message without a future.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, cast

from netq.io.condition import deadline_of
from netq.io.interrupts import protect, raised_by_handler
from netq.io.locks import is_owned
from netq.log import log
from netq.protocol.codec import Outgoing
from netq.runtime.undelivered import Undelivered, Unseen

_PENDING, _FINISHED = "PENDING", "FINISHED"  # as in concurrent.futures
_CANCELLED = "CANCELLED_AND_NOTIFIED"
_CANCEL_TIME = 1.0  # seconds for which `cancel` waits for the baton; a turn of the loop takes some milliseconds


class Guard(Protocol):
    """What a Delivery needs of its peer's baton (netq/io/baton.py)."""

    ledger: Undelivered
    lock: Any  # an RLock
    wanted: bool  # a user's thread wants the lock
    forked: bool  # this process is a fork of the one that owns it

    def check_not_forked(self, what: str) -> None:
        """See Baton."""

    def defer(self, function: Callable[..., object], *args: Any) -> None:
        """Run `function(*args)`, which may be the user's, without the lock."""

    def try_hold(self, function: Callable[[], object], seconds: float = ...) -> bool:
        """See Baton."""

    def run_late_deferred(self) -> None:
        """See Baton."""

    def wait_lock(self, name: str) -> threading.Lock:
        """See Baton."""

    def poll(self, wait_lock: threading.Lock, deadline: float) -> bool:
        """See Baton."""

    def stop_polling(self) -> None:
        """See Baton."""

    def wait(
        self,
        predicate: Callable[[], bool],
        deadline: float,
        subscribe: Callable[[Callable[[], object]], object],
        unsubscribe: Callable[[], object],
        name: str,
    ) -> bool:
        """See Baton."""


class _NoLock:
    """A lock that all threads have."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return True

    def release(self) -> None:
        pass

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        pass


# The condition of each future that is done, in a fork. Nothing changes there, so no thread need wait for another:
# neither for one of the parent, which may have held the condition there was, nor for one in which `wait` has failed.
IN_FORK = threading.Condition(cast(Any, _NoLock()))


class Delivery(Outgoing, Future[None]):
    """Done when the peer holds the message: then the data may be changed again.

    `result()` raises Closed, QueueFull or MessageTooLarge if the peer never will. With several peers it waits for all,
    and raises the error of the first of `futures` that has one. `left` is whether its last byte has left: a message
    that fails before has not arrived. In a fork, `done` says what was known then; what would wait for a delivery of the
    parent, or change it, raises RuntimeError.
    """

    # The guard is the baton of the peer's loop: a thread holds it to change a Delivery. `recall(self)` is called after
    # a cancel, in any thread. The code that makes a Delivery sets the three slots, because an __init__ would take twice
    # as long. Future.__init__ is not called either: most programs never wait for most deliveries, so the condition, the
    # list of callbacks and the list of waiters are made when they are first needed.

    __slots__ = ("guard", "peer", "recall")
    guard: Guard
    peer: uuid.UUID | None
    recall: Callable[[Outgoing], object] | None
    _listeners: list[Callable[[Future[None]], object]] | None = None  # callbacks
    _told: str | None = None  # the state that concurrent.futures knows, once it has asked for the condition
    _result = None
    _exception: BaseException | None = None
    _futures: tuple[Delivery, ...] | None = None  # the parts of the future of several
    _whole: Delivery | None = None  # that has this in `_futures`, if the user waits for it
    _gathered: tuple[weakref.ref[Delivery], Iterator[int]] | None = None  # counts for `_whole`: see `gather`
    _looked_at = False  # the user has asked how it ends, before it did
    _unseen: Unseen | None = None  # it has failed, and the user has not looked at it

    @property
    def futures(self) -> tuple[Delivery, ...]:
        """One for each peer; for a message to one peer, this itself."""
        return self._futures or (self,)

    def cancel(self) -> bool:
        """Take the message back; return True if the peer (with several: each of them) will never see it.

        Possible until its last byte has left. The data may be changed again at once. Not possible in a signal handler
        that interrupts this communicator while it sends. Returns False after a second if another thread keeps the
        communicator for so long, as a finalizer does that waits for a lock of the caller.
        """
        deadline = time.monotonic() + _CANCEL_TIME
        cancelled = [future._take_back(deadline) for future in self.futures]  # all, also after a failure
        if self._futures and all(future.done() for future in self._futures):
            self._conclude()
            if self._told is _PENDING and self._outcome is not _PENDING:
                self._end_for_library()
        return all(cancelled)

    def _take_back(self, deadline: float) -> bool:
        self._check_not_forked("cancel")
        # A signal handler on top of the baton's holder: the interrupted code may be sending this very message, and has
        # perhaps packed its header. The lock is reentrant and would not keep the handler out.
        if is_owned(self.guard.lock):
            return self.cancelled()
        self.guard.try_hold(self._withdraw, max(0.0, deadline - time.monotonic()))
        if not self.withdrawn:
            return False
        self._tell_withdrawn()
        self.guard.run_late_deferred()
        return True

    def _withdraw(self) -> None:
        if self._outcome is _PENDING and not self.left:
            self.withdraw()
            self._end()

    def _tell_withdrawn(self) -> None:
        """Be done for concurrent.futures too, and recall the message. Without the baton. Harmless if repeated."""
        if self._told is not None:
            self._end_for_library()
        if (recall := self.recall) is not None:
            recall(self)
            self.recall = None

    def __repr__(self) -> str:  # that of Future locks the condition
        error = "" if self._exception is None else f" raised {type(self._exception).__name__}"
        whom = self.peer or "the server" if self._futures is None else f"{len(self._futures)} peers"
        return f"<Delivery to {whom} state={self._state.lower()}{error}>"

    def cancelled(self) -> bool:
        """Return whether it was taken back."""
        return self._state is _CANCELLED

    def running(self) -> bool:
        """Return whether it cannot be taken back any more, and is not done."""
        return self.left and self._state is _PENDING

    def done(self) -> bool:
        """Return whether it is known how it ended."""
        return self._state is not _PENDING

    @property
    def _outcome(self) -> str:
        """What has become of the message."""
        if self.withdrawn:
            return _CANCELLED
        return _FINISHED if self.held or self._exception is not None else _PENDING

    @property
    def _state(self) -> str:  # type: ignore[override]
        """The state of the future. concurrent.futures reads it with the condition locked, under which it changes."""
        return self._told or self._outcome

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        """Call `fn(self)` when it is done, in a thread of netq, where it must not wait. If it is done, call it now."""
        self._check_not_forked("add_done_callback")
        self._look()
        self._listen(fn)

    def _listen(self, fn: Callable[[Future[None]], object]) -> None:
        # The state is tested under the lock under which it changes: otherwise it could be done between the test and the
        # append, and `fn` would never be called. `fn` itself runs without the lock, as it may take locks of the user.
        ended: list[bool] = []
        if not self.guard.try_hold(functools.partial(self._add_listener, fn, ended)):
            self.guard.defer(self._listen, fn)
        if not ended:
            return
        try:
            fn(self)
        except Exception as error:
            if raised_by_handler(error) is not None:  # it interrupts our caller, who happens to be here
                raise
            log.exception("a callback of a delivery failed")

    def _add_listener(self, fn: Callable[[Future[None]], object], ended: list[bool]) -> None:
        if self._state is not _PENDING:
            ended.append(True)
        else:
            self.watched = True
            if self._listeners is None:
                self._listeners = []
            self._listeners.append(fn)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until it is done; return what `result` would raise, or None. Raises CancelledError, TimeoutError."""
        if self._state is _PENDING:
            self._look()
            if not self._wait(timeout):
                raise TimeoutError(f"no acknowledgement within {timeout:g} s")
        if self._exception is not None:
            self._look()
        if self._state is _CANCELLED:
            raise CancelledError
        return self._exception

    def result(self, timeout: float | None = None) -> None:
        """Wait until it is done; raise its error, if it has one. Raises CancelledError, TimeoutError."""
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error, self  # the traceback refers to this frame: avoid the cycle

    # For the holder of the baton; `fail` also for a thread that has just made this.

    def acked(self) -> None:
        """Note that the peer holds the message. Harmless if it is done."""
        super().acked()
        self.recall = None
        self._end()

    def fail(self, error: Exception) -> bool:
        """Fail: the peer will never hold it, or it is unknown whether it does. Return False if it is done already."""
        if self._outcome is not _PENDING:
            return False
        self.data = b""
        self.recall = None
        error.__traceback__ = None  # its frames refer to this: to drop it would not free it
        self._unseen = self.guard.ledger.failed(self.peer, error, looked_at=self._looked_at)
        self._exception = error  # now it is done
        self._end()
        return True

    def _look(self) -> None:
        """Note that the user asks how it ends, or has ended, and how its parts do."""
        if not self._looked_at or self._unseen is not None:
            for guard in {each.guard for each in (self, *self.futures)}:
                self._look_with(guard)

    def _look_with(self, guard: Guard) -> None:
        if not guard.try_hold(functools.partial(self._note_looks, guard)):
            guard.defer(self._look_with, guard)  # which keeps this, so that no failure is told before

    def _note_looks(self, guard: Guard) -> None:
        """Note it for those of this guard."""
        if self.guard is guard:
            self._note_look(None)
        for part in self._futures or ():
            if part.guard is guard:
                part._note_look(self)

    def _note_look(self, whole: Delivery | None) -> None:
        self._looked_at = True
        unseen, self._unseen = self._unseen, None
        if whole is not None and self._state is _PENDING:
            self._whole = whole  # from now on it has to conclude that
        if unseen is not None:
            unseen.look()

    def _check_not_forked(self, name: str) -> None:
        if self._state is _PENDING:
            self.guard.check_not_forked(f"{name}()")

    def _conclude(self) -> None:
        """Take the state of the parts, which are all done. Harmless afterwards."""
        self._hold(self._take_outcome)
        self.guard.run_late_deferred()

    def _take_outcome(self) -> None:
        errors = [error for future in self.futures if (error := future._exception)]
        if errors:
            self._exception = errors[0]
        elif all(future.cancelled() for future in self.futures):
            self.withdraw()
        else:
            self.held = True
        self._end()

    def _hold(self, function: Callable[..., object], *args: Any) -> None:
        """Run `function(*args)` with the baton: now, or in the loop's thread if another one has it for long."""
        if not self.guard.try_hold(functools.partial(function, *args)):
            self.guard.defer(self._hold, function, *args)

    def _end(self) -> None:
        """Tell all that wait for it that it is done. Harmless afterwards."""
        # Most deliveries have no condition. Otherwise a thread in concurrent.futures.wait may hold the condition, for
        # long if it was descheduled. The holder of the baton must not wait for it, so the loop's thread changes
        # `_told`, without the baton.
        if self._told is _PENDING:
            self.guard.defer(self._end_for_library)  # which comes back here
            return
        if self._listeners:
            self.guard.defer(self._call_listeners)
        gathered, self._gathered = self._gathered, None
        if gathered is not None:
            reference, numbers = gathered
            if next(numbers) == 0 and (whole := reference()) is not None:
                self.guard.defer(whole._conclude)
            self._whole = None

    def _call_listeners(self) -> None:
        while self._listeners:
            try:
                listener = self._listeners.pop(0)
            except IndexError:  # another thread was faster
                return
            _call(listener, self)

    def _end_for_library(self) -> None:
        """Be done for concurrent.futures too, which has the condition."""
        with self._made:
            if self._told is _PENDING:
                for waiter in self._waiters:
                    if self.withdrawn:
                        waiter.add_cancelled(self)
                    elif self._exception is not None:
                        waiter.add_exception(self)
                    else:
                        waiter.add_result(self)
                self._told = self._outcome
        self._hold(self._end)

    def _poll(self, wait_lock: threading.Lock, deadline: float) -> None:
        """Poll until it is done, or another thread has to poll."""
        while not self.done() and self.guard.poll(wait_lock, deadline):
            pass

    def _wait(self, timeout: float | None) -> bool:
        # First by polling, as in `get`: the ACK is then handled in this thread. If another thread polls already, or
        # this may not, by a callback, which costs a change of threads.
        guard, deadline = self.guard, deadline_of(timeout)
        protect()
        wait_lock = guard.wait_lock("result")
        try:
            with wait_lock:
                self._poll(wait_lock, deadline)
        finally:
            guard.stop_polling()
        callbacks: list[Callable[[Future[None]], object]] = []

        def subscribe(wake: Callable[[], object]) -> None:
            callbacks.append(lambda _: wake())
            self._listen(callbacks[0])

        def unsubscribe() -> None:
            if callbacks and self._listeners:
                with contextlib.suppress(ValueError):  # it has been called, or is just now
                    self._listeners.remove(callbacks[0])

        leave = functools.partial(self._hold, unsubscribe)
        return self.done() or guard.wait(self.done, deadline, subscribe, leave, "result")

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        """The condition that concurrent.futures.wait and as_completed lock to read `_state` and `_waiters`."""
        if self.guard.forked:
            self._check_not_forked("wait")
        self._look()
        with self.guard.lock:
            if not hasattr(self, "_waiters"):
                self._waiters: list[Any] = []
            if self.guard.forked:
                return IN_FORK
            if self._told is None:
                self.watched = True
                self._made = threading.Condition()
                self._told = self._outcome
            return self._made


class Copy(Outgoing):
    """A message to one of many peers, without a future. `failed` is called if it fails, without the baton."""

    __slots__ = ("failed", "guard", "peer")
    guard: Guard
    peer: uuid.UUID
    failed: Callable[[uuid.UUID, Exception], object] | None

    def fail(self, error: Exception) -> bool:
        """Fail: the peer will never hold it, or it is unknown whether it does. Return False if it is done already."""
        failed, self.failed = self.failed, None
        if self.held or failed is None:
            return False
        self.data = b""
        self.guard.ledger.failed(self.peer, error, looked_at=True)
        self.guard.defer(call_logged, failed, self.peer, error)
        return True


def gather(guard: Guard, futures: Sequence[Delivery]) -> Delivery:
    """Return one future of several that were just made, and of which no other thread knows. Without any it is done."""
    if len(futures) == 1:
        return futures[0]
    whole = Delivery(b"")
    whole.peer, whole.guard, whole.recall = None, guard, None
    whole._futures = tuple(futures)
    if not futures:
        whole.acked()
    numbers = iter(range(len(futures) - 1, -1, -1))  # next() is atomic: one thread gets the 0
    # A reference that does not keep it: if the user has dropped it, a part that fails tells that itself, at once.
    gathered = weakref.ref(whole), numbers
    for future in futures:
        future.watched, future._gathered = True, gathered
    return whole


def call_logged(function: Callable[..., object], *args: Any) -> None:
    """Call a function of the user in a thread of netq. What it raises is logged: not even sys.exit may end the loop."""
    try:
        function(*args)
    except BaseException as error:
        if raised_by_handler(error) is not None:  # it interrupts our caller, who happens to be here
            raise
        log.exception("%r failed, which netq has called", function)


def _call(listener: Callable[[Future[None]], object], delivery: Delivery) -> None:
    try:
        listener(delivery)
    except BaseException:  # a callback is the user's code: not even sys.exit may end the loop
        log.exception("a callback of a delivery failed")
