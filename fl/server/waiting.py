"""Waits until enough peers are connected, and logs how many are. How long a server pauses before it tries again.

Called by fl.Server.wait and fl.flower.Grid.wait, in their caller's thread. Owns no state: the caller counts the peers,
and sets the event that ends a wait.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sized
from typing import TypeVar

from netq.validate import whole

log = logging.getLogger("netq.fl")

Peers = TypeVar("Peers", bound=Sized)

_MAX_PAUSE = 60.0  # seconds between two attempts of a round
PATIENCE = 30.0  # seconds until a warning; devices that are started together with their server connect sooner
_STEP = 0.01  # seconds between looks for a peer's first message
_REST = 20  # times what a count took, until the next: to count thousands of peers takes milliseconds
_PART = 100  # of the peers that are wanted: a change by less is no line of the log, unless a second has passed
_CHECK = 1.0  # seconds between counts of the peers, in case an event was missed
SETTLE = 0.1  # seconds in which a peer that has just connected may say that it wants no task


def pause_after(attempts: int, first: float) -> float:
    """Return the seconds before the next attempt of a round: `first`, doubled after each further one, 60 at most."""
    return min(_MAX_PAUSE, first * 2.0 ** min(attempts - 1, 30))  # a larger power overflows in the end


def until_connected(
    count: int,
    noun: str,
    connected: Callable[[], Peers],
    changed: threading.Event,
    timeout: float | None = None,
    *,
    patience: float = PATIENCE,
    read: Callable[[], None] = lambda: None,
    is_new: Callable[[], bool] = lambda: False,
) -> Peers:
    """Wait until `count` peers are connected, and return all that are. Raises TimeoutError, and what `connected` does.

    noun:      what the peers are called in the log.
    connected: returns the connected peers. Raises Closed if no more can come.
    changed:   set when a peer has connected or left, and when `connected` is going to raise.
    timeout:   seconds; None: no limit.
    patience:  seconds, after which one line of the log is a warning.
    read:      called before each count: handles messages.
    is_new:    returns whether a peer has just connected, and its first message is not here.
    """
    whole("wait: count", count, 0)
    begin, logged, warned, settled = time.monotonic(), -1, False, True
    logged_at = -math.inf
    while True:
        look = time.monotonic()
        changed.clear()
        read()
        peers = connected()
        if len(peers) >= count:
            if settled:
                return peers
            time.sleep(SETTLE)
            settled = True
            continue
        settled = False
        now = time.monotonic()
        waited = now - begin
        if not warned and waited >= patience:
            log.warning("waiting for %s: only %d of %d are connected after %.0f s", noun, len(peers), count, waited)
            warned, logged, logged_at = True, len(peers), now
        elif len(peers) != logged and (_PART * abs(len(peers) - logged) >= count or now - logged_at >= _CHECK):
            log.info("waiting for %s: %d of %d are connected", noun, len(peers), count)
            logged, logged_at = len(peers), now
        left = min(_CHECK, (math.inf if timeout is None else timeout) - waited)
        if left <= 0:
            raise TimeoutError(f"{len(peers)} of {count} {noun} are connected after {timeout:g} s")
        pause = min(left, _STEP) if is_new() else left
        time.sleep(min(left, _REST * (time.monotonic() - look)))
        changed.wait(pause)
