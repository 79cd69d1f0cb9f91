"""The result of a round: the clients that were asked, those that answered, those that failed, and why.

fl/server/server.py makes the user's `RoundReport` of what has come of each client (fl/server/answers.py). fl/metrics.py
makes the means of the clients' metrics.
"""

from __future__ import annotations

import enum
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fl.metrics import scalars
from netq.text import printable

MEASURED = "server_"  # prefix of the names that fl.Measured adds to the evaluation: no metric of a client has it
_USAGE = ("usage.", "policy.")  # how names of metrics begin that say what a device has used, and what it withholds
_SHOWN = 20  # metrics in a report's line
_PLAIN = re.compile(r"[\w./:@%+()\[\]-]+")  # a name that a report's line has without quotes


class FailureKind(enum.Enum):
    """Why a client's update is not in the model."""

    INVALID = "it does not fit the model, or the strategy or the config refuses it"
    FAILED = "the client could not do its task, and said so"
    LATE = "it was not there by the deadline, or when enough others were"
    STALE = "it belongs to another round"
    LOST = "the client has gone, or cannot be reached"
    UNREADABLE = "its message cannot be read, or is none of ours"
    ERROR = "the strategy raised an error of its own"
    VOID = "too few others were good: the round does not count"


@dataclass(frozen=True)
class ClientFailure:
    """Why a client's update is not in the model. As text it is the reason."""

    why: FailureKind
    reason: str  # printable: it may be a text of the client

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", printable(self.reason))

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class MaskedSum:
    """What a server learns of all clients together under secure aggregation, besides the model and the metrics.

    examples: the sum of their weights. Each client counts as 1 in the report's `num_examples`.
    clipped:  the share of the updates' elements that were cut off. None: it is not learnt (fl.DifferentialPrivacy).
    """

    examples: int
    clipped: float | None

    def __str__(self) -> str:
        return "masked" if self.clipped is None else f"masked, {self.clipped:.2%} clipped"


@dataclass(frozen=True)
class PrivacySpent:
    """What the models until now say of any one client at most, whatever its data are (fl.DifferentialPrivacy).

    epsilon:          at `delta`, of all rounds together. Metrics, and who took part, are not covered.
    rounds:           that it covers, with attempts that became void after their noise was drawn.
    noise_multiplier: of the noise of a round, in multiples of the clip.
    sampling:         the probability with which a client was asked; 1: all were.
    clip:             the largest norm of a change, in the next round.
    trusts_server:    whether the server sees the updates. If not, the clients have added the noise under masks.
    """

    epsilon: float
    delta: float
    rounds: int
    noise_multiplier: float
    sampling: float
    clip: float
    trusts_server: bool

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.3g} at delta {self.delta:g}"


@dataclass(frozen=True)
class RoundReport:
    """The result of a round. Bytes are those of messages, of the clients that are connected at its end.

    A round that does not count has no clients. It is run again under the same number, as the next attempt.
    """

    number: int
    clients: Sequence[uuid.UUID]  # their updates are in the model; none: the round did not count
    failures: Mapping[uuid.UUID, ClientFailure]  # clients that were asked, and whose updates are not in the model
    # Of training, and of the new model: means by number of examples, or sums of fl.Sum, as floats or arrays of float64.
    # The names that most clients have come first.
    metrics: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    seconds: float
    bytes_in: int
    bytes_out: int
    staleness: Mapping[uuid.UUID, int] = field(default_factory=dict)  # of late updates in the model: in rounds
    client_metrics: Mapping[uuid.UUID, Mapping[str, Any]] = field(default_factory=dict)  # of training
    client_evaluation: Mapping[uuid.UUID, Mapping[str, Any]] = field(default_factory=dict)  # of the new model
    shares: Mapping[uuid.UUID, float] = field(default_factory=dict)  # of the examples: of clients with more than half
    attempt: int = 1  # 2 if the first attempt did not count
    suspended: tuple[uuid.UUID, ...] = ()  # clients without a good answer to their last tasks: no round waits for them
    evaluation_failures: Mapping[uuid.UUID, ClientFailure] = field(default_factory=dict)  # of those asked to evaluate
    skipped: Mapping[uuid.UUID, str] = field(default_factory=dict)  # why clients had nothing for a task: no failure
    evaluation_skipped: Mapping[uuid.UUID, str] = field(default_factory=dict)
    not_finite: Mapping[str, int] = field(default_factory=dict)  # clients whose metric was NaN or infinite: left out
    evaluation_not_finite: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)  # clients whose metric had not the form of most
    evaluation_left_out: Mapping[str, int] = field(default_factory=dict)
    num_examples: Mapping[uuid.UUID, int] = field(default_factory=dict)  # as they count: max_examples bounds them
    evaluation_examples: Mapping[uuid.UUID, int] = field(default_factory=dict)
    names: Mapping[uuid.UUID, str] = field(default_factory=dict)  # of the clients that have one
    masked: MaskedSum | None = None  # of secure aggregation; None: there was none
    privacy: PrivacySpent | None = None  # of differential privacy; None: there is none

    def __str__(self) -> str:
        metrics = _line(self.metrics, self.not_finite, self.left_out)
        evaluation = _line(self.evaluation, self.evaluation_not_finite, self.evaluation_left_out, "evaluated ")
        late = f" ({len(self.staleness)} late)" if self.staleness else ""
        clients = f"{len(self.clients)} clients{late}" if self.clients else f"attempt {self.attempt} does not count"
        failed = f", {len(self.failures)} failed"
        if self.evaluation_failures:
            failed += f", {len(self.evaluation_failures)} evaluations failed"
        if self.skipped:
            failed += f", {len(self.skipped)} skipped"
        if self.evaluation_skipped:
            failed += f", {len(self.evaluation_skipped)} evaluations skipped"
        suspended = f", {len(self.suspended)} suspended" if self.suspended else ""
        masked = "" if self.masked is None else f", {self.masked}"
        privacy = "" if self.privacy is None else f", {self.privacy}"
        return (
            f"round {self.number}: {clients}{failed}{suspended}{masked}{privacy}{metrics}{evaluation}"
            f", {self.seconds:.2f} s, {_size(self.bytes_in)} in, {_size(self.bytes_out)} out"
        )


def _line(
    metrics: Mapping[str, Any], not_finite: Mapping[str, int], left_out: Mapping[str, int], before: str = ""
) -> str:
    """Return the first metrics for a line. A name that could be taken for another part of the line is quoted."""
    names = [name for name in scalars(metrics) if not name.startswith(_USAGE)]
    shown = []
    for name in names[:_SHOWN]:
        each = ((not_finite, "not finite"), (left_out, "left out"))
        without = ", ".join(f"{counts[name]} {why}" for counts, why in each if name in counts)
        quoted = name if _PLAIN.fullmatch(name) else ascii(name)
        shown.append(f", {before}{quoted} {metrics[name]:.4g}" + (f" ({without})" if without else ""))
    more = f", {before}{len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "".join(shown) + more


def _size(count: int) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e3:.2f} kB"
