"""Bounds the links of a server that have not finished their handshake. Pure; owned by the endpoint, in its first loop.

Such a link belongs to an unknown process: it may be a slow client, or one of thousands that never send a byte. A new
link therefore does not wait for the `handshake_timeout` of the others:

    below both limits           it is added
    its origin has              it replaces the oldest link of the same origin, if that has used up its time; otherwise
    MAX_OF_ORIGIN links         it is dropped, and its client tries again after a random pause
    there are MAX_LINKS links   it replaces the oldest link of the origin with most links, if that has used up its time;
                                otherwise `is_full`: it stays in the listen queue, and is accepted later

The time of a link is four times the average duration of recent handshakes, within bounds. So the clients of a crowd do
not replace each other, even if all of them are slow because they are so many. A link that is slower than the others is
dropped only when a new link needs its place.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import NamedTuple

from netq.runtime.link import Link

MAX_LINKS = 256  # links: some 10 MiB under TLS
# Links of one origin. Many honest clients share an address: behind a NAT, a proxy, on this machine. So one origin may
# have nearly all of the links; the rest is reserved for others.
MAX_OF_ORIGIN = 224
# Seconds that each link gets for its handshake, at least and at most. The two round trips of TLS take less than the
# first on most links. The second bounds what slow handshakes can do that succeed in the end.
MIN_TIME, MAX_TIME = 0.5, 4.0
_TIMES = 4  # as long as a handshake takes on average
_WEIGHT = 1 / 8  # of the last handshake in that average, as of a round trip in TCP's (RFC 6298)


class _Pending(NamedTuple):
    origin: str
    since: float


class PendingLinks:
    """The links in their handshake, the oldest first. Times are those of `time.monotonic`."""

    def __init__(self) -> None:
        self._links: dict[Link, _Pending] = {}
        self._counts: Counter[str] = Counter()  # links by origin
        self._duration = 0.0  # seconds: average of the last handshakes that have succeeded

    def __len__(self) -> int:
        return len(self._links)

    def is_full(self, now: float) -> bool:
        """Return whether no new link can be added now, so that no connection should be accepted."""
        return len(self._links) >= MAX_LINKS and self._replaceable(self._largest, now) is None

    def add(self, link: Link, now: float) -> Link | None:
        """Add a link. Return the link that is dropped for it: an older one, or this one; None if none has to be.

        The link that is returned is no longer counted.
        """
        origin = origin_of(link.address)
        dropped = None
        if self._counts[origin] >= MAX_OF_ORIGIN:
            dropped = self._replaceable(origin, now) or link
        elif len(self._links) >= MAX_LINKS:
            dropped = self._replaceable(self._largest, now) or link
        if dropped is not link:
            if dropped is not None:
                self.remove(dropped)
            self._links[link] = _Pending(origin, now)
            self._counts[origin] += 1
        return dropped

    def finished(self, link: Link, now: float) -> None:
        """Remove a link whose handshake has succeeded, and count its duration."""
        if link in self._links:
            self._duration += _WEIGHT * (now - self._links[link].since - self._duration)
            self.remove(link)

    def remove(self, link: Link) -> None:
        """Remove a link; harmless if it was removed before."""
        entry = self._links.pop(link, None)
        if entry is not None:
            self._counts[entry.origin] -= 1
            if not self._counts[entry.origin]:
                del self._counts[entry.origin]

    @property
    def _largest(self) -> str:
        """The origin that has most links."""
        return max(self._counts, key=self._counts.__getitem__)

    def _replaceable(self, origin: str, now: float) -> Link | None:
        """Return the oldest link of this origin, if it has used up its time."""
        link, entry = next((link, entry) for link, entry in self._links.items() if entry.origin == origin)
        allowed = min(max(MIN_TIME, _TIMES * self._duration), MAX_TIME)
        return link if now - entry.since >= allowed else None


def origin_of(address: str) -> str:
    """Return what links of one origin have in common: the host, or the network of an IPv6 host; else the address.

    One machine has a whole /64 of IPv6 addresses to choose from (RFC 6177). With MQTT the address names the client.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return address
    try:
        parsed = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if parsed.version == 6 and parsed.ipv4_mapped:  # a server on "::" has clients of IPv4, too
        return str(parsed.ipv4_mapped)
    if parsed.version == 4:
        return host
    return str(ipaddress.ip_network((parsed, 64), strict=False))
