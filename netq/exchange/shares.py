"""What clients share, so that no client takes it from the others, and what each holds of it. Pure.

A client may hold up to four times what is left: one that takes all it can leaves a fifth, and n of them one part in
4n + 1. So there is always some for a client that holds little, and no number is to be chosen for each client
("dynamic thresholds", A. Choudhury and E. Hahne, 1998).

What clients that have gone still hold counts as that of one client, None, and is given back after a time.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

_SHARE = 4  # times what is left
_T = TypeVar("_T")


class Shares:
    """An amount that is shared.

    most: of it, in all. A single holder may exceed it, since it could never have what is larger.
    noun, option: for the text of a refusal: what it is, and the option that says `most`.
    """

    def __init__(self, most: int, noun: str, option: str) -> None:
        self._most = most
        self._noun = noun
        self._option = option
        self._held: dict[Hashable, int] = {}
        self.used = 0

    def why_full(self, holder: Hashable, amount: int) -> str:
        """Return why a holder gets no such amount; "" if it does."""
        has, left = self.of(holder), self._most - self.used
        if not self.used or (amount <= left and has + amount <= _SHARE * left):
            return ""
        taken = f"{self.used} of {self._most} {self._noun} are taken ({self._option})"
        if amount > left:
            return f"{taken}, and this needs {amount}; ask again when there is room"
        return f"{taken}, {has} of them by this client, which may have {_SHARE} times what is left; ask again later"

    def of(self, holder: Hashable) -> int:
        """Return what a holder has."""
        return self._held.get(holder, 0)

    def add(self, holder: Hashable, amount: int) -> None:
        """Give a holder more, or less than before. It is not asked whether that fits."""
        self.used += amount
        if held := self.of(holder) + amount:
            self._held[holder] = held
        else:
            self._held.pop(holder, None)

    def set(self, holder: Hashable, amount: int) -> None:
        """Let a holder have so much."""
        self.add(holder, amount - self.of(holder))


@dataclass(eq=False, slots=True)
class _Entry(Generic[_T]):
    item: _T
    size: int
    holder: uuid.UUID | None
    account: dict[int, None]  # the numbers of all that this client holds


class Held(Generic[_T]):
    """Numbered things that clients hold, each of some bytes."""

    def __init__(self, counts: Shares, sizes: Shares) -> None:
        self._counts = counts
        self._sizes = sizes
        self._entries: dict[int, _Entry[_T]] = {}
        self._accounts: dict[uuid.UUID, dict[int, None]] = {}
        self._gone: deque[tuple[float, dict[int, None]]] = deque()  # what clients held, and when they went

    def why_full(self, client: uuid.UUID | None, size: int) -> str:
        """Return why a client may not hold one more; "" if it may."""
        return self._counts.why_full(client, 1) or self._sizes.why_full(client, size)

    def add(self, number: int, client: uuid.UUID, size: int, item: _T) -> None:
        """Let a client hold something."""
        account = self._accounts.setdefault(client, {})
        account[number] = None
        self._entries[number] = entry = _Entry(item, size, client, account)
        self._count(entry, client, 1)

    def get(self, number: int) -> _T | None:
        """Return the thing with a number, if there is one."""
        entry = self._entries.get(number)
        return None if entry is None else entry.item

    def remove(self, number: int) -> None:
        """Let nobody hold it any more."""
        entry = self._entries.pop(number)
        self._count(entry, entry.holder, -1)
        del entry.account[number]
        if entry.holder is not None and not entry.account:
            del self._accounts[entry.holder]

    def leave(self, client: uuid.UUID, now: float) -> tuple[list[_T], list[_T]]:
        """Note that a client has gone. Return what it held, and of that what is not kept: the caller removes it."""
        account = self._accounts.pop(client, {})
        all, lost = [], list[_T]()
        for number in account:
            entry = self._entries[number]
            all.append(entry.item)
            self._count(entry, client, -1)
            if self.why_full(None, entry.size):
                lost.append(entry.item)
            entry.holder = None
            self._count(entry, None, 1)
        if account:
            self._gone.append((now, account))
        return all, lost

    def expired(self, before: float) -> list[_T]:
        """Return the things of clients that went before a time, which the caller removes."""
        found = []
        while self._gone and (self._gone[0][0] < before or not self._gone[0][1]):
            found += [self._entries[number].item for number in self._gone.popleft()[1]]
        return found

    def __len__(self) -> int:
        return len(self._entries)

    def _count(self, entry: _Entry[_T], holder: uuid.UUID | None, times: int) -> None:
        self._counts.add(holder, times)
        self._sizes.add(holder, times * entry.size)
