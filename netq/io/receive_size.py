"""The adaptive receive size of a link, as in Netty's AdaptiveRecvByteBufAllocator. Pure.

A read is as large as the link can process soon, because all other links of its loop wait meanwhile. That is up to a
megabyte of a large array, and much less of frames without a body, where each byte may cost a thousand times as much.
"""

from __future__ import annotations

READ_BUDGET = 0.001  # seconds of processor time for one read and its processing
TURN_BUDGET = 0.004  # seconds of processor time for all reads of a turn, while the reads are large and cheap
# Bytes of one read. The first one takes a small message whole (netq/protocol/sender.py, SMALL).
MIN_READ, INITIAL_READ, MAX_READ = 4 * 1024, 72 * 1024, 1088 * 1024


class ReceiveSize:
    """Adapts the size of the next read to what the last one cost."""

    def __init__(self) -> None:
        self.size = INITIAL_READ  # bytes of the next read, at most

    @property
    def turn_budget(self) -> float:
        """Return the processor time of one turn, in seconds.

        It is short for a link whose bytes cost much, because the other links wait for it.
        """
        return READ_BUDGET if self.size < INITIAL_READ else TURN_BUDGET

    def record(self, count: int, seconds: float) -> None:
        """Adapt to a read of `count` bytes that took `seconds` of processor time to process."""
        if seconds > READ_BUDGET:
            self.size = max(MIN_READ, min(count, self.size) // 2)
        elif seconds < READ_BUDGET / 2 and count >= self.size:
            self.size = min(2 * self.size, MAX_READ)
