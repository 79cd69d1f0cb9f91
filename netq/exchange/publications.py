"""Sends publications to subscribers, and acknowledges them to publishers.

One thread uses it. Threads of netq count the copies for which a subscriber has no room.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence

from netq import Communicator
from netq.errors import Closed, MessageTooLarge
from netq.exchange.envelope import UP_TO, Envelope, EnvelopeKind
from netq.exchange.outbox import Outbox
from netq.log import log

_SOON = 0.01  # seconds after which publications are acknowledged, also when messages come without a pause


class Publications:
    """Sends publications, and counts them."""

    def __init__(self, queue: Communicator, outbox: Outbox) -> None:
        self._queue = queue
        self._outbox = outbox
        self.count = 0  # publications that came
        self.copies = 0  # that went to subscribers
        self._unacknowledged: dict[uuid.UUID, int] = {}  # by publisher: the number of its last publication
        self._due = 0.0  # time.monotonic() of the next acknowledgement
        # Written by threads of netq.
        self._lock = threading.Lock()  # guards both
        self.dropped = 0  # copies for which a subscriber had no room
        self._too_large: set[uuid.UUID] = set()  # subscribers that have missed a copy because of its size

    @property
    def to_acknowledge(self) -> bool:
        """Whether a publisher waits for an acknowledgement."""
        return bool(self._unacknowledged)

    def send(self, client: uuid.UUID, envelope: Envelope, subscribers: Sequence[uuid.UUID]) -> None:
        """Send a client's publication to its subscribers."""
        self.count += 1
        self._unacknowledged[client] = envelope.number
        if subscribers:
            self.copies += len(subscribers)
            copy = Envelope(EnvelopeKind.PUBLICATION, 0, envelope.name, client, data=envelope.data)
            self._queue.multicast(copy, subscribers, failed=self._not_sent)

    def acknowledge(self, now: float) -> None:
        """Acknowledge the publications that have come, if _SOON is over."""
        if self._unacknowledged and now >= self._due:
            self.acknowledge_now()

    def acknowledge_now(self) -> None:
        """Acknowledge the publications that have come: those of a client with one message."""
        while self._unacknowledged:
            client, number = self._unacknowledged.popitem()
            self._outbox.send(client, Envelope(EnvelopeKind.DONE, number, code=UP_TO))
        self._due = time.monotonic() + _SOON

    def leave(self, client: uuid.UUID) -> None:
        """Forget a client, whose session is over."""
        self._unacknowledged.pop(client, None)
        with self._lock:
            self._too_large.discard(client)

    def _not_sent(self, client: uuid.UUID, error: Exception) -> None:
        """Count a copy for which a subscriber has no room. In a thread of netq."""
        if isinstance(error, Closed):
            return
        with self._lock:
            self.dropped += 1
            is_new = isinstance(error, MessageTooLarge) and client not in self._too_large
            if is_new:
                self._too_large.add(client)
        if is_new:
            log.warning("%s; this publication and further ones of such a size are dropped for it", error)
