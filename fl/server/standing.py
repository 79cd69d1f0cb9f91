"""Which clients a round waits for. A client without a good answer to its last tasks is suspended.

A suspended client gets a task again after 4 rounds, then after 8, 16, … 64, and the round does not wait for its answer.
It is restored by a good answer, by an answer to an earlier task that took no longer than the deadline, and by a new
session. Pure; owned by fl/server/collector.py, which has one for training and one for evaluation.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

log = logging.getLogger("netq.fl")

_FIRST_PAUSE, _MAX_PAUSE = 4, 64  # rounds until a suspended client gets a task again; each pause is twice the last
_PATIENCE, _SPARE = 3.0, 1.0  # a client is overdue after so many times its last answer's time, and so many seconds more


@dataclass
class _Record:
    """The tasks of one client."""

    misses: int = 0  # tasks without a good answer since the last good one
    seconds: float | None = None  # how long its last answer took; None: it has never answered
    pause: int = 0  # rounds; 0: not suspended
    due: int = 0  # the first turn in which a suspended client gets a task again


class Candidates(NamedTuple):
    """The clients that may get a task in a round."""

    regular: list[uuid.UUID]  # the strategy selects among them, and the round waits for them
    retried: list[uuid.UUID]  # suspended clients whose pause is over


class Standing:
    """The records of the clients. `suspend_after`: tasks in a row without a good answer. `deadline`: seconds."""

    def __init__(self, suspend_after: int, deadline: float) -> None:
        self._suspend_after = suspend_after
        self._deadline = deadline
        self._records: dict[uuid.UUID, _Record] = {}
        self._turn = 0  # calls of `candidates`

    def candidates(self, clients: Collection[uuid.UUID], least: int, *, again: bool = False) -> Candidates:
        """Return those of the clients that may get a task now.

        least: regular clients that are needed. If there are fewer, those of the others that have missed the fewest
               tasks are regular too.
        again: whether the last round did not count. Then clients that have just missed a task are not regular either.
        """
        self._turn += 1
        most = 1 if again else self._suspend_after
        regular = [peer for peer in clients if self._misses(peer) < most]
        others = sorted(set(clients).difference(regular), key=lambda peer: (self._misses(peer), peer))
        missing = max(0, least - len(regular))
        regular += others[:missing]
        return Candidates(regular, [peer for peer in others[missing:] if self._is_due(peer)])

    def answered(self, peer: uuid.UUID, seconds: float) -> None:
        """Note a good answer, and how long it took."""
        if self.is_suspended(peer):
            log.info("%s: restored: its answer is good", peer)
        self._records[peer] = _Record(seconds=seconds)

    def answered_late(self, peer: uuid.UUID, seconds: float) -> None:
        """Note an answer that came after its round. A client that is faster than the deadline is restored."""
        record = self._records.setdefault(peer, _Record())
        record.seconds = seconds
        if seconds <= self._deadline and record.pause:
            log.info("%s: restored: it answered after %.1f s", peer, seconds)
            record.misses = record.pause = 0

    def missed(self, peer: uuid.UUID) -> bool:
        """Note a task without a good answer. Return whether the client is suspended."""
        record = self._records.setdefault(peer, _Record())
        record.misses += 1
        if record.misses < self._suspend_after:
            return False
        level = logging.DEBUG if record.pause else logging.WARNING
        record.pause = min(_MAX_PAUSE, 2 * record.pause) or _FIRST_PAUSE
        record.due = self._turn + record.pause
        text = "%s: suspended: no good answer to its last %d tasks; it gets the next one in %d rounds at the latest"
        log.log(level, text, peer, record.misses, record.pause)
        return True

    def forget(self, peer: uuid.UUID) -> None:
        """Forget a client: it has a new session."""
        self._records.pop(peer, None)

    def keep(self, clients: Collection[uuid.UUID]) -> None:
        """Forget all other clients."""
        for peer in self._records.keys() - set(clients):
            del self._records[peer]

    def is_suspended(self, peer: uuid.UUID) -> bool:
        """Return whether rounds do not wait for this client."""
        return peer in self._records and self._records[peer].pause > 0

    def suspended(self) -> Sequence[uuid.UUID]:
        """Return the suspended clients."""
        return [peer for peer, record in self._records.items() if record.pause]

    def expected(self, peer: uuid.UUID) -> float:
        """Return how many seconds to wait for an answer of this client, going by its last one. 0: not at all.

        Not at all for a client that has never answered, or whose last answer took longer than the deadline.
        """
        record = self._records.get(peer)
        if record is None or record.seconds is None or record.seconds > self._deadline:
            return 0.0
        return min(self._deadline, _PATIENCE * record.seconds + _SPARE)

    def _misses(self, peer: uuid.UUID) -> int:
        return self._records[peer].misses if peer in self._records else 0

    def _is_due(self, peer: uuid.UUID) -> bool:
        """Return whether a client gets a task although it is not needed."""
        return not self.is_suspended(peer) or self._turn >= self._records[peer].due
