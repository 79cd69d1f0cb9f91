"""Deduplicates and rate-limits log messages about peers. Pure; owned by the endpoint, in its first loop.

Bounds the growth of the log, and its own memory, whatever peers send.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict

_REMEMBERED = 256  # complaints

_EACH = 16  # of one host

_NUMBERS = re.compile(r"\d+")  # in which two complaints of one kind differ


class LogDedup:
    """Who has given cause for which complaint."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[str, str], float] = OrderedDict()  # known until when; the longest ago first

    def is_new(self, address: str, complaint: str, now: float = 0.0) -> bool:
        """Return whether the log should be told: not what it knows of this host, and of each host not too much."""
        for over in [key for key, end in self._made.items() if end <= now]:
            del self._made[over]
        key = _host(address), _NUMBERS.sub("#", complaint)
        if key in self._made:
            self._made.move_to_end(key)
            return False
        if sum(host == key[0] for host, _ in self._made) >= _EACH:
            return False
        self._made[key] = math.inf
        if len(self._made) > _REMEMBERED:
            self._made.popitem(last=False)
        return True

    def forget(self, address: str) -> bool:
        """All is well with this host: the next complaint is news. Return whether there have been any."""
        made = self._of(address)
        for key in made:
            del self._made[key]
        return bool(made)

    def forget_at(self, address: str, end: float) -> None:
        """The same, but from `end` on: one client of this host is well, and others may go on giving cause."""
        for key in self._of(address):
            self._made[key] = min(self._made[key], end)

    def _of(self, address: str) -> list[tuple[str, str]]:
        host = _host(address)
        return [key for key in self._made if key[0] == host]


def _host(address: str) -> str:
    """Without the port, which is another for each connection."""
    return address.rpartition(":")[0] or address
