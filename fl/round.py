"""What came of a round: who was asked, who answered, and the report for the user.

`Answers` is kept by fl/server.py while the round runs, in its thread; a `RoundReport` is what is left of it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fl.aggregate import InvalidUpdate
from fl.messages import Failure

log = logging.getLogger("netq.fl")


@dataclass(frozen=True)
class RoundReport:
    """What came of a round. Bytes are those of messages to and from the clients that are there at its end."""

    number: int
    clients: tuple[uuid.UUID, ...]  # whose updates are in the model; none: the round did not count
    failures: Mapping[uuid.UUID, str]  # who was asked and is not in it, and why
    metrics: Mapping[str, float]  # of training: means by number of examples
    evaluation: Mapping[str, float]  # of the new model, by the clients that were asked
    seconds: float
    bytes_in: int
    bytes_out: int

    def __str__(self) -> str:
        metrics = "".join(f", {name} {value:.4g}" for name, value in {**self.metrics, **self.evaluation}.items())
        return (
            f"round {self.number}: {len(self.clients)} clients, {len(self.failures)} failed{metrics}, "
            f"{self.seconds:.2f} s, {self.bytes_in / 1e6:.2f} MB in, {self.bytes_out / 1e6:.2f} MB out"
        )


@dataclass
class Answers:
    """Who was asked, and what came of it."""

    pending: dict[uuid.UUID, None] = field(default_factory=dict)
    failures: dict[uuid.UUID, str] = field(default_factory=dict)
    weights: dict[uuid.UUID, int] = field(default_factory=dict)  # num_examples of those that count
    metrics: dict[str, float] = field(default_factory=dict)  # their means by number of examples
    totals: dict[str, int] = field(default_factory=dict)  # the examples behind each of the means

    def take(self, peer: uuid.UUID, content: object, kind: type, take: Callable[[Any], None]) -> None:
        """Count a client's answer if it is of the kind asked for and `take` does not refuse it."""
        if isinstance(content, Failure):
            return self.fail(peer, content.reason)
        if not isinstance(content, kind):
            return self.fail(peer, f"it answered with {type(content).__name__}; expected {kind.__name__}")
        try:
            take(content)
        except InvalidUpdate as error:
            return self.fail(peer, str(error))
        return self._count(peer, content)

    def fail(self, peer: uuid.UUID, reason: str) -> None:
        """Do without a client that is still waited for."""
        if peer in self.pending:
            del self.pending[peer]
            self.failures[peer] = reason
            log.warning("%s: left out: %s", peer, reason)

    def fail_rest(self, reason: str) -> None:
        """Do without all that are still waited for."""
        for peer in tuple(self.pending):
            self.fail(peer, reason)

    def void(self, reason: str) -> None:
        """Count nothing of what has come."""
        self.failures |= dict.fromkeys(self.weights, reason)
        self.weights.clear()
        self.metrics.clear()

    def _count(self, peer: uuid.UUID, content: Any) -> None:
        del self.pending[peer]
        self.weights[peer] = content.num_examples
        for name, value in content.metrics.items():
            total = self.totals[name] = self.totals.get(name, 0) + content.num_examples
            mean = self.metrics.get(name, 0.0)
            self.metrics[name] = mean + (value - mean) * (content.num_examples / total)
