"""What a loop polls: its selector, the socket pair that wakes it, and rings of shared memory.

Owned by one loop. The holder of the loop's baton calls everything here, except `select` and `ring.has_data`, which run
without the baton, and `wake` and `interrupt`, which any thread may call.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Protocol

from netq.io.interrupts import NO_SIGPIPE, suppress
from netq.io.selector import READ, find, new_selector

Ready = Callable[[int], None]


class Ring(Protocol):
    """A ring in shared memory. While it is awake no descriptor announces its data, so a thread has to look."""

    awake: bool  # the peer sends no wake-up when it writes

    def look(self) -> bool:
        """Return whether there is something to do. In any thread, at any time."""

    def receive(self) -> None:
        """Receive, in a user's thread."""

    def sleep(self) -> bool:
        """Have the peer send a wake-up when it writes; return False if there is data already."""

    def go_on(self) -> None:
        """Receive in the loop's thread, soon."""


class Watch:
    """What to run when a socket is ready: `ready(events)`; in a user's thread too, if it is `shared`."""

    __slots__ = ("active", "ready", "shared")

    def __init__(self, ready: Ready, shared: bool) -> None:
        self.ready = ready
        self.shared = shared
        self.active = True  # neither replaced nor forgotten


class Poller:
    """A selector whose keys have a Watch as data. `loop_polls` says whether the loop's own thread is in `select`."""

    def __init__(self, loop_polls: Callable[[], bool]) -> None:
        self.rings: tuple[Ring, ...] = ()
        self._loop_polls = loop_polls
        self._selector = new_selector()
        self.select = self._selector.select  # one call less for each message
        # All that is watched. The selector forgets a socket if an exception comes out of its `modify`, as that of a
        # signal handler.
        self._files: set[socket.socket] = set()
        self._waker, self._wakee = socket.socketpair()
        self._sleep = self._woken = 0  # the number of the loop's present sleep, and of the last one that was ended
        for end in (self._waker, self._wakee):
            end.setblocking(False)
        self.watch(self._wakee, READ, self._drain, shared=True)

    @property
    def is_idle(self) -> bool:
        """Whether no socket is watched, other than our own."""
        return len(self._selector.get_map()) == 1

    @property
    def has_descriptor(self) -> bool:
        """Whether an event loop can watch this poller as a whole."""
        return hasattr(self._selector, "fileno") and not self.rings

    def fileno(self) -> int:
        """Return the selector's own descriptor."""
        return self._selector.fileno()

    def watch(self, file: socket.socket, events: int, ready: Ready, *, shared: bool = False) -> None:
        """See Loop.watch."""
        watch = Watch(ready, shared)
        self._files.add(file)
        before = find(self._selector, file)
        if before is None:
            self._selector.register(file, events, watch)
        else:
            self._selector.modify(file, events, watch)
            before.data.active = False

    def forget(self, file: socket.socket) -> None:
        """See Loop.forget."""
        self._files.discard(file)
        is_closed = file.fileno() < 0  # already; then the selector searches all keys for it
        if is_closed or find(self._selector, file) is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(file).data.active = False

    def begin_sleep(self) -> None:
        """Note that the loop's thread is about to call `select`, or to park."""
        self._sleep += 1

    def wake(self) -> None:
        """End the present sleep of the loop's thread in `select`. Only the first call for each sleep sends a byte."""
        # A thousand calls in one sleep need one byte: each further one is a system call for nothing, and may fill the
        # socket. Two threads that come at once may both send; that is harmless, as one `recv` takes many bytes.
        if self._woken != (sleep := self._sleep):
            self.interrupt()
            self._woken = sleep  # not earlier: a signal handler may run in between, and call this for the same sleep

    def interrupt(self) -> None:
        """End a `select`, whichever thread is in it."""
        with suppress(OSError):  # the socket is full, so the thread is being woken; or the loop has ended
            self._waker.send(b"\0", NO_SIGPIPE)

    def close(self) -> None:
        """Close all that is watched: no other object does it."""
        # Closed, and not unregistered. In the child of a fork the selector is the same object in the kernel as the
        # parent's: to unregister a socket there would end the parent's watch of it, and with it the parent's session.
        # Closing our copies of the descriptors changes nothing for the parent.
        for file in list(self._files):  # another thread may still forget one
            file.close()
        self._selector.close()
        self._waker.close()

    def _drain(self, mask: int) -> None:
        # A user's thread that was in `select` when the loop's thread began to poll may see a byte for that thread. If
        # it took the byte, the loop's thread would sleep on, and no other byte is sent for that sleep.
        if not self._loop_polls():
            with contextlib.suppress(BlockingIOError):
                self._wakee.recv(4096)
