"""A client's conversation with its server: a task, a reply, a task, … Moves messages, and does not read models.

Used by fl/client.py, in its caller's thread. Needs no numpy. docs/reference/fl.md, "The end of a federation", says
which server's end is the end for a client.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import NamedTuple

import netq
from fl.membership import Membership
from fl.outline import Job, Permit, Task, failure, offer
from netq.utils.stream import Stream

log = logging.getLogger("netq.fl")


class Finished(NamedTuple):
    """The reply to a task, as bytes. `size`: bytes of its arrays; 0 if it has none."""

    job: Job
    message: Stream
    size: int


class Conversation:
    """The messages of one session. Its communicator has the serialisation fl.outline.OUTLINES."""

    def __init__(self, queue: netq.Communicator, membership: Membership) -> None:
        self._queue = queue
        self._membership = membership
        self._offered: Finished | None = None  # waits for a permit

    def next_task(self) -> Task | None:
        """Wait for a task, and return it. Return None when the federation, or the session, is over.

        Sends the offered reply when its permit comes. If several tasks wait, returns the newest: the rounds of the
        others are over, and so is the round of an offered reply.
        """
        task, timeout = None, None
        while True:
            try:
                peer, message = self._queue.get(timeout=timeout)
            except TimeoutError:
                return task
            except netq.Closed as error:
                self._membership.session_ended(error)
                return None
            except netq.Unreadable as error:
                log.error("a message of the server cannot be read, and is left out: %s", error)
                continue
            if isinstance(message, Task):
                self._membership.asked(peer)
                self._offered = None
                task, timeout = message, 0.0
            elif isinstance(message, Permit):
                self._permitted(message.job)
            elif self._membership.ended(peer):
                log.info("round %d was the last one: the server has ended the federation", message.round)
                return None

    def reply(self, task: Task, message: Stream, size: int) -> None:
        """Send the reply to a task. Offer a large one first, and keep it until there is a permit."""
        finished = Finished(task.job, message, size)
        if size > task.unasked:
            self._offered = finished
            self._queue.put(offer(task.job, size))
        else:
            self._put(finished)

    def fail(self, task: Task, reason: str) -> None:
        """Send the reason why there is no reply to a task."""
        self._queue.put(failure(task.job, reason))

    def _permitted(self, job: Job) -> None:
        finished, self._offered = self._offered, None
        if finished is not None and finished.job == job:
            self._put(finished)

    def _put(self, finished: Finished) -> None:
        """Send a reply. If it cannot be sent, send the reason instead."""

        def check(delivery: Future[None]) -> None:
            if isinstance(error := delivery.exception(), netq.MessageTooLarge):
                self._queue.put(failure(job, f"its answer cannot be sent: {error}"))

        job = finished.job  # `check` lives as long as the delivery, and must not keep the large reply
        self._queue.put(finished.message).add_done_callback(check)
