"""A client's reconnecting: when to try again after a link was lost, and what to log of it. In the client's loop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from netq.io.loop import Loop
from netq.log import log
from netq.options import ConnectionOptions
from netq.runtime.link import backoff
from netq.runtime.log_dedup import LogDedup
from netq.runtime.peer import Interrupted
from netq.text import printable

# Seconds that a link has to last before the next pause is a short one again. Otherwise a client that the server refuses
# after each handshake would reconnect twenty times a second.
_STEADY = 1.0


class Reconnector:
    """Calls `open_link` after each lost link, with exponential backoff."""

    def __init__(
        self, loop: Loop, options: ConnectionOptions, address: Callable[[], str], open_link: Callable[[], object]
    ) -> None:
        self.attempt = 0  # failed attempts in a row
        self._loop = loop
        self._options = options
        self._address = address
        self._open_link = open_link
        self._log_dedup = LogDedup()
        self._up_since = math.inf  # when the present link finished its handshake

    def connected(self, address: str) -> None:
        """Note that a link to this address has finished its handshake."""
        self._up_since = time.monotonic()
        troubled = self._log_dedup.forget(self._address())
        log.log(logging.WARNING if troubled else logging.INFO, "%s: connected", address)

    def lost(self, error: Exception) -> None:
        """Try again after a pause. A link that we dropped ourselves is replaced after the shortest pause."""
        reason, now = printable(str(error)), time.monotonic()
        if isinstance(error, Interrupted):
            log.info("%s: %s; connecting again", self._address(), reason)
        elif self._log_dedup.is_new(self._address(), reason, now):
            log.warning("%s: %s; trying again until it answers", self._address(), reason)
        if now - self._up_since >= _STEADY or isinstance(error, Interrupted):
            self.attempt = 0
        self._up_since = math.inf
        self._loop.at(now + backoff(self.attempt, self._options), self._open_link)
        self.attempt += 1
