"""One link's counting: which packet is the next, how many may be on their way, what is to be acknowledged. Pure.

QoS 0 may lose and repeat. Numbers show it, and there is no mending: the link is lost, the session goes on over
another. Each side grants room for so many packets beyond those that it has used up; so the broker never holds more.
"""

from __future__ import annotations

from netq.errors import ProtocolError
from netq.mqtt.packet import NUMBERED, Kind, Packet

MOST = 8  # packets of one link on their way in one direction; 2 MiB
TOGETHER = 256  # of all links of a server; mosquitto drops what is beyond 1,000 without a word


def share(links: int) -> int:
    """Return the packets that each of so many links may have on its way."""
    return max(1, min(MOST, TOGETHER // max(1, links)))


class Window:
    """Both directions of a link, seen from one end. `share` is what each is granted here, and may change."""

    def __init__(self, share: int) -> None:
        self.share = share
        self.sent = 0  # numbered packets
        self.acked = 0  # of these, used up by the peer
        self._limit = 0  # the last that the peer has room for
        self._arrived = 0
        self._used = 0  # of those that arrived
        self._told = 0  # `used`, as the peer knows it
        self._granted = 0  # the last that we have granted
        self._asked: int | None = None  # the packet whose acknowledgement the peer has asked for

    @property
    def open(self) -> bool:
        """Whether one more may be sent."""
        return self.sent < min(self._limit, self.acked + self.share)

    @property
    def ack_due(self) -> bool:
        """Whether the peer should be told, if nothing else is to be sent: it has asked, or half of its room is used."""
        return self._answers or 2 * (self._used - self._told) >= self.share

    @property
    def _answers(self) -> bool:
        """Whether what the peer has asked for is used up; it asks once, so an answer before that would not help it."""
        return self._asked is not None and self._used >= self._asked

    def send(self) -> None:
        """Count a numbered packet."""
        self.sent += 1

    def stamp(self) -> tuple[int, int, int]:
        """Return number, received and room for the header of a packet; they count as told."""
        self._told = self._used
        if self._answers:
            self._asked = None
        self._granted = max(self._granted, self._used + self.share)
        return self.sent, self._used, self._granted - self._used

    def arrived(self, packet: Packet) -> None:
        """Take a packet's header; raises ProtocolError if one before it is missing, or it comes again."""
        expected = self._arrived + (packet.kind in NUMBERED)
        if packet.number != expected:
            raise ProtocolError(f"{packet.kind.name} with number {packet.number} came, expected {expected}")
        if packet.kind in NUMBERED and expected > self._granted:
            raise ProtocolError(f"packet {expected} came, there was room for {self._granted}")
        if not self.acked <= packet.received <= self.sent:
            raise ProtocolError(
                f"the peer has received {packet.received} packets; {self.sent} were sent, {self.acked} acknowledged"
            )
        self._arrived = expected
        self.acked = packet.received
        self._limit = max(self._limit, packet.received + packet.room)
        if packet.kind is Kind.PROBE:
            self._asked = packet.number

    def used(self) -> None:
        """Count a numbered packet that arrived as used up."""
        self._used += 1
