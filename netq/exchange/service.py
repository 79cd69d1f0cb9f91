"""A service of a client: a function of the user, and the threads that answer calls with it.

Client.serve begins it, and Client.unserve ends it.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from netq.exchange.envelope import Envelope, EnvelopeKind, Refusal
from netq.exchange.requester import Requester
from netq.io.condition import bounded
from netq.log import log
from netq.text import describe

GONE = "the client that was to answer offers this service no more"


class Service:
    """Calls `function` with the data of each call, and replies with the result. A Consumer of the Requester."""

    def __init__(self, requester: Requester, name: str, function: Callable[[Any], Any], threads: int) -> None:
        self._requester = requester
        self._function = function
        self._has_ended = False
        self._calls: SimpleQueue[Envelope | None] = SimpleQueue()  # None: there are no more
        # Daemons: a function that hangs does not keep the process from ending.
        self._threads = [
            threading.Thread(target=self._run, name=f"netq-exchange-{name}", daemon=True) for _ in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def take(self, envelope: Envelope) -> None:
        """Queue a call for the threads; refuse it after `end`. Called by the client."""
        self._calls.put(envelope)
        if self._has_ended:
            self.end()

    def end(self, error: Exception | None = None) -> None:
        """Refuse the calls that wait, and let the threads end. Called by the client."""
        self._has_ended = True
        with contextlib.suppress(Empty):
            while True:
                if (call := self._calls.get_nowait()) is not None:
                    self._requester.refuse(call, Refusal.ABSENT, GONE)
        self._calls.put(None)

    def wait(self, deadline: float) -> None:
        """Wait until the threads have ended, or until a time of time.monotonic()."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(bounded(max(0.0, deadline - time.monotonic())))

    @property
    def runs(self) -> bool:
        """Whether a thread has not ended."""
        return any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        with self._requester.user_code.here():
            while (call := self._calls.get()) is not None:
                self._answer(call)
        self._calls.put(None)  # for the other threads

    def _answer(self, call: Envelope) -> None:
        try:
            result = self._function(self._requester.loaded(call))
            if inspect.iscoroutine(result):
                result.close()
                raise TypeError(
                    "the function returned a coroutine; expected a value: serve a function that is not async"
                )
            data = self._requester.dumped(result)
        except BaseException as error:  # of the user's function: sys.exit, too, is its failure
            log.exception("the service %r failed", call.name)
            self._requester.refuse(call, Refusal.FAILED, describe(error))
        else:
            self._requester.answer(call, Envelope(EnvelopeKind.REPLY, data=data))
