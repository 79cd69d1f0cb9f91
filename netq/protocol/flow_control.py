"""How much the peers of one loop may have here, unread. Pure; owned by one loop, as the Memory whose budget it is.

Each lane of each peer may send CREDIT bytes unasked, so that a small message waits for nobody. What it may have here
beyond that comes out of the budget, one half for each of two purposes:

- `lend` widens the windows of lanes in use, while there is something left of that half;
- `claim` lets a message that goes beyond its window come to its end: as soon as there is room in the other half, in the
  order of asking. A claim is granted whole, so no two messages wait for each other's rest; and when nothing else that
  was claimed is under way or untaken it is granted whatever its size, so the largest message comes too.

So what is here stays below the budget; or below half of it and one message, with what others had begun when their links
were lost. What an absent peer has begun to send is kept while nobody needs the room.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

CREDIT = 256 * 1024  # bytes
PART = (
    16 * 1024
)  # bytes that a part of a message has at least; a chunk costs some 700 bytes of memory, even of one byte


class Claim:
    """A wish for `amount` bytes; `held` says what its owner has of earlier ones, `granted` hears when it is allowed."""

    __slots__ = ("amount", "granted", "held")

    def __init__(self, amount: int, granted: Callable[[], object], held: Callable[[], int] = lambda: 0) -> None:
        self.amount = amount
        self.granted = granted
        self.held = held


class Budget:
    """Counts what is allowed, and says who may go on."""

    def __init__(self, size: int) -> None:
        self.lent = self.claimed = 0
        self.orphaned = 0  # of what is claimed: untaken messages of sessions that are over
        self._lendable = size // 2
        self._claimable = size - size // 2
        self._claims: deque[Claim] = deque()  # that wait
        self._granting = False
        self._absent: dict[object, Callable[[], object]] = {}  # who has begun a message, the longest absent first

    @property
    def used(self) -> int:
        """What all may have here together."""
        return self.lent + self.claimed

    @property
    def exceeded(self) -> bool:
        """Whether so much of ended sessions lies here untaken that no new one should begin."""
        return self.orphaned > self._claimable

    def lend(self, wish: int) -> int:
        """Allow up to `wish` bytes, now; return how many."""
        amount = max(0, min(wish, self._lendable - self.lent))
        self.lent += amount
        return amount

    def give_back(self, amount: int) -> None:
        """Take back what was lent."""
        self.lent -= amount

    def claim(self, claim: Claim) -> None:
        """Grant it as soon as there is room."""
        self._claims.append(claim)
        self._grant()

    def withdraw(self, claim: Claim) -> None:
        """Want it no more; harmless when it has been granted: then what it got is to be freed."""
        with contextlib.suppress(ValueError):
            self._claims.remove(claim)
            self._grant()

    def free(self, amount: int) -> None:
        """Take back what was claimed (a negative amount: count more, that nobody was asked for)."""
        self.claimed -= amount
        self._grant()

    def add_evictable(self, who: object, forget: Callable[[], object]) -> None:
        """Call `forget`, which frees something, if the room is needed before `who` comes back."""
        self._absent[who] = forget
        self._grant()

    def remove_evictable(self, who: object) -> None:
        """Forget nothing of it; harmless if it was not away."""
        self._absent.pop(who, None)

    def _grant(self) -> None:
        if self._granting:  # who is granted something, or forgets it, may free some: the loop below sees it
            return
        self._granting = True
        try:
            while self._claims and self._grant_next():
                pass
        finally:
            self._granting = False

    def _grant_next(self) -> bool:
        """Grant the first claim, or make room for it; return False if neither can be done."""
        if self._has_room(self._claims[0]):
            claim = self._claims.popleft()
            self.claimed += claim.amount
            claim.granted()
        elif self._absent:
            self._absent.pop(next(iter(self._absent)))()
        else:
            return False
        return True

    def _has_room(self, claim: Claim) -> bool:
        if self.claimed + claim.amount <= self._claimable:
            return True
        return self.claimed <= sum([waiting.held() for waiting in self._claims])  # all of it waits, as this does
