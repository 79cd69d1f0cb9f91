"""Waiting until enough are connected: said in the log, and ended by time or by closing.

Called by fl.Server.wait and fl.flower.Grid.wait, in their caller's thread. Owns nothing: who is connected is the
caller's to say, and so is the event that wakes the wait.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sized
from typing import TypeVar

log = logging.getLogger("netq.fl")

Peers = TypeVar("Peers", bound=Sized)

PATIENCE = 30.0  # seconds in which devices that are started with their server have come; then a person should look
_LOOK = 1.0  # seconds between looks at who is connected, should an event be missed


def until_connected(
    count: int,
    noun: str,
    connected: Callable[[], Peers],
    changed: threading.Event,
    timeout: float | None = None,
    *,
    patience: float = PATIENCE,
) -> Peers:
    """Wait until `count` peers are connected, and return all that are. Raises TimeoutError, and what `connected` does.

    connected: returns those who are; raises Closed when there is nobody to wait for any more.
    changed:   set when somebody has come or gone, or when `connected` will raise.
    timeout:   seconds; None: no end.
    patience:  seconds, after which it is a warning that there are still too few; once.
    """
    begin, said, warned = time.monotonic(), -1, False
    while True:
        changed.clear()
        peers = connected()
        if len(peers) >= count:
            return peers
        waited = time.monotonic() - begin
        if not warned and waited >= patience:
            log.warning("waiting for %s: only %d of %d are connected after %.0f s", noun, len(peers), count, waited)
            warned = True
        elif len(peers) != said:
            log.info("waiting for %s: %d of %d are connected", noun, len(peers), count)
        said = len(peers)
        left = min(_LOOK, (math.inf if timeout is None else timeout) - waited)
        if left <= 0:
            raise TimeoutError(f"{len(peers)} of {count} {noun} are connected after {timeout:g} s")
        changed.wait(left)
