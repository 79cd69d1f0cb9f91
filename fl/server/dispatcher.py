"""What the server has asked of whom, and their answers, one at a time, as they come.

Owns the conversation with the clients: tasks, offers and permits, who is lost, what is no answer. One thread, the
server's, drives it. It never looks into a model.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import netq
from fl.callbacks.base import Callbacks, ClientState
from fl.messages import Job, Offer, Permit, Purpose, Reply, Report, Task, Update
from fl.report import ClientFailure, FailureKind
from fl.server.admission import Admission

log = logging.getLogger("netq.fl")

_LOOK = 1.0  # seconds between looks at who is still connected
_SILENT = 3  # times the grace: for so long others wait for one that may send, is connected, and sends nothing
_CONTENT: Mapping[Purpose, type] = {"train": Update, "evaluate": Report}


class Answer(NamedTuple):
    """What a client has made of a task."""

    peer: uuid.UUID
    job: Job
    content: Update | Report | ClientFailure


class _Asked(NamedTuple):
    job: Job
    delivery: netq.Delivery
    unasked: int  # bytes of an answer that need no permit
    since: float


class TaskDispatcher:
    """Asks clients, and takes their answers. An update keeps its place among the uploads until `free` is called.

    run:   this server's number; answers to another are stale.
    grace: seconds; a client that has been without a connection for so long is lost.
    room:  bytes of updates that may be on their way at once.
    most:  bytes that an update may have.
    begun: whose session has begun since it was asked; the communicator's loop adds to it.
    """

    def __init__(
        self,
        queue: netq.Communicator,
        run: int,
        grace: float,
        room: int,
        most: int,
        begun: set[uuid.UUID],
        callbacks: Callbacks,
    ) -> None:
        self._queue = queue
        self.run = run
        self._grace = grace
        self._most = most
        self._begun = begun
        self._callbacks = callbacks
        self._uploads = Admission(room)
        self._permitted: dict[uuid.UUID, Job] = {}
        self._asked: dict[uuid.UUID, _Asked] = {}
        self._held: list[Answer] = []  # that nobody has taken yet
        self._told: set[uuid.UUID] = set()  # of whose stale answers has been told, since somebody was asked
        self._look = 0.0  # when the clients are to be looked at
        self._closed = False

    @property
    def busy(self) -> Mapping[uuid.UUID, Job]:
        """Who has been asked, and whose answer nobody has taken."""
        return {a.peer: a.job for a in self._held} | {peer: asked.job for peer, asked in self._asked.items()}

    def ask(self, task: Task, clients: Collection[uuid.UUID]) -> None:
        """Give clients a task; what they were asked before is not waited for any more."""
        self._told.clear()
        if not clients:
            return
        for peer in clients:
            self.forget(peer)
            self._begun.discard(peer)
        share = self._uploads.share(len(self._asked) + len(clients))
        delivery = self._queue.put(replace(task, unasked=share), *clients)
        for part in delivery.futures:
            if part.peer is not None:
                self._asked[part.peer] = _Asked(task.job, part, share, time.monotonic())
                self._callbacks.client_is(part.peer, ClientState.TRAINING)

    def overdue(self, seconds: float) -> list[uuid.UUID]:
        """Return who has been at work for so long, or longer."""
        now = time.monotonic()
        return [peer for peer, asked in self._asked.items() if now - asked.since >= seconds]

    def trim(self, size: int) -> None:
        """Take tasks back that have not arrived, where they keep more models of so many bytes alive than there is room
        for. Those of the oldest rounds go on: they have come the furthest.
        """
        waiting = {peer: asked.job.round for peer, asked in self._asked.items() if not asked.delivery.done()}
        dropped = sorted(set(waiting.values()))[max(1, self._uploads.room // max(1, size)) :]
        for peer, round in waiting.items():
            if round in dropped:
                self.forget(peer)

    def forget(self, peer: uuid.UUID) -> None:
        """Wait for a client no more. A task that it has not got yet it need not get.

        If it may send already, its update comes all the same, and keeps its place until then.
        """
        asked = self._asked.pop(peer, None)
        if asked is not None:
            asked.delivery.cancel()
        self._uploads.withdraw(peer)

    def break_off(self) -> None:
        """Wait for nobody any more, and keep no answer of those who have come."""
        for peer in self.busy:
            self.forget(peer)
        held, self._held = self._held, []
        for answer in held:
            self.free(answer.peer)

    def free(self, peer: uuid.UUID) -> None:
        """Let others send: what this client has sent is gone."""
        self._permitted.pop(peer, None)
        self._uploads.leave(peer)
        self._admit()

    def close(self) -> None:
        """Let whoever waits for answers wait no more; any thread may call this."""
        self._closed = True

    def answer(self, give_up: float, purpose: Purpose) -> Answer | None:
        """Wait for the next answer to a task of this purpose, and return it; the others are kept for who asks for them.

        None when nobody owes one any more, or the time is `give_up`.
        """
        while (found := self._pick(purpose)) is None:
            now = time.monotonic()
            if now >= give_up or all(asked.job.purpose != purpose for asked in self._asked.values()):
                return None
            if now >= self._look:
                self._look_around()
            else:
                self._take(min(self._look, give_up) - now)
        return found

    def _pick(self, purpose: Purpose) -> Answer | None:
        for index, (_, job, content) in enumerate(self._held):
            if job.purpose == purpose or (isinstance(content, ClientFailure) and content.why is FailureKind.STALE):
                return self._held.pop(index)
        return None

    def _look_around(self) -> None:
        """Wait no more for those who cannot answer; what they said last counts."""
        if self._closed:  # they go because we do
            raise netq.Closed(self._queue.id, "this server is closed")
        known = self._queue.statistics()
        for peer, asked in tuple(self._asked.items()):
            if reason := self._why_lost(peer, asked.delivery, known):
                self._lose(peer, asked, reason)
        for peer in self._uploads.peers - known.keys():
            self.free(peer)
        self._pass_silent_by(known)
        self._look = time.monotonic() + _LOOK

    def _pass_silent_by(self, known: Mapping[uuid.UUID, netq.Statistics]) -> None:
        """Let others send in the place of who may, is connected, and does not."""
        progress = {peer: of.bytes_in + of.arriving for peer, of in known.items()}
        limit = _SILENT * max(1.0, self._grace)
        for peer, seconds in self._uploads.silent(progress, time.monotonic()).items():
            if seconds <= limit or any(answer.peer == peer for answer in self._held):
                continue
            asked = self._asked.get(peer)
            if asked is not None and self._permitted.get(peer) == asked.job:
                self._lose(peer, asked, f"it may send its update, others wait, and nothing came for {seconds:.1f} s")
            else:  # of an older task
                self.free(peer)

    def _lose(self, peer: uuid.UUID, asked: _Asked, reason: str) -> None:
        """Wait for a client no more, unless its answer is here."""
        while peer in self._asked and self._take(0.0, peer):
            pass
        asked.delivery.cancel()
        self._refuse(peer, FailureKind.LOST, reason)

    def _take(self, timeout: float, *peers: uuid.UUID) -> bool:
        """Take a message, of these peers or of anybody; False if none comes."""
        try:
            peer, message = self._queue.get(*peers, timeout=timeout)
        except TimeoutError:
            return False
        except netq.Unreadable as error:
            if error.peer is not None:
                self._refuse(error.peer, FailureKind.UNREADABLE, f"its message cannot be read: {error}")
            return True
        except netq.Closed:
            if peers:  # it has gone, and all that it said is taken
                return False
            raise
        match message:
            case Offer():
                self._offered(peer, message)
            case Reply():
                self._answered(peer, message.job, message.content)
            case _:
                self._refuse(peer, FailureKind.UNREADABLE, f"it sent a {type(message).__name__}; expected a Reply")
        return True

    def _answered(self, peer: uuid.UUID, job: Job, content: Update | Report | str) -> None:
        asked = self._asked.get(peer)
        if asked is None or job != asked.job:
            self._out_of_place(peer, job)
        elif isinstance(content, str):
            self._refuse(peer, FailureKind.FAILED, content)
        elif not isinstance(content, _CONTENT[job.purpose]):
            expected = _CONTENT[job.purpose].__name__
            self._refuse(peer, FailureKind.INVALID, f"it answered with {type(content).__name__}; expected {expected}")
        elif wrong := self._too_large(peer, asked, content):
            self._refuse(peer, FailureKind.INVALID, wrong)
        else:
            self._uploads.withdraw(peer)
            del self._asked[peer]
            self._held.append(Answer(peer, job, content))

    def _too_large(self, peer: uuid.UUID, asked: _Asked, content: Update | Report) -> str:
        """Return what is wrong with the size of an answer: else what nobody let in would fill the memory."""
        size = content.nbytes if isinstance(content, Update) else 0
        limit = self._uploads.admitted(peer) if self._permitted.get(peer) == asked.job else asked.unasked
        return f"it sent {size} bytes, and might send {limit}; expected an offer first" if size > limit else ""

    def _out_of_place(self, peer: uuid.UUID, job: Job) -> None:
        """An answer to what was not asked, or is not waited for: of a client that is wrong, or of one that is late."""
        asked = self._asked.get(peer)
        if asked is not None and job.run == self.run and job.round > asked.job.round:
            self._refuse(peer, FailureKind.INVALID, f"it answered round {job.round} in round {asked.job.round}")
            return
        self.free(peer)
        if peer not in self._told:  # once, however often it says so
            self._told.add(peer)
            log.warning("%s: its answer to round %d (%s) is not waited for (any more)", peer, job.round, job.purpose)
            if job.run == self.run:
                reason = f"it answered round {job.round} ({job.purpose}), which is not waited for any more"
                self._held.append(Answer(peer, job, ClientFailure(FailureKind.STALE, reason)))

    def _offered(self, peer: uuid.UUID, offer: Offer) -> None:
        asked = self._asked.get(peer)
        if asked is None or asked.job != offer.job or self._permitted.get(peer) == offer.job:
            return
        if offer.size > self._most:
            self._refuse(peer, FailureKind.INVALID, f"it offers {offer.size} bytes; expected {self._most} at most")
            return
        self._uploads.offer(peer, offer.size)
        self._callbacks.client_is(peer, ClientState.WAITING, offer.size)
        self._admit()

    def _admit(self) -> None:
        for peer, size in self._uploads.admit().items():
            job = self._permitted[peer] = self._asked[peer].job
            self._queue.put(Permit(job), peer)
            self._callbacks.client_is(peer, ClientState.SENDING, size)

    def _refuse(self, peer: uuid.UUID, why: FailureKind, reason: str) -> None:
        """Count what was asked of a client as answered by a failure, if anything was."""
        asked = self._asked.pop(peer, None)
        if asked is not None:
            self._held.append(Answer(peer, asked.job, ClientFailure(why, reason)))
            self.free(peer)

    def _why_lost(
        self, peer: uuid.UUID, delivery: netq.Delivery, known: Mapping[uuid.UUID, netq.Statistics]
    ) -> str | None:
        if peer not in known:
            return "it has gone"
        if peer in self._begun:
            return "it was started again, and knows nothing of the task"
        if known[peer].absent > self._grace:
            return f"no connection for {known[peer].absent:.1f} s (grace {self._grace:g} s)"
        if delivery.done() and (error := delivery.exception()) is not None:
            return f"the task cannot be sent to it: {error}"
        return None
