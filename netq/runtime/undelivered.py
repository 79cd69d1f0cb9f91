"""Messages that were not delivered: how many, to which peers, and the warning about those whose futures were dropped.

A program that does not look at the futures of `put` would not learn that a message has failed. Each Delivery that fails
(netq/runtime/delivery.py) is counted here. One whose future the user drops without a look is told in the log: the first
to a peer at once, further ones together after ten seconds.

Owned by the endpoint; the batons of its loops refer to it. Any code may call `failed`, `looked_at` and `dropped`, also
a finalizer on top of any other code here: they only append. All else runs in the first loop, or after its end.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections import Counter, deque

from netq.errors import QueueFull, Refused
from netq.io.loop import Loop
from netq.log import log

_PERIOD = 10.0  # seconds of silence about a peer after a line
_MOST_PEERS = 16  # peers of which the log has lines in one period; the others share one
_SHOWN = 3  # peers that the text of all names
_MOST_NAMED = 1000  # peers that are counted one by one, however many come and go
_OTHERS = "other peers"
_Peer = uuid.UUID | None  # None: a server that was not reached yet
_Key = tuple[_Peer | str, type[Exception]]


class Unseen:
    """Held by a failed Delivery. Reports the failure when that is dropped, unless the user has looked at it before."""

    __slots__ = ("error", "owner", "peer", "tells")

    def __init__(self, owner: Undelivered, peer: _Peer, error: Exception) -> None:
        self.owner: Undelivered | None = owner
        self.peer = peer
        self.error = error
        self.tells = owner.tells

    def look(self) -> None:
        """Note that the user has looked."""
        owner, self.owner = self.owner, None
        if owner is not None and self.tells == owner.tells:
            owner.looked_at(self.peer)

    def __del__(self) -> None:
        if self.owner is not None and self.tells == self.owner.tells and not sys.is_finalizing():
            self.owner.dropped(self.peer, self.error)


class Undelivered:
    """The messages of one communicator that were not delivered."""

    def __init__(self, loop: Loop) -> None:
        self.closing = False  # until `text` is asked for, at the end of `close`
        self.tells = 0  # how often `text` has told all failures so far
        self._loop = loop
        # Peer, and how many have failed, are not looked at, and were dropped while it closes.
        self._notes: deque[tuple[_Peer | str, int, int, int]] = deque()
        self._lock = threading.RLock()  # when the loops are over, each thread that closes adds up
        self._count = 0
        self._unseen: Counter[_Peer | str] = Counter()
        self._lost: Counter[_Peer | str] = Counter()  # dropped while it closes
        self._dropped: deque[tuple[_Peer, Exception]] = deque()
        self._reports = False  # `_report` is going to run
        self._periods: dict[_Key, int] = {}  # failures since the last line about a peer

    def failed(self, peer: _Peer, error: Exception, *, looked_at: bool) -> Unseen | None:
        """Count a message. Return what its Delivery has to hold, if the user has not looked at it."""
        looked_at = looked_at or (isinstance(error, QueueFull) and error.dropped)  # the user has asked for that
        self._notes.append((peer, 1, int(not looked_at), 0))
        return None if looked_at else Unseen(self, peer, error)

    def looked_at(self, peer: _Peer) -> None:
        """Note that the user has looked at a failure."""
        self._notes.append((peer, 0, -1, 0))

    def dropped(self, peer: _Peer, error: Exception) -> None:
        """Note that the user has dropped the future of a failure without a look."""
        if self.closing:
            self._notes.append((peer, 0, 0, 1))
            return
        self._dropped.append((peer, error))
        if not self._reports:
            self._reports = True
            self._loop.call(self._report)

    # In the first loop, or when the loops are over.

    @property
    def count(self) -> int:
        """How many messages have failed so far."""
        self.fold()
        return self._count

    def text(self, server: str, *, kept: bool) -> str:
        """Return how many were lost unseen, and to whom; "" without any. At the end of `close`, once.

        kept: also those whose futures the user may still look at. Otherwise those that were dropped, and not told yet.
        """
        with self._lock:
            found = self._take(kept=kept)
        others = found.pop(_OTHERS, 0)
        peers = [(server if peer is None else str(peer), count) for peer, count in found.most_common() if count > 0]
        total = sum(count for _, count in peers) + others
        rest = sum(count for _, count in peers[_SHOWN:]) + others
        named = [f"{count:,} to {peer}" for peer, count in peers[:_SHOWN]] + [f"{rest:,} to others"] * bool(rest)
        return (
            f"{total:,} message{'s were' if total > 1 else ' was'} not delivered: {', '.join(named)}" if total else ""
        )

    def fold(self) -> None:
        """Add up the notes."""
        with self._lock:
            while self._notes:
                self._add(*self._notes.popleft())

    def _add(self, peer: _Peer | str, failed: int, unseen: int, lost: int) -> None:
        self._count += failed
        for counts, change in ((self._unseen, unseen), (self._lost, lost)):
            key = peer if peer in counts or len(counts) < _MOST_NAMED else _OTHERS
            if change:
                counts[key] += change
            if not counts[key]:
                del counts[key]

    def _take(self, *, kept: bool) -> Counter[_Peer | str]:
        """Return how many were lost of each peer, and count from 0."""
        for key, count in self._periods.items():
            self._notes.append((key[0], 0, 0, count))
            self._periods[key] = 0
        self.fold()
        found = Counter(self._unseen if kept else self._lost)
        self._unseen.clear()
        self._lost.clear()
        self.closing = False
        self.tells += kept
        return found

    def _report(self) -> None:
        self._reports = False
        while self._dropped:
            peer, error = self._dropped.popleft()
            key: _Key = (peer, type(error))
            if key not in self._periods and len(self._periods) >= _MOST_PEERS:
                key = _OTHERS, key[1]
            if key in self._periods:
                self._periods[key] += 1
            else:
                self._periods[key] = 0
                self._loop.at(time.monotonic() + _PERIOD, self._end_period, key)
                # Deferred: without a loop a line is emitted at once, and no handler may run with the baton held.
                what = "request failed" if isinstance(error, Refused) else "message was not delivered"
                self._loop.baton.defer(log.warning, "a %s, and its future was not looked at: %s", what, error)

    def _end_period(self, key: _Key) -> None:
        peer, kind = key
        count = self._periods.pop(key)
        if count and self.closing:
            self._notes.append((peer, 0, 0, count))  # for `text`
        elif count:
            self._periods[key] = 0
            self._loop.at(time.monotonic() + _PERIOD, self._end_period, key)
            what = "requests failed" if issubclass(kind, Refused) else "messages were not delivered"
            log.warning("%s: %d more %s (%s); look at their futures", peer or "the server", count, what, kind.__name__)
