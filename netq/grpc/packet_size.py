"""How many bytes go into one packet. Pure.

A packet is one gRPC message, and the peer hears of it only when the last byte has come: on a slow link a large one is a
silence, and all that is put meanwhile waits behind it. So a packet grows while the stream takes packets in less
than PERIOD, and shrinks to what it takes in that time.
"""

from __future__ import annotations

PERIOD = 0.02  # seconds that a packet may take
LEAST, MOST = 16 * 1024, 1024 * 1024  # bytes


class PacketSize:
    """`packet` bytes, and some headers, go into the next packet."""

    def __init__(self) -> None:
        self.packet = LEAST

    def wrote(self, size: int, seconds: float) -> None:
        """Learn how long the stream took for a packet."""
        if seconds > PERIOD:
            self.packet = max(LEAST, min(self.packet, int(size / seconds * PERIOD)))
        elif size >= self.packet and seconds < PERIOD / 2:
            self.packet = min(2 * self.packet, MOST)
