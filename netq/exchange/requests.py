"""The open requests of a client, each with the future of its answer. Sends nothing.

It has no lock: each step is one operation of a dict. So finalizers and signal handlers may use it on top of any other
code.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

from netq import Communicator, Delivery, Promise
from netq.exchange.envelope import Envelope, EnvelopeKind
from netq.io.condition import Condition
from netq.log import log

_MAY_WAIT = (EnvelopeKind.PUSH, EnvelopeKind.CALL)  # an exchange answers these when a worker or a service has


class UserCode(threading.local):
    """Whether this thread runs a callback, an event or a function of the user. It must not wait for the client."""

    runs = False

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Note that this thread runs code of the user."""
        before, self.runs = self.runs, True
        try:
            yield
        finally:
            self.runs = before


class Request:
    """A request that is not answered.

    future: the future of the answer. Its `queue` is the communicator that has put the request, or is to put it.
    failed: called with the error before the future has it. Returns whether the user learns of the error without the
            future: then the log does not tell it if the future is dropped.
    is_due: called when the turn of the request comes. If it returns False, the request is not put, and done.
    """

    __slots__ = ("delivery", "envelope", "failed", "future", "is_due", "number")

    def __init__(
        self,
        envelope: Envelope,
        queue: Communicator,
        failed: Callable[[Exception], bool] | None = None,
        is_due: Callable[[], bool] | None = None,
    ) -> None:
        self.envelope = envelope  # without its data once it was delivered
        self.failed = failed
        self.is_due = is_due
        self.future = Promise(queue)
        self.number = 0
        self.delivery: Delivery | None = None  # None: it is being put

    @property
    def was_delivered(self) -> bool:
        """Whether the exchange has it."""
        delivery = self.delivery
        return delivery is not None and delivery.done() and not delivery.cancelled() and delivery.exception() is None

    def settle(self, result: Any = None, error: Exception | None = None) -> None:
        """Settle the future, unless its user has cancelled it."""
        is_told = error is not None and self.failed is not None and self.failed(error)
        try:
            if not self.future.set_running_or_notify_cancel():
                return
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)
                if is_told:
                    self.future.exception()
        except BaseException:  # a callback is the user's code: not even sys.exit may end the client's thread
            log.exception("a callback of a future failed")


class Requests:
    """The open requests of a client, by number. Any thread may use it; one at a time calls `add`."""

    def __init__(self, user_code: UserCode) -> None:
        self._user_code = user_code
        # The number of the last request. An answer to an earlier client with the same id must not fit.
        self._last = secrets.randbits(62)
        self._open: dict[int, Request] = {}
        self._acknowledged = self._last  # publications up to this number are settled. Used by the client's thread
        self._settled = Condition()

    def add(self, request: Request) -> int:
        """Add a request, and return its number. For one thread at a time."""
        self._last = request.number = number = self._last + 1
        self._open[number] = request
        return number

    def get(self, number: int) -> Request | None:
        """Return the open request with a number."""
        return self._open.get(number)

    def delivered(self) -> list[Request]:
        """Return the requests that the exchange has."""
        # Numbers first: no object is made for one, so nothing adds a request while the dict is read.
        found = [self._open.get(number) for number in list(self._open)]
        return [request for request in found if request is not None and request.was_delivered]

    def is_late(self) -> bool:
        """Return whether the exchange has a request that it answers at once."""
        return any(each.envelope.kind not in _MAY_WAIT for each in self.delivered())

    def wait(self, is_over: Callable[[], bool], timeout: float | None) -> None:
        """Wait until all requests that an exchange answers at once are settled, or `is_over()`."""

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
        """Settle a request, if it is open. Runs the callbacks of its future."""
        if self.forget(request):
            with self._user_code.here():
                request.settle(result, error)

    def settle_publications(self, last: int) -> None:
        """Settle all publications up to a number. In the client's thread."""
        if not self._acknowledged < last <= self._last:
            return
        for number in range(self._acknowledged + 1, last + 1):
            request = self._open.get(number)
            if request is not None and request.envelope.kind is EnvelopeKind.PUBLISH:
                self.settle(request)
        self._acknowledged = last
