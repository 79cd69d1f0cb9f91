"""What the log has been told of strangers, so that whoever knocks for ever fills no disk.

Pure; owned by the hub, in its first loop. Bounded, whatever strangers say.
"""

from __future__ import annotations

import re
from collections import OrderedDict

_REMEMBERED = 256  # complaints
_EACH = 16  # of one host
_NUMBERS = re.compile(r"\d+")  # in which two complaints of one kind differ


class Complaints:
    """Who has given cause for which complaint."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[str, str], None] = OrderedDict()  # the longest ago first

    def is_new(self, address: str, complaint: str) -> bool:
        """Return whether the log should be told: not what it knows of this host, and of each host not too much."""
        key = _host(address), _NUMBERS.sub("#", complaint)
        if key in self._made:
            self._made.move_to_end(key)
            return False
        if sum(host == key[0] for host, _ in self._made) >= _EACH:
            return False
        self._made[key] = None
        if len(self._made) > _REMEMBERED:
            self._made.popitem(last=False)
        return True

    def forget(self, address: str) -> None:
        """All is well with this host: the next complaint is news."""
        host = _host(address)
        for key in [key for key in self._made if key[0] == host]:
            del self._made[key]


def _host(address: str) -> str:
    """Without the port, which is another for each connection."""
    return address.rpartition(":")[0] or address
