"""The jobs that an exchange gives to a client: what Client.jobs returns, and what comes out of that."""

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
from netq.exchange.uplink import Uplink
from netq.io.condition import Condition, deadline_of
from netq.log import log
from netq.text import describe
from netq.validate import check_timeout


class Worker:
    """The jobs that an exchange gives to a client; an iterator, and a context manager. Made by Client.jobs.

    begun: the future of the exchange's consent: it fails with NotPermitted.
    """

    begun: Future[None]

    def __init__(self, uplink: Uplink, queue: str) -> None:
        self.queue = queue
        self._uplink = uplink
        self._waiting: deque[Envelope] = deque()
        self._open: dict[int, Envelope] = {}  # by number: all that are not answered, also those that wait
        self._error: Exception | None = None  # why there are no more jobs
        self._changed = Condition()

    def get(self, timeout: float | None = None) -> Job:
        """Wait for the next job, and return it.

        Raises TimeoutError; Closed when the client or this is closed; NotPermitted, and what else `begun` fails with.
        """
        self._uplink.check_not_forked("get()")
        check_timeout("get", timeout)
        deadline = deadline_of(timeout)
        while self._changed.wait(lambda: bool(self._waiting or self._error), deadline - time.monotonic()):
            if self._error is not None:
                raise self._error.with_traceback(None)
            with contextlib.suppress(IndexError):  # another thread was faster
                return Job(self, self._waiting.popleft())
        raise TimeoutError(f"no job within {timeout:g} s")

    def close(self) -> None:
        """Work no more for the queue. Jobs that are not answered go to other workers, also those that `get` returned.

        So answer each job before, or it is done twice. In a fork it does nothing.
        """
        if self._uplink.queue.forked:
            return
        if self._uplink.taker(EnvelopeKind.WORK, self.queue) is self:
            self._uplink.withdraw(EnvelopeKind.WORK, Envelope(EnvelopeKind.WORK, name=self.queue))
        self.end(Closed(self._uplink.queue.id, "this client works no more for the queue"))

    def take(self, envelope: Envelope) -> None:
        """Take a job; give it back after `end`. Called by the client."""
        self._open[envelope.number] = envelope
        self._waiting.append(envelope)
        self._changed.notify()
        if self._error is not None:
            self._give_back()

    def end(self, error: Exception) -> None:
        """Let `get` raise this, and give back what is not answered. Called by the client."""
        self._error = self._error or error
        self._changed.notify()
        self._give_back()

    def answer(self, envelope: Envelope, answer: Envelope) -> None:
        """Answer a job, once. Called by the job."""
        if self._is_open(envelope):
            self._uplink.answer(envelope, answer)

    def refuse(self, envelope: Envelope, reason: str) -> None:
        """Say that a job has failed, unless it is answered. Called by the job."""
        if self._is_open(envelope):
            self._uplink.refuse(envelope, Refusal.FAILED, reason)

    def load(self, envelope: Envelope) -> Any:
        """Load the data of a job. Called by the job."""
        return self._uplink.loaded(envelope)

    def _is_open(self, envelope: Envelope) -> bool:
        """Return whether a job was not answered, for the one who answers it now."""
        return self._open.pop(envelope.number, None) is not None

    def _give_back(self) -> None:
        """Give back what is not answered."""
        self._waiting.clear()
        for number in reversed(list(self._open)):  # each goes before those that wait
            if (envelope := self._open.pop(number, None)) is not None:
                self._uplink.answer(envelope, Envelope(EnvelopeKind.RETURN))

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
    """A job. Say `done` or `fail`, or use `with job:`, which says `done` at its end, and `fail` after an exception.

    Only the first answer counts. tries: how many workers have ended with it before.
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
