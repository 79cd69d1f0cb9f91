"""Flow control over all peers of one loop: how many unread bytes they may have here. Pure; owned by one loop.

Each lane of each peer may send CREDIT bytes without asking, so a small message never waits. All that a lane may have
here beyond that comes from the budget. One half of the budget serves each of two purposes:

- `lend` widens the windows of lanes in use, as long as something of that half is left.
- `claim` lets a message that exceeds its window be completed. Claims are granted in order, as soon as the other half
  has room. A claim is granted as a whole, so two messages never wait for each other's rest. If no other claimed bytes
  are under way or untaken, a claim of any size is granted, so the largest message arrives too.

Unread bytes therefore stay below the budget, or below half of it plus one message; plus the parts of messages whose
links were lost. Those parts are kept until another peer needs the room. A claim of a peer that a user waits for is
granted out of turn, also beyond the budget: one message for each such peer (Session.advance). Otherwise it could wait
for ever for messages that the user does not want yet.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

CREDIT = 256 * 1024  # bytes that each lane may send unasked
PART = 16 * 1024  # bytes: the smallest block for a part of a message, as a block of one byte costs some 700 bytes too


class Claim:
    """A request for `amount` bytes.

    granted: called when the budget grants it.
    held:    returns how many bytes its owner has of earlier claims.
    """

    __slots__ = ("amount", "granted", "held")

    def __init__(self, amount: int, granted: Callable[[], object], held: Callable[[], int] = lambda: 0) -> None:
        self.amount = amount
        self.granted = granted
        self.held = held


class Budget:
    """Counts what was lent and claimed, and grants claims in order."""

    def __init__(self, size: int) -> None:
        self.lent = self.claimed = 0  # bytes
        self.grants = 0  # how many claims were granted so far
        self.orphaned = 0  # bytes of `claimed`: untaken messages of sessions that are over
        self.size = size
        self._lendable = size // 2  # bytes
        self._claimable = size - size // 2  # bytes
        self._claims: deque[Claim] = deque()  # waiting
        self._granting = False
        self._evictable: dict[object, Callable[[], object]] = {}  # parts of lost links' messages; the oldest loss first

    @property
    def used(self) -> int:
        """Bytes that all lanes together may have here beyond their credits."""
        return self.lent + self.claimed

    @property
    def exceeded(self) -> bool:
        """Admission: whether ended sessions hold so many untaken bytes that no new session should begin."""
        return self.orphaned > self._claimable

    @property
    def is_short(self) -> bool:
        """Whether a claim waits. In any thread."""
        return bool(self._claims)

    def is_full(self, amount: int) -> bool:
        """Whether a claim of so many bytes has to wait; at times True for one that is granted in favour of others."""
        return bool(self._claims) or 0 < self.claimed > self._claimable - amount

    def lend(self, wanted: int) -> int:
        """Lend up to `wanted` bytes at once; return how many."""
        amount = max(0, min(wanted, self._lendable - self.lent))
        self.lent += amount
        return amount

    def give_back(self, amount: int) -> None:
        """Take back bytes that were lent."""
        self.lent -= amount

    def claim(self, claim: Claim) -> None:
        """Grant the claim as soon as there is room."""
        self._claims.append(claim)
        self._grant()

    def grant_beyond(self, claim: Claim) -> None:
        """Grant a waiting claim at once, though there is no room."""
        self._claims.remove(claim)
        self._give(claim)

    def withdraw(self, claim: Claim) -> None:
        """Remove a waiting claim. Harmless if it was granted: then its owner must `free` the bytes."""
        with contextlib.suppress(ValueError):
            self._claims.remove(claim)
            self._grant()

    def free(self, amount: int) -> None:
        """Take back claimed bytes. A negative amount counts more bytes, without a claim."""
        self.claimed -= amount
        self._grant()

    def add_evictable(self, owner: object, evict: Callable[[], object]) -> None:
        """Call `evict`, which frees bytes, when a claim needs the room before `owner` is removed again."""
        self._evictable[owner] = evict
        self._grant()

    def remove_evictable(self, owner: object) -> None:
        """Keep what `owner` has; harmless if it was not added."""
        self._evictable.pop(owner, None)

    def _grant(self) -> None:
        if self._granting:  # called from `granted` or `evict` below, which may free bytes: that loop goes on
            return
        self._granting = True
        try:
            while self._claims and self._grant_next():
                pass
        finally:
            self._granting = False

    def _grant_next(self) -> bool:
        """Grant the first claim, or evict something for it; return False if neither is possible."""
        if self._has_room(self._claims[0]):
            self._give(self._claims.popleft())
        elif self._evictable:
            self._evictable.pop(next(iter(self._evictable)))()
        else:
            return False
        return True

    def _give(self, claim: Claim) -> None:
        self.grants += 1
        self.claimed += claim.amount
        claim.granted()

    def _has_room(self, claim: Claim) -> bool:
        if self.claimed + claim.amount <= self._claimable:
            return True
        # No room. If lanes that wait here too own all claimed bytes, nothing would ever free them: grant the first.
        return self.claimed <= sum([waiting.held() for waiting in self._claims])
