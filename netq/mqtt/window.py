"""Sequence numbers and flow control of one link: the next number, how many packets may be in flight, what to ack. Pure.

QoS 0 may lose or duplicate packets. The numbers detect this, and nothing is retransmitted here: the link is lost, and
the session resumes over another link. Each side grants credit for a number of packets beyond those that it has
processed. This bounds what the broker queues for a link.
"""

from __future__ import annotations

from netq.errors import ProtocolError
from netq.mqtt.packet import NUMBERED, Packet, PacketKind

MAX_PACKETS = 8  # packets of one link in flight in one direction; 2 MiB
TOTAL_PACKETS = 256  # packets in flight of all links of a server; mosquitto silently drops those beyond 1,000


def share(links: int) -> int:
    """Return how many packets each of `links` links may have in flight."""
    return max(1, min(MAX_PACKETS, TOTAL_PACKETS // max(1, links)))


class Window:
    """Both directions of a link, at one end. `share` is the limit of packets in flight in each; it may change."""

    def __init__(self, share: int) -> None:
        self.share = share
        self.sent = 0  # numbered packets
        self.acked = 0  # of these, processed by the peer
        self._limit = 0  # the last number for which the peer has granted credit
        self._received = 0
        self._consumed = 0  # of the received packets, processed
        self._reported = 0  # `_consumed` as of the last packet sent
        self._granted = 0  # the last number for which we have granted credit
        self._probed: int | None = None  # the last number before the peer's PROBE

    @property
    def open(self) -> bool:
        """Whether another numbered packet may be sent."""
        return self.sent < min(self._limit, self.acked + self.share)

    @property
    def ack_due(self) -> bool:
        """Whether to send an ACK if there is no other packet: a probe is due, or half of the credit is consumed."""
        return self._probe_reached or 2 * (self._consumed - self._reported) >= self.share

    @property
    def _probe_reached(self) -> bool:
        """Whether all packets before the peer's PROBE are processed. An earlier answer would be useless to it."""
        return self._probed is not None and self._consumed >= self._probed

    def send(self) -> None:
        """Count a numbered packet."""
        self.sent += 1

    def stamp(self) -> tuple[int, int, int]:
        """Return number, received and room for the header of a packet, and record them as reported."""
        # Credit is never taken back, even if `share` has shrunk: the peer may have used it already.
        self._reported = self._consumed
        if self._probe_reached:
            self._probed = None
        self._granted = max(self._granted, self._consumed + self.share)
        return self.sent, self._consumed, self._granted - self._consumed

    def receive(self, packet: Packet) -> None:
        """Check and record a packet's header. Raises ProtocolError after a gap or for a duplicate."""
        # A gap means that the broker has dropped a packet, a duplicate that it has sent one twice. Both are an error of
        # the link and not repaired here: the next link resumes at the byte that the session has. Kinds without a number
        # of their own repeat the last one, so that even a lost last packet is found.
        expected = self._received + (packet.kind in NUMBERED)
        if packet.number != expected:
            raise ProtocolError(f"{packet.kind.name} with number {packet.number} came, expected {expected}")
        if packet.kind in NUMBERED and expected > self._granted:
            raise ProtocolError(f"packet {expected} came, there was room for {self._granted}")
        if not self.acked <= packet.received <= self.sent:
            raise ProtocolError(
                f"the peer has received {packet.received} packets; {self.sent} were sent, {self.acked} acknowledged"
            )
        self._received = expected
        self.acked = packet.received
        self._limit = max(self._limit, packet.received + packet.room)
        if packet.kind is PacketKind.PROBE:
            self._probed = packet.number

    def consumed(self) -> None:
        """Record that one received packet is processed."""
        self._consumed += 1
