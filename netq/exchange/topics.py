"""Topics and the filters that select them, as in MQTT 5, section 4.7. Pure.

A topic is levels between slashes, "plant/3/temperature". In a filter, "+" stands for any one level, and "#" at its end
for all levels that follow, also none: "plant/#" selects "plant", too. As the first level they select no topic that
begins with "$". Names of queues and services are topics.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from netq.exchange.envelope import Refusal, Rejected

LONGEST = 1024  # bytes of a topic or a filter
_DEEPEST = 64  # levels
_SHAPES = 1000  # combinations of places of + in all filters: with 64 levels each, a topic takes some 2 ms
_SHARE = 16  # a client may add one in so many of the shapes that are left
_CACHED = 100_000  # topics, and subscribers of them, that are remembered
_ONE, _REST = "+", "#"


def check_name(name: str, *, is_filter: bool = False) -> None:
    """Raise Rejected unless this is a topic, or a filter."""
    if not isinstance(name, str):
        raise _wrong(f"a {type(name).__name__}; expected a text")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise _wrong("expected a text without lone surrogates") from None
    if not 1 <= size <= LONGEST:
        raise _wrong(f"{size} bytes; expected 1 to {LONGEST}")
    if "\0" in name:
        raise _wrong("expected no null character")
    levels = name.split("/")
    if len(levels) > _DEEPEST:
        raise _wrong(f"{len(levels)} levels; expected {_DEEPEST} at most")
    if not is_filter and (_ONE in name or _REST in name):
        raise _wrong("expected no + and no #: they are for filters")
    if _REST in levels[:-1] or any((_ONE in level or _REST in level) and len(level) > 1 for level in levels):
        raise _wrong("expected + and # as whole levels, and # only at the end")


def _wrong(reason: str) -> Rejected:
    return Rejected(Refusal.WRONG, reason)


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


class _Shape(NamedTuple):
    """The number of a filter's levels, and the places of its wildcards."""

    length: int  # levels, without the last one if that is #
    has_rest: bool
    places: tuple[int, ...]  # of +, from 0 on

    @classmethod
    def of(cls, filter: str) -> _Shape:
        """Return the shape of a filter."""
        levels = filter.split("/")
        has_rest = levels[-1] == _REST
        places = tuple([at for at, level in enumerate(levels) if level == _ONE])
        return cls(len(levels) - has_rest, has_rest, places)

    def filter_for(self, levels: list[str]) -> str:
        """Return the filter of this shape that selects the topic with these levels, of `length` or more."""
        found = levels[: self.length]
        for at in self.places:
            found[at] = _ONE
        return "/".join([*found, _REST] if self.has_rest else found)


@dataclass(eq=False, slots=True)
class _Use:
    """The filters of one shape."""

    owner: uuid.UUID  # the client that has added the first of them
    filters: int = 0


class Subscriptions:
    """Which clients have subscribed to which filters.

    The shape of a filter is its number of levels and the places of its wildcards. Of each shape, only one filter
    selects a given topic. So a topic costs one look-up for each shape that is in use. There are few: at most 129 of
    filters without +, and at most `shapes` of all others, of which one client may add one in _SHARE of those that are
    left. A filter of a shape that is in use is always taken.
    """

    def __init__(self, shapes: int = _SHAPES) -> None:
        self._clients: dict[str, set[uuid.UUID]] = {}  # by filter
        self._by_client: dict[uuid.UUID, set[str]] = {}
        self.total = 0  # filters of all clients
        self._shapes: dict[_Shape, _Use] = {}  # all that are in use
        self._most = shapes  # with +
        self._owned: Counter[uuid.UUID] = Counter()  # shapes with +, by their owners
        self._cache: dict[str, tuple[uuid.UUID, ...]] = {}
        self._cached = 0  # topics, and subscribers of them

    def add(self, client: uuid.UUID, filter: str) -> None:
        """Add a subscription; harmless if it is there. Raises Rejected if there are too many shapes for one more."""
        if filter in self.filters_of(client):
            return
        if filter not in self._clients:
            shape = _Shape.of(filter)
            if shape not in self._shapes:
                self._check_room(client, shape)
                self._shapes[shape] = _Use(client)
                self._owned[client] += bool(shape.places)
            self._clients[filter] = set()
            self._shapes[shape].filters += 1
        self._by_client.setdefault(client, set()).add(filter)
        self.total += 1
        self._clients[filter].add(client)
        self._forget_cache()

    def remove(self, client: uuid.UUID, filter: str) -> None:
        """Remove a subscription; harmless if there is none."""
        filters = self._by_client.get(client, set())
        if filter not in filters:
            return
        filters.remove(filter)
        self.total -= 1
        if not filters:
            del self._by_client[client]
        self._clients[filter].remove(client)
        if not self._clients[filter]:
            del self._clients[filter]
            shape = _Shape.of(filter)
            self._shapes[shape].filters -= 1
            if not self._shapes[shape].filters:
                owner = self._shapes.pop(shape).owner
                self._owned[owner] -= bool(shape.places)
                if not self._owned[owner]:
                    del self._owned[owner]
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
            found = tuple(dict.fromkeys(self._selecting(topic)))
            if self._cached + 1 + len(found) > _CACHED:
                self._forget_cache()
            self._cache[topic] = found
            self._cached += 1 + len(found)
        return found

    def _check_room(self, client: uuid.UUID, shape: _Shape) -> None:
        """Raise Rejected if a client may not have the first filter of this shape."""
        own, taken = self._owned[client], self._owned.total()
        if shape.places and (taken >= self._most or own * _SHARE >= self._most - taken):
            raise Rejected(
                Refusal.FULL,
                f"all filters have {taken} of {self._most} combinations of places of +, {own} of them by this client, "
                f"which may bring in one in {_SHARE} of those that are left; put + at the same places as others do",
            )

    def _selecting(self, topic: str) -> Iterator[uuid.UUID]:
        """Yield the clients of each filter that selects a topic."""
        levels = topic.split("/")
        is_hidden = topic.startswith("$")  # from wildcards at the beginning
        for shape in self._shapes:
            fits = shape.length <= len(levels) if shape.has_rest else shape.length == len(levels)
            if fits and not (is_hidden and (not shape.length or shape.places[:1] == (0,))):
                yield from self._clients.get(shape.filter_for(levels), ())

    def _forget_cache(self) -> None:
        self._cache.clear()
        self._cached = 0
