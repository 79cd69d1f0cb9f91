"""A future that the user's code settles: for the answer to a message.

Promises are for programs that build requests and replies on a communicator, as netq/exchange does. A Promise behaves as
the future of `put` (netq/runtime/delivery.py) does: in a fork, in finalizers and signal handlers, and if its user drops
it without a look after it has failed. Sends nothing.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from netq.core import Communicator
from netq.io.condition import bounded
from netq.io.interrupts import raised_by_handler
from netq.log import log
from netq.runtime.delivery import IN_FORK
from netq.runtime.undelivered import Unseen
from netq.validate import check_timeout


class Promise(Future[Any]):
    """A future that your code settles, by `set_result` or `set_exception`: for the answer to a message that was put.

    queue: the communicator that has put the message, and counts a failure as if it was not delivered. Set another one
           if that puts the message again.
    peer:  to whom the message went; None: a client's server.

    If it fails, and its user drops it without a look, the log tells that. In a fork it raises RuntimeError, unless it
    was done. `add_done_callback` waits for no lock, so finalizers and signal handlers may call it.
    """

    _done_callbacks: list[Callable[[Future[Any]], object]]

    def __init__(self, queue: Communicator, peer: uuid.UUID | None = None) -> None:
        self.queue = queue
        self.peer = peer
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
        """Return whether it has a result or an error, or is cancelled."""
        return self._state not in ("PENDING", "RUNNING")

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call `fn(self)` when it is done, where it must not wait. If it is done, call it now."""
        # Without the condition: its holder may be interrupted by a finalizer that waits for a lock of this caller. The
        # state is read after the append, and it changes before `_invoke_callbacks`, so one of the two threads finds fn.
        self._check_not_forked()
        self._look()
        self._done_callbacks.append(fn)
        if self.done():
            self._invoke_callbacks()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until it is done; return what `result` would raise, or None. Raises CancelledError, TimeoutError."""
        check_timeout("exception", timeout)
        self._look()
        return super().exception(bounded(timeout))

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result, and return it; or raise the error. Raises CancelledError, TimeoutError."""
        check_timeout("result", timeout)
        self._look()
        try:
            return super().result(bounded(timeout))
        finally:
            del self  # the traceback refers to this frame: avoid the cycle

    def set_running_or_notify_cancel(self) -> bool:
        """Keep its user from cancelling it; return False if that has happened. For the thread that settles it."""
        self._settler = threading.get_ident()
        return super().set_running_or_notify_cancel()

    def set_result(self, result: Any) -> None:
        """Be done, with a result."""
        self._settler = threading.get_ident()
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Fail with an error, an Exception."""
        if not isinstance(exception, Exception):
            raise TypeError(f"Promise.set_exception: {exception!r}; expected an instance of Exception")
        self._settler = threading.get_ident()
        super().set_exception(exception)  # before this is unseen: it locks the condition
        self._unseen = self.queue._baton.ledger.failed(self.peer, exception, looked_at=self._looked_at)
        if self._looked_at:  # perhaps only now
            self._look()

    def _look(self) -> None:
        """Note that the user asks how it ends, or has ended."""
        self._looked_at = True
        unseen, self._unseen = self._unseen, None
        if unseen is not None:
            unseen.look()

    @property
    def _condition(self) -> threading.Condition:
        """The condition that all of concurrent.futures locks, also `wait` and `as_completed`."""
        if threading.get_ident() != self._settler:
            self._look()
        self._check_not_forked()
        return IN_FORK if self.queue.forked else self._made

    @_condition.setter
    def _condition(self, made: threading.Condition) -> None:
        self._made = made

    def _check_not_forked(self) -> None:
        if not self.done():
            self.queue._baton.check_not_forked("a future that is not done")

    def _invoke_callbacks(self) -> None:
        """Call each callback, once. That of Future logs without netq's guard against handlers."""
        while self._done_callbacks:
            try:
                callback = self._done_callbacks.pop(0)
            except IndexError:  # another thread was faster
                return
            _call(callback, self)


def _call(callback: Callable[[Future[Any]], object], future: Promise) -> None:
    try:
        callback(future)
    except BaseException as error:  # the user's code: not even sys.exit keeps the next one from its call
        if raised_by_handler(error) is not None:  # it interrupts our caller, who happens to be here
            raise
        log.exception("a callback of a future failed")
