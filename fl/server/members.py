"""The clients of a server: tasks go out to them, updates are admitted, replies come back one at a time.

Driven by fl/server/round.py, in the server's thread. Owns the Member of each client, and moves it from state to state
(fl/server/member.py). Never looks into a model.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

import netq
from fl.callbacks.base import Callbacks, ClientState
from fl.envelope import PURPOSES, Describe, End, Introduction, Job, Leave, Offer, Permit, Purpose
from fl.messages import (
    Answered,
    Content,
    Description,
    Final,
    Masked,
    Message,
    Reply,
    Report,
    Secured,
    Skip,
    Task,
    Update,
    serialization,
)
from fl.properties import ClientInfo, Properties
from fl.report import ClientFailure, FailureKind
from fl.secure.summing import attempt_of
from fl.server.admission import Admission, Sending
from fl.server.dispatcher import TaskDispatcher
from fl.server.federation import config_or_failure
from fl.server.limits import Limits
from fl.server.member import TRANSITIONS, Asked, Member, MemberEvent, MemberState, Owed
from fl.status import CLOCK, ClientStatus, Refusal, Stage
from fl.subtotal import Subtotal
from fl.tensors.spec import Model
from netq.version import VERSION

log = logging.getLogger("netq.fl")

_CHECK = 0.25  # seconds between looks at how fast clients send
_SELDOM = 20  # a look at thousands of clients takes 50 ms: times that until the next
_PATIENCE = 4  # a rate is measured over a fourth of the time limit at most
_INTRODUCTION = 3.0  # seconds in which a client says what it is like, if it does: the first message of a session
_REMEMBERED = 4096  # clients that have gone, and have missed tasks
_SHOWN = 256  # clients that have gone, and have a name, a reason or an update, for those who ask where they are
_REFUSALS = 100  # connections turned away that are remembered
_CONTENT: Mapping[Purpose, type[Content | Secured]] = {
    "train": Update,
    "evaluate": Report,
    "statistics": Answered,
    "secure": Answered,
}
_LARGE = (Update, Subtotal, Masked)  # contents that are offered first


class Key(NamedTuple):
    """Identifies a task of a client."""

    peer: uuid.UUID
    job: Job


class Members:
    """Asks clients, and returns their answers. An update keeps its place in the admission until `settle` is called.

    run:      this server's number. A reply to another run is not counted.
    grace:    seconds; a client without a connection for longer is lost. The rate of a client that sends while others
              wait is measured over so long.
    bounds:   of the updates that may be on their way at once, and of one message.
    relays:   which clients may answer for others: by name or id; True: any.
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
        relays: bool | Collection[str],
        config_of: Callable[[ClientInfo, int], Mapping[str, Any]] | None,
    ) -> None:
        self.run = run
        self._grace = grace
        self._bounds = bounds
        self._callbacks = callbacks
        self._describe = describe
        self._relays = relays
        self._is_rooted = True  # there is a way to the federation's server, for relays
        self._config_of = config_of
        self._members: dict[uuid.UUID, Member] = {}
        self._busy: dict[uuid.UUID, Member] = {}  # those that have a task
        self._begun: deque[tuple[uuid.UUID, float]] = deque()  # sessions, and when they began; the loop adds to it
        self._new: set[uuid.UUID] = set()  # clients whose session has begun a short time ago
        self._admission = Admission(bounds.room)
        self._asks = 0  # calls of `ask`
        self._next_check = 0.0  # by time.monotonic()
        self._refusals: deque[Refusal] = deque(maxlen=_REFUSALS)  # the loop adds to it
        self._refused = options.events.refused  # the user's
        options = replace(
            options,
            serialization=serialization(bounds.text, bounds.buffers),
            events=replace(options.events, refused=self._note_refusal),
        )
        self._dispatcher: TaskDispatcher[Key] = TaskDispatcher(
            options, protocol, grace, self._receive, self._session_begins, self._session_over, title=self.of
        )
        self.queue = self._dispatcher.queue
        self.sessions_changed = self._dispatcher.sessions_changed

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._members.values()))

    def is_present(self, member: Member) -> bool:
        """Return whether a client is connected, or has not been away for long."""
        return bool(self._dispatcher.present((member.id,)))

    def of(self, peer: uuid.UUID) -> Member:
        """Return the member for a client. A new one if it is not known."""
        return self._members.get(peer) or self._members.setdefault(peer, Member(peer))

    def status(self) -> list[ClientStatus]:
        """Return where each client stands. Any thread may call this."""
        known, members = self.queue.statistics(), {each.id: each for each in self}
        return [_status(members.get(peer) or Member(peer), known.get(peer)) for peer in {**known, **members}]

    @property
    def refusals(self) -> Sequence[Refusal]:
        """The last connections that were turned away. Any thread may read this."""
        return tuple(self._refusals)

    def _note_refusal(self, address: str, reason: str) -> None:
        """Runs in the communicator's loop."""
        self._refusals.append(Refusal(time.time(), address, reason))
        if self._refused is not None:
            self._refused(address, reason)

    def update(self) -> None:
        """Note the sessions that have begun, and forget clients that have gone, but for what is remembered."""
        self._note_begun()
        members = [(each, each.since) for each in self]  # first: a session that begins now is kept
        known = self.queue.absences()
        absent = [each for each, since in members if each.id not in known and each.since == since]
        gone = [each for each in absent if not (each.task or each.final or each.is_counted)]
        gone.sort(key=lambda each: each.changed)  # the last that have gone are remembered
        missed = [each for each in gone if each.has_missed][-_REMEMBERED:]
        shown = [each for each in gone if each.name or each.left or each.reason or each.updates][-_SHOWN:]
        kept = {*missed, *shown}
        for member in gone:
            self._admission.leave(member)
            del self._members[member.id]
        self._members |= {each.id: each.remembered() for each in gone if each in kept}

    def _note_begun(self) -> None:
        while self._begun:
            peer, since = self._begun.popleft()
            member = self.of(peer)
            member.since = since
            self._new.add(peer)
            for record in member.records.values():  # a suspended client gets a task at once
                record.due = 0

    @property
    def busy(self) -> dict[uuid.UUID, Job]:
        """The clients that have a task whose answer does not count yet. Some may be late."""
        busy = tuple(self._busy.values())
        return {member.id: member.task.job for member in busy if member.task is not None}

    @property
    def at_work(self) -> int:
        """How many clients are busy, without those whose time limit has passed and whose answer is still accepted."""
        return len(self._busy) - self._dispatcher.late_count

    @property
    def properties(self) -> dict[uuid.UUID, Properties]:
        """What each client has said of itself in its session."""
        return {each.id: each.session.properties for each in self if each.session.properties is not None}

    def takes_part(self, peer: uuid.UUID) -> bool:
        """Return whether a connected client wants tasks, and has said what it is like, or is not going to."""
        return not self.is_new(peer) and not self.of(peer).session.is_visitor

    def is_new(self, peer: uuid.UUID) -> bool:
        """Return whether a client has just connected, and has said nothing of itself."""
        self._note_begun()
        member = self.of(peer)
        is_known = member.session.properties is not None or member.session.is_visitor
        # The loop has a session in its table a moment before it notes when it began.
        return not is_known and (member.since == -math.inf or time.monotonic() - member.since < _INTRODUCTION)

    def ask(
        self,
        task: Task,
        members: Collection[Member],
        limit: float,
        *,
        keep_late: bool,
        own: Mapping[Member, Mapping[str, Any]] | None = None,
    ) -> Mapping[Member, ClientFailure]:
        """Give clients a task. It replaces the tasks that they have. Return the clients that get none, and why.

        limit:     seconds; a client that has not answered by then is late.
        keep_late: a late client keeps the task, and its answer is still accepted.
        own:       the fields of the task that differ by client. None: those that the user's function gives.
        """
        self._asks += 1
        if not members:
            return {}
        for member in members:
            self.forget(member)
        own, failures = self._configs_of(task, members) if own is None else (own, {})
        members = [member for member in members if member not in failures]
        self._admission.patience = max(_CHECK, min(self._grace, limit / _PATIENCE))
        unasked = self._admission.share(len(self._busy) + len(members))
        tasks = self._tasks_of(replace(task, unasked=unasked, deadline=limit), members, own)
        asked, now = list[Asked](), time.monotonic()
        for member in members:  # before the tasks are sent: Ctrl-C may interrupt what follows
            is_first = not member.owed and member.seconds == math.inf
            asked.append(
                Asked(task.job, now + limit, is_first, (task.secure.get("session"), task.secure.get("number")))
            )
            member.owed.append(Owed(task.job, now, unasked))
        self._dispatcher.ask(tasks, limit, keep_late=keep_late)
        for member, its in zip(members, asked, strict=True):
            member.on(MemberEvent.ASK)
            member.task = its
            self._busy[member.id] = member
        for member in members if task.job.purpose in PURPOSES else ():
            self._callbacks.client_is(member.id, ClientState.TRAINING)
        return failures

    def _configs_of(
        self, task: Task, members: Collection[Member]
    ) -> tuple[dict[Member, Mapping[str, Any]], dict[Member, ClientFailure]]:
        """Return the configs of a task that differ by client, and for which clients the user's function has none."""
        configs, failures = dict[Member, Mapping[str, Any]](), dict[Member, ClientFailure]()
        if self._config_of is None:
            return configs, failures
        for member in members:
            found = config_or_failure(self._config_of, _info(member), task.job.round)
            if isinstance(found, ClientFailure):
                failures[member] = found
            else:
                configs[member] = {"config": {**found, **task.config}}
        return configs, failures

    def _tasks_of(
        self, task: Task, members: Collection[Member], own: Mapping[Member, Mapping[str, Any]]
    ) -> list[tuple[Task, dict[uuid.UUID, Key]]]:
        """Return the tasks that differ by client, each with those clients that get it."""
        keys = {member.id: Key(member.id, task.job) for member in members}
        if own:
            return [
                (replace(task, answered=each.replies(task.job), **own[each]), {each.id: keys[each.id]})
                for each in members
            ]
        counts = {member.id: member.replies(task.job) for member in members}
        return [
            (replace(task, answered=count), {peer: keys[peer] for peer in keys if counts[peer] == count})
            for count in sorted(set(counts.values()))
        ]

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
                self.forget(self.of(key.peer))

    def forget(self, member: Member) -> None:
        """Stop waiting for a client. Cancel its task if it has not arrived.

        A client that has a permit sends its update all the same, and keeps its place until then.
        """
        if member.task is not None:
            self._dispatcher.forget([Key(member.id, member.task.job)])
        has_arrived = member.state is MemberState.ARRIVED
        self._leave_task(member, MemberEvent.FORGET)
        if not member.session.is_held:
            self._admission.withdraw(member)
        if has_arrived:
            self._free(member)

    def forget_all(self) -> None:
        """Stop waiting for all clients, and drop the answers that have arrived."""
        for member in self:
            if member.task is not None:
                self.forget(member)
        self._dispatcher.forget_all()

    def settle(self, member: Member, event: MemberEvent) -> None:
        """Note what has come of a client's answer, after its update was taken and dropped: its place is for others."""
        self._leave_task(member, event)
        self._free(member)

    def _leave_task(self, member: Member, event: MemberEvent) -> None:
        """Note the end of a client's task, if it has one."""
        member.on(event)
        self._busy.pop(member.id, None)

    def read(self) -> None:
        """Handle the messages that are here. For a server that waits for clients, and not for answers."""
        self._dispatcher.read()

    def end(self) -> None:
        """Make `answer` raise Closed. Any thread may call this."""
        self._dispatcher.end()

    def announce_end(self, last: int, model: Model | None, *, wait_for_new: bool = True) -> list[Future[None]]:
        """Tell clients that do not know it that the federation is over, and send the model to those that want it.

        A client gets the model once: an agent that its system starts again comes back while the server lingers.

        last:         the number of the last round.
        model:        None: there is none.
        wait_for_new: whether to leave out clients that have not said whether they want the model, and may.

        Returns the deliveries of the model to clients that are not lost.
        """
        present = [self.of(peer) for peer in self._dispatcher.present()]
        told = [each for each in present if not (each.session.is_told or (wait_for_new and self.is_new(each.id)))]
        for member in told:
            member.session.is_told = True
        wanting = {each.id: each for each in told if each.session.wants_final and not _has_final(each)}
        wanting = {} if model is None else wanting
        self._dispatcher.announce(End(last), {each.id for each in told} - wanting.keys())
        self._dispatcher.announce(End(last, final=True), wanting)
        if model is not None and wanting:
            for peer, delivery in zip(wanting, self.queue.put(Final(model), *wanting).futures, strict=True):
                wanting[peer].final = delivery
        return [each.final for each in present if each.final is not None]

    def has_new(self) -> bool:
        """Return whether a client has just connected, and has said nothing of itself."""
        self._note_begun()
        now = time.monotonic()
        self._new = {peer for peer in self._new if now - self.of(peer).since < _INTRODUCTION}
        new = tuple(self._new)  # to which sessions may be added meanwhile
        return any(self.is_new(peer) and self._dispatcher.present((peer,)) for peer in new)

    def answer(self, purpose: Purpose, until: float) -> tuple[Key, Content | Secured | Subtotal | ClientFailure] | None:
        """Wait for the next answer to a task of this purpose. Answers to other tasks are kept for later.

        Return None at the time `until`, or if no client has such a task. Raises Closed.
        """

        def wanted(key: Key) -> bool:
            return key.job.purpose == purpose or not self.of(key.peer).has(key.job)  # else a stale answer's failure

        while True:
            self._check_rates()
            found = self._dispatcher.take(wanted, min(until, self._next_check))
            if found is not None:
                key, content = found
                if isinstance(content, ClientFailure):
                    self._failed(self.of(key.peer), key, content)
                return found
            if time.monotonic() >= until or not any(job.purpose == purpose for job in self.busy.values()):
                return None

    def _failed(self, member: Member, key: Key, failure: ClientFailure) -> None:
        """Note that a client's task has failed, unless it is late and its answer still accepted."""
        if not member.has(key.job) or self._dispatcher.is_open(key):
            return
        if failure.why is FailureKind.LATE:  # if it has a permit, its update will still arrive, and needs its place
            self._leave_task(member, MemberEvent.EXPIRE)
            self._admission.withdraw(member)
        else:
            self._leave_task(member, MemberEvent.FAIL)
            self._free(member)

    def _free(self, member: Member) -> None:
        """Give the place of a client's update to others."""
        if member.place is not None:
            self._admission.leave(member)
        if member.session.is_held:
            self._let_go_on(member)
        if self._admission.waiting:
            self._admit()

    def _check_rates(self) -> None:
        """Let others pass the clients that send too slowly, if others wait for a permit or for memory."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK
        if not (self._admission.waiting or self.queue.memory_is_full):
            self._admission.slow({}, now)
            return
        known = self.queue.statistics()
        self._admission.keep(known)
        members = {self.of(peer): figures for peer, figures in known.items()}
        sending = {each: found for each in members if (found := self._sending(each, members[each])) is not None}
        for member in self._admission.slow(sending, now):
            session, is_wrong = member.session, sending[member].is_wrong
            if is_wrong and session.is_wrong:
                self._dispatcher.charge(member.id, math.inf, "it sends more than it may, and others wait")
            else:
                self._let_others_pass(member, members[member])
            session.is_wrong |= is_wrong
        self._admit()
        self._next_check = now + max(_CHECK, _SELDOM * (time.monotonic() - now))

    def _sending(self, member: Member, figures: netq.Statistics) -> Sending | None:
        """Return what a client sends now, None if it sends nothing that others wait for."""
        size, place = figures.expected, member.place
        if member.state is not MemberState.ARRIVED and place is not None and place.is_admitted:
            size = max(size, place.size)
        if not size or member.session.is_held:
            return None
        until = 0.0 if member.task is None else member.task.until
        is_wrong = figures.expected > member.allowed + self._bounds.text
        return Sending(figures.bytes_in + figures.arriving, size - figures.arriving, until, figures.waits, is_wrong)

    def _let_others_pass(self, member: Member, figures: netq.Statistics) -> None:
        """Take the place of a slow client, and hold back what it sends, until it is admitted again."""
        size = 0 if member.place is None else member.place.size
        self._admission.defer(member, max(figures.expected, size) - figures.arriving)
        if figures.expected:
            log.info("%s: sends slowly, and others wait: they go first", member)
            member.session.is_held = True
            reason = "others go first, because they send faster; this message goes on after them"
            self.queue.pause(member.id, reason)
        elif member.task is None:  # it has never used its permit for an older task
            self._admission.leave(member)

    def _let_go_on(self, member: Member) -> None:
        member.session.is_held = False
        self.queue.resume(member.id)

    def _receive(self, peer: uuid.UUID, message: Message) -> bool:
        """Handle a message. Return whether a task or a session calls for it. The dispatcher calls this from `take`."""
        member = self.of(peer)
        match message:
            case Reply():
                return self._receive_reply(member, message.job, message.content)
            case Offer():
                return self._receive_offer(member, message)
            case Introduction():
                return self._receive_introduction(member, message)
            case Leave():
                return _receive_leave(member, message)
            case Describe():
                return self._receive_question(member, message)
            case _:
                self._refuse(member, FailureKind.UNREADABLE, f"it sent a {type(message).__name__}; expected a Reply")
                return False

    def _session_begins(self, peer: uuid.UUID) -> None:
        """Note when it was. Runs in the communicator's loop."""
        self._begun.append((peer, time.monotonic()))

    def _session_over(self, peer: uuid.UUID) -> None:
        """Forget what a client has said in its session. The dispatcher calls this behind the session's last message."""
        member = self.of(peer)
        was_put_off = member.session.is_held or member.session.is_wrong
        member.end_session()
        if was_put_off:  # in the next session it may hold up the others again
            self._dispatcher.charge(peer, math.inf, "it was to go on after others, and has begun anew")
        else:
            self._dispatcher.charge(peer, 0.0, "it begins one session after the other")

    def _receive_introduction(self, member: Member, introduction: Introduction) -> bool:
        session = member.session
        if session.properties is not None:  # it says so once a session
            return False
        session.properties, session.wants_final = introduction.properties, introduction.final
        session.version, session.check = introduction.version, introduction.check
        member.left = ""
        session.ahead = introduction.time - time.time() if introduction.time else None
        figures = self.queue.statistics(member.id).get(member.id)
        if figures is None:  # it has gone meanwhile
            return True
        shown = [layer.name for layer in (figures.seal, figures.security) if layer is not None and layer.name]
        member.name = shown[0] if shown else introduction.name
        version = f", version {session.version}" if session.version not in ("", VERSION) else ""
        self._callbacks.client_joins(member.id, member.name)
        check = f", checked by a training of {session.check:.1f} s" if session.check else ""
        log.info("%s: joins from %s%s%s", member, figures.address, version, check)
        if session.ahead is not None and abs(session.ahead) > CLOCK:
            text = "%s: its clock is %.0f s %s this one's: certificates may seem to have expired; set it"
            log.warning(text, member, abs(session.ahead), "ahead of" if session.ahead > 0 else "behind")
        if introduction.relay:
            self._receive_relay(member)
        return True

    def _receive_relay(self, member: Member) -> None:
        """Tell a relay what tasks are like, or to look for another server."""
        if not self._may_relay(member):
            member.session.is_visitor = True
            member.left, member.changed = "it is a relay, and not among the server's `relays`", time.time()
            log.warning("%s: gets no task: %s", member, member.left)
        member.session.is_relay = True
        member.session.waits_for_description = True
        self._describe_to_relays((member,))

    def root(self, *, is_rooted: bool) -> None:
        """Note whether there is a way to the federation's server. Relays that connect wait until there is one."""
        self._is_rooted = is_rooted
        self._describe_to_relays(self)

    def _describe_to_relays(self, members: Iterable[Member]) -> None:
        for member in members if self._is_rooted else ():
            if member.session.waits_for_description:
                member.session.waits_for_description = False
                self._describe_to(member)

    def _receive_question(self, member: Member, question: Describe) -> bool:
        if member.session.is_visitor:  # one answer a session: a client that reads none costs no memory
            return False
        log.info("%s: wants no task: %s", member, question.reason)
        member.session.is_visitor = True
        member.left, member.changed = question.reason, time.time()
        self._describe_to(member)
        return True

    def _describe_to(self, member: Member) -> None:
        try:
            description = self._describe(_info(member))
        except Exception:  # of the user's strategy, as it would in the next round
            log.exception("the next task cannot be described")
        else:
            self.queue.put(replace(description, relays=self._may_relay(member), name=member.name), member.id)

    def _may_relay(self, member: Member) -> bool:
        if isinstance(self._relays, bool):
            return self._relays
        return str(member.id) in self._relays or (member.name != "" and member.name in self._relays)

    def _receive_offer(self, member: Member, offer: Offer) -> bool:
        """Queue an update for its admission: once a session and task, and a second time after a permit."""
        task = member.task
        if task is None or task.job != offer.job or member.state not in TRANSITIONS[MemberEvent.OFFER]:
            return False  # it is late, or one too many
        if member.state is MemberState.PERMITTED:
            # The first offer was to an attempt before this one, and the client has dropped the permit with that task.
            if task.has_offered_again:
                return False
            task.has_offered_again = True
        member.on(MemberEvent.OFFER)
        if offer.size > self._bounds.update:
            limit = self._bounds.update
            self._refuse(member, FailureKind.INVALID, f"it offers {offer.size} bytes; expected {limit} at most")
            return True
        self._admission.offer(member, offer.size)
        self._callbacks.client_is(member.id, ClientState.WAITING, offer.size)
        self._admit()
        return True

    def _admit(self) -> None:
        for member in self._admission.in_the_way():
            figures = self.queue.statistics(member.id).get(member.id)
            if member.state is not MemberState.ARRIVED and figures is not None:
                self._let_others_pass(member, figures)
        for member in self._admission.admit(time.monotonic(), self._at_work):
            if member.session.is_held:
                self._let_go_on(member)
            if member.task is None or member.place is None or member.state is not MemberState.OFFERED:
                continue  # what was paused goes on
            member.on(MemberEvent.PERMIT)
            for owed in member.owed:
                if owed.job == member.task.job:
                    owed.allowed = max(owed.allowed, member.place.size)
            self.queue.put(Permit(member.task.job), member.id)
            self._callbacks.client_is(member.id, ClientState.SENDING, member.place.size)

    def _at_work(self) -> Iterator[Member]:
        """Return the clients that may offer an update."""
        return (member for member in self if member.state is MemberState.ASKED)

    def _receive_reply(self, member: Member, job: Job, content: Content | Secured | Subtotal | str) -> bool:
        """Handle a reply. Return whether the client owes it."""
        now = time.monotonic()
        member.replied = job, member.replies(job) + 1
        owed = member.settle(job, now)
        if isinstance(content, Masked | Subtotal) and self._is_of_before(member, job, content):
            return owed is not None
        size = content.nbytes if isinstance(content, _LARGE) else 0
        allowed = owed.allowed if owed else 0
        is_masked = member.task is not None and member.task.attempt != (None, None)
        expected = Masked if is_masked else _CONTENT[job.purpose]
        answer: Content | Secured | Subtotal | ClientFailure
        if isinstance(content, str):
            answer = ClientFailure(FailureKind.FAILED, content)
        elif isinstance(content, Subtotal) and not self._may_relay(member):
            wrong = "it answers for others, and is not among this server's relays; expected its own answer"
            answer = ClientFailure(FailureKind.INVALID, wrong)
        elif not isinstance(content, (expected, Subtotal, Skip)):
            wrong = f"it answered with {type(content).__name__}; expected {expected.__name__}"
            answer = ClientFailure(FailureKind.INVALID, wrong)
        elif size > allowed:
            wrong = f"it sent {size} bytes, and might send {allowed}; expected an offer first"
            answer = ClientFailure(FailureKind.INVALID, wrong)
        else:
            answer = content
        if not (member.has(job) and self._dispatcher.answer(Key(member.id, job), answer)):
            self._receive_stale(member, job, content, is_owed=owed is not None)
            return owed is not None
        if isinstance(answer, ClientFailure):
            self._free(member)
        else:
            member.on(MemberEvent.REPLY)
            if member.place is not None or member.slow:
                self._admission.arrive(member, size, now)
        return not isinstance(content, Subtotal) or self._may_relay(member)

    def _is_of_before(self, member: Member, job: Job, content: Masked | Subtotal) -> bool:
        """Return whether a vector is for an attempt before the present one of the same round. Frees its place then."""
        attempt = attempt_of(content)
        if member.task is None or not member.has(job) or attempt in (None, member.task.attempt):
            return False
        if not any(each.job == job for each in member.owed):  # it owes one only: this is the present one, and wrong
            return False
        if member.state is MemberState.ASKED:  # else it has offered the next one, which has the place
            self._free(member)
        log.info("%s: its vector for an attempt of round %d before this one is dropped", member, job.round)
        return True

    def _receive_stale(
        self, member: Member, job: Job, content: Content | Secured | Subtotal | str, *, is_owed: bool
    ) -> None:
        """Handle a reply to a task that is not open. The client is too late, or wrong.

        A client that was too late still works on its present task, which stays open. So does a client whose server has
        been started again: its first reply may be to the server before.
        """
        is_other_run, task = job.run != self.run, member.task
        if task is not None and not is_owed and not (is_other_run and task.is_first):
            of = " of another server" if is_other_run else ""
            member.settle(task.job, time.monotonic())  # this was its answer: a later one to the same task is wrong, too
            expected = f"round {task.job.round} ({task.job.purpose})"
            wrong = f"it answered round {job.round} ({job.purpose}){of}; expected {expected}"
            self._refuse(member, FailureKind.INVALID, wrong)
            return
        if member.state is not MemberState.ARRIVED:
            self._free(member)
        if member.warned_stale != self._asks:  # one line and one failure, however many such replies come
            member.warned_stale = self._asks
            text = "%s: its answer to round %d (%s) is not waited for (any more)%s"
            log.warning(text, member, job.round, job.purpose, f": {content}" if isinstance(content, str) else "")
            if not is_other_run:
                reason = f"it answered round {job.round} ({job.purpose}), which is not waited for any more"
                self._dispatcher.add_answer(Key(member.id, job), ClientFailure(FailureKind.STALE, reason))

    def _refuse(self, member: Member, why: FailureKind, reason: str) -> None:
        """Answer a client's task with a failure, if it has a task."""
        task = member.task
        if task is not None and self._dispatcher.answer(Key(member.id, task.job), ClientFailure(why, reason)):
            self._free(member)


def _status(member: Member, figures: netq.Statistics | None) -> ClientStatus:
    session, stage = member.session, _stage(member, figures)
    reason, since = member.reason, member.changed or None
    if stage in (Stage.VISITOR, Stage.LEAVING, Stage.GONE):
        reason = member.left or reason
    if figures is None:
        return ClientStatus(
            member.id, member.name, stage, reason, since, updates=member.updates, failures=member.failures
        )
    if stage is Stage.READY and session.check:
        reason = reason or f"tried a training out, which took {session.check:.1f} s"
    if stage is Stage.LOST:
        reason, since = f"no connection for {figures.absent:.0f} s", time.time() - figures.absent
    ends = [each.not_after for each in (figures.seal, figures.security) if each is not None and each.not_after]
    return ClientStatus(
        id=member.id,
        name=member.name,
        stage=stage,
        reason=reason,
        since=since,
        suspended=member.records["train"].owed > 0,
        address=figures.address,
        version=session.version,
        ahead=session.ahead,
        check=session.check,
        certificate_end=min(ends, default=None),
        absent=figures.absent,
        bytes_in=figures.bytes_in,
        bytes_out=figures.bytes_out,
        updates=member.updates,
        failures=member.failures,
        seconds=member.seconds if member.seconds < math.inf else None,
        properties=session.properties or {},
    )


def _stage(member: Member, figures: netq.Statistics | None) -> Stage:
    session, task = member.session, member.task
    if figures is None:
        return Stage.GONE
    if not figures.connected:
        return Stage.LOST
    if session.is_visitor:
        return Stage.VISITOR
    if session.is_leaving:
        return Stage.LEAVING
    if member.state is MemberState.IDLE:
        return Stage.CONNECTED if session.properties is None else Stage.READY
    if member.state is MemberState.ASKED and task is not None and task.job.purpose in ("evaluate", "statistics"):
        return Stage.EVALUATING
    return _STAGES[member.state]


_STAGES = {
    MemberState.ASKED: Stage.TRAINING,
    MemberState.OFFERED: Stage.WAITING,
    MemberState.PERMITTED: Stage.SENDING,
    MemberState.ARRIVED: Stage.DONE,
    MemberState.COUNTED: Stage.DONE,
    MemberState.SKIPPED: Stage.SKIPPED,
    MemberState.FAILED: Stage.FAILED,
    MemberState.LATE: Stage.LATE,
}


def _info(member: Member) -> ClientInfo:
    return ClientInfo(member.id, member.session.properties or {})


def _has_final(member: Member) -> bool:
    return member.final is not None and member.final.done() and member.final.exception() is None


def _receive_leave(member: Member, leave: Leave) -> bool:
    if member.session.is_leaving:  # it says so once a session
        return False
    member.session.is_leaving = True
    member.left, member.changed = leave.reason, time.time()
    log.info("%s: leaves: %s", member, leave.reason)
    return True
