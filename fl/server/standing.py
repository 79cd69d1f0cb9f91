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

Pure; fl/server/server.py has one for training and one for evaluation. A client's record is in its `Member.records`.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import astuple
from typing import Any, NamedTuple

from fl.envelope import Purpose
from fl.server.member import Member, TaskRecord
from netq.validate import is_number, is_whole

log = logging.getLogger("netq.fl")

_PAUSE, _OWED, _MOST = 4, 8, 64  # rounds until the next task, good answers that are owed: each time twice as many
# A client is overdue after so many times its last answer's time, and so many seconds more.
_OVERDUE_FACTOR, _SPARE = 3.0, 1.0
_WINDOW = 8  # times `suspend_after`: tasks whose misses count
_TASKS: Mapping[Purpose, str] = {"train": "trainings", "evaluate": "evaluations"}


class Candidates(NamedTuple):
    """The clients that may get a task in a round."""

    regular: list[Member]  # the strategy selects among them, and the round waits for them
    retried: list[Member]  # suspended clients whose pause is over


class Standing:
    """The rules for tasks of one purpose. `deadline`: seconds; may be set.

    suspend_after: tasks without a good answer, among the last eight times as many, after which a client is suspended.
    """

    def __init__(self, suspend_after: int, deadline: float, purpose: Purpose = "train") -> None:
        self._suspend_after = suspend_after
        self._window = (1 << _WINDOW * suspend_after) - 1
        self.deadline = deadline
        self._purpose: Purpose = purpose
        self._recommended = deadline  # seconds; the longest deadline of which the log has said that it would be enough
        self._turn = 0  # calls of `candidates`

    def candidates(self, members: Collection[Member], least: int, *, again: bool = False) -> Candidates:
        """Return those of the clients that may get a task now.

        least: regular clients that are needed. If there are fewer, those of the others that have missed the fewest
               tasks are regular too.
        again: whether the last round did not count. Then clients that have just missed a task are not regular either.
        """
        self._turn += 1
        regular, others = list[Member](), list[Member]()
        for member in members:
            record = member.records[self._purpose]
            is_regular = not (record.owed or (again and record.missed & 1))
            (regular if is_regular else others).append(member)
        others.sort(key=lambda member: (member.records[self._purpose].misses, member.id))
        missing = max(0, least - len(regular))
        due = [each for each in others[missing:] if self._turn >= each.records[self._purpose].due]
        return Candidates(regular + others[:missing], due)

    def answered(self, member: Member, seconds: float) -> None:
        """Note a good answer, and how many seconds it took."""
        if self._recommended < seconds < math.inf:
            self._recommend(member, seconds)
        record = member.records[self._purpose]
        record.seconds, record.pause, record.due = seconds, 0, 0
        if record.owed:
            record.owed -= 1
            if record.owed:
                return
            log.info("%s: restored: %d %s were good", member, record.debt, _TASKS[self._purpose])
        record.missed = record.missed << 1 & self._window
        if not record.missed:
            record.debt = 0

    def answered_late(self, member: Member, seconds: float) -> None:
        """Note an answer that came after its round. No round has waited for a suspended client."""
        if self._recommended < seconds < math.inf:
            self._recommend(member, seconds)
        record = member.records[self._purpose]
        record.seconds = seconds
        if record.owed and seconds <= self.deadline:
            self.answered(member, seconds)

    def missed(self, member: Member) -> bool:
        """Note a task without a good answer. Return whether the client is suspended."""
        record = member.records[self._purpose]
        if not record.owed:
            record.missed = (record.missed << 1 | 1) & self._window
            if record.misses < self._suspend_after:
                return False
            record.owed = record.debt = min(_MOST, 2 * record.debt) or _OWED
            text = "%s: suspended: no good answer to %d of its last %d %s; rounds wait for it again after %d good ones"
            tasks = _TASKS[self._purpose]
            log.warning(text, member, record.misses, self._window.bit_length(), tasks, record.owed)
            if not self._misses_all(record):
                return True
        record.pause = min(_MOST, 2 * record.pause) or _PAUSE
        record.due = self._turn + record.pause
        return True

    def suspended(self, members: Iterable[Member]) -> list[uuid.UUID]:
        """Return those of the clients for which rounds do not wait."""
        return [member.id for member in members if member.records[self._purpose].owed]

    def expected(self, member: Member) -> float:
        """Return how many seconds to wait for an answer of this client, going by its last one. 0: not at all.

        Not at all for a client that has never answered, or whose last answer took longer than the deadline.
        """
        seconds = member.records[self._purpose].seconds
        if seconds is None or seconds > self.deadline:
            return 0.0
        return min(self.deadline, _OVERDUE_FACTOR * seconds + _SPARE)

    def state(self, members: Iterable[Member]) -> dict[str, Any]:
        """Return the records of clients that have missed tasks, and the turn, as plain values, for `restore`."""
        found = [(member.id, member.records[self._purpose]) for member in members]
        return {"turn": self._turn, "records": {str(id): list(astuple(each)) for id, each in found if each.missed}}

    def restore(self, state: Mapping[str, Any], of: Callable[[uuid.UUID], Member]) -> None:
        """Go on from the state of a server before this one. `of`: returns a client's member.

        Raises TypeError, ValueError for values of another kind.
        """
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
            record = TaskRecord(missed & self._window, seconds, owed, debt, pause, due)
            of(uuid.UUID(text)).records[self._purpose] = record

    def _recommend(self, member: Member, seconds: float) -> None:
        """Log the deadline that would be enough for a client whose answer came too late."""
        self._recommended = 2.0 * math.ceil(seconds)
        text = "%s: its answer took %.1f s, and the deadline is %g s; rounds would wait for it with one of %g s"
        log.warning(text, member, seconds, self.deadline, self._recommended)

    def _misses_all(self, record: TaskRecord) -> bool:
        """Return whether a client has not answered its last tasks at all."""
        last = (1 << self._suspend_after) - 1
        return record.missed & last == last
