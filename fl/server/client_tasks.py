"""The server's conversation with its clients: tasks go out, updates are admitted, replies come back one at a time.

Driven by fl/server/collector.py, in the server's thread. Adds to the dispatcher what is special to the federation: the
admission of large updates, the size limits, and the checks whether a reply answers the task. Never looks into a model.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import netq
from fl.callbacks.base import Callbacks, ClientState
from fl.messages import (
    Content,
    Describe,
    Description,
    End,
    Final,
    Introduction,
    Job,
    Leave,
    Message,
    Offer,
    Permit,
    Reply,
    Report,
    Skip,
    Task,
    Update,
    serialization,
)
from fl.outline import Purpose
from fl.properties import ClientInfo, Properties
from fl.report import ClientFailure, FailureKind
from fl.server.admission import Admission, Sending
from fl.server.dispatcher import TaskDispatcher
from fl.server.limits import Limits
from fl.tensors.spec import Model
from netq.text import describe

log = logging.getLogger("netq.fl")

_CHECK = 0.25  # seconds between looks at how fast clients send
_SELDOM = 20  # a look at thousands of clients takes 50 ms: times that until the next
_PATIENCE = 4  # a rate is measured over a fourth of the time limit at most
_INTRODUCTION = 3.0  # seconds in which a client says what it is like, if it does: the first message of a session
_OWED = 16  # unanswered tasks that are remembered of one client
_CONTENT: Mapping[Purpose, type[Content]] = {"train": Update, "evaluate": Report}


class Key(NamedTuple):
    """Identifies a task of a client."""

    peer: uuid.UUID
    job: Job


class _Asked(NamedTuple):
    job: Job
    until: float  # when its time limit ends, by time.monotonic()
    is_first: bool  # this server's first task for the client


@dataclass
class _Owed:
    """A task that a client has not answered. What it was allowed to send holds, however late it comes."""

    job: Job
    since: float  # when it was given, by time.monotonic()
    allowed: int  # bytes that the reply may have


class ClientTasks:
    """Asks clients, and returns their answers. An update keeps its place in the admission until `free` is called.

    run:      this server's number. A reply to another run is not counted.
    grace:    seconds; a client without a connection for longer is lost. The rate of a client that sends while others
              wait is measured over so long.
    bounds:   of the updates that may be on their way at once, and of one message.
    config_of: returns what a client's task of a round has in its config besides the task's own; None: nothing.
    """

    def __init__(
        self,
        options: netq.CommunicatorOptions,
        protocol: netq.Protocol,
        *,
        run: int,
        grace: float,
        bounds: Limits,
        callbacks: Callbacks,
        describe: Callable[[ClientInfo], Description],
        config_of: Callable[[ClientInfo, int], Mapping[str, Any]] | None,
    ) -> None:
        # From the caller: fixed from the start.
        self.run = run
        self._grace = grace
        self._bounds = bounds
        self._callbacks = callbacks
        self._describe = describe
        self._config_of = config_of
        # Which clients may send their update: room for it is limited.
        self._admission = Admission(bounds.room)
        self._offers: dict[uuid.UUID, Offer] = {}  # of this session, to the present task
        self._permitted: set[uuid.UUID] = set()  # those of them that have a permit
        self._offered_again: set[uuid.UUID] = set()  # those that have offered their update a second time
        self._arrived: set[uuid.UUID] = set()  # clients whose update has arrived and keeps its place until `free`
        self._held: set[uuid.UUID] = set()  # clients whose message was set aside: they wait for their admission
        self._wrong: set[uuid.UUID] = set()  # those that had begun to send more than they may
        # Clients that have a task.
        self._asked: dict[uuid.UUID, _Asked] = {}  # until the answer is taken
        self._warned_stale: set[uuid.UUID] = set()  # clients already warned about since the last `ask`
        self._owed: dict[uuid.UUID, deque[_Owed]] = {}  # tasks without a reply, the oldest first
        self._seconds: dict[uuid.UUID, float] = {}  # how long the last reply of each client took
        self._replies: dict[uuid.UUID, tuple[Job, int]] = {}  # the last job that each has replied to, and how often
        self._begun: deque[uuid.UUID] = deque()  # clients whose session has begun since `new_sessions`
        self.renewed: deque[uuid.UUID] = deque()  # those whose session has begun since the server cleared this
        self.visitors: set[uuid.UUID] = set()  # clients that only look: they get no task
        self.properties: dict[uuid.UUID, Properties] = {}  # what each client has said of itself in this session
        self._wants_final: set[uuid.UUID] = set()  # clients that want the last model
        self._finals: dict[uuid.UUID, Future[None]] = {}  # deliveries of the last model
        self._leaving: set[uuid.UUID] = set()  # clients that have said in this session that they leave
        self._since: dict[uuid.UUID, float] = {}  # when each session began, by time.monotonic(); the loop adds to it
        self._next_check = 0.0  # by time.monotonic()
        # The queue, and what finds the answers among its messages.
        options = replace(
            options, serialization=serialization(bounds.text, bounds.buffers), events=self._events(options.events)
        )
        self._dispatcher: TaskDispatcher[Key] = TaskDispatcher(
            options, protocol, grace, self._receive, self._session_over
        )
        self.queue = self._dispatcher.queue
        self.sessions_changed = self._dispatcher.sessions_changed

    @property
    def busy(self) -> Mapping[uuid.UUID, Job]:
        """The clients that have a task whose answer was not taken yet. Some may be late."""
        return {peer: asked.job for peer, asked in self._asked.items()}

    @property
    def late(self) -> Collection[uuid.UUID]:
        """The busy clients whose time limit has passed, and whose answer is still accepted."""
        return {key.peer for key in self._dispatcher.late()}

    def new_sessions(self) -> set[uuid.UUID]:
        """Return the clients whose session has begun since the last call, and forget clients that have gone."""
        since = dict(self._since)  # copied first: a session that begins while this looks at the others is kept
        known = self.queue.statistics()
        for by_peer in (self._owed, self._seconds, self._replies, self._offers, self.properties):
            for peer in by_peer.keys() - known.keys():
                del by_peer[peer]
        self._permitted &= known.keys()
        self._offered_again &= known.keys()
        self._held &= known.keys()
        self._wrong &= known.keys()
        self.visitors &= known.keys()
        self._wants_final &= known.keys()
        self._leaving &= known.keys()
        for peer in since.keys() - known.keys():
            if self._since[peer] == since[peer]:
                del self._since[peer]
        return {self._begun.popleft() for _ in range(len(self._begun))}

    def takes_part(self, peer: uuid.UUID) -> bool:
        """Return whether a connected client wants tasks, and has said what it is like, or is not going to."""
        return peer not in self.visitors and not self.is_new(peer)

    def is_new(self, peer: uuid.UUID) -> bool:
        """Return whether a client has just connected, and has said nothing of itself."""
        is_known = peer in self.properties or peer in self.visitors
        return not is_known and time.monotonic() - self._since.get(peer, -math.inf) < _INTRODUCTION

    def seconds(self, peer: uuid.UUID) -> float:
        """Return how long the last reply of a client took."""
        return self._seconds.get(peer, math.inf)

    def ask(
        self, task: Task, clients: Collection[uuid.UUID], limit: float, *, keep_late: bool
    ) -> Mapping[uuid.UUID, ClientFailure]:
        """Give clients a task. It replaces the tasks that they have. Return the clients that get none, and why.

        limit:     seconds; a client that has not answered by then is late.
        keep_late: a late client keeps the task, and its answer is still accepted.
        """
        self._warned_stale.clear()
        if not clients:
            return {}
        for peer in clients:
            self.forget(peer)
        configs, failures = self._configs_of(task, clients)
        clients = [peer for peer in clients if peer not in failures]
        self._admission.patience = max(_CHECK, min(self._grace, limit / _PATIENCE))
        unasked = self._admission.share(len(self._asked) + len(clients))
        tasks = self._tasks_of(replace(task, unasked=unasked, deadline=limit), clients, configs)
        asked, now = {}, time.monotonic()
        for peer in clients:  # before the tasks are sent: a user's callback, or Ctrl-C, may interrupt what follows
            is_first = peer not in self._owed and peer not in self._seconds
            asked[peer] = _Asked(task.job, now + limit, is_first)
            self._owed.setdefault(peer, deque(maxlen=_OWED)).append(_Owed(task.job, now, unasked))
        self._dispatcher.ask(tasks, limit, keep_late=keep_late)
        self._asked.update(asked)
        for peer in clients:
            self._callbacks.client_is(peer, ClientState.TRAINING)
        return failures

    def _configs_of(
        self, task: Task, clients: Collection[uuid.UUID]
    ) -> tuple[dict[uuid.UUID, Mapping[str, Any]], dict[uuid.UUID, ClientFailure]]:
        """Return the configs of a task that differ by client, and for which clients the user's function has none."""
        configs, failures = dict[uuid.UUID, Mapping[str, Any]](), dict[uuid.UUID, ClientFailure]()
        if self._config_of is None:
            return configs, failures
        for peer in clients:
            info = self.info(peer)
            try:
                configs[peer] = {**self._config_of(info, task.job.round), **task.config}
            except Exception as error:  # of the user's function: a client may say of itself what it likes
                log.debug("%s says of itself %s; where it happened", peer, info.properties, exc_info=error)
                why = f"there is no config for it: {describe(error)}; expected a dict for any properties, also for none"
                failures[peer] = ClientFailure(FailureKind.INVALID, why)
        return configs, failures

    def _tasks_of(
        self, task: Task, clients: Collection[uuid.UUID], configs: Mapping[uuid.UUID, Mapping[str, Any]]
    ) -> list[tuple[Task, dict[uuid.UUID, Key]]]:
        """Return the tasks that differ by client, each with those clients that get it."""
        keys = {peer: Key(peer, task.job) for peer in clients}
        counts = {peer: self._replied(peer, task.job) for peer in clients}
        if configs:
            return [
                (replace(task, answered=counts[peer], config=configs[peer]), {peer: keys[peer]}) for peer in clients
            ]
        return [
            (replace(task, answered=count), {peer: keys[peer] for peer in clients if counts[peer] == count})
            for count in sorted(set(counts.values()))
        ]

    def info(self, peer: uuid.UUID) -> ClientInfo:
        """Return what is known of a client."""
        return ClientInfo(peer, self.properties.get(peer, {}))

    def trim(self, size: int) -> None:
        """Cancel tasks that have not arrived, where they keep more old models alive than there is room for.

        The tasks of the oldest rounds stay: most of their bytes are sent.

        size: bytes of one model.
        """
        undelivered = self._dispatcher.undelivered()
        rounds = sorted({key.job.round for key in undelivered})
        dropped = rounds[max(1, self._admission.room // max(1, size)) :]
        for key in undelivered:
            if key.job.round in dropped:
                self.forget(key.peer)

    def forget(self, peer: uuid.UUID) -> None:
        """Stop waiting for a client. Cancel its task if it has not arrived.

        A client that has a permit sends its update all the same, and keeps its place until then.
        """
        asked = self._asked.pop(peer, None)
        if asked is not None:
            self._dispatcher.forget([Key(peer, asked.job)])
        self._forget_offer(peer)
        if peer not in self._held:
            self._admission.withdraw(peer)
        self.free(peer)

    def forget_all(self) -> None:
        """Stop waiting for all clients, and drop the answers that have arrived."""
        for peer in tuple(self._asked):
            self.forget(peer)
        self._dispatcher.forget_all()

    def free(self, peer: uuid.UUID) -> None:
        """Give the place of a client's update to others, after the update was taken and dropped."""
        if peer in self._arrived:
            self._free(peer)

    def read(self) -> None:
        """Handle the messages that are here. For a server that waits for clients, and not for answers."""
        self._dispatcher.read()

    def end(self) -> None:
        """Make `answer` raise Closed. Any thread may call this."""
        self._dispatcher.end()

    def announce_end(
        self, last: int, model: Model, clients: Collection[uuid.UUID] | None = None
    ) -> Mapping[uuid.UUID, Future[None]]:
        """Tell clients that the federation is over, after round `last`, and send the model to those that want it.

        A client gets the model once: an agent that its system starts again comes back while the server lingers.

        clients: None: all that are not lost. Returns the deliveries of the model.
        """
        present = self.present(clients)
        wanting = [peer for peer in present & self._wants_final if not self._has_final(peer)]
        self._dispatcher.announce(End(last), present.difference(wanting))
        self._dispatcher.announce(End(last, final=True), wanting)
        if wanting:
            self._finals.update(zip(wanting, self.queue.put(Final(model), *wanting).futures, strict=True))
        return self._finals

    def _has_final(self, peer: uuid.UUID) -> bool:
        delivery = self._finals.get(peer)
        return delivery is not None and delivery.done() and delivery.exception() is None

    def present(self, clients: Collection[uuid.UUID] | None = None) -> set[uuid.UUID]:
        """Return those of the clients that are not lost. None: of all."""
        return self._dispatcher.present(clients)

    def answer(self, purpose: Purpose, until: float) -> tuple[Key, Content | ClientFailure] | None:
        """Wait for the next answer to a task of this purpose. Answers to other tasks are kept for later.

        Return None at the time `until`, or if no client has such a task. Raises Closed.
        """

        def wanted(key: Key) -> bool:
            return key.job.purpose == purpose or not self._is_asked(key)  # else it is a stale answer's failure

        while True:
            self._check_rates()
            found = self._dispatcher.take(wanted, min(until, self._next_check))
            if found is not None:
                self._taken(*found)
                return found
            if time.monotonic() >= until or not any(asked.job.purpose == purpose for asked in self._asked.values()):
                return None

    def _taken(self, key: Key, content: Content | ClientFailure) -> None:
        """Note that an answer was taken: its client is idle again, unless it is late and its answer still accepted."""
        if not self._is_asked(key) or self._dispatcher.is_open(key):
            return
        del self._asked[key.peer]
        if isinstance(content, ClientFailure):
            if content.why is FailureKind.LATE:  # if it has a permit, its update will still arrive, and needs its place
                self._admission.withdraw(key.peer)
            else:
                self._free(key.peer)

    def _is_asked(self, key: Key) -> bool:
        asked = self._asked.get(key.peer)
        return asked is not None and asked.job == key.job

    def _free(self, peer: uuid.UUID) -> None:
        self._arrived.discard(peer)
        self._admission.leave(peer)
        self._let_go_on(peer)
        self._admit()

    def _check_rates(self) -> None:
        """Let others pass the clients that send too slowly, if others wait for a permit or for memory."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK
        if not (self._admission.is_full or self.queue.is_short):
            self._admission.slow({}, now)
            return
        known = self.queue.statistics()
        self._admission.keep(known)
        sending = {peer: each for peer, figures in known.items() if (each := self._sending(peer, figures)) is not None}
        for peer in self._admission.slow(sending, now):
            if sending[peer].is_wrong and peer in self._wrong:
                self._dispatcher.charge(peer, math.inf, "it sends more than it may, and others wait")
            else:
                self._let_others_pass(peer, known[peer])
            if sending[peer].is_wrong:
                self._wrong.add(peer)
        self._admit()
        self._next_check = now + max(_CHECK, _SELDOM * (time.monotonic() - now))

    def _sending(self, peer: uuid.UUID, figures: netq.Statistics) -> Sending | None:
        """Return what a client sends now, None if it sends nothing that others wait for."""
        size = figures.expected
        if peer not in self._arrived and self._admission.is_admitted(peer):
            size = max(size, self._admission.size(peer))
        if not size or peer in self._held:
            return None
        asked = self._asked.get(peer)
        until = 0.0 if asked is None else asked.until
        allowed = max((each.allowed for each in self._owed.get(peer, ())), default=0)
        is_wrong = figures.expected > allowed + self._bounds.text
        return Sending(figures.bytes_in + figures.arriving, size - figures.arriving, until, figures.waits, is_wrong)

    def _let_others_pass(self, peer: uuid.UUID, figures: netq.Statistics) -> None:
        """Take the place of a slow client, and hold back what it sends, until it is admitted again."""
        self._admission.defer(peer, max(figures.expected, self._admission.size(peer)) - figures.arriving)
        if figures.expected:
            log.info("%s: sends slowly, and others wait: they go first", peer)
            self._held.add(peer)
            self.queue.set_aside(peer, "others go first, because they send faster; this message goes on after them")
        elif peer not in self._asked:  # it has never used its permit for an older task
            self._admission.leave(peer)

    def _let_go_on(self, peer: uuid.UUID) -> None:
        if peer in self._held:
            self._held.discard(peer)
            self.queue.let_go_on(peer)

    def _receive(self, peer: uuid.UUID, message: Message) -> bool:
        """Handle a message. Return whether a task or a session calls for it. The dispatcher calls this from `take`."""
        match message:
            case Offer():
                return self._receive_offer(peer, message)
            case Reply():
                return self._receive_reply(peer, message.job, message.content)
            case Introduction():
                return self._receive_introduction(peer, message)
            case Leave():
                return self._receive_leave(peer, message)
            case Describe():
                return self._receive_question(peer, message)
            case _:
                self._refuse(peer, FailureKind.UNREADABLE, f"it sent a {type(message).__name__}; expected a Reply")
                return False

    def _session_over(self, peer: uuid.UUID) -> None:
        """Forget what a client has said in its session. The dispatcher calls this behind the session's last message."""
        self.visitors.discard(peer)
        self._wants_final.discard(peer)
        self.properties.pop(peer, None)
        self._leaving.discard(peer)
        self._forget_offer(peer)
        if peer in self._held | self._wrong:  # in the next session it may hold up the others again
            self._held.discard(peer)
            self._wrong.discard(peer)
            self._dispatcher.charge(peer, math.inf, "it was to go on after others, and has begun anew")
        else:
            self._dispatcher.charge(peer, 0.0, "it begins one session after the other")

    def _forget_offer(self, peer: uuid.UUID) -> None:
        self._offers.pop(peer, None)
        self._permitted.discard(peer)
        self._offered_again.discard(peer)

    def _receive_introduction(self, peer: uuid.UUID, introduction: Introduction) -> bool:
        if peer in self.properties:  # it says so once a session
            return False
        self.properties[peer] = introduction.properties
        if introduction.final:
            self._wants_final.add(peer)
        return True

    def _receive_leave(self, peer: uuid.UUID, leave: Leave) -> bool:
        if peer in self._leaving:  # it says so once a session
            return False
        self._leaving.add(peer)
        log.info("%s: leaves: %s", peer, leave.reason)
        return True

    def _receive_question(self, peer: uuid.UUID, question: Describe) -> bool:
        if peer in self.visitors:  # one answer a session: a client that reads none costs no memory
            return False
        log.info("%s: wants no task: %s", peer, question.reason)
        self.visitors.add(peer)
        try:
            description = self._describe(self.info(peer))
        except Exception:  # of the user's strategy, as it would in the next round
            log.exception("the next task cannot be described")
        else:
            self.queue.put(description, peer)
        return True

    def _receive_offer(self, peer: uuid.UUID, offer: Offer) -> bool:
        asked = self._asked.get(peer)
        if asked is None or asked.job != offer.job:
            return False  # it is late
        if peer in self._offers:  # one offer a session and task, and a second one after a permit
            if peer not in self._permitted or peer in self._offered_again | self._arrived:
                return False
            # The first offer was to an attempt before this one, and the client has dropped the permit with that task.
            self._offered_again.add(peer)
            self._permitted.discard(peer)
        self._offers[peer] = offer
        if offer.size > self._bounds.update:
            limit = self._bounds.update
            self._refuse(peer, FailureKind.INVALID, f"it offers {offer.size} bytes; expected {limit} at most")
            return True
        self._admission.offer(peer, offer.size)
        self._callbacks.client_is(peer, ClientState.WAITING, offer.size)
        self._admit()
        return True

    def _admit(self) -> None:
        for peer in self._admission.in_the_way():
            if peer not in self._arrived and (figures := self.queue.statistics().get(peer)) is not None:
                self._let_others_pass(peer, figures)
        for peer, size in self._admission.admit(time.monotonic(), self._at_work).items():
            self._let_go_on(peer)
            asked = self._asked.get(peer)
            if asked is None or peer in self._permitted or peer not in self._offers:
                continue  # what was set aside goes on
            self._permitted.add(peer)
            for owed in self._owed[peer]:
                if owed.job == asked.job:
                    owed.allowed = max(owed.allowed, size)
            self.queue.put(Permit(asked.job), peer)
            self._callbacks.client_is(peer, ClientState.SENDING, size)

    def _at_work(self) -> Collection[uuid.UUID]:
        """Return the clients that may offer an update."""
        return self._asked.keys() - self._arrived - self._offers.keys()

    def _receive_reply(self, peer: uuid.UUID, job: Job, content: Content | str) -> bool:
        """Handle a reply. Return whether the client owes it."""
        self._replies[peer] = job, self._replied(peer, job) + 1
        asked, allowed = self._asked.get(peer), self._allowed(peer, job)
        self._settle(peer, job)
        size = content.nbytes if isinstance(content, Update) else 0
        if asked is None or job != asked.job or not self._dispatcher.is_open(Key(peer, job)):
            self._receive_stale(peer, job, asked, content, is_owed=allowed is not None)
            return allowed is not None
        if isinstance(content, str):
            self._refuse(peer, FailureKind.FAILED, content)
        elif not isinstance(content, (_CONTENT[job.purpose], Skip)):
            expected = _CONTENT[job.purpose].__name__
            self._refuse(peer, FailureKind.INVALID, f"it answered with {type(content).__name__}; expected {expected}")
        elif size > (allowed or 0):
            wrong = f"it sent {size} bytes, and might send {allowed or 0}; expected an offer first"
            self._refuse(peer, FailureKind.INVALID, wrong)
        else:
            self._admission.arrive(peer, size, time.monotonic())
            self._arrived.add(peer)
            self._dispatcher.answer(Key(peer, job), content)
        return True

    def _allowed(self, peer: uuid.UUID, job: Job) -> int | None:
        """Return how many bytes a client may send for a job, None if it owes no reply to it."""
        return max((each.allowed for each in self._owed.get(peer, ()) if each.job == job), default=None)

    def _replied(self, peer: uuid.UUID, job: Job) -> int:
        """Return how many replies a client has sent to a job, if that is the last one that it has replied to."""
        last, count = self._replies.get(peer, (job, 0))
        return count if last == job else 0

    def _settle(self, peer: uuid.UUID, job: Job) -> None:
        """Note that a client has answered a job."""
        for each in self._owed.get(peer, ()):
            if each.job == job:
                self._owed[peer].remove(each)
                self._seconds[peer] = time.monotonic() - each.since
                return

    def _receive_stale(
        self, peer: uuid.UUID, job: Job, asked: _Asked | None, content: Content | str, *, is_owed: bool
    ) -> None:
        """Handle a reply to a task that is not open. The client is too late, or wrong.

        A client that was too late still works on its present task, which stays open. So does a client whose server has
        been started again: its first reply may be to the server before.
        """
        is_other_run = job.run != self.run
        if asked is not None and not is_owed and not (is_other_run and asked.is_first):
            of = " of another server" if is_other_run else ""
            self._settle(peer, asked.job)  # this was its answer: a later one to the same task is wrong, too
            expected = f"round {asked.job.round} ({asked.job.purpose})"
            self._refuse(
                peer, FailureKind.INVALID, f"it answered round {job.round} ({job.purpose}){of}; expected {expected}"
            )
            return
        if peer not in self._arrived:
            self._free(peer)
        if peer not in self._warned_stale:  # one line and one failure, however many such replies come
            self._warned_stale.add(peer)
            text = "%s: its answer to round %d (%s) is not waited for (any more)%s"
            log.warning(text, peer, job.round, job.purpose, f": {content}" if isinstance(content, str) else "")
            if not is_other_run:
                reason = f"it answered round {job.round} ({job.purpose}), which is not waited for any more"
                self._dispatcher.add_answer(Key(peer, job), ClientFailure(FailureKind.STALE, reason))

    def _refuse(self, peer: uuid.UUID, why: FailureKind, reason: str) -> None:
        """Answer a client's task with a failure, if it has a task."""
        asked = self._asked.get(peer)
        if asked is not None and self._dispatcher.answer(Key(peer, asked.job), ClientFailure(why, reason)):
            self._free(peer)

    def _events(self, user: netq.EventOptions) -> netq.EventOptions:
        """Return events that call the user's too. They run in the communicator's loop."""

        def ini(peer: uuid.UUID) -> None:
            self._since[peer] = time.monotonic()
            self._begun.append(peer)
            self.renewed.append(peer)
            if user.ini is not None:
                user.ini(peer)

        return replace(user, ini=ini)
