"""Logs refused connections of shared memory. Owned by one listening side."""

from __future__ import annotations

import logging
import socket
import time

from netq.log import log
from netq.runtime.log_dedup import LogDedup
from netq.shm import rendezvous
from netq.text import printable

_REPEAT_AFTER = 60.0  # seconds after which the log has the same warning about a user again


class RefusalLog:
    """Warns of refusals: of each user, few different ones a minute. Repeated connections must not fill the disk."""

    def __init__(self) -> None:
        self._log_dedup = LogDedup()

    def warn(self, where: str, sock: socket.socket, reason: str) -> None:
        """Log why a connection at the address `where` is refused."""
        now, user = time.monotonic(), f"user {rendezvous.peer(sock)[1]}"
        is_new = self._log_dedup.is_new(user, reason, now)
        self._log_dedup.forget_at(user, now + _REPEAT_AFTER)
        level = logging.WARNING if is_new else logging.DEBUG
        log.log(level, "%s: %s; the connection was closed", where, printable(reason))
