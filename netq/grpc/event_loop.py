"""The asyncio event loop of grpc: one thread, shared by all gRPC transports of the process.

grpc wakes every event loop that has ever used it for each event, and releases none before the last stream of the
process has ended. Therefore there is only one. A transport calls `acquire` when it opens, and `release` when all of
its streams have ended. The last `release` ends the thread, and leaves neither a thread nor a descriptor of grpc.

grpc's threads do not survive a fork, and end at an unspecified time after their last use. Therefore a child of a
process that has used gRPC cannot use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from netq.io.loop import start

_END_TIMEOUT = 0.5  # seconds for tasks to end by themselves, and again after they are cancelled

T = TypeVar("T")


class EventLoop:
    """A thread that runs an event loop. Any thread may call any method."""

    def __init__(self) -> None:
        self.users = 0
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="netq-grpc", daemon=True)
        try:
            start(self._thread)
        except RuntimeError:
            self.loop.close()
            raise

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Run `function(*args)` in the event loop, in the order of the calls. Does nothing after its end."""
        with contextlib.suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(function, *args)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def stop(self) -> None:
        """End the thread. Waits for it, except in that thread itself."""
        self.call(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(self.loop):
            self.loop.run_forever()
            if left := asyncio.all_tasks(self.loop):  # tasks of grpc, for streams that have just ended
                self.loop.run_until_complete(_end(left))


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    """Wait for tasks, and cancel those that take too long: each one keeps its channel alive."""
    _, late = await asyncio.wait(tasks, timeout=_END_TIMEOUT)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=_END_TIMEOUT)


def acquire() -> EventLoop:
    """Return the process's event loop. Raises RuntimeError in a fork of a process that has used it."""
    if _state.forked:
        raise RuntimeError(
            "this process is a fork of one that has used gRPC, whose threads do not survive that; "
            "fork before the first gRPC communicator is made, or start the process by spawn"
        )
    with _state.lock:
        _state.used = True
        if _state.event_loop is None:
            _state.event_loop = EventLoop()
        _state.event_loop.users += 1
        return _state.event_loop


def release(event_loop: EventLoop) -> None:
    """Stop using the event loop; the last user ends it."""
    # It is forgotten under the lock, so a transport that opens meanwhile gets a new one. It is stopped without the
    # lock, because that waits for the thread, and all other transports would wait too.
    with _state.lock:
        event_loop.users -= 1
        if event_loop.users:
            return
        _state.event_loop = None
    event_loop.stop()


class _State:
    """The state of this process."""

    def __init__(self, forked: bool = False) -> None:
        self.lock = threading.Lock()
        self.event_loop: EventLoop | None = None
        self.used = False  # at any time
        self.forked = forked  # from a process that had used it


_state = _State()


def _abandon() -> None:
    """Start with a new state in the child; the event loop belongs to the parent."""
    global _state
    _kept.append(_state)  # never freed: the destructors of grpc's objects would wait for its threads
    _state = _State(forked=_state.forked or _state.used)


_kept: list[_State] = []

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_abandon)
