"""Which replies a grid has to drop: those that have arrived, and that the app does not pull."""

from __future__ import annotations

import threading

from flwr.app import Error, RecordDict

from fl.flower.record_codec import nbytes

_REPLY = 1024  # bytes that a reply counts besides its arrays: the cost of its objects


class Unpulled:
    """The sizes of the replies that have arrived and were not pulled, the oldest first. Thread-safe.

    room: bytes that they may take together; the last one may be larger.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._total = 0

    def add(self, id: str, content: RecordDict | Error) -> list[str]:
        """Add a reply. Return the oldest ones, which must go: they are removed here."""
        size = _REPLY + (nbytes(content) if isinstance(content, RecordDict) else 0)
        with self._lock:
            dropped = []
            while self._sizes and self._total + size > self._room:
                dropped.append(next(iter(self._sizes)))
                self._total -= self._sizes.pop(dropped[-1])
            self._sizes[id] = size
            self._total += size
            return dropped

    def remove(self, id: str) -> None:
        """Remove a reply. Does nothing for another id."""
        with self._lock:
            self._total -= self._sizes.pop(id, 0)
