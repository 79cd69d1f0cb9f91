"""What a client has asked its exchange, and has no answer to yet: a future for each request. Sends nothing."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from netq.exchange.envelope import Envelope, Kind
from netq.log import log

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
    """A request that is not answered. `failed` is called with its error, before its future has that."""

    __slots__ = ("delivery", "envelope", "failed", "future")

    def __init__(self, envelope: Envelope, failed: Callable[[Exception], object] | None) -> None:
        self.envelope = envelope._replace(data=None)
        self.failed = failed
        self.future: Future[Any] = Future()
        self.delivery: Future[None] | None = None  # None: it is being put

    @property
    def was_delivered(self) -> bool:
        """Whether an exchange has got it."""
        delivery = self.delivery
        return delivery is not None and delivery.done() and not delivery.cancelled() and delivery.exception() is None

    def settle(self, result: Any = None, error: Exception | None = None) -> None:
        """Let the future be done, unless its user has cancelled it."""
        if error is not None and self.failed is not None:
            self.failed(error)
        try:
            if self.future.set_running_or_notify_cancel():
                self.future.set_result(result) if error is None else self.future.set_exception(error)
        except BaseException:  # a callback is the user's code: not even sys.exit may end the client's thread
            log.exception("a callback of a future failed")


class Requests:
    """The requests of a client, by number. Thread-safe; runs the callbacks of their futures, without its lock."""

    def __init__(self, user_code: UserCode) -> None:
        self._user_code = user_code
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[int, Request] = {}
        self._published: deque[int] = deque()  # the numbers of publications among them, and of few that have failed

    def add(self, request: Request) -> int:
        """Add a request, and return its number."""
        with self._lock:
            number = next(self._numbers)
            self._open[number] = request
            if request.envelope.kind is Kind.PUBLISH:
                self._published.append(number)
        return number

    def get(self, number: int) -> Request | None:
        """Return the request of a number, unless it is answered."""
        with self._lock:
            return self._open.get(number)

    def delivered(self) -> list[int]:
        """Return the numbers of those that an exchange has got."""
        with self._lock:
            return [number for number, request in self._open.items() if request.was_delivered]

    def is_late(self) -> bool:
        """Return whether an exchange has got one that it answers at once."""
        with self._lock:
            return any(each.was_delivered and each.envelope.kind not in _MAY_WAIT for each in self._open.values())

    def settle(self, number: int, result: Any = None, error: Exception | None = None) -> None:
        """Settle a request, unless it is."""
        with self._lock:
            request = self._open.pop(number, None)
            while self._published and self._published[0] not in self._open:
                self._published.popleft()
        if request is not None:
            with self._user_code.here():
                request.settle(result, error)

    def settle_publications(self, last: int) -> None:
        """Settle all publications up to a number."""
        with self._lock:
            done = []
            while self._published and self._published[0] <= last:
                done.append(self._open.pop(self._published.popleft(), None))
        with self._user_code.here():
            for request in filter(None, done):
                request.settle()

    def fail(self, error: Callable[[], Exception]) -> None:
        """Fail all, each with an error of its own."""
        with self._lock:
            failed, self._open = self._open, {}
            self._published.clear()
        with self._user_code.here():
            for request in failed.values():
                request.settle(error=error())
