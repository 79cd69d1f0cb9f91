"""The adaptive size of what a link hands to its socket at once. Pure.

Bytes in the socket's queue are ahead of everything else: of messages on other lanes and of heartbeats. So a slow link
gets small batches, and a fast link gets large ones, because each turn of the loop has its cost.

While the socket is full, the link's rate is measured: the bytes that the socket takes between two times that it is full
have left the queue in that time. A socket that takes a whole batch gets one of twice the size next.
"""

from __future__ import annotations

QUEUE_TIME = 0.02  # seconds of the link's rate that may wait in the socket, and as much in the link
MIN_BATCH = 8 * 1024  # bytes
MAX_BATCH = 1088 * 1024  # bytes: a message of two megabytes and its pickle leaves in two batches
MIN_PERIOD = 0.02  # seconds over which the rate is measured; shorter periods measure the timer, not the link


class SendBatch:
    """Adapts `size`: the bytes that a link takes from the session at once, and that may wait in the socket."""

    def __init__(self) -> None:
        self.size = MIN_BATCH
        self.full_since: float | None = None  # start of the measurement; None: the rate is not being measured
        self._sent = 0  # bytes since then

    def sent(self, count: int) -> None:
        """Count the bytes that the socket took at once."""
        self._sent += count
        if self.full_since is None and count >= self.size:
            self.size = min(2 * self.size, MAX_BATCH)

    def drained(self) -> None:
        """Stop measuring: the socket took all there is, so its queue may run empty."""
        self.full_since = None

    def full(self, now: float) -> None:
        """Begin or end a measurement: the socket takes no more for now."""
        # Between two times that the queue is full it holds the same, so what it took has left for the network. If it
        # ran empty in between, that time would count as slowness of the link: therefore `drained` stops the
        # measurement.
        if self.full_since is None:
            self.full_since, self._sent = now, 0
        seconds = now - self.full_since
        if seconds >= MIN_PERIOD:
            self.size = max(MIN_BATCH, min(int(self._sent / seconds * QUEUE_TIME), MAX_BATCH))
            self.full_since, self._sent = now, 0
