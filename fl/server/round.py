"""One round under way: asks its clients, and yields their answers as they arrive, until its rule is met.

Made by fl/server/server.py for each training and each evaluation, and used in its thread. These differ in their rule
(fl/server/rule.py), and in what the server does with an answer. fl/server/members.py moves the messages, and
fl/server/answers.py has what has come of each client.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeGuard, cast

from fl.callbacks.base import Callbacks, ClientState
from fl.envelope import Job
from fl.messages import Content, Masked, Measured, Report, Secured, Skip, Task, Update, with_fields
from fl.properties import title
from fl.report import ClientFailure, FailureKind
from fl.server.aggregation import Aggregation
from fl.server.answers import Answers
from fl.server.member import Member, MemberEvent
from fl.server.members import Members
from fl.server.rule import RoundRule, RoundState
from fl.server.standing import Standing
from fl.strategies.base import Strategy
from fl.subtotal import Subtotal
from fl.tensors.spec import nbytes

log = logging.getLogger("netq.fl")

_OF_THE_SERVER = (FailureKind.ERROR, FailureKind.VOID)  # failures that are not the client's


@dataclass
class Arrival(Generic[Measured]):
    """The answer of a client. `staleness`: in rounds, since it was asked for."""

    client: uuid.UUID
    content: Measured
    staleness: int


class Round(Generic[Measured]):
    """The clients that get a task, and their answers. Iterate over it, and use each answer in `counting`.

    clients: that are asked. With an asynchronous strategy as many of them are at work at any time as can be.
    regular: those of them that the round waits for.
    """

    def __init__(
        self,
        members: Members,
        standing: Standing,
        strategy: Strategy,
        aggregation: Aggregation,
        callbacks: Callbacks,
        task: Task,
        rule: RoundRule,
        clients: Collection[Member],
        regular: Iterable[Member] = (),
    ) -> None:
        self.rule = rule
        self.answers = Answers()
        self._members = members
        self._standing = standing
        self._strategy = strategy
        self._aggregation = aggregation
        self._callbacks = callbacks
        self._task = task
        self._clients = clients
        self._asked = frozenset(clients)
        self._regular = frozenset(regular)
        self._idle = dict.fromkeys(clients)  # in an asynchronous round: those that may get a task, in this order
        # With close_early: a heap of clients that the round waits for. The first is overdue last, by its last answer.
        self._overdue: list[tuple[float, int, Member]] = []
        self.number = task.job.round
        self._order = itertools.count()  # of the entries: clients have no order
        # Clients keep a task beyond its round if late answers count.
        self._keep_late = task.job.purpose == "train" and strategy.staleness is not None

    def __iter__(self) -> Iterator[Arrival[Measured]]:
        """Ask the clients. Yield good answers until the rule is met, all have answered, or the deadline has passed.

        The deadline begins after the clients were asked. So all that do not answer are late before it passes.
        """
        asked = time.monotonic()
        if self.rule.buffer:
            self._ask_more()
        else:
            self._ask(self._task, self._clients)
        until = time.monotonic() + self._standing.deadline
        while not self.rule.is_complete(progress := self._progress(asked), now := time.monotonic()):
            look = self.rule.next_look(progress, until, now)
            found = self._members.answer(self._task.job.purpose, look)
            if found is not None:
                (peer, job), content = found
                del found
                member = self._members.of(peer)
                if member in self._asked:
                    self._idle[member] = None
                if (received := self._good(member, job, content)) is not None:
                    del content  # and `counting` drops `received.content`
                    yield received
                if self.rule.buffer:
                    self._ask_more()
            elif not look <= time.monotonic() < until:
                break
        if not self.rule.buffer:
            self._close()

    @contextmanager
    def counting(self, received: Arrival[Measured]) -> Iterator[None]:
        """Count an answer, unless the block that uses it fails. Then drop it, and give its place to another client.

        Raises OSError of the block: the server's disk is at fault, and leaving out the clients that come last would
        bias the model. Other errors are failures of the client, or of the strategy.
        """
        failure, member = None, self._members.of(received.client)
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            failure = self._aggregation.failure_of(error)
        if failure is None:
            self._standing.answered(member, member.seconds)
            self.answers.count(member.id, received.content, received.staleness)
            member.reason, size = "", 0
            if isinstance(received.content, Update):
                member.updates, size = member.updates + 1, nbytes(received.content.model)
            elif isinstance(received.content, Masked | Subtotal) and self._has_update(received.content):
                member.updates, size = member.updates + 1, received.content.nbytes
            self._callbacks.client_is(member.id, ClientState.DONE, size)
        else:
            self._fail(member, failure)
        del received.content  # before its place is given to another client, which may send at once
        self._members.settle(member, MemberEvent.COUNT if failure is None else MemberEvent.FAIL)

    def _has_update(self, content: Masked | Subtotal) -> bool:
        return self._task.job.purpose == "train" and (isinstance(content, Masked) or bool(content.folded))

    def _good(
        self, member: Member, job: Job, content: Content | Secured | Subtotal | ClientFailure
    ) -> Arrival[Measured] | None:
        """Return an answer that may count. Record any other, and return None."""
        staleness = self._task.job.round - job.round
        if isinstance(content, ClientFailure):
            self._fail(member, content)
        elif isinstance(content, Skip) or _is_skip(content):  # neither a good answer nor a missed task
            reason = "its clients have nothing for it" if isinstance(content, Subtotal) else content.reason
            if isinstance(content, Subtotal):
                self.answers.relay(member.id, content)
            log.info("%s: skips round %d (%s): %s", member, job.round, job.purpose, reason)
            self.answers.skip(member.id, reason)
            member.reason = reason
            self._callbacks.client_is(member.id, ClientState.DONE)
            self._members.settle(member, MemberEvent.SKIP)
        elif staleness and (not self._keep_late or isinstance(content, Subtotal)):
            wants = "a relay's sum counts in its own only" if self._keep_late else "the strategy wants no late ones"
            reason = f"it is {staleness} rounds late, and {wants}"
            self._fail(member, ClientFailure(FailureKind.STALE, reason))
            self._members.settle(member, MemberEvent.FAIL)
        elif (why := self._refusal(member, cast(Measured, content))) is not None:
            if isinstance(content, Subtotal):
                self.answers.relay(member.id, content)
            self._fail(member, why, is_spared=why.why is FailureKind.INVALID)  # another's client may be at fault
            self._members.settle(member, MemberEvent.FAIL)
        else:
            answer = cast(Measured, content)
            if isinstance(answer, Update | Report):  # else a relay, or the client itself, has bounded it
                answer = with_fields(answer, num_examples=self._strategy.examples(answer.num_examples))
            return Arrival(member.id, answer, staleness)
        return None

    def _refusal(self, member: Member, content: Update | Report | Subtotal | Masked) -> ClientFailure | None:
        """Return why an answer cannot count, None if it can."""
        if isinstance(content, Subtotal) and not content.clients:
            return ClientFailure(FailureKind.FAILED, content.failure)
        if (client := self.answers.twice(member.id, content)) is not None:
            of = "it counts" if client == member.id else f"{title(client)}, one of its clients, counts"
            why = f"{of} in this round already, through another relay"
            self.answers.disputed.add(client)
            return ClientFailure(FailureKind.INVALID, why)
        return None

    def _fail(self, member: Member, failure: ClientFailure, *, is_spared: bool = False) -> None:
        """Record a failure. For a client that is spared it is no missed task."""
        is_stale = failure.why is FailureKind.STALE
        if is_stale:
            self._standing.answered_late(member, member.seconds)
            self._note_overdue(member)
        if not self.answers.fail(member.id, failure):
            return
        member.reason, member.failures = str(failure), member.failures + 1
        if not is_stale:  # which the log has
            of = " of the evaluation" if self._task.job.purpose == "evaluate" else ""
            log.warning("%s: left out%s: %s", member, of, failure)
        self._callbacks.client_is(member.id, ClientState.FAILED)
        if is_stale or is_spared or failure.why in _OF_THE_SERVER:
            return
        if self._standing.missed(member):
            self._callbacks.client_is(member.id, ClientState.SUSPENDED)

    def _progress(self, asked: float) -> RoundState:
        answers, overdue, last = self.answers, math.inf, self._overdue
        if self.rule.close_early:
            while last and not self._is_noted(*last[0]):
                heapq.heappop(last)
            overdue = asked + (-last[0][0] if last else 0.0)
        return RoundState(answers.waiting, answers.in_time, answers.clients, answers.updates, overdue)

    def _is_noted(self, seconds: float, _: int, member: Member) -> bool:
        """Return whether a client is waited for, and expected as it was noted."""
        return self.answers.of(member.id).is_pending and -seconds == self._standing.expected(member)

    def _note_overdue(self, member: Member) -> None:
        """Note when a client is overdue, if the round waits for it. What was noted before counts no more."""
        if self.rule.close_early and member in self._regular:
            heapq.heappush(self._overdue, (-self._standing.expected(member), next(self._order), member))

    def _ask(self, task: Task, clients: Collection[Member]) -> None:
        for member in clients:
            self.answers.ask(member.id, is_regular=member in self._regular)
            self._note_overdue(member)
        failures = self._members.ask(task, clients, self._standing.deadline, keep_late=self._keep_late)
        for member, failure in failures.items():
            self._fail(member, failure)

    def _ask_more(self) -> None:
        """Replace the clients that have answered or are late; first by those without an update in this round.

        A client that has failed or skipped gets its next task in the next round: it would answer so at once.
        """
        if self.answers.updates >= (self.rule.buffer or 0):  # the next task has the next model
            return
        # Only those that have answered since the last call: to look at all clients after each answer is quadratic.
        of = {member: self.answers.of(member.id) for member in self._idle}
        idle = [each for each in of if not (each.task or of[each].failure) and of[each].skipped is None]
        self._idle = dict.fromkeys(idle)
        missing = len(self._asked) - self._members.at_work
        chosen = sorted(idle, key=lambda each: of[each].updates > 0)[: max(0, missing)]
        for counted in sorted({of[each].updates for each in chosen}):
            again = replace(self._task, counted=counted)
            self._ask(again, [each for each in chosen if of[each].updates == counted])

    def _close(self) -> None:
        """Wait no longer for the clients that have not answered. If enough others have, it is no missed task."""
        has_enough = self.rule.has_enough(self.answers.in_time)
        for peer in self.answers.pending():
            member = self._members.of(peer)
            late = ClientFailure(FailureKind.LATE, "enough others had answered")
            self._fail(member, late, is_spared=has_enough and member in self._regular)
            if not self._keep_late:
                self._members.forget(member)


def _is_skip(content: Content | Secured | Subtotal) -> TypeGuard[Subtotal]:
    """Return whether this is of a relay whose clients have nothing for the task."""
    return isinstance(content, Subtotal) and not (content.clients or content.failures) and len(content.skipped) > 0
