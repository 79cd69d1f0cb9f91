"""A worker of a queue, which Client.jobs returns, and its jobs. It is a Consumer of the Requester."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from netq.errors import Closed
from netq.exchange.envelope import Envelope, EnvelopeKind, Refusal
from netq.exchange.requester import Requester
from netq.io.condition import Condition, deadline_of
from netq.log import log
from netq.text import describe
from netq.validate import check_timeout


class Worker:
    """A worker of a queue: an iterator over the jobs that the exchange gives it, and a context manager.

    begun: done when the exchange knows the worker. It fails with NotPermitted.
    """

    begun: Future[None]

    def __init__(self, requester: Requester, queue: str) -> None:
        self.queue = queue
        self._requester = requester
        self._waiting: deque[Envelope] = deque()
        self._open: dict[int, Envelope] = {}  # by number: the jobs that are not answered, also those in `_waiting`
        self._error: Exception | None = None  # `get` raises it: the worker has ended
        self._changed = Condition()

    def get(self, timeout: float | None = None) -> Job:
        """Wait for the next job, and return it.

        Raises TimeoutError; Closed when the client or this is closed; NotPermitted, and what else `begun` fails with.
        """
        self._requester.check_not_forked("get()")
        check_timeout("get", timeout)
        deadline = deadline_of(timeout)
        while self._changed.wait(lambda: bool(self._waiting or self._error), deadline - time.monotonic()):
            if self._error is not None:
                raise self._error.with_traceback(None)
            with contextlib.suppress(IndexError):  # another thread was faster
                return Job(self, self._waiting.popleft())
        raise TimeoutError(f"no job within {timeout:g} s")

    def close(self) -> None:
        """End the work for the queue. Jobs that are not answered go to other workers, also those that `get` returned.

        So answer each job before, or it is done twice. In a fork it does nothing.
        """
        if self._requester.queue.forked:
            return
        if self._requester.consumer(EnvelopeKind.WORK, self.queue) is self:
            self._requester.unregister(EnvelopeKind.WORK, Envelope(EnvelopeKind.WORK, name=self.queue))
        self.end(Closed(self._requester.queue.id, "this client works no more for the queue"))

    def take(self, envelope: Envelope) -> None:
        """Take a job; give it back after `end`. Called by the client."""
        self._open[envelope.number] = envelope
        self._waiting.append(envelope)
        self._changed.notify()
        if self._error is not None:
            self._give_back()

    def end(self, error: Exception) -> None:
        """Let `get` raise this error, and give back the jobs that are not answered. Called by the client."""
        self._error = self._error or error
        self._changed.notify()
        self._give_back()

    def answer(self, envelope: Envelope, answer: Envelope) -> None:
        """Answer a job, unless it is answered. Called by the job."""
        if self._take_open(envelope):
            self._requester.answer(envelope, answer)

    def refuse(self, envelope: Envelope, reason: str) -> None:
        """Refuse a job, unless it is answered. Called by the job."""
        if self._take_open(envelope):
            self._requester.refuse(envelope, Refusal.FAILED, reason)

    def load(self, envelope: Envelope) -> Any:
        """Load the data of a job. Called by the job."""
        return self._requester.loaded(envelope)

    def _take_open(self, envelope: Envelope) -> bool:
        """Note that a job is answered; return False if it was."""
        return self._open.pop(envelope.number, None) is not None

    def _give_back(self) -> None:
        """Give back the jobs that are not answered."""
        self._waiting.clear()
        for number in reversed(list(self._open)):  # the exchange puts each at the head of the queue
            if (envelope := self._open.pop(number, None)) is not None:
                self._requester.answer(envelope, Envelope(EnvelopeKind.RETURN))

    def __iter__(self) -> Iterator[Job]:
        while True:
            try:
                job = self.get()
            except Closed:
                return
            yield job

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Job:
    """A job. Call `done` or `fail`; or use `with job:`, which calls `done` at its end, and `fail` after an exception.

    Only the first answer counts. tries: how many workers have got it before, and ended.
    """

    def __init__(self, worker: Worker, envelope: Envelope) -> None:
        self.queue = envelope.name
        self.peer = envelope.peer
        self.tries = envelope.detail
        self._worker = worker
        self._envelope = envelope

    @property
    def data(self) -> Any:
        """What was pushed; loaded anew each time. Raises Unreadable."""
        return self._worker.load(self._envelope)

    def done(self) -> None:
        """Tell the producer that it is done."""
        self._worker.answer(self._envelope, Envelope(EnvelopeKind.DONE))

    def fail(self, reason: str) -> None:
        """Tell the producer that it has failed; no other worker gets it."""
        self._worker.refuse(self._envelope, reason)

    def give_back(self) -> None:
        """Let another worker do it."""
        self._worker.answer(self._envelope, Envelope(EnvelopeKind.RETURN))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Answer. An Exception is logged, and goes no further, so that the worker takes the next job."""
        if error is None:
            self.done()
        elif isinstance(error, Exception):
            log.error("a job of %r failed", self.queue, exc_info=error)
            self.fail(describe(error))
            return True
        else:
            self.give_back()
        return False
