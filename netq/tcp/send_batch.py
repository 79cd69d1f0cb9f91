"""How much a link hands to its socket at once. Pure.

To a socket it hands little on a slow link, because what has been handed over is ahead of all else, the message on
another lane and the heartbeat; on a fast one much, because each turn costs. The rate is measured while the socket is
full: what it takes from one time that it is full to the next is what has left. A socket that takes all at once is
asked to take twice as much.
"""

from __future__ import annotations

QUEUED = 0.02  # seconds of the link's rate that may wait in the socket, and as much in the link
LEAST, MOST = 8 * 1024, 1088 * 1024  # bytes; a message of two megabytes and its pickle leaves in two batches
PERIOD = 0.02  # seconds over which the rate is measured, at least


class SendBatch:
    """`batch` bytes may be taken from the session at once, and about as many may wait in the socket."""

    def __init__(self) -> None:
        self.batch = LEAST
        self.since: float | None = None  # when the socket was full; None: the rate is not being measured
        self._sent = 0  # since then

    def sent(self, count: int) -> None:
        """Count what the socket has taken at once."""
        self._sent += count
        if self.since is None and count >= self.batch:
            self.batch = min(2 * self.batch, MOST)

    def drained(self) -> None:
        """All there is has been taken: how fast it leaves is not known."""
        self.since = None

    def full(self, now: float) -> None:
        """The socket takes no more for now."""
        if self.since is None:
            self.since, self._sent = now, 0
        seconds = now - self.since
        if seconds >= PERIOD:
            self.batch = max(LEAST, min(int(self._sent / seconds * QUEUED), MOST))
            self.since, self._sent = now, 0
