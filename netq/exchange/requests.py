"""What a client has asked its exchange, and has no answer to yet: a future for each request. Sends nothing.

Has no lock: each step is one operation of a dict. So it may be used by code that the garbage collector or a signal
handler runs on top of any other code.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from netq.core import Communicator
from netq.exchange.envelope import Envelope, Kind
from netq.log import log
from netq.runtime.delivery import Delivery

_OWN = 2  # references to a future: that of its Request, and that of `getrefcount`
_MAY_WAIT = (Kind.PUSH, Kind.CALL)  # requests that an exchange need not answer soon


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


class Request:
    """A request that is not answered.

    failed: called with its error, before its future has that.
    is_due: whether it is still to be put, when its turn comes; otherwise it is done.
    """

    __slots__ = ("delivery", "envelope", "failed", "future", "is_due", "number", "queue")

    def __init__(
        self, envelope: Envelope, failed: Callable[[Exception], object] | None, is_due: Callable[[], bool] | None = None
    ) -> None:
        self.envelope = envelope  # with its data, until an exchange has got it
        self.failed = failed
        self.is_due = is_due
        self.future: Future[Any] = Future()
        self.number = 0
        self.queue: Communicator | None = None  # by which it was put
        self.delivery: Delivery | None = None  # None: it is being put

    @property
    def was_delivered(self) -> bool:
        """Whether an exchange has got it."""
        delivery = self.delivery
        return delivery is not None and delivery.done() and not delivery.cancelled() and delivery.exception() is None

    @property
    def _is_dropped(self) -> bool:
        """Whether no code but this refers to the future, so that no user will learn from it that it has failed."""
        return sys.getrefcount(self.future) <= _OWN and not self.future._done_callbacks  # type: ignore[attr-defined]

    def settle(self, result: Any = None, error: Exception | None = None) -> None:
        """Let the future be done, unless its user has cancelled it."""
        if error is not None and self.failed is not None:
            self.failed(error)
        elif error is not None and self._is_dropped and self.queue is not None:
            self.queue._endpoint.undelivered.dropped(None, error)
        try:
            if self.future.set_running_or_notify_cancel():
                self.future.set_result(result) if error is None else self.future.set_exception(error)
        except BaseException:  # a callback is the user's code: not even sys.exit may end the client's thread
            log.exception("a callback of a future failed")


class Requests:
    """The requests of a client, by number. Runs the callbacks of their futures. Thread-safe, but for `add`."""

    def __init__(self, user_code: UserCode) -> None:
        self._user_code = user_code
        self._last = 0  # the number of the last request
        self._open: dict[int, Request] = {}
        self._acknowledged = 0  # publications up to this number are settled. Used by the client's thread

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

    def forget(self, request: Request) -> bool:
        """Remove a request; return whether it was open."""
        return self._open.pop(request.number, None) is request

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
            if request is not None and request.envelope.kind is Kind.PUBLISH:
                self.settle(request)
        self._acknowledged = max(self._acknowledged, last)
