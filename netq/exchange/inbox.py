"""The publications and messages that wait for `Client.get`: bounded in number and in bytes.

The client's thread adds them, and any thread takes them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable

from netq.errors import Closed
from netq.exchange.envelope import Envelope, EnvelopeKind, Refusal, Rejected
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
        """Add publications. For one that does not fit, drop the oldest ones; or itself, if the oldest is a message."""
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

    def add_message(self, envelope: Envelope) -> None:
        """Add a message. Raises Rejected if it does not fit."""
        with self._lock:
            size = _size(envelope)
            self._check_room(size)
            self._waiting.append(envelope)
            self._size += size
        self._changed.notify()

    def get(self, timeout: float | None) -> Envelope:
        """Wait for the next envelope. Raises TimeoutError, and Closed when the inbox has ended and is empty."""
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

    def _is_full(self, size: int) -> bool:
        """Return whether there is no room for `size` bytes. One envelope always has room."""
        return len(self._waiting) >= self._most or (self._size + size > self._memory and bool(self._waiting))

    def _check_room(self, size: int) -> None:
        if len(self._waiting) >= self._most:
            raise Rejected(Refusal.FULL, f"its inbox has {self._most} messages")
        if self._is_full(size):
            raise Rejected(Refusal.FULL, f"its inbox has {self._size} of {self._memory} bytes (inbox_memory)")

    def _make_room(self, size: int) -> bool:
        """Drop the oldest publications until there is room; return whether there is."""
        while self._is_full(size):
            if self._waiting[0].kind is not EnvelopeKind.PUBLICATION:
                return False
            self._size -= _size(self._waiting.popleft())
            self.dropped += 1
        return True


def _size(envelope: Envelope) -> int:
    return 0 if envelope.data is None else envelope.data.nbytes
