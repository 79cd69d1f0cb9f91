"""Topics and the filters that select them, as in MQTT 5, section 4.7. Pure.

A topic is levels between slashes, "plant/3/temperature". In a filter, "+" stands for any one level, and "#" at its end
for all levels that follow, also none: "plant/#" selects "plant", too. Names of queues and services are topics.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import Final

LONGEST = 1024  # bytes of a topic or a filter
_DEEPEST = 64  # levels
_CACHED = 4096  # topics whose subscribers are remembered
_ONE, _REST = "+", "#"


def why_wrong(name: str, *, is_filter: bool) -> str:
    """Return why this is no topic, or no filter; "" if it is one."""
    if not isinstance(name, str):
        return f"a {type(name).__name__}; expected a text"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "expected a text without lone surrogates"
    if not 1 <= size <= LONGEST:
        return f"{size} bytes; expected 1 to {LONGEST}"
    if "\0" in name:
        return "expected no null character"
    levels = name.split("/")
    if len(levels) > _DEEPEST:
        return f"{len(levels)} levels; expected {_DEEPEST} at most"
    if not is_filter:
        return "expected no + and no #: they are for filters" if _ONE in name or _REST in name else ""
    if _REST in levels[:-1] or any((_ONE in level or _REST in level) and len(level) > 1 for level in levels):
        return "expected + and # as whole levels, and # only at the end"
    return ""


def covers(wide: str, narrow: str) -> bool:
    """Return whether a filter selects all topics that another one selects. A topic is a filter of itself."""
    ours, theirs = wide.split("/"), narrow.split("/")
    for level, other in itertools.zip_longest(ours, theirs):
        if level == _REST:
            return True
        if level is None or other is None or other == _REST or level not in (other, _ONE):
            return False
    return True


class Subscriptions:
    """Which clients have subscribed to which filters."""

    def __init__(self) -> None:
        self._root = _Node()
        self._by_client: dict[uuid.UUID, set[str]] = {}
        self._cache: dict[str, tuple[uuid.UUID, ...]] = {}

    def add(self, client: uuid.UUID, filter: str) -> None:
        """Add a subscription; harmless if it is there."""
        self._by_client.setdefault(client, set()).add(filter)
        node = self._root
        for level in filter.split("/"):
            node = node.below.setdefault(level, _Node())
        node.clients.add(client)
        self._cache.clear()

    def remove(self, client: uuid.UUID, filter: str) -> None:
        """Remove a subscription; harmless if there is none."""
        filters = self._by_client.get(client, set())
        if filter not in filters:
            return
        filters.remove(filter)
        if not filters:
            del self._by_client[client]
        self._root.remove(client, filter.split("/"))
        self._cache.clear()

    def remove_client(self, client: uuid.UUID) -> None:
        """Remove all subscriptions of a client."""
        for filter in list(self._by_client.get(client, ())):
            self.remove(client, filter)

    def count(self, client: uuid.UUID) -> int:
        """Return how many filters a client has."""
        return len(self._by_client.get(client, ()))

    def of(self, topic: str) -> tuple[uuid.UUID, ...]:
        """Return the clients with a filter that selects a topic, each once."""
        found = self._cache.get(topic)
        if found is None:
            ends = self._root.matching(topic.split("/"), 0)
            found = tuple(dict.fromkeys(client for node in ends for client in node.clients))
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            self._cache[topic] = found
        return found


class _Node:
    """A level of the tree of filters."""

    __slots__: Final = ("below", "clients")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.clients: set[uuid.UUID] = set()

    def matching(self, levels: list[str], at: int) -> Iterator[_Node]:
        """Yield the ends of all filters that select these levels, from `at` on."""
        if rest := self.below.get(_REST):
            yield rest
        if at == len(levels):
            yield self
            return
        for level in (levels[at], _ONE):
            if node := self.below.get(level):
                yield from node.matching(levels, at + 1)

    def remove(self, client: uuid.UUID, levels: list[str]) -> None:
        """Remove a client from the end of a filter, and nodes that are empty then."""
        if not levels:
            self.clients.discard(client)
            return
        node = self.below[levels[0]]
        node.remove(client, levels[1:])
        if not node.clients and not node.below:
            del self.below[levels[0]]
