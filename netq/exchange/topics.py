"""Topics and the filters that select them, as in MQTT 5, section 4.7. Pure.

A topic is levels between slashes, "plant/3/temperature". In a filter, "+" stands for any one level, and "#" at its end
for all levels that follow, also none: "plant/#" selects "plant", too. As the first level they select no topic that
begins with "$". Names of queues and services are topics.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Iterator
from typing import Final

LONGEST = 1024  # bytes of a topic or a filter
_DEEPEST = 64  # levels
_NODES = 250_000  # levels of all filters together: some 120 MB
_CACHED = 100_000  # topics, and subscribers of them, that are remembered
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
    if narrow.startswith("$") and wide[0] in (_ONE, _REST):
        return False
    ours, theirs = wide.split("/"), narrow.split("/")
    for level, other in itertools.zip_longest(ours, theirs):
        if level == _REST:
            return True
        if level is None or other is None or other == _REST or level not in (other, _ONE):
            return False
    return True


class Subscriptions:
    """Which clients have subscribed to which filters.

    nodes: of the tree of all filters, at most.
    """

    def __init__(self, nodes: int = _NODES) -> None:
        self._most = nodes
        self._nodes = 0
        self._root = _Node()
        self._by_client: dict[uuid.UUID, set[str]] = {}
        self._cache: dict[str, tuple[uuid.UUID, ...]] = {}
        self._cached = 0  # topics, and subscribers of them

    def why_full(self) -> str:
        """Return why no filter can be added; "" if one can."""
        return f"the filters of all clients have {self._nodes} levels already" if self._nodes >= self._most else ""

    def add(self, client: uuid.UUID, filter: str) -> None:
        """Add a subscription; harmless if it is there."""
        self._by_client.setdefault(client, set()).add(filter)
        node = self._root
        for level in filter.split("/"):
            if level not in node.below:
                node.below[level] = _Node()
                self._nodes += 1
            node = node.below[level]
        node.clients.add(client)
        self._forget_cache()

    def remove(self, client: uuid.UUID, filter: str) -> None:
        """Remove a subscription; harmless if there is none."""
        filters = self._by_client.get(client, set())
        if filter not in filters:
            return
        filters.remove(filter)
        if not filters:
            del self._by_client[client]
        self._nodes -= self._root.remove(client, filter.split("/"))
        self._forget_cache()

    def remove_client(self, client: uuid.UUID) -> None:
        """Remove all subscriptions of a client."""
        for filter in list(self._by_client.get(client, ())):
            self.remove(client, filter)

    def filters_of(self, client: uuid.UUID) -> Collection[str]:
        """Return the filters of a client."""
        return self._by_client.get(client, set())

    def of(self, topic: str) -> tuple[uuid.UUID, ...]:
        """Return the clients with a filter that selects a topic, each once."""
        found = self._cache.get(topic)
        if found is None:
            ends = self._root.matching(topic.split("/"), 0)
            found = tuple(dict.fromkeys(client for node in ends for client in node.clients))
            if self._cached + 1 + len(found) > _CACHED:
                self._forget_cache()
            self._cache[topic] = found
            self._cached += 1 + len(found)
        return found

    def _forget_cache(self) -> None:
        self._cache.clear()
        self._cached = 0


class _Node:
    """A level of the tree of filters."""

    __slots__: Final = ("below", "clients")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.clients: set[uuid.UUID] = set()

    def matching(self, levels: list[str], at: int) -> Iterator[_Node]:
        """Yield the ends of all filters that select these levels, from `at` on."""
        is_hidden = at == 0 and levels[0].startswith("$")  # from wildcards
        if not is_hidden and (rest := self.below.get(_REST)):
            yield rest
        if at == len(levels):
            yield self
            return
        for level in (levels[at],) if is_hidden else (levels[at], _ONE):
            if node := self.below.get(level):
                yield from node.matching(levels, at + 1)

    def remove(self, client: uuid.UUID, levels: list[str]) -> int:
        """Remove a client from the end of a filter, and nodes that are empty then; return how many."""
        if not levels:
            self.clients.discard(client)
            return 0
        node = self.below[levels[0]]
        removed = node.remove(client, levels[1:])
        if node.clients or node.below:
            return removed
        del self.below[levels[0]]
        return removed + 1
