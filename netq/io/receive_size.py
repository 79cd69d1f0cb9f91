"""How much a link receives at once, one for a link. Pure.

It takes what it can deal with soon, because all the other links of its loop wait: up to a megabyte of a large array,
and much less of frames without a body, of which each byte may cost a thousand times as much.
"""

from __future__ import annotations

PIECE = 0.001  # seconds of the processor for what is received at once
TURN = 0.004  # and those until the others have their turn, if it is large pieces that so little time suffices for
LITTLE, BEGIN, MUCH = 4 * 1024, 32 * 1024, 1088 * 1024  # bytes received at once


class ReceiveSize:
    """`most` bytes may be received at once, and again and again for `turn` seconds of the processor."""

    def __init__(self) -> None:
        self.most = BEGIN

    @property
    def turn(self) -> float:
        """Short for one whose bytes cost much: the others have fewer such, and wait for a word of theirs."""
        return PIECE if self.most < BEGIN else TURN

    def took(self, count: int, seconds: float) -> None:
        """Count what was received at once, and what it cost to deal with it."""
        if seconds > PIECE:
            self.most = max(LITTLE, min(count, self.most) // 2)
        elif seconds < PIECE / 2 and count >= self.most:
            self.most = min(2 * self.most, MUCH)
