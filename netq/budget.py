"""How much the peers of one loop may have here, unread. Pure; owned by one loop, as the Memory whose budget it is.

Each lane of each peer may send CREDIT bytes unasked, so that a small message waits for nobody. What it may send beyond
that is counted here, from when it is allowed until the user has taken it:

- `lend` widens the windows of those who send, while half of the budget is free;
- `claim` lets a message that has begun come to its end: at once if there is room, else when messages have been taken,
  in the order of asking. While half is free a claim is granted whatever its size: so the largest message comes too.

So what is here stays below the budget, or below half of it and one message. What an absent peer has begun to send is
kept while nobody needs the room.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

CREDIT = 256 * 1024  # bytes


class Claim:
    """A wish for `amount` bytes; `granted` is called when they are allowed."""

    __slots__ = ("amount", "granted")

    def __init__(self, amount: int, granted: Callable[[], object]) -> None:
        self.amount = amount
        self.granted = granted


class Budget:
    """Counts what is allowed, and says who may go on."""

    def __init__(self, size: int) -> None:
        self.used = 0
        self._size = size
        self._claims: deque[Claim] = deque()  # that wait
        self._absent: dict[object, Callable[[], object]] = {}  # who has begun a message, the longest absent first

    def lend(self, wish: int) -> int:
        """Allow up to `wish` bytes, now; return how many."""
        spare = 0 if self._claims else self._size // 2 - self.used
        amount = max(0, min(wish, spare))
        self.used += amount
        return amount

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
        """Take back what was allowed (a negative amount: count more, that nobody was asked for)."""
        self.used -= amount
        self._grant()

    def leave(self, who: object, forget: Callable[[], object]) -> None:
        """Call `forget`, which frees something, if the room is needed before `who` comes back."""
        self._absent[who] = forget
        self._grant()

    def come_back(self, who: object) -> None:
        """Forget nothing of it; harmless if it was not away."""
        self._absent.pop(who, None)

    def _grant(self) -> None:
        while self._claims:
            if self.used > self._size // 2 and self.used + self._claims[0].amount > self._size:
                if not self._absent:
                    return
                self._absent.pop(next(iter(self._absent)))()
                continue
            claim = self._claims.popleft()
            self.used += claim.amount
            claim.granted()
