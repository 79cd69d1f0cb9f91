"""Publications and messages of other clients that wait for `Client.get`: bounded in number and in bytes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable

from netq.errors import Closed
from netq.exchange.envelope import Envelope, EnvelopeKind
from netq.io.condition import Condition, deadline_of


class Inbox:
    """The inbox of a client.

    most, memory: envelopes, and bytes of their data, that may wait. One always may, however large it is.
    """

    def __init__(self, most: int, memory: int) -> None:
        self._most = most
        self._memory = memory
        self._waiting: deque[Envelope] = deque()
        self._size = 0  # bytes of their data
        self._closed: Closed | None = None
        self._lock = threading.RLock()  # guards all of this
        self._changed = Condition()
        self.dropped = 0  # publications

    def add_publications(self, publications: Iterable[Envelope]) -> None:
        """Add publications. Drop the oldest for those that do not fit, or them, if a message is the oldest."""
        with self._lock:
            for envelope in publications:
                size = 0 if envelope.data is None else envelope.data.nbytes  # in place: this is for each publication
                is_full = len(self._waiting) >= self._most or self._size + size > self._memory
                if is_full and not self._make_room(size):
                    self.dropped += 1
                else:
                    self._waiting.append(envelope)
                    self._size += size
        self._changed.notify()

    def add_message(self, envelope: Envelope) -> str:
        """Add a message. Return why it does not fit, or ""."""
        with self._lock:
            size = _size(envelope)
            full = self._why_full(size)
            if not full:
                self._waiting.append(envelope)
                self._size += size
        self._changed.notify()
        return full

    def get(self, timeout: float | None) -> Envelope:
        """Wait for the next, and return it. Raises TimeoutError; Closed when it has ended and is empty."""
        deadline = 0.0
        while True:
            with self._lock:
                if self._waiting:
                    envelope = self._waiting.popleft()
                    self._size -= 0 if envelope.data is None else envelope.data.nbytes
                    return envelope
            if self._closed is not None and not self._waiting:
                raise self._closed.with_traceback(None)
            deadline = deadline or deadline_of(timeout)
            if not self._changed.wait(lambda: bool(self._waiting or self._closed), deadline - time.monotonic()):
                raise TimeoutError(f"no message within {timeout:g} s")

    def end(self, error: Closed) -> None:
        """Let `get` raise an error when nothing is left."""
        self._closed = error
        self._changed.notify()

    def _why_full(self, size: int) -> str:
        if len(self._waiting) >= self._most:
            return f"its inbox has {self._most} messages"
        if self._size + size > self._memory and self._waiting:
            return f"its inbox has {self._size} of {self._memory} bytes (inbox_memory)"
        return ""

    def _make_room(self, size: int) -> bool:
        """Drop the oldest publications until there is room; return whether there is."""
        while self._why_full(size):
            if self._waiting[0].kind is not EnvelopeKind.PUBLICATION:
                return False
            self._size -= _size(self._waiting.popleft())
            self.dropped += 1
        return True


def _size(envelope: Envelope) -> int:
    return 0 if envelope.data is None else envelope.data.nbytes
