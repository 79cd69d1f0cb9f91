"""What clients hold of something that is bounded in all: open jobs, or open calls. Pure.

If there is no room, a client that holds less than another one gets it all the same: the one that holds most loses its
newest. So no client, and no crowd of clients, keeps another one from its part. What a client that has gone holds is
kept for some time, unless others need the room.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_PART = 16  # one part in so many of what a client holds is taken from it at once: to look for it takes time
_GONE = 1000  # accounts of clients that have gone; others share the last one
_T = TypeVar("_T")


@dataclass(eq=False, slots=True)
class _Account(Generic[_T]):
    """What one client holds."""

    items: dict[int, tuple[_T, int]] = field(default_factory=dict)  # by number: each, and its size
    size: int = 0


class Held(Generic[_T]):
    """Numbered things, each of some bytes, that clients hold.

    most, memory: how many, and how many bytes, in all. One may always be held, however large it is.
    noun, options: for the text of a refusal: what they are, and the options that say `most` and `memory`.
    """

    def __init__(self, most: int, memory: int, noun: str, options: tuple[str, str]) -> None:
        self._most = most
        self._memory = memory
        self._noun = noun
        self._options = options
        self._size = 0
        self._at: dict[int, _Account[_T]] = {}  # by number
        self._accounts: dict[uuid.UUID, _Account[_T]] = {}  # of clients that are here
        self._gone: deque[tuple[float, _Account[_T]]] = deque()  # of those that have gone, and when

    def __len__(self) -> int:
        return len(self._at)

    def get(self, number: int) -> _T | None:
        """Return the thing with a number, if there is one."""
        account = self._at.get(number)
        return None if account is None else account.items[number][0]

    def add(self, number: int, client: uuid.UUID, size: int, item: _T) -> None:
        """Let a client hold something."""
        account = self._at[number] = self._accounts.setdefault(client, _Account())
        account.items[number] = item, size
        account.size += size
        self._size += size

    def remove(self, number: int) -> None:
        """Let no client hold it any more."""
        account = self._at.pop(number)
        _, size = account.items.pop(number)
        account.size -= size
        self._size -= size

    def make_room(self, client: uuid.UUID, size: int) -> tuple[str, list[_T]]:
        """Find room for one more. Return why there is none, or what the caller is to remove for that."""
        asker = self._accounts.get(client, _Account())
        if len(self._at) >= self._most:
            return self._take(asker, 1, _count, f"{len(self._at)} of {self._most} {self._noun} ({self._options[0]})")
        if self._at and self._size + size > self._memory:
            taken = f"{self._size} of {self._memory} bytes of {self._noun} ({self._options[1]})"
            return self._take(asker, size, _size, taken)
        return "", []

    def leave(self, client: uuid.UUID, now: float) -> list[_T]:
        """Note that a client has gone. Return what it holds."""
        account = self._accounts.pop(client, None)
        if account is None or not account.items:
            return []
        found = [item for item, _ in account.items.values()]
        if len(self._gone) >= _GONE:  # to look for the largest is to look at each of them
            _, last = self._gone.pop()
            last.items |= account.items
            last.size += account.size
            self._at.update(dict.fromkeys(account.items, last))
            account = last
        self._gone.append((now, account))
        return found

    def expired(self, before: float) -> list[_T]:
        """Return what clients hold that went before a time. The caller removes it."""
        found = []
        while self._gone and (self._gone[0][0] < before or not self._gone[0][1].items):
            found += [item for item, _ in self._gone.popleft()[1].items.values()]
        return found

    def _take(
        self, asker: _Account[_T], amount: int, held: Callable[[_Account[_T]], int], taken: str
    ) -> tuple[str, list[_T]]:
        """Choose what the one that holds most loses, if that is more than what the asker would have then."""
        largest = max([*self._accounts.values(), *[account for _, account in self._gone]], key=held)
        if held(asker) + amount >= held(largest) - amount:
            return f"{taken} are taken, and this client has {held(asker)} of them; ask again when there is room", []
        found, left = [], max(amount, held(largest) // _PART)
        for item, size in reversed(largest.items.values()):
            found.append(item)
            left -= 1 if held is _count else size
            if left <= 0:
                break
        return "", found


def _count(account: _Account[_T]) -> int:
    return len(account.items)


def _size(account: _Account[_T]) -> int:
    return account.size
