"""The asyncio event loop that grpc lives in: one thread, for all the gRPC transports of the process together.

grpc wakes every event loop that has ever used it for each of its events, and lets go of none before the last stream of
the process has ended: so there is one. Transports `acquire` it when they open and `release` it when all of theirs has
ended; the last one ends the thread, and then nothing of grpc is left, neither a thread nor a descriptor.

grpc's threads do not survive a fork, and end some time after their last use, nobody says when. So a child of a process
that has ever used it cannot use it at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_LAST = 0.5  # seconds, for tasks to end by themselves, and when cancelled

T = TypeVar("T")


class EventLoop:
    """A thread that runs an event loop. Any thread may use all of it."""

    def __init__(self) -> None:
        self.users = 0
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="netq-grpc", daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Run `function(*args)` in the event loop, soon, in the order of the calls; not after its end."""
        with contextlib.suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(function, *args)

    def ask(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def stop(self) -> None:
        """End the thread, and wait for it unless it is this one."""
        self.call(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(self.loop):
            self.loop.run_forever()
            if left := asyncio.all_tasks(self.loop):  # grpc's own, of streams that have just ended
                self.loop.run_until_complete(_end(left))


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    """Wait for tasks; those that take too long are cancelled, for each holds what it belongs to."""
    _, late = await asyncio.wait(tasks, timeout=_LAST)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=_LAST)


def acquire() -> EventLoop:
    """Return the process's engine. Raises RuntimeError in a fork of a process that has ever had one."""
    if _state.forked:
        raise RuntimeError(
            "this process is a fork of one that has used gRPC, whose threads do not survive that; "
            "fork before the first gRPC communicator is made, or start the process by spawn"
        )
    with _state.lock:
        _state.used = True
        if _state.engine is None:
            _state.engine = EventLoop()
        _state.engine.users += 1
        return _state.engine


def release(engine: EventLoop) -> None:
    """Use it no more."""
    with _state.lock:
        engine.users -= 1
        if engine.users:
            return
        _state.engine = None
    engine.stop()


class _State:
    """What there is once in a process."""

    def __init__(self, forked: bool = False) -> None:
        self.lock = threading.Lock()
        self.engine: EventLoop | None = None
        self.used = False  # ever
        self.forked = forked  # a process that had used it


_state = _State()


def _abandon() -> None:
    """Leave the engine to the parent."""
    global _state
    _left.append(_state)  # for good: what belongs to grpc there would wait for its threads as it dies
    _state = _State(forked=_state.forked or _state.used)


_left: list[_State] = []

if hasattr(os, "register_at_fork"):  # where there is a fork
    os.register_at_fork(after_in_child=_abandon)
