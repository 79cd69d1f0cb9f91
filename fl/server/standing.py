"""Which clients a round waits for. A client without a good answer to too many of its last tasks is suspended.

    regular ──too many of its last tasks missed──► suspended: it owes good answers, and no round waits for it
       ▲                                              │
       └──────── as many as it owes: 8, 16, … 64 ─────┘

Its last tasks are those that rounds have waited for: what it answers while it is suspended pays what it owes, and makes
no miss older. So the next miss suspends a restored client again, for twice as many answers, until its misses are long
ago; and one that answers now and then delays few rounds, however it chooses them. An answer that comes after its round
counts, if it took no longer than the deadline.

A suspended client that gives good answers gets a task in each round. One that does not gets the next one after 4
rounds, then after 8, 16, … 64; and in the first round of a new session.

Pure; owned by fl/server/collector.py, which has one for training and one for evaluation.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

from fl.outline import Purpose
from netq.validate import is_number, is_whole

log = logging.getLogger("netq.fl")

_PAUSE, _OWED, _MOST = 4, 8, 64  # rounds until the next task, good answers that are owed: each time twice as many
_PATIENCE, _SPARE = 3.0, 1.0  # a client is overdue after so many times its last answer's time, and so many seconds more
_WINDOW = 8  # times `suspend_after`: tasks whose misses count
_TASKS: Mapping[Purpose, str] = {"train": "trainings", "evaluate": "evaluations"}
_REMEMBERED = 4096  # clients that have gone, and have missed tasks


@dataclass
class _Record:
    """The tasks of one client."""

    missed: int = 0  # a bit for each of its last regular tasks, 1 for one without a good answer; the lowest: the last
    seconds: float | None = None  # how long its last answer took; None: it has never answered
    owed: int = 0  # good answers until rounds wait for it again; 0: it is not suspended
    debt: int = 0  # how many it owed at first, the last time
    pause: int = 0  # rounds between its last task, which it has not answered, and the next; 0: none
    due: int = 0  # the first turn in which it gets a task

    @property
    def misses(self) -> int:
        """Tasks without a good answer, among its last ones."""
        return self.missed.bit_count()


class Candidates(NamedTuple):
    """The clients that may get a task in a round."""

    regular: list[uuid.UUID]  # the strategy selects among them, and the round waits for them
    retried: list[uuid.UUID]  # suspended clients whose pause is over


class Standing:
    """The records of the clients. `deadline`: seconds; may be set.

    suspend_after: tasks without a good answer, among the last eight times as many, after which a client is suspended.
    purpose:       of the tasks, for the log.
    """

    def __init__(self, suspend_after: int, deadline: float, purpose: Purpose = "train") -> None:
        self._suspend_after = suspend_after
        self._window = (1 << _WINDOW * suspend_after) - 1
        self.deadline = deadline
        self._tasks = _TASKS[purpose]
        self._records: dict[uuid.UUID, _Record] = {}
        self._turn = 0  # calls of `candidates`

    def candidates(self, clients: Collection[uuid.UUID], least: int, *, again: bool = False) -> Candidates:
        """Return those of the clients that may get a task now.

        least: regular clients that are needed. If there are fewer, those of the others that have missed the fewest
               tasks are regular too.
        again: whether the last round did not count. Then clients that have just missed a task are not regular either.
        """
        self._turn += 1
        records = {peer: self._records.get(peer) or _Record() for peer in clients}
        regular = [peer for peer, record in records.items() if not (record.owed or (again and record.missed & 1))]
        others = sorted(set(clients).difference(regular), key=lambda peer: (records[peer].misses, peer))
        missing = max(0, least - len(regular))
        regular += others[:missing]
        return Candidates(regular, [peer for peer in others[missing:] if self._turn >= records[peer].due])

    def answered(self, peer: uuid.UUID, seconds: float) -> None:
        """Note a good answer, and how long it took."""
        record = self._records.setdefault(peer, _Record())
        record.seconds, record.pause, record.due = seconds, 0, 0
        if record.owed:
            record.owed -= 1
            if record.owed:
                return
            log.info("%s: restored: %d %s were good", peer, record.debt, self._tasks)
        record.missed = record.missed << 1 & self._window
        if not record.missed:
            record.debt = 0

    def answered_late(self, peer: uuid.UUID, seconds: float) -> None:
        """Note an answer that came after its round. No round has waited for a suspended client."""
        record = self._records.setdefault(peer, _Record())
        record.seconds = seconds
        if record.owed and seconds <= self.deadline:
            self.answered(peer, seconds)

    def missed(self, peer: uuid.UUID) -> bool:
        """Note a task without a good answer. Return whether the client is suspended."""
        record = self._records.setdefault(peer, _Record())
        if not record.owed:
            record.missed = (record.missed << 1 | 1) & self._window
            if record.misses < self._suspend_after:
                return False
            record.owed = record.debt = min(_MOST, 2 * record.debt) or _OWED
            text = "%s: suspended: no good answer to %d of its last %d %s; rounds wait for it again after %d good ones"
            log.warning(text, peer, record.misses, self._window.bit_length(), self._tasks, record.owed)
            if not self._misses_all(record):
                return True
        record.pause = min(_MOST, 2 * record.pause) or _PAUSE
        record.due = self._turn + record.pause
        return True

    def renew(self, peer: uuid.UUID) -> None:
        """Note a new session: the client gets a task at once. What it has missed counts as before."""
        if peer in self._records:
            self._records[peer].due = 0

    def keep(self, clients: Collection[uuid.UUID]) -> None:
        """Forget the other clients, but for the last of them that have missed tasks."""
        gone = [peer for peer in self._records if peer not in clients]
        missed = [peer for peer in gone if self._records[peer].missed]
        for peer in set(gone).difference(missed[-_REMEMBERED:]):
            del self._records[peer]

    def is_suspended(self, peer: uuid.UUID) -> bool:
        """Return whether rounds do not wait for this client."""
        return peer in self._records and self._records[peer].owed > 0

    def suspended(self) -> Sequence[uuid.UUID]:
        """Return the suspended clients."""
        return [peer for peer in self._records if self.is_suspended(peer)]

    def expected(self, peer: uuid.UUID) -> float:
        """Return how many seconds to wait for an answer of this client, going by its last one. 0: not at all.

        Not at all for a client that has never answered, or whose last answer took longer than the deadline.
        """
        record = self._records.get(peer)
        if record is None or record.seconds is None or record.seconds > self.deadline:
            return 0.0
        return min(self.deadline, _PATIENCE * record.seconds + _SPARE)

    def state(self) -> dict[str, Any]:
        """Return the records of clients that have missed tasks, and the turn, as plain values, for `restore`."""
        records = {str(peer): list(astuple(record)) for peer, record in self._records.items() if record.missed}
        return {"turn": self._turn, "records": records}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of a server before this one. Raises TypeError, ValueError for values of another kind."""
        match state:
            case {"turn": turn, "records": dict(records)} if is_whole(turn, 0, 2**62):
                self._turn = turn
            case _:
                raise ValueError("expected a turn, and records of clients")
        for text, (missed, seconds, owed, debt, pause, due) in records.items():
            whole = is_whole(missed, 0) and all(is_whole(each, 0, _MOST) for each in (owed, debt, pause))
            right = whole and is_whole(due, 0, turn + _MOST) and (seconds is None or is_number(seconds, 0))
            if not (right and isinstance(text, str)):
                raise ValueError(f"{text!r}: expected a client's id, its missed tasks, its seconds and its suspension")
            self._records[uuid.UUID(text)] = _Record(missed & self._window, seconds, owed, debt, pause, due)

    def _misses_all(self, record: _Record) -> bool:
        """Return whether a client has not answered its last tasks at all."""
        last = (1 << self._suspend_after) - 1
        return record.missed & last == last
