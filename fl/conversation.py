"""A client's conversation with its server: a task, a reply, a task, … Moves messages, and does not read models.

Used by fl/client.py, fl/flower/node.py and edge/agent.py, in their caller's thread. Needs no numpy.
docs/reference/fl.md, "The end of a federation", says which server's end is the end for a client.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import netq
from fl.envelope import Describe, Described, End, Failure, Final, Finished, Introduction, Leave, Offer, Permit, Task
from fl.membership import Membership
from netq.version import VERSION

log = logging.getLogger("netq.fl")


class KnownServer:
    """What a client knows of its server from all sessions.

    rate:    of the last update, in bytes a second; None: not measured yet.
    replies: the last job that has had a reply, and how many the server has.
    check:   seconds that the training of this client's check took; 0: none was made.
    """

    rate: float | None = None
    check: float = 0.0
    replies: tuple[Any, int] | None = None

    def measured(self, size: int, seconds: float, round_trip: float | None) -> None:
        """Note that an update was acknowledged `seconds` after it was put. `round_trip`: None if unknown."""
        self.rate = size / max(seconds - (round_trip or 0.0), 0.1 * seconds, 1e-6)

    def replied(self, job: Any, count: int = 1) -> None:
        """Note that the server has, or with -1 will not have, a reply to a job."""
        last, before = self.replies or (job, 0)
        self.replies = job, count + (before if last == job else 0)

    def answers(self, job: Any) -> int:
        """Return how many replies to a job the server has, or will have."""
        return self.replies[1] if self.replies is not None and self.replies[0] == job else 0


class Inbox(Protocol):
    """What becomes of a grid's messages before they can be answered: fl.flower.inbox.Inbox."""

    def add(self, message: Any) -> Iterable[Any]:
        """Take a message. Return what can be answered now."""

    def settle(self, task: Any, answer: Finished | str) -> Iterable[Any]:
        """Note what has come of a task that gets no reply. Return what can be answered now."""

    def refuse(self, error: netq.Unreadable) -> None:
        """Take a message that cannot be read."""


class Conversation:
    """The messages of one session. Its communicator has the serialisation of the envelopes of fl, or of fl.flower.

    introduction: what a client says of itself at the beginning of each session, besides version, time and check; None:
                  nothing.
    inbox:        of a node of Flower: a grid may have several messages open at a node, and each gets its reply. None:
                  the newest task of the server replaces those before it.
    question:     why this client asks what tasks are like: `next_task` returns a Described then, and no tasks. Empty:
                  it does not ask.
    delivered:    the last job whose reply the server has.
    final:        the last model, from the end of the federation on; None if there is none, or none was wanted.
    last:         the last round, from the end of the federation on.
    """

    def __init__(
        self,
        queue: netq.Communicator,
        membership: Membership,
        link: KnownServer,
        introduction: Introduction | None = None,
        inbox: Inbox | None = None,
        question: str = "",
    ) -> None:
        self._queue = queue
        self._membership = membership
        self._link = link
        self._inbox = inbox
        self._ready: deque[Any] = deque()  # tasks that were not returned
        self._offered: Finished | None = None  # waits for a permit
        self._offered_to = ""  # the key of its task
        self._since = 0.0  # when the present task was returned, by time.monotonic()
        self._was_late = False  # whether the last reply came after the deadline of its task
        self._warned_unreadable = False  # later ones are lines of DEBUG: a server may send without end
        self._question = question
        self._is_relay = introduction is not None and introduction.relay
        self.delivered: Any = None
        self.final: Final | None = None
        self.last = 0
        if introduction is not None:
            membership.greet_with(partial(self._greet, introduction))

    def _greet(self, introduction: Introduction) -> None:
        """Say what this client is like, at the beginning of each session."""
        self._queue.put(replace(introduction, version=VERSION, time=time.time(), check=self._link.check))
        if self._question:
            self._queue.put(Describe(self._question))

    def next_task(self, idle: Callable[[], float | None] | None = None) -> Any:
        """Wait for a task, and return it. Return None when the federation, or the session, is over.

        A relay gets a Described, too: before the tasks of each session.

        Sends the offered reply when its permit comes. If several tasks of a server wait, returns the newest: the rounds
        of the others are over, and so is the round of an offered reply. Does not return a task whose reply is on its
        way: the server sent it before it had that reply, which will count. A task of secure aggregation is returned
        always: its reply counts in one attempt of a round only.

        idle: called before each wait; returns after how many seconds it wants to be called again, None: never. What it
              raises is raised here.
        """
        while self._inbox is None or not self._ready:
            try:
                timeout = 0.0 if self._ready else self._wait(idle)
                if self._membership.moves:
                    return None
                peer, message = self._queue.get(timeout=timeout)
            except TimeoutError:
                if self._ready:
                    break
                continue
            except netq.Closed as error:
                self._membership.session_ended(error)
                return None
            except netq.Unreadable as error:
                self._leave_out(error)
                continue
            if isinstance(message, Described) and self._is_relay:
                return message
            if isinstance(message, Permit | Final | Described):
                self._keep(message)
            elif not isinstance(message, End):
                if self._inbox is not None:
                    self._membership.asked(peer)
                    self._ready += self._inbox.add(message)
                else:
                    self._note_task(peer, message)
                    self._ready = deque(self._to_do(message))
            elif self._membership.ended(peer):
                self._end(message, idle)
                return None
        self._since = time.monotonic()
        return self._ready.popleft()

    def _wait(self, idle: Callable[[], float | None] | None) -> float | None:
        """Return how long to wait for a message. Gives a lost server up, if there is another address."""
        due = idle() if idle is not None else None
        look = self._membership.until_look(self._queue)
        if look is None:
            return due
        if look == 0.0:
            self._membership.move()
        return look if due is None else min(look, due)

    def _keep(self, message: Permit | Final | Described) -> None:
        if isinstance(message, Permit):
            self._permitted(message.job)
        elif isinstance(message, Final):  # it has passed the end
            self.final = message
        elif self._question:
            self._ready = deque([message])

    def _leave_out(self, error: netq.Unreadable) -> None:
        if self._inbox is not None:
            self._inbox.refuse(error)
            return
        level = logging.DEBUG if self._warned_unreadable else logging.ERROR
        self._warned_unreadable = True
        log.log(level, "a message of the server cannot be read, and is left out: %s", error)

    def _end(self, end: End, idle: Callable[[], float | None] | None) -> None:
        """Wait for the last model, if it follows. `idle`: as of `next_task`."""
        self.last = end.round
        if self._inbox is None:  # a run of Flower counts no rounds
            log.info("round %d was the last one: the server has ended the federation", end.round)
        while end.final and self.final is None:
            try:
                timeout = self._wait(idle)
                if self._membership.moves:  # at the next address there may be none
                    return
                _, message = self._queue.get(timeout=timeout)
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

    def reply(self, task: Any, answer: Finished | str) -> Future[None] | None:
        """Send the reply to a task, or the reason why there is none. Return its delivery.

        Offers a large reply first, and keeps it until there is a permit; then returns None.
        """
        if task.job is None and self._inbox is not None:
            self._ready += self._inbox.settle(task, answer)
            return None
        seconds, was_late = time.monotonic() - self._since, self._was_late
        self._was_late = seconds > task.deadline
        if self._was_late and not was_late:  # once for many rounds
            text = "%s: the reply was ready after %.1f s, and the server waits %g s: it may not count; "
            log.warning(text + "train less at a time, or ask for a longer deadline", task.title, seconds, task.deadline)
        if isinstance(answer, str):
            self._link.replied(task.job)
            return self._queue.put(Failure(task.job, answer))
        if answer.size > task.unasked:
            self._offered, self._offered_to = answer, task.key
            self._queue.put(Offer(task.job, answer.size))
            return None
        return self._put(answer)

    def _note_task(self, server: uuid.UUID, task: Task) -> None:
        if task.job.purpose == "statistics":
            self._membership.surveyed()
        else:
            self._membership.asked(server)

    def _to_do(self, task: Task) -> list[Task]:
        """Return a task that has arrived, unless its reply is on its way already, or this client only asks."""
        if self._question:  # the server has sent it before it had the question
            self._queue.put(Failure(task.job, self._question))
            return []
        if task.is_secure:  # a vector under masks is for one attempt of a round, and this may be the next one
            self._offered = None
            return [task]
        if self._offered is not None and self._offered_to == task.key:
            # The offer to the attempt before may be forgotten.
            self._queue.put(Offer(task.job, self._offered.size))
            return []
        self._offered = None
        if self._link.answers(task.job) > task.answered:
            log.info("%s: the reply to an attempt before this one is on its way", task.title)
            return []
        return [task]

    def _permitted(self, job: Any) -> None:
        finished, self._offered = self._offered, None
        if finished is not None and finished.job == job:
            self._put(finished)

    def _put(self, finished: Finished) -> Future[None]:
        """Send a reply, and return its delivery. If it cannot be sent, send the reason instead."""

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
        delivery = self._queue.put(finished.message)
        delivery.add_done_callback(check)
        return delivery
