"""What has come of the clients that were asked in a round: one Answer for each. Pure; owned by fl/server/round.py."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fl.messages import Masked, Report, Update, with_fields
from fl.metrics import Merged, elements, merged
from fl.report import MEASURED, ClientFailure, FailureKind
from fl.secure.layout import Summed
from fl.subtotal import Subtotal

Client = TypeVar("Client")
Reason = TypeVar("Reason", ClientFailure, str)

_LARGE_SHARE = 0.5  # of the examples: a client with more is named …
_MANY = 3  # … if there are so many clients
_MAX_ELEMENTS = 2**22  # in the arrays of all clients: 32 MiB, as 419 confusion matrices of 100 classes


@dataclass
class Answer:
    """What has come of one client in a round."""

    is_regular: bool = False  # the round waits for it
    is_pending: bool = False  # it has not answered
    failure: ClientFailure | None = None
    skipped: str | None = None  # why it had nothing for its task
    updates: int = 0  # its answers that count; with an asynchronous strategy there may be several
    num_examples: int = 0  # of the last one
    staleness: int = 0  # of the same: in rounds
    metrics: Mapping[str, Any] = field(default_factory=dict)  # of the same
    without_room: list[str] = field(default_factory=list)  # names of arrays that are not among these
    relayed: Subtotal | None = None  # of a relay, without its sum


class Answers:
    """The answers of a round.

    waiting: regular clients that have not answered.
    in_time: regular clients whose answer to the task of this round counts.
    clients: all whose answer counts.
    updates: answers that count.

    A relay is one client here; those that it answers for are in the report. None of them counts twice.
    """

    def __init__(self) -> None:
        self.waiting = self.in_time = self.clients = self.updates = 0
        self._answers: dict[uuid.UUID, Answer] = {}
        self._elements = 0  # in the arrays of all metrics
        self.disputed: set[uuid.UUID] = set()  # clients of several relays in this round
        self.summed: Summed | None = None  # under secure aggregation: what the sum of all says
        self._through: dict[uuid.UUID, uuid.UUID] = {}  # of each client that counts: the relay by which, or itself

    def ask(self, peer: uuid.UUID, *, is_regular: bool) -> None:
        """Note that a client was asked."""
        answer = self._answers.setdefault(peer, Answer())
        answer.is_regular, answer.is_pending = is_regular, True
        self.waiting += is_regular

    def twice(self, peer: uuid.UUID, content: Update | Report | Subtotal | Masked) -> uuid.UUID | None:
        """Return a client of this answer that counts already, through another relay or by itself; None if none does."""
        clients = content.clients if isinstance(content, Subtotal) else (peer,)
        return next((each for each in clients if self._through.get(each, peer) != peer), None)

    def count(self, peer: uuid.UUID, content: Update | Report | Subtotal | Masked, staleness: int = 0) -> None:
        """Count an answer."""
        answer = self._settled(peer)
        if isinstance(content, Subtotal):
            self.relay(peer, content)
        self._through |= dict.fromkeys(content.clients if isinstance(content, Subtotal) else (peer,), peer)
        self.updates += 1
        self.clients += not answer.updates
        self.in_time += answer.is_regular and not staleness
        answer.updates += 1
        answer.num_examples, answer.staleness = content.num_examples, staleness
        metrics = {name: value for name, value in content.metrics.items() if not name.startswith(MEASURED)}
        size, room = elements(metrics), _MAX_ELEMENTS - self._elements + elements(answer.metrics)
        answer.without_room = []
        if size > room:  # the others have taken it
            answer.without_room = [name for name, value in metrics.items() if not isinstance(value, float)]
            size, metrics = 0, {name: value for name, value in metrics.items() if isinstance(value, float)}
        self._elements = _MAX_ELEMENTS - room + size
        answer.metrics = metrics

    def relay(self, peer: uuid.UUID, content: Subtotal) -> None:
        """Note what has come of the clients of a relay, whether or not some of them count."""
        self._answers.setdefault(peer, Answer()).relayed = with_fields(content, folded={})

    def skip(self, peer: uuid.UUID, reason: str) -> None:
        """Record that a client had nothing for a task. An asynchronous strategy may have had an update of it before."""
        self._settled(peer).skipped = reason

    def fail(self, peer: uuid.UUID, failure: ClientFailure) -> bool:
        """Record a client's failure. Return whether it is recorded.

        An answer that counts, or a skip, outweighs any failure, and the client's own reason any other. A stale answer
        does not end the wait for the right one, and replaces no other failure.
        """
        answer = self._answers.get(peer, Answer())
        earlier = answer.failure
        if answer.updates or answer.skipped is not None or (earlier and earlier.why is FailureKind.FAILED):
            return False
        if failure.why is FailureKind.STALE and (answer.is_pending or earlier is not None):
            return False
        self._settled(peer).failure = failure
        return True

    def _settled(self, peer: uuid.UUID) -> Answer:
        """Return what has come of a client, which is not waited for any more."""
        answer = self._answers.setdefault(peer, Answer())
        self.waiting -= answer.is_regular and answer.is_pending
        answer.is_pending, answer.failure = False, None
        return answer

    def void(self, reason: str) -> None:
        """Turn all answers that count into failures."""
        for peer, answer in self._answers.items():
            if answer.updates:
                failed = Answer(failure=ClientFailure(FailureKind.VOID, reason), skipped=answer.skipped)
                if answer.relayed is not None:
                    failures = {**answer.relayed.failures, **dict.fromkeys(answer.relayed.clients, failed.failure)}
                    failed.relayed = with_fields(answer.relayed, clients={}, failures=failures)
                self._answers[peer] = failed
        self._through.clear()
        self.summed = None
        self.in_time = self.clients = self.updates = 0

    def pending(self) -> list[uuid.UUID]:
        """Return the clients that have not answered."""
        return [peer for peer, answer in self._answers.items() if answer.is_pending]

    def of(self, peer: uuid.UUID) -> Answer:
        """Return what has come of a client; an empty Answer if it was not asked."""
        return self._answers.get(peer, Answer())

    # For the report.

    @property
    def failures(self) -> dict[uuid.UUID, ClientFailure]:
        """The clients whose answer does not count, and why."""
        own = {peer: each.failure for peer, each in self._answers.items() if each.failure is not None}
        return {**self._without_counted(each.failures for each in self._relayed), **own}

    @property
    def skipped(self) -> dict[uuid.UUID, str]:
        """The clients that had nothing for their task, and why."""
        own = {peer: each.skipped for peer, each in self._answers.items() if each.skipped is not None}
        return {**self._without_counted(each.skipped for each in self._relayed), **own}

    @property
    def counted(self) -> dict[uuid.UUID, Answer]:
        """The clients whose answers count; relays, but not those that they answer for."""
        return {peer: each for peer, each in self._answers.items() if each.updates}

    @property
    def _relayed(self) -> list[Subtotal]:
        return [each.relayed for each in self._answers.values() if each.relayed is not None]

    def _without_counted(self, parts: Iterable[Mapping[uuid.UUID, Reason]]) -> dict[uuid.UUID, Reason]:
        return {peer: reason for part in parts for peer, reason in part.items() if peer not in self._through}

    @property
    def num_examples(self) -> dict[uuid.UUID, int]:
        """Of each client whose answer counts, those for which a relay answers in place of the relay."""
        found: dict[uuid.UUID, int] = {}
        for peer, each in self.counted.items():
            found |= {peer: each.num_examples} if each.relayed is None else each.relayed.clients
        return found

    @property
    def names(self) -> dict[uuid.UUID, str]:
        """Of the clients for which relays answer, as far as these know them."""
        return {peer: name for each in self._relayed for peer, name in each.names.items()}

    @property
    def staleness(self) -> dict[uuid.UUID, int]:
        """Of the late answers that count: in rounds."""
        return {peer: each.staleness for peer, each in self.counted.items() if each.staleness}

    @property
    def metrics(self) -> dict[uuid.UUID, Mapping[str, Any]]:
        """Of each client whose answer counts. Of a relay, those of its clients merged."""
        return {peer: each.metrics for peer, each in self.counted.items()}

    def merged(self) -> Merged:
        """Return the means of the metrics by number of examples; a client counts with its last answer."""
        if self.summed is not None:
            return Merged(dict(self.summed.metrics), {}, {}, set(), {})
        counted = self.counted
        lost = Counter(name for each in counted.values() for name in each.without_room)
        weights = {peer: each.num_examples for peer, each in counted.items()}
        of_metric = {
            (peer, name): number
            for peer, each in counted.items()
            if each.relayed is not None
            for name, number in each.relayed.weights.items()
        }
        found = merged(self.metrics, weights, lost, len(counted), of_metric)
        for each in self._relayed:
            for counts, more in ((found.not_finite, each.not_finite), (found.left_out, each.left_out)):
                counts |= {name: counts.get(name, 0) + number for name, number in more.items()}
        return found

    def shares(self) -> dict[uuid.UUID, float]:
        """Return the share of the examples of each client that has more than half of them, among three or more."""
        return large_shares(self.num_examples)


def large_shares(examples: Mapping[Client, int]) -> dict[Client, float]:
    """Return the share of each client that has more than half of the examples, among three or more."""
    if len(examples) < _MANY:
        return {}
    total = sum(examples.values())
    return {client: number / total for client, number in examples.items() if number > _LARGE_SHARE * total}
