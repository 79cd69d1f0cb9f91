"""The system's selector. Its `select` in the standard library costs a small message more than all of the parsing."""

from __future__ import annotations

import math
import select
import selectors
import socket
from typing import Any

from netq.io.interrupts import interruptible

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
Ready = list[tuple[selectors.SelectorKey, int]]


class _Epoll(selectors.EpollSelector if hasattr(selectors, "EpollSelector") else selectors.DefaultSelector):  # type: ignore[misc]
    """EpollSelector with fewer steps in `select`."""

    _selector: Any
    _fd_to_key: dict[int, selectors.SelectorKey]

    @interruptible
    def select(self, timeout: float | None = None) -> Ready:
        """Wait for `timeout` seconds at most (None: without limit); return what is ready."""
        if timeout is not None:  # whole milliseconds, rounded up: a timer must be due when `select` returns
            timeout = math.ceil(timeout * 1e3) * 1e-3 if timeout > 0 else 0
        # This runs without the baton, while other threads add and remove files. epoll allows that, and takes a new file
        # into a wait that has begun. `get`, because a file that was removed meanwhile may still be reported.
        keys = self._fd_to_key
        found: Ready = []
        for fd, event in self._selector.poll(timeout, len(keys) or 1):
            if (key := keys.get(fd)) is not None:
                # As in the standard library: an error or a hang-up counts as both, so that `recv` or `send` reports it.
                mask = (WRITE if event & ~select.EPOLLIN else 0) | (READ if event & ~select.EPOLLOUT else 0)
                found.append((key, mask & key.events))
        return found


def find(selector: selectors.DefaultSelector, file: socket.socket) -> selectors.SelectorKey | None:
    """Return the key of a file, None if it is not registered.

    `get_key` puts the text of an unknown socket into its error, and in that the name of a Unix socket: bytes, which
    `python -bb` refuses.
    """
    keys: dict[int, selectors.SelectorKey] = selector._fd_to_key  # type: ignore[attr-defined]
    return keys.get(file.fileno())


def new_selector() -> selectors.DefaultSelector:
    """Return the best that the system has. An exception of a signal handler may come out of its `select`."""
    if hasattr(select, "epoll"):
        return _Epoll()
    interruptible(selectors.DefaultSelector.select)
    return selectors.DefaultSelector()
