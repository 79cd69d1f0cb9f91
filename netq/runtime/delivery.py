"""What `put` returns: a message on its way to one peer, and the future of it; or the future of several of them.

A message to one peer is one Delivery. A message to several is one that has a Delivery for each in `futures`,
and is done when all of them are.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol

from netq.protocol.codec import FINISHED, PENDING, Outgoing

log = logging.getLogger("netq")

_CANCELLED = "CANCELLED_AND_NOTIFIED"


class Guard(Protocol):
    """Whose lock guards a Delivery: the loop of its peer."""

    lock: Any  # an RLock
    wanted: bool  # a user's thread waits for the baton

    def defer(self, function: Callable[..., object], *args: Any) -> None:
        """Run `function(*args)`, which is the user's, when the lock is free."""

    def run_late_deferred(self) -> None:
        """See netq/io/loop.py."""

    def wait_lock(self, name: str) -> threading.Lock:
        """Return what this thread holds while it waits in `name`."""

    def poll(self, wait_lock: threading.Lock, deadline: float) -> bool:
        """See netq/io/loop.py."""

    def stop_polling(self) -> None:
        """See netq/io/loop.py."""

    def wait(
        self,
        come: Callable[[], bool],
        deadline: float,
        line_up: Callable[[Callable[[], object]], object],
        leave: Callable[[], object],
        name: str,
    ) -> bool:
        """See netq/io/loop.py."""


class Delivery(Outgoing, Future[None]):
    """Done when the peer holds the message: then the data may be changed again.

    `result()` raises Closed, QueueFull or MessageTooLarge if it never will be. With several peers it waits
    for all, and raises the error of the first of `futures` that has one.

    `guard` is the loop of its peer; who changes a Delivery holds its baton. `recall` is what the communicator does with
    it when it is cancelled. Future's __init__, which makes a lock and two lists, is not called: they are made for
    those who ask for them.
    """

    guard: Guard
    _ending: str | None = None  # decided, and not yet known to concurrent.futures
    _result = None
    _exception: BaseException | None = None
    _futures: tuple[Delivery, ...] = ()

    @property
    def futures(self) -> tuple[Delivery, ...]:
        """One for each peer; for a message to one peer, this."""
        return self._futures or (self,)

    def cancel(self) -> bool:
        """Take the message back; True if the peer (if all of them) will never see it.

        Possible until the last of its bytes has left. Its memory is free again at once. Not possible in a signal
        handler that interrupts this communicator while it sends.
        """
        if self._futures:
            cancelled = [future.cancel() for future in self._futures]  # each, whatever became of the others
            if all(future.done() for future in self._futures):
                self._conclude()
                if self._made is not None and self._ending:
                    self._end_for_library(self._ending)
            return all(cancelled)
        if self.guard.lock._is_owned():  # somebody further down the stack may be sending it
            return self.cancelled()
        self.guard.wanted = True
        with self.guard.lock:
            self.guard.wanted = False
            if self._state is not PENDING or self.left or self._ending:
                return self.cancelled()
            self.withdraw()
            recall, self._recall = self._recall, None
            self._end(_CANCELLED)
        if self._made is not None:
            self._end_for_library(_CANCELLED)
        if recall is not None:
            recall(self)
        self.guard.run_late_deferred()
        return True

    def cancelled(self) -> bool:
        """Whether it was taken back."""
        return self._state is _CANCELLED

    def running(self) -> bool:
        """Whether it can no longer be taken back, and is not done."""
        return self.left and self._state is PENDING

    def done(self) -> bool:
        """Whether it is known how it ended."""
        return self._state is not PENDING

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        """Call `fn(self)` when it is done, in a thread of netq, where it must not wait; or now, if it is done."""
        self.guard.wanted = True
        with self.guard.lock:
            self.guard.wanted = False
            if self._state is PENDING:
                if self._listeners is None:
                    self._listeners = []
                self._listeners.append(fn)
                return
        try:
            fn(self)
        except Exception:
            log.exception("a callback of a delivery failed")

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until it is done; return what `result` would raise, if so. Raises CancelledError, TimeoutError."""
        if self._state is PENDING and not self._wait(timeout):
            raise TimeoutError
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
                del error, self  # the traceback holds this frame: no cycle

    # For who holds the baton.

    def acked(self) -> None:
        """The peer holds the message. Harmless if that is known."""
        self.data = b""
        self._recall = None
        if self._listeners is None and self._made is None:
            if self._state is PENDING:
                self._state = FINISHED
        else:
            self._end(FINISHED)

    def fail(self, error: Exception) -> bool:
        """The peer will never hold it, or nobody can know whether it does; return False if it is done already."""
        with self.guard.lock:
            if self._state is not PENDING or self._ending:
                return False
            self.data = b""
            self._recall = None
            self._exception = error
            self._end(FINISHED)
        self.guard.run_late_deferred()
        return True

    def _conclude(self) -> None:
        """Be what the parts are, which are all done. Harmless afterwards."""
        errors = [error for future in self._futures if not future.cancelled() and (error := future.exception())]
        with self.guard.lock:
            if self._state is not PENDING:
                return
            self._exception = errors[0] if errors else None
            self._end(_CANCELLED if all(future.cancelled() for future in self._futures) else FINISHED)
        self.guard.run_late_deferred()

    def _end(self, state: str) -> None:
        """Be done, and let all know who want to. Harmless afterwards: the thread may have been interrupted in it."""
        if self._made is None:
            if self._state is PENDING:
                self._state = state
        elif self._state is PENDING and not self._ending:  # not here: another thread may hold the condition for long
            self._ending = state
            self.guard.defer(self._end_for_library, state)
        while self._listeners:
            self.guard.defer(_call, self._listeners[0], self)
            del self._listeners[0]

    def _end_for_library(self, state: str) -> None:
        """Be done, where concurrent.futures has made the condition."""
        with self._condition:
            if self._state is not PENDING:
                return
            self._state = state
            for waiter in self._waiters:
                if state is _CANCELLED:
                    waiter.add_cancelled(self)
                elif self._exception is not None:
                    waiter.add_exception(self)
                else:
                    waiter.add_result(self)
            self._condition.notify_all()
        with self.guard.lock:
            self._end(state)

    def _poll(self, wait_lock: threading.Lock, deadline: float) -> None:
        """Poll until it is done, or another thread has to go on with that."""
        while not self.done() and self.guard.poll(wait_lock, deadline):
            pass

    def _wait(self, timeout: float | None) -> bool:
        guard, deadline = self.guard, math.inf if timeout is None else time.monotonic() + timeout
        wait_lock = guard.wait_lock("result")
        try:
            with wait_lock:
                self._poll(wait_lock, deadline)
        finally:
            guard.stop_polling()
        ears: list[Callable[[Future[None]], object]] = []

        def line_up(wake: Callable[[], object]) -> None:
            ears.append(lambda _: wake())
            self.add_done_callback(ears[0])

        def leave() -> None:
            with guard.lock:
                if ears and self._listeners and ears[0] in self._listeners:
                    self._listeners.remove(ears[0])

        return self.done() or guard.wait(self.done, deadline, line_up, leave, "result")

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        """What concurrent.futures.wait and as_completed lock, with `_state` and `_waiters` behind it."""
        with self.guard.lock:
            if self._made is None:
                self._waiters: list[Any] = []
                self._made = threading.Condition()
            made: threading.Condition = self._made
            return made


def gather(guard: Guard, futures: Sequence[Delivery]) -> Delivery:
    """Return the one future of several; of none, it is done."""
    if len(futures) == 1:
        return futures[0]
    whole = Delivery(b"", guard=guard)
    whole._futures = tuple(futures)
    if not futures:
        whole.acked()
    numbers = iter(range(len(futures) - 1, -1, -1))  # next() is atomic: just one thread gets the 0
    for future in futures:
        future.add_done_callback(functools.partial(_part_done, whole, numbers))
    return whole


def _part_done(whole: Delivery, numbers: Iterator[int], part: Future[None]) -> None:
    if next(numbers) == 0:
        whole._conclude()


def _call(listener: Callable[[Future[None]], object], delivery: Delivery) -> None:
    try:
        listener(delivery)
    except BaseException:  # out of a callback, which is the user's: not even sys.exit may end the loop
        log.exception("a callback of a delivery failed")
