"""How much a link does at once, one of each for a link. Pure.

To a socket it hands little on a slow link, because what has been handed over is ahead of all else, the message on
another lane and the heartbeat; on a fast one much, because each turn costs. The rate is measured while the socket is
full: what it takes from one time that it is full to the next is what has left. A socket that takes all at once is
asked to take twice as much.

From a socket it takes what it can deal with soon, because all the other links of its loop wait: half a megabyte of a
large array, and much less of frames without a body, of which each byte may cost a thousand times as much.
"""

from __future__ import annotations

QUEUED = 0.02  # seconds of the link's rate that may wait in the socket, and as much in the link
LEAST, MOST = 8 * 1024, 1024 * 1024  # bytes
PERIOD = 0.02  # seconds over which the rate is measured, at least
PIECE = 0.001  # seconds of the processor for what is received at once
TURN = 0.004  # and those until the others have their turn, if it is large pieces that so little time suffices for
LITTLE, BEGIN, MUCH = 4 * 1024, 32 * 1024, 512 * 1024  # bytes received at once


class Pace:
    """`batch` bytes may be taken from the session at once, and about as many may wait in the socket."""

    def __init__(self) -> None:
        self.batch = LEAST
        self._since: float | None = None  # when the socket was full
        self._sent = 0  # since then

    def sent(self, count: int) -> None:
        """Count what the socket has taken at once."""
        self._sent += count
        if self._since is None and count >= self.batch:
            self.batch = min(2 * self.batch, MOST)

    def drained(self) -> None:
        """All there is has been taken: how fast it leaves is not known."""
        self._since = None

    def full(self, now: float) -> None:
        """The socket takes no more for now."""
        if self._since is None:
            self._since, self._sent = now, 0
        seconds = now - self._since
        if seconds >= PERIOD:
            self.batch = max(LEAST, min(int(self._sent / seconds * QUEUED), MOST))
            self._since, self._sent = now, 0


class Appetite:
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
