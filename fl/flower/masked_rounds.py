"""Rounds of a grid under masks: one sum in place of the nodes' replies.

Owned by a grid (fl/flower/grid.py). fl/server/masked.py says what is asked, in which order, and opens the sum; here its
questions become messages to nodes, and the sum becomes replies: each node in it gets the mean, so that a mean by
Flower's strategies is the same. One round at a time; any thread may ask.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fl.aggregation.mean import WeightedMean
from fl.envelope import Job, Purpose, values
from fl.errors import InvalidUpdate
from fl.flower import kernel_strategy
from fl.flower.masked import WEIGHT, task_of
from fl.flower.messages import Ask, message_id, node_id
from fl.flower.record_codec import arrays, encode
from fl.messages import Masked, Task
from fl.report import ClientFailure, FailureKind, MaskedSum
from fl.secure.certified import Prove
from fl.secure.layout import Summed
from fl.secure.options import SecureAggregation, check_max_examples
from fl.server.dispatcher import TaskDispatcher
from fl.server.federation import Void
from fl.server.masked import Masks
from fl.server.member import Asked, Member, MemberEvent
from netq.errors import Closed, InvalidOption
from netq.validate import expect

log = logging.getLogger("netq.fl")

MaxExamples = int | Literal["equal"] | None
# Of Flower, by name: releases differ. They compare single replies, or add them up in other ways than a mean.
_SINGLE = (
    *("Bulyan", "FedMedian", "FedTrimmedAvg", "FedXgbBagging", "FedXgbCyclic", "Krum", "MultiKrum", "QFedAvg"),
    *("DifferentialPrivacyServerSideAdaptiveClipping", "DifferentialPrivacyServerSideFixedClipping"),
    "DifferentialPrivacyClientSideAdaptiveClipping",  # counts the replies that were clipped
)


class Nodes:
    """The nodes of a grid, as fl.server.gather.Asked. since: when the session of each began, by time.monotonic()."""

    def __init__(self, dispatcher: TaskDispatcher[str], run: int, since: Mapping[uuid.UUID, float]) -> None:
        self.run = run
        self._dispatcher = dispatcher
        self._since = since
        self._members: dict[uuid.UUID, Member] = {}
        self._asked: dict[str, tuple[Member, Job]] = {}  # by the id of the message

    def of(self, peer: uuid.UUID) -> Member:
        """Return a node."""
        member = self._members.setdefault(peer, Member(peer))
        member.since = self._since.get(peer, member.since)
        return member

    def is_present(self, member: Member) -> bool:
        """Return whether a node is not lost."""
        return bool(self._dispatcher.present((member.id,)))

    def ask(
        self,
        task: Task,
        members: Collection[Member],
        limit: float,
        *,
        keep_late: bool,
        own: Mapping[Member, Mapping[str, Any]],
    ) -> None:
        """Ask nodes a step of secure aggregation, each its own."""
        step = f"secure aggregation: {task.secure['step']}"
        ask = Ask(task.job.round, self.run, {}, "query", "", time.time(), limit, "", RecordDict(), step)
        self.send([(replace(ask, secure=own[each]["secure"]), [each]) for each in members], task.job, limit)

    def send(self, parts: Sequence[tuple[Ask, Collection[Member]]], job: Job, limit: float) -> None:
        """Send messages to nodes, whose answers `answer` returns."""
        keyed: list[tuple[Any, dict[uuid.UUID, str]]] = []
        for ask, members in parts:
            keyed.append((ask, {each.id: message_id(ask.batch, node_id(each.id)) for each in members}))
            for member in members:
                member.task = Asked(job, time.monotonic() + limit, is_first=False)
                self._asked[keyed[-1][1][member.id]] = member, job
        self._dispatcher.ask(keyed, limit)

    def answer(self, purpose: Purpose, until: float) -> tuple[tuple[uuid.UUID, Job], Any] | None:
        """Wait for the next answer. Return None at the time `until`, or if none is asked. Raises Closed."""
        found = self._dispatcher.take(self._asked.__contains__, until)
        if found is None:
            return None
        id, content = found
        member, job = self._asked.pop(id)
        member.task = None
        if isinstance(content, Error):
            content = ClientFailure(FailureKind.FAILED, content.reason or f"error {content.code}")
        return (member.id, job), content

    def settle(self, member: Member, event: MemberEvent) -> None:
        """Do nothing: a node that has answered is free."""

    def forget(self, member: Member) -> None:
        """Wait for no answer of a node."""
        self.leave([id for id, (each, _) in self._asked.items() if each is member])
        member.task = None

    def leave(self, ids: Collection[str]) -> list[Member]:
        """Wait for no answer to these messages. Return their nodes, which are busy until they are forgotten."""
        self._dispatcher.forget(ids)
        return [self._asked.pop(id)[0] for id in ids]

    def open(self) -> list[str]:
        """Return the ids of the messages that wait for an answer."""
        return list(self._asked)


class MaskedRounds:
    """The masked rounds of one grid. For the first two arguments see Grid, and for `prove` fl.server.masked.Masks."""

    def __init__(self, secure: SecureAggregation, max_examples: MaxExamples, nodes: Nodes, prove: Prove | None) -> None:
        self._most = max_examples if isinstance(max_examples, int) else 1
        self._nodes = nodes
        self._masks = Masks(secure, nodes, prove)
        self._integers: dict[str, str] = {}  # the dtypes of arrays that were integers in a message
        self._lock = threading.Lock()

    def contents(
        self, ask: Ask, peers: Collection[uuid.UUID], until: float
    ) -> dict[uuid.UUID, RecordDict | ClientFailure]:
        """Ask nodes, and return the content of each one's reply, or why it has none. Raises InvalidOption.

        until: by time.monotonic().
        """
        ask = replace(ask, content=self._with_integers(ask.content))
        try:
            task = task_of({**values(ask), "content": encode(ask.content)})
        except InvalidUpdate as error:
            raise InvalidOption(f"Grid.secure: {error}") from None
        with self._lock:
            found: dict[uuid.UUID, RecordDict | ClientFailure] = dict(self._liars(peers))
            members = [self._nodes.of(peer) for peer in peers if peer not in found]
            try:
                self._round(ask, task, members, until, found)
            except (Void, Closed) as error:  # of a grid that is closed meanwhile, as without masks
                why = ClientFailure(FailureKind.VOID if isinstance(error, Void) else FailureKind.LOST, str(error))
                found = {**dict.fromkeys(peers, why), **found}
            return found

    def _with_integers(self, content: RecordDict) -> RecordDict:
        """Return a message's content in which what was an integer before is one again.

        Flower's mean makes floats of integers, as of BatchNorm's num_batches_tracked. Under masks a float has an error,
        and where an app makes an integer of 26.9999999 it gets 26.
        """
        found = dict(content)
        for name, record in content.array_records.items():
            self._integers.update((key, each.dtype) for key, each in record.items() if "int" in each.dtype)
            whole = dict[str, Array]()
            for key, each in record.items():
                if key in self._integers and "float" in each.dtype and np.isfinite(array := each.numpy()).all():
                    whole[key] = Array(np.asarray(np.rint(array), self._integers[key]))
            if whole:
                found[name] = ArrayRecord({key: whole.get(key, each) for key, each in record.items()})
        return RecordDict(found)

    def _round(
        self,
        ask: Ask,
        task: Task,
        members: Collection[Member],
        until: float,
        found: dict[uuid.UUID, RecordDict | ClientFailure],
    ) -> None:
        """Do a round, and add what has come of each node to `found`. Raises Void."""
        task, summing, failures = self._masks.begin(task, members, 0, self._most, None)
        found.update({uuid.UUID(client): failure for client, failure in failures.items()})
        asked = [member for member in members if str(member.id) not in failures]
        self._nodes.send([(replace(ask, secure=task.secure), asked)], task.job, ask.ttl)
        while (answer := self._nodes.answer(task.job.purpose, until)) is not None:
            (peer, _), content = answer
            if not isinstance(content, ClientFailure):
                try:
                    if not isinstance(content, Masked):
                        raise InvalidUpdate(f"a {type(content).__name__}; expected a vector under masks")
                    summing.add(str(peer), content)
                    continue
                except InvalidUpdate as error:
                    content = ClientFailure(FailureKind.INVALID, str(error))
            found[peer] = content
        late = self._nodes.leave(self._nodes.open())
        found.update(dict.fromkeys([each.id for each in late], ClientFailure(FailureKind.LATE, "no reply in time")))
        there = [uuid.UUID(each) for each in summing.present]
        try:
            summed: Summed = self._masks.open(summing, task.model)
        except InvalidUpdate as error:
            found.update(dict.fromkeys(there, ClientFailure(FailureKind.VOID, str(error))))
        else:
            log.info("%s: %d nodes, %s", ask.title, len(there), MaskedSum(summed.examples, summed.clipped))
            self._masks.warn_if_clipped(ask.title, summed)
            found.update({peer: _content(ask, summed, len(there)) for peer in there})
        finally:
            for member in late:
                self._nodes.forget(member)

    def _liars(self, peers: Collection[uuid.UUID]) -> dict[uuid.UUID, ClientFailure]:
        """Return why some nodes take no part any more."""
        liars = self._masks.liars
        return {each: ClientFailure(FailureKind.INVALID, liars[str(each)]) for each in peers if str(each) in liars}


def check_secure(secure: object, max_examples: object) -> None:
    """Raise InvalidOption unless these are the options of a grid with secure aggregation, or of one without."""
    right = isinstance(secure, SecureAggregation | None)
    expect(right, "Grid.secure", secure, "an object, as in fl.SecureAggregation()")
    if secure is None:
        expect(max_examples is None, "Grid.max_examples", max_examples, "none: it is for secure aggregation")
        return
    check_max_examples("Grid.max_examples", max_examples)


def check_sendable(messages: Sequence[Message]) -> None:
    """Raise InvalidOption unless messages can be one masked round, and what sends them needs the mean of the replies.

    Looks for the strategy among the callers: Flower's grids do not know it, and one that compares replies would find
    them equal, and go on with a wrong result.
    """
    forms = {(id(each.content), each.metadata.message_type, each.metadata.group_id) for each in messages}
    nodes = {each.metadata.dst_node_id for each in messages}
    wrong = _misfit_of_caller()
    if not wrong and (len(forms) > 1 or len(nodes) < len(messages)):
        wrong = f"{len(messages)} messages have not all one content, each to another node; a sum needs one task of all"
    if wrong:
        raise InvalidOption(f"Grid.secure: {messages[0].metadata.message_type}: {wrong}")


def _misfit_of_caller() -> str:
    """Return why a strategy cannot have masks; "" if it can, or if none is among the callers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Strategy):
            return _misfit(caller)
        if type(caller).__name__ == "GridClientProxy":  # of Flower's server for apps of before the message API
            return "apps of before Flower's message API send each node its own message; a sum needs one task of all"
        frame = frame.f_back
    return ""


def _misfit(strategy: Strategy) -> str:
    if isinstance(inner := getattr(strategy, "strategy", None), Strategy) and (why := _misfit(inner)):  # it wraps one
        return why
    name, key = type(strategy).__name__, getattr(strategy, "weighted_by_key", WEIGHT)
    kernel = strategy.kernel if isinstance(strategy, kernel_strategy.FedAvg) else WeightedMean
    if kernel is not WeightedMean or any(each.__name__ in _SINGLE for each in type(strategy).__mro__):
        return f"{name} looks at single replies, and the server learns their mean only"
    return "" if key == WEIGHT else f"{name} weighs replies by {key!r}, and nodes weigh theirs by {WEIGHT!r}"


def _content(ask: Ask, summed: Summed, count: int) -> RecordDict:
    """Return the content of the reply of one of `count` nodes. The replies share the arrays."""
    metrics = MetricRecord({**summed.metrics, WEIGHT: summed.examples / count})
    if not summed.model:
        return RecordDict({"metrics": metrics})
    name = next(iter(ask.content.array_records))
    model = {key: np.asarray(array) for key, array in summed.model.items()}
    return RecordDict({name: arrays(model), "metrics": metrics})
