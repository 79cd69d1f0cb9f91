"""What a client has asked its exchange, and has no answer to yet: a future for each request. Sends nothing.

Has no lock: each step is one operation of a dict. So it may be used by code that the garbage collector or a signal
handler runs on top of any other code.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from netq.core import Communicator, check_timeout
from netq.exchange.envelope import Envelope, EnvelopeKind
from netq.io.condition import Condition, bounded
from netq.io.interrupts import raised_by_handler
from netq.log import log
from netq.runtime.delivery import IN_FORK, Delivery, Guard
from netq.runtime.undelivered import Undelivered, Unseen

_MAY_WAIT = (EnvelopeKind.PUSH, EnvelopeKind.CALL)  # requests that an exchange need not answer soon


class UserCode(threading.local):
    """Whether this thread runs a callback, an event or a function of the user: it must not wait for the client."""

    runs = False

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Note that it does."""
        before, self.runs = self.runs, True
        try:
            yield
        finally:
            self.runs = before


class Answer(Future[Any]):
    """The future of a request: it has the answer.

    As a Delivery (netq/runtime/delivery.py), it raises RuntimeError in a fork unless it was done, and is told in the
    log if it fails and the user drops it without a look.
    """

    _done_callbacks: list[Callable[[Future[Any]], object]]

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._looked_at = False  # the user has asked how it ends, before it did
        self._unseen: Unseen | None = None  # it has failed, and the user has not looked at it
        self._settler: int | None = None  # the thread that settles it
        super().__init__()

    def __repr__(self) -> str:  # that of Future locks the condition
        error = "" if self._exception is None else f" raised {type(self._exception).__name__}"
        return f"<{type(self).__name__} state={self._state.lower()}{error}>"

    def cancelled(self) -> bool:
        """Return whether the user has cancelled it."""
        return self._state.startswith("CANCELLED")

    def running(self) -> bool:
        """Return whether it is about to be done."""
        return self._state == "RUNNING"

    def done(self) -> bool:
        """Return whether it has an answer or an error, or is cancelled."""
        return self._state not in ("PENDING", "RUNNING")

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call `fn(self)` when it is done, where it must not wait. If it is done, call it now."""
        # Without the condition: its holder may be interrupted by a finalizer that waits for a lock of this caller. The
        # state is read after the append, and it changes before `_invoke_callbacks`, so one of the two threads finds fn.
        self._check_not_forked()
        self.look()
        self._done_callbacks.append(fn)
        if self.done():
            self._invoke_callbacks()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until it is done; return what `result` would raise, or None. Raises CancelledError, TimeoutError."""
        check_timeout("exception", timeout)
        self.look()
        return super().exception(bounded(timeout))

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the answer, and return it; or raise the error. Raises CancelledError, TimeoutError."""
        check_timeout("result", timeout)
        self.look()
        try:
            return super().result(bounded(timeout))
        finally:
            del self  # the traceback refers to this frame: avoid the cycle

    def begin_to_settle(self) -> bool:
        """Note that this thread settles it, for which it locks the condition. Returns whether it is to be settled."""
        self._settler = threading.get_ident()
        return self.set_running_or_notify_cancel()

    def fail(self, error: Exception, ledger: Undelivered) -> None:
        """Have an error. The ledger is told that, and also if the user drops this without a look."""
        self.set_exception(error)  # before this is unseen: it locks the condition
        self._unseen = ledger.failed(None, error, looked_at=self._looked_at)
        if self._looked_at:  # perhaps only now
            self.look()

    def look(self) -> None:
        """Note that the user asks how it ends, or has ended."""
        self._looked_at = True
        unseen, self._unseen = self._unseen, None
        if unseen is not None:
            unseen.look()

    @property
    def _condition(self) -> threading.Condition:
        """The condition that all of concurrent.futures locks, also `wait` and `as_completed`."""
        if threading.get_ident() != self._settler:
            self.look()
        self._check_not_forked()
        return IN_FORK if self._guard.forked else self._made

    @_condition.setter
    def _condition(self, made: threading.Condition) -> None:
        self._made = made

    def _check_not_forked(self) -> None:
        if not self.done():
            self._guard.check_not_forked("a future that is not done")

    def _invoke_callbacks(self) -> None:
        """Call each callback, once. That of Future logs without netq's guard against handlers."""
        while self._done_callbacks:
            try:
                callback = self._done_callbacks.pop(0)
            except IndexError:  # another thread was faster
                return
            _call(callback, self)


def _call(callback: Callable[[Future[Any]], object], future: Answer) -> None:
    try:
        callback(future)
    except BaseException as error:  # the user's code: not even sys.exit keeps the next one from its call
        if raised_by_handler(error) is not None:  # it interrupts our caller, who happens to be here
            raise
        log.exception("a callback of a future failed")


class Request:
    """A request that is not answered.

    failed: called with its error, before its future has that. Returns whether the user learns of the error elsewhere,
            so that no word is needed if the future is dropped.
    is_due: whether it is still to be put, when its turn comes; otherwise it is done.
    """

    __slots__ = ("delivery", "envelope", "failed", "future", "is_due", "number", "queue")

    def __init__(
        self,
        envelope: Envelope,
        queue: Communicator,
        failed: Callable[[Exception], bool] | None = None,
        is_due: Callable[[], bool] | None = None,
    ) -> None:
        self.envelope = envelope  # with its data, until an exchange has got it
        self.failed = failed
        self.is_due = is_due
        self.queue = queue  # by which it is, or was put
        self.future = Answer(queue._baton)
        self.number = 0
        self.delivery: Delivery | None = None  # None: it is being put

    @property
    def was_delivered(self) -> bool:
        """Whether an exchange has got it."""
        delivery = self.delivery
        return delivery is not None and delivery.done() and not delivery.cancelled() and delivery.exception() is None

    def settle(self, result: Any = None, error: Exception | None = None) -> None:
        """Let the future be done, unless its user has cancelled it."""
        if error is not None and self.failed is not None and self.failed(error):
            self.future.look()
        try:
            if not self.future.begin_to_settle():
                return
            if error is None:
                self.future.set_result(result)
            else:
                self.future.fail(error, self.queue._baton.ledger)
        except BaseException:  # a callback is the user's code: not even sys.exit may end the client's thread
            log.exception("a callback of a future failed")


class Requests:
    """The requests of a client, by number. Runs the callbacks of their futures. Thread-safe, but for `add`."""

    def __init__(self, user_code: UserCode) -> None:
        self._user_code = user_code
        self._last = 0  # the number of the last request
        self._open: dict[int, Request] = {}
        self._acknowledged = 0  # publications up to this number are settled. Used by the client's thread
        self._settled = Condition()

    def add(self, request: Request) -> int:
        """Add a request, and return its number. For one thread at a time."""
        self._last = request.number = number = self._last + 1
        self._open[number] = request
        return number

    def get(self, number: int) -> Request | None:
        """Return the request of a number, unless it is answered."""
        return self._open.get(number)

    def delivered(self) -> list[Request]:
        """Return those that an exchange has got."""
        # Numbers first: no object is made for one, so nothing adds a request while the dict is read.
        found = [self._open.get(number) for number in list(self._open)]
        return [request for request in found if request is not None and request.was_delivered]

    def is_late(self) -> bool:
        """Return whether an exchange has got one that it answers at once."""
        return any(each.envelope.kind not in _MAY_WAIT for each in self.delivered())

    def wait(self, is_over: Callable[[], bool], timeout: float | None) -> None:
        """Wait until all that an exchange answers at once is settled, or `is_over()`."""

        def is_settled() -> bool:
            found = (self._open.get(number) for number in list(self._open))
            return is_over() or not any(each and each.envelope.kind not in _MAY_WAIT for each in found)

        self._settled.wait(is_settled, timeout)

    def forget(self, request: Request) -> bool:
        """Remove a request; return whether it was open."""
        was_open = self._open.pop(request.number, None) is request
        self._settled.notify()
        return was_open

    def settle(self, request: Request, result: Any = None, error: Exception | None = None) -> None:
        """Settle a request, unless it is."""
        if self.forget(request):
            with self._user_code.here():
                request.settle(result, error)

    def settle_publications(self, last: int) -> None:
        """Settle all publications up to a number. In the client's thread."""
        last = min(last, self._last)
        for number in range(self._acknowledged + 1, last + 1):
            request = self._open.get(number)
            if request is not None and request.envelope.kind is EnvelopeKind.PUBLISH:
                self.settle(request)
        self._acknowledged = max(self._acknowledged, last)
