"""When a round is complete: rules as data, and pure functions of how far the round has come and of the time.

Used by fl/server/round.py. Made by fl/server/server.py for each round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class RoundState(NamedTuple):
    """How far a round has come. Of the clients that it waits for, some have not answered: `waiting`."""

    waiting: int
    in_time: int  # clients that it waits for, whose answer to the task of this round counts
    clients: int  # all whose answer counts, late answers to earlier rounds too
    updates: int  # answers that count
    overdue: float = math.inf  # when all that are missing are overdue, by the same clock as `now`


@dataclass(frozen=True)
class RoundRule:
    """When a round is complete.

    enough:     answers in time, after which it waits for no more of its clients.
    needed:     clients whose answers it needs to count. It waits for other clients at work while it has fewer, unless
                `needs_own`.
    close_early: whether it waits for no client that is overdue, once it has what it needs.
    needs_own:  whether it waits for its own clients only, as an evaluation does.
    buffer:     answers of any clients after which it is complete, whatever the others say; None: it is a round that
                waits for its clients.
    """

    enough: int = 0
    needed: int = 0
    needs_own: bool = False
    close_early: bool = False
    buffer: int | None = None

    def is_complete(self, progress: RoundState, now: float) -> bool:
        """Return whether the round ends now. It ends in any case at its deadline, or when no client is at work."""
        if self.buffer is not None:
            return progress.updates >= self.buffer
        has_needed = progress.clients >= self.needed
        if has_needed and now >= progress.overdue:
            return True
        if progress.waiting and not self.has_enough(progress.in_time):
            return False
        return has_needed or self.needs_own

    def has_enough(self, in_time: int) -> bool:
        """Return whether the round waits for none of its clients any more."""
        return self.buffer is None and in_time >= self.enough

    def next_look(self, progress: RoundState, deadline: float, now: float) -> float:
        """Return until when to wait for an answer: then the round may be complete without one."""
        return min(deadline, progress.overdue) if now < progress.overdue else deadline
