"""Deduplicates and rate-limits log messages about peers. Pure; owned by the endpoint, in its first loop.

Bounds the growth of the log, and its own memory, whatever peers send.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict, deque

_REMEMBERED = 256  # messages remembered; the oldest are forgotten, and may be logged again
_PER_HOST = 16  # different messages about one host: it cannot fill the log by varying what it does wrong
_PER_MINUTE = 60  # lines of all hosts: an attacker may have any number of addresses
_NUMBERS = re.compile(r"\d+")  # ports, counts and the like: messages that differ in these only are the same


class LogDedup:
    """Remembers which messages about which host were logged."""

    def __init__(self) -> None:
        self._logged: OrderedDict[tuple[str, str], float] = OrderedDict()  # until when; the least recent first
        self._lines: deque[float] = deque(maxlen=_PER_MINUTE)  # times of the last ones

    def is_new(self, address: str, message: str, now: float) -> bool:
        """Return whether to log a message: not if it was logged for this host, nor if there are too many."""
        for expired in [key for key, end in self._logged.items() if end <= now]:
            del self._logged[expired]
        key = _host(address), _NUMBERS.sub("#", message)
        if key in self._logged:
            self._logged.move_to_end(key)
            return False
        if sum(host == key[0] for host, _ in self._logged) >= _PER_HOST:
            return False
        if len(self._lines) == _PER_MINUTE and now - self._lines[0] < 60.0:
            return False
        self._lines.append(now)
        self._logged[key] = math.inf
        if len(self._logged) > _REMEMBERED:
            self._logged.popitem(last=False)
        return True

    def forget(self, address: str) -> bool:
        """Forget the messages about a host, because it works again; return whether there were any."""
        found = self._of(address)
        for key in found:
            del self._logged[key]
        return bool(found)

    def forget_at(self, address: str, end: float) -> None:
        """Forget them at `end`: one client of the host works, and others on it may go on failing."""
        for key in self._of(address):
            self._logged[key] = min(self._logged[key], end)

    def _of(self, address: str) -> list[tuple[str, str]]:
        host = _host(address)
        return [key for key in self._logged if key[0] == host]


def _host(address: str) -> str:
    """Return the address without the port, which differs for each connection."""
    return address.rpartition(":")[0] or address
