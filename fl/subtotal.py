"""What a relay sends of a round: one sum of its clients' updates, and what has come of each client.

Made by fl/relay/below.py, sent as the content of a Reply (fl/messages.py), and taken by fl/server/round.py.
docs/reference/fl-messages.md has the fields for other languages.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fl import metrics
from fl.checks import expect
from fl.properties import checked_name
from fl.report import ClientFailure, FailureKind
from netq.errors import InvalidOption
from netq.text import printable
from netq.validate import is_whole

MAX_CLIENTS = 100_000  # of one relay, those of relays below it too
_MAX_EXAMPLES = 2**53


@dataclass(frozen=True)
class Subtotal:
    """The answers of a relay's clients to one task. A client is a leaf of the tree: none is a relay.

    folded:     the sum of their updates, as Aggregation.partial returns it. Empty for reports, and if none counts.
                Under masks the sum of their vectors, also for reports, as Summing.partial returns it.
    clients:    the number of examples of each whose answer counts.
    metrics:    of all of these, merged; a Sum stays one.
    weights:    the number of examples over which a metric is a mean, if not all clients have it.
    not_finite: of how many clients a metric was NaN or infinite.
    left_out:   of how many a metric had not the form of most.
    failures:   why the answers of others do not count.
    skipped:    why others had nothing for the task.
    names:      of the clients that have one; of its certificate, if a client has shown one.

    Raises InvalidUpdate.
    """

    folded: dict[str, Any]
    clients: Mapping[uuid.UUID, int]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    not_finite: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[uuid.UUID, ClientFailure] = field(default_factory=dict)
    skipped: Mapping[uuid.UUID, str] = field(default_factory=dict)
    names: Mapping[uuid.UUID, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expect(isinstance(self.folded, dict), "folded", self.folded, "a sum")
        for counts in (self.weights, self.not_finite, self.left_out):
            metrics.check_names(counts)
        for name in ("clients", "failures", "skipped", "names"):
            value = getattr(self, name)
            right = isinstance(value, Mapping) and len(value) <= MAX_CLIENTS
            expect(right, name, value, f"{MAX_CLIENTS} entries at most")
        for number in itertools.chain(
            *(each.values() for each in (self.clients, self.weights, self.not_finite, self.left_out))
        ):
            expect(is_whole(number, 1, _MAX_EXAMPLES), "a number", number, "a whole number, 1 to 2**53")
        object.__setattr__(self, "metrics", metrics.checked(self.metrics))

    @property
    def num_examples(self) -> int:
        """Of all clients whose answers count."""
        return sum(self.clients.values())

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(int(each.nbytes) for each in arrays(self.folded)) + 8 * metrics.elements(self.metrics)

    @property
    def failure(self) -> str:
        """Why no answer counts, for people."""
        counts = Counter(each.why.name for each in self.failures.values())
        failed = ", ".join(f"{count} {why}" for why, count in counts.most_common())
        first = next((f"; the first: {each.reason}" for each in self.failures.values()), "")
        return f"none of its clients has an answer that counts: {failed or 'it has asked none'}{first}"

    def plain(self) -> dict[str, Any]:
        """Return the fields with texts as keys, for a message."""
        failures = {str(peer): [each.why.name, each.reason] for peer, each in self.failures.items()}
        return {
            "type": "Subtotal",
            "folded": self.folded,
            "clients": _texts(self.clients),
            "metrics": self.metrics,
            "weights": self.weights,
            "not_finite": self.not_finite,
            "left_out": self.left_out,
            "failures": failures,
            "skipped": _texts(self.skipped),
            "names": _texts(self.names),
        }

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Subtotal:
        """Make one of what `plain` has returned, as a peer sends it. May raise anything for other values."""
        values = dict(found)
        for name in ("clients", "failures", "skipped", "names"):
            values[name] = {uuid.UUID(peer): each for peer, each in values[name].items()}
        failures = {peer: ClientFailure(FailureKind[why], reason) for peer, (why, reason) in values["failures"].items()}
        skipped = {peer: printable(reason) for peer, reason in values["skipped"].items()}
        known = {*values["clients"], *failures, *skipped}
        names = {peer: _name(name) for peer, name in values["names"].items() if peer in known}
        return cls(**{**values, "failures": failures, "skipped": skipped, "names": names})


def _texts(by_id: Mapping[uuid.UUID, Any]) -> dict[str, Any]:
    return {str(peer): value for peer, value in by_id.items()}


def _name(name: Any) -> str:
    try:
        return checked_name(name, "a name")
    except InvalidOption as error:
        expect(False, "a name", name, str(error))
        raise


def arrays(value: Any) -> list[Any]:
    """Return the arrays and tensors in dicts of one another."""
    if isinstance(value, Mapping):
        return [array for each in value.values() for array in arrays(each)]
    return [value] if hasattr(value, "nbytes") else []
