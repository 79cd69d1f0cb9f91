"""A bound on what all clients hold together, shared fairly: of open jobs, or of open calls. Pure.

When the bound is reached, a client that holds less than another one still gets room: the client that holds most loses
its newest items. So neither one client nor a crowd of them shuts another client out. The items of a client that has
gone are kept for some time, unless others need the room.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from netq.exchange.envelope import Refusal, Rejected

_PART = 16  # one part in so many of the largest account is taken at once, because to find that account takes time
_GONE = 1000  # accounts of clients that have gone; further ones share the last
_T = TypeVar("_T")


@dataclass(eq=False, slots=True)
class _Account(Generic[_T]):
    """The items of one client."""

    items: dict[int, tuple[_T, int]] = field(default_factory=dict)  # by number: each item, and its size
    size: int = 0


class Quota(Generic[_T]):
    """Numbered items, each of some bytes, which clients hold.

    most, memory:  how many items, and how many bytes of them, in all. One item always has room, however large it is.
    noun, options: for the text of a rejection: what the items are, and the options that set `most` and `memory`.
    """

    def __init__(self, most: int, memory: int, noun: str, options: tuple[str, str]) -> None:
        self._most = most
        self._memory = memory
        self._noun = noun
        self._options = options
        self._size = 0
        self._at: dict[int, _Account[_T]] = {}  # by number
        self._accounts: dict[uuid.UUID, _Account[_T]] = {}  # of clients that are here
        self._gone: deque[tuple[float, _Account[_T]]] = deque()  # of clients that have gone, with the time of that

    def __len__(self) -> int:
        return len(self._at)

    def get(self, number: int) -> _T | None:
        """Return the item with a number, if there is one."""
        account = self._at.get(number)
        return None if account is None else account.items[number][0]

    def add(self, number: int, client: uuid.UUID, size: int, item: _T) -> None:
        """Add an item that a client holds."""
        account = self._at[number] = self._accounts.setdefault(client, _Account())
        account.items[number] = item, size
        account.size += size
        self._size += size

    def remove(self, number: int) -> None:
        """Remove an item."""
        account = self._at.pop(number)
        _, size = account.items.pop(number)
        account.size -= size
        self._size -= size

    def make_room(self, client: uuid.UUID, size: int) -> list[_T]:
        """Return the items of others that the caller has to remove, so that the client may add one of `size` bytes.

        Raises Rejected if no other client holds more than this one would.
        """
        account = self._accounts.get(client, _Account())
        if len(self._at) >= self._most:
            return self._take(account, 1, _count, f"{len(self._at)} of {self._most} {self._noun} ({self._options[0]})")
        if self._at and self._size + size > self._memory:
            taken = f"{self._size} of {self._memory} bytes of {self._noun} ({self._options[1]})"
            return self._take(account, size, _size, taken)
        return []

    def leave(self, client: uuid.UUID, now: float) -> list[_T]:
        """Note that a client has gone. Return its items."""
        account = self._accounts.pop(client, None)
        if account is None or not account.items:
            return []
        found = [item for item, _ in account.items.values()]
        if len(self._gone) >= _GONE:  # `_take` looks at each of them
            _, last = self._gone.pop()
            last.items |= account.items
            last.size += account.size
            self._at.update(dict.fromkeys(account.items, last))
            account = last
        self._gone.append((now, account))
        return found

    def expired(self, before: float) -> list[_T]:
        """Return the items of clients that have gone before a time. The caller removes them."""
        found = []
        while self._gone and (self._gone[0][0] < before or not self._gone[0][1].items):
            found += [item for item, _ in self._gone.popleft()[1].items.values()]
        return found

    def _take(self, account: _Account[_T], amount: int, held: Callable[[_Account[_T]], int], taken: str) -> list[_T]:
        """Choose the newest items of the largest account, if that holds more than `account` would with its new item."""
        largest = max([*self._accounts.values(), *[gone for _, gone in self._gone]], key=held)
        if held(account) + amount >= held(largest) - amount:
            reason = f"{taken} are taken, and this client has {held(account)} of them; ask again when there is room"
            raise Rejected(Refusal.FULL, reason)
        found, left = [], max(amount, held(largest) // _PART)
        for item, size in reversed(largest.items.values()):
            found.append(item)
            left -= 1 if held is _count else size
            if left <= 0:
                break
        return found


def _count(account: _Account[_T]) -> int:
    return len(account.items)


def _size(account: _Account[_T]) -> int:
    return account.size
