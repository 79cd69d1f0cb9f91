"""What the fronts have in common: the communicators of netq/aio.py and netq/trio.py, which are awaited.

A Front calls the communicator of netq/core.py, whose loops run in threads of their own, and has that call the user's
functions in the event loop's thread. A front adds how `put` and `get` are awaited there, and how one comes from another
thread into the event loop. Owns no bytes and no session.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

import netq
from netq.core import Message
from netq.errors import Closed
from netq.options import CommunicatorOptions, NetworkLocation, Protocol, Purpose
from netq.runtime.statistics import Statistics

_T = TypeVar("_T")


class Front(ABC):
    """A communicator whose methods are awaited, and are for one event loop only. Its errors are those of netq.new."""

    def __init__(self, protocol: Protocol | str, purpose: Purpose | str, options: CommunicatorOptions | None) -> None:
        self.options = options = CommunicatorOptions() if options is None else options
        if isinstance(options, CommunicatorOptions):  # otherwise netq.new raises the error
            given = {name: getattr(options.events, name) for name in ("ini", "fin", "refused")}
            wrapped: dict[str, Any] = {name: self._wrapped(event) for name, event in given.items() if event}
            options = dataclasses.replace(options, events=dataclasses.replace(options.events, **wrapped))
        self._core = netq.new(protocol, purpose, options)

    @property
    def id(self) -> uuid.UUID:
        """This communicator's id, by which its peers know it."""
        return self._core.id

    @property
    def netloc(self) -> NetworkLocation:
        """Where a server listens, or a client connects; with the port that the system chose for port 0."""
        return self._core.netloc

    @property
    def connected(self) -> bool:
        """As netq.Communicator.connected."""
        return self._core.connected

    @property
    def memory_is_full(self) -> bool:
        """As netq.Communicator.memory_is_full."""
        return self._core.memory_is_full

    def multicast(
        self,
        data: Any,
        peers: Iterable[uuid.UUID],
        *,
        lane: int | None = 0,
        failed: Callable[[uuid.UUID, Exception], object] | None = None,
    ) -> None:
        """Send `data` to each of `peers`, as netq.Communicator.multicast does. `failed` is called in the event loop."""
        self._check_here("multicast")
        self._core.multicast(data, peers, lane=lane, failed=None if failed is None else self._wrapped(failed))

    def expel(self, peer: uuid.UUID, reason: str, refuse_for: float = 0.0) -> None:
        """End the session with a client, as netq.Communicator.expel does."""
        self._check_here("expel")
        self._core.expel(peer, reason, refuse_for)

    def pause(self, peer: uuid.UUID, reason: str) -> None:
        """Let messages of other clients pass that of this one, as netq.Communicator.pause does."""
        self._check_here("pause")
        self._core.pause(peer, reason)

    def resume(self, peer: uuid.UUID) -> None:
        """Let a client that was paused send again."""
        self._check_here("resume")
        self._core.resume(peer)

    def absences(self, *peers: uuid.UUID) -> dict[uuid.UUID, float]:
        """As netq.Communicator.absences."""
        self._check_here("absences")
        return self._core.absences(*peers)

    @abstractmethod
    async def get(self, *peers: uuid.UUID, timeout: float | None = None, into: Any = None) -> Message:
        """Wait for the next message of any of `peers`, and return it."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message; end when nothing can come any more.

        Raises Unreadable for a message that cannot be loaded, because the user decides whether to skip it: a new
        `async for` goes on with the next one.
        """
        try:
            return await self.get()
        except Closed:
            raise StopAsyncIteration from None

    async def close(self, timeout: float | None = None) -> int:
        """Deliver what has been put, say goodbye, and end; return the number of messages not delivered.

        Like netq.Communicator.close. If it is cancelled, it ends everything at once, as `close(timeout=0)` does, and
        then raises. When the event loop that this was made in has ended, another one may close it.
        """
        self._prepare_close()
        return await self._aside(self._core.close, timeout, hasten=functools.partial(self._core.close, 0))

    async def statistics(self, *peers: uuid.UUID) -> dict[uuid.UUID, Statistics]:
        """Return the figures of `peers` that have a session; without `peers`, of each that has one."""
        self._check_here("statistics")
        return await self._aside(self._core.statistics, *peers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(timeout=None if error is None else self.options.connection.linger)

    @abstractmethod
    def _check_here(self, name: str) -> None:
        """Raise RuntimeError unless this is called in the event loop that the communicator was made in."""

    @abstractmethod
    def _wrapped(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return a function that any thread may call, and which has this one called in the event loop, in order.

        It does not refer to this communicator, which may be collected.
        """

    @abstractmethod
    def _prepare_close(self) -> None:
        """Check that `close` may be called here, and let the core's own thread poll."""

    @abstractmethod
    async def _aside(self, function: Callable[..., _T], *args: Any, hasten: Callable[[], object] | None = None) -> _T:
        """Run a function that waits in a thread, which has ended when this returns or raises.

        If it is cancelled, `hasten` makes the function end soon.
        """
