"""A client's conversation with its server: a task, a reply, a task, … Moves messages, and does not read models.

Used by fl/client.py, in its caller's thread. Needs no numpy. docs/reference/fl.md, "The end of a federation", says
which server's end is the end for a client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import netq
from fl.envelope import Failure, Final, Finished, Introduction, Job, Leave, Offer, Permit, Task
from fl.membership import Membership

log = logging.getLogger("netq.fl")


class KnownServer:
    """What a client knows of its server from all sessions.

    rate:    of the last update, in bytes a second; None: not measured yet.
    replies: the last job that has had a reply, and how many the server has.
    """

    rate: float | None = None
    replies: tuple[Job, int] | None = None

    def measured(self, size: int, seconds: float, round_trip: float | None) -> None:
        """Note that an update was acknowledged `seconds` after it was put. `round_trip`: None if unknown."""
        self.rate = size / max(seconds - (round_trip or 0.0), 0.1 * seconds, 1e-6)

    def replied(self, job: Job, count: int = 1) -> None:
        """Note that the server has, or with -1 will not have, a reply to a job."""
        last, before = self.replies or (job, 0)
        self.replies = job, count + (before if last == job else 0)

    def answers(self, job: Job) -> int:
        """Return how many replies to a job the server has, or will have."""
        return self.replies[1] if self.replies is not None and self.replies[0] == job else 0


class Conversation:
    """The messages of one session. Its communicator has the serialisation fl.envelope.ENVELOPES.

    properties:  what the client says of itself at the beginning of each session.
    wants_final: whether it wants the last model. It is then in `final`, from the end of the federation on.
    """

    def __init__(
        self,
        queue: netq.Communicator,
        membership: Membership,
        link: KnownServer,
        properties: Mapping[str, Any],
        *,
        wants_final: bool = False,
    ) -> None:
        self._queue = queue
        self._membership = membership
        self._link = link
        self._offered: Finished | None = None  # waits for a permit
        self._offered_to = ""  # the key of its task
        self._since = 0.0  # when the present task was returned, by time.monotonic()
        self._was_late = False  # whether the last reply came after the deadline of its task
        self._warned_unreadable = False  # later ones are lines of DEBUG: a server may send without end
        self.delivered: Job | None = None  # the last job whose reply the server has
        self.final: Final | None = None
        membership.greet_with(lambda: queue.put(Introduction(dict(properties), wants_final)))

    def next_task(self, idle: Callable[[], float | None] | None = None) -> Task | None:
        """Wait for a task, and return it. Return None when the federation, or the session, is over.

        Sends the offered reply when its permit comes. If several tasks wait, returns the newest: the rounds of the
        others are over, and so is the round of an offered reply. Does not return a task whose reply is on its way: the
        server sent it before it had that reply, which will count.

        idle: called before each wait; returns after how many seconds it wants to be called again, None: never. What it
              raises is raised here.
        """
        task = None
        while True:
            try:
                timeout = 0.0 if task is not None else idle() if idle is not None else None
                peer, message = self._queue.get(timeout=timeout)
            except TimeoutError:
                if task is None:
                    continue
                self._since = time.monotonic()
                return task
            except netq.Closed as error:
                self._membership.session_ended(error)
                return None
            except netq.Unreadable as error:
                level = logging.DEBUG if self._warned_unreadable else logging.ERROR
                self._warned_unreadable = True
                log.log(level, "a message of the server cannot be read, and is left out: %s", error)
                continue
            if isinstance(message, Task):
                self._membership.asked(peer)
                task = self._to_do(message)
            elif isinstance(message, Permit):
                self._permitted(message.job)
            elif isinstance(message, Final):  # it has passed the end
                self.final = message
            elif self._membership.ended(peer):
                log.info("round %d was the last one: the server has ended the federation", message.round)
                if message.final:
                    self._await_final(idle)
                return None

    def _await_final(self, idle: Callable[[], float | None] | None) -> None:
        """Wait for the last model. `idle`: as of `next_task`."""
        while self.final is None:
            try:
                _, message = self._queue.get(timeout=None if idle is None else idle())
            except (TimeoutError, netq.Unreadable):
                continue
            except netq.Closed as error:
                log.warning("the last model has not arrived: %s", error)
                return
            if isinstance(message, Final):
                self.final = message

    @property
    def is_sending(self) -> bool:
        """Whether an offered reply waits for its permit."""
        return self._offered is not None

    def leave(self, reason: str) -> None:
        """Announce that the session is going to be closed by this side."""
        self._queue.put(Leave(reason))

    def reply(self, task: Task, answer: Finished | str) -> None:
        """Send the reply to a task, or the reason why there is none.

        Offers a large reply first, and keeps it until there is a permit.
        """
        seconds, was_late = time.monotonic() - self._since, self._was_late
        self._was_late = seconds > task.deadline
        if self._was_late and not was_late:  # once for many rounds
            text = "%s: the reply was ready after %.1f s, and the server waits %g s: it may not count; "
            log.warning(text + "train less at a time, or ask for a longer deadline", task.title, seconds, task.deadline)
        if isinstance(answer, str):
            self._link.replied(task.job)
            self._queue.put(Failure(task.job, answer))
        elif answer.size > task.unasked:
            self._offered, self._offered_to = answer, task.key
            self._queue.put(Offer(task.job, answer.size))
        else:
            self._put(answer)

    def _to_do(self, task: Task) -> Task | None:
        """Return a task that has arrived, None if its reply is on its way already."""
        if (
            self._offered is not None and self._offered_to == task.key
        ):  # an offer to the attempt before may be forgotten
            self._queue.put(Offer(task.job, self._offered.size))
            return None
        self._offered = None
        if self._link.answers(task.job) > task.answered:
            log.info("%s: the reply to an attempt before this one is on its way", task.title)
            return None
        return task

    def _permitted(self, job: Job) -> None:
        finished, self._offered = self._offered, None
        if finished is not None and finished.job == job:
            self._put(finished)

    def _put(self, finished: Finished) -> None:
        """Send a reply. If it cannot be sent, send the reason instead."""

        def check(delivery: Future[None]) -> None:
            error = delivery.exception()
            if error is None:
                self.delivered = job
                if is_update:
                    self._link.measured(size, time.monotonic() - begin, round_trip)
            elif isinstance(error, netq.MessageTooLarge):
                self._queue.put(Failure(job, f"its answer cannot be sent: {error}"))
            else:
                self._link.replied(job, -1)

        # `check` lives as long as the delivery, and must not keep the large reply.
        job, size, is_update = finished.job, finished.message.nbytes, finished.size > 0
        round_trip = next((figures.round_trip for figures in self._queue.statistics().values()), None)
        begin = time.monotonic()
        self._link.replied(job)
        self._queue.put(finished.message).add_done_callback(check)
