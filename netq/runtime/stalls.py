"""Says in the log why messages do not come, once for each time that this lasts.

It notices two things, each within two periods. Unread messages fill the memory of a loop, and peers that would send
more wait. And a `get` that names peers waits, while none of them is connected. The Endpoint asks it in its loops. It
takes the inbox's lock in deferred calls only, without the baton (netq/io/baton.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from netq.io.loop import Loop
from netq.log import log
from netq.protocol.flow_control import Budget
from netq.runtime.inbox import Inbox
from netq.runtime.peer import Peer

PERIOD = 5.0  # seconds between two looks
_MIB = 2**20


class FullMemory:
    """Watches the budget of one loop, in its thread."""

    def __init__(self, loop: Loop, budget: Budget) -> None:
        self._loop = loop
        self._budget = budget
        self._last: tuple[int, ...] = ()  # what has moved at the last look, if messages waited
        self._told = False

    def look(self, peers: Iterable[Peer]) -> None:
        """Log a warning if messages wait for the budget, and nothing has moved since the last look."""
        budget = self._budget
        if not budget.is_short:
            self._last, self._told = (), False
            return
        sessions = [peer.session for peer in peers if peer.loop is self._loop]
        arriving = sum(session.arriving for session in sessions)
        last, self._last = self._last, (budget.grants, budget.claimed, arriving)
        waiting = [session.peer for session in sessions if session.waits]
        if self._told or last != self._last or not waiting:
            return
        self._told = True
        untaken = [amount for session in sessions if (amount := session.untaken) > 0]
        log.warning(
            "memory is full: %s cannot send the rest of a message. %.1f MiB of other messages, of %d peers, are here, "
            "and no `get` takes them; %.1f MiB more are parts of messages. Take messages of the other peers, too, or "
            "set a larger `memory` than %.1f MiB",
            _name(waiting),
            (sum(untaken) + budget.orphaned) / _MIB,
            len(untaken),
            arriving / _MIB,
            budget.size / _MIB,
        )


class AbsentPeers:
    """Watches what `get` waits for. One deferred call at a time."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._last: set[tuple[int, ...]] = set()  # the peers of each such `get` at the last look
        self._told: set[tuple[int, ...]] = set()

    def look(self, peers: Iterable[Peer]) -> None:
        """Log a warning for each `get` that has waited since the last look for peers that are not connected."""
        stuck = self._inbox.awaited()
        if stuck:
            connected = {peer.id.int for peer in peers if peer.id is not None and peer.link is not None}
            stuck = {keys for keys in stuck if connected.isdisjoint(keys)}
        news = sorted((stuck & self._last) - self._told)
        self._last, self._told = stuck, self._told & stuck | {*news}
        if news:
            absent = [uuid.UUID(int=key) for keys in news for key in keys]
            log.warning("get waits for %s: not connected; it goes on when one connects", _name(absent))


def _name(peers: list[uuid.UUID | None] | list[uuid.UUID]) -> str:
    """Return the first of them, and how many others there are."""
    others = len(peers) - 1
    return f"{peers[0]}" if others < 1 else f"{peers[0]} and {others:,} other{'s' * (others > 1)}"
