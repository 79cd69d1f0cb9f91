"""The adaptive size of packets. Pure.

A packet is one gRPC message, and the peer receives it only when its last byte has arrived. On a slow link a large
packet looks like silence, and delays everything behind it. Therefore the size grows while the stream takes packets in
less than PERIOD, and shrinks to the bytes that the stream takes in PERIOD.
"""

from __future__ import annotations

PERIOD = 0.02  # seconds that writing a packet may take
LEAST, MOST = 16 * 1024, 1024 * 1024  # bytes


class PacketSize:
    """The size of the next packet: `size` bytes and some headers."""

    def __init__(self) -> None:
        self.size = LEAST

    def measured(self, size: int, seconds: float) -> None:
        """Adapt to the time that the stream took for a packet of `size` bytes."""
        if seconds > PERIOD:
            self.size = max(LEAST, min(self.size, int(size / seconds * PERIOD)))
        elif size >= self.size and seconds < PERIOD / 2:
            self.size = min(2 * self.size, MOST)
