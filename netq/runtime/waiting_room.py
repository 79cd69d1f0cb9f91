"""Bounds the links of a server that have not finished their handshake. Pure; owned by the endpoint, in its first loop.

Such a link belongs to an unknown process: it may be a slow client, or one of thousands that never send a byte. So a
newcomer does not wait for the end of their `handshake_timeout`:

    places left            the newcomer waits for its handshake
    its address has its    it replaces the oldest link of the same address, if that has had its time; otherwise it is
    share of the places    dropped, and its client tries again after a random pause
    no place left          it replaces the oldest link of the address that has most, if that has had its time; otherwise
                           `is_full`: it stays in the system's queue of connections, and is accepted later

The time of a link is four times what handshakes take here at present, within bounds. So the clients of an honest crowd
do not push each other out, even if all of them are slow because they are so many. A link that is slower than the others
loses its place only when a newcomer needs it.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import NamedTuple

from netq.runtime.link import Link

PLACES = 256  # links: some 10 MiB under TLS
# Links of one address. Many honest clients share one: behind a NAT, a proxy, on this machine. So an address may have
# nearly all of the places; what it may not have is for the others.
SHARE = 224
# Seconds that each link gets for its handshake, at least and at most. The two round trips of TLS take less than the
# first on most links. The second bounds what slow handshakes can do that succeed in the end.
PATIENCE, MOST_PATIENCE = 0.5, 4.0
_TIMES = 4  # as long as a handshake takes on average
_WEIGHT = 1 / 8  # of the last handshake in that average, as of a round trip in TCP's (RFC 6298)


class _Guest(NamedTuple):
    origin: str
    since: float


class WaitingRoom:
    """The links in their handshake, the oldest first. Times are those of `time.monotonic`."""

    def __init__(self) -> None:
        self._guests: dict[Link, _Guest] = {}
        self._counts: Counter[str] = Counter()  # links by origin
        self._duration = 0.0  # seconds: average of the last handshakes that have succeeded

    def __len__(self) -> int:
        return len(self._guests)

    def is_full(self, now: float) -> bool:
        """Return whether a new link would find no place, and should not be accepted yet."""
        return len(self._guests) >= PLACES and self._replaceable(self._largest, now) is None

    def enter(self, link: Link, now: float) -> Link | None:
        """Give the link a place. Return the link that has lost its place for it: perhaps itself, None if there is none.

        The link that is returned is not in the room any more.
        """
        origin = origin_of(link.address)
        dropped = None
        if self._counts[origin] >= SHARE:
            dropped = self._replaceable(origin, now) or link
        elif len(self._guests) >= PLACES:
            dropped = self._replaceable(self._largest, now) or link
        if dropped is not link:
            if dropped is not None:
                self.leave(dropped)
            self._guests[link] = _Guest(origin, now)
            self._counts[origin] += 1
        return dropped

    def finished(self, link: Link, now: float) -> None:
        """Free the place of a link whose handshake has succeeded."""
        if link in self._guests:
            self._duration += _WEIGHT * (now - self._guests[link].since - self._duration)
            self.leave(link)

    def leave(self, link: Link) -> None:
        """Free the place of a link; harmless if it has none."""
        guest = self._guests.pop(link, None)
        if guest is not None:
            self._counts[guest.origin] -= 1
            if not self._counts[guest.origin]:
                del self._counts[guest.origin]

    @property
    def _largest(self) -> str:
        """The origin that has most links."""
        return max(self._counts, key=self._counts.__getitem__)

    def _replaceable(self, origin: str, now: float) -> Link | None:
        """Return the oldest link of this origin, if it has had its time."""
        link, guest = next((link, guest) for link, guest in self._guests.items() if guest.origin == origin)
        patience = min(max(PATIENCE, _TIMES * self._duration), MOST_PATIENCE)
        return link if now - guest.since >= patience else None


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
