"""Adapters by which the public conformance suite runs against a front whose calls are awaited, in another thread."""

from __future__ import annotations

import concurrent.futures
import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import netq
from netq import CommunicatorOptions, Purpose
from netq.testing.fixtures import LIMIT, Make

T = TypeVar("T")


class Elsewhere(ABC):
    """An event loop in a thread of its own, and calls into it."""

    thread: threading.Thread

    @abstractmethod
    def submit(
        self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any
    ) -> concurrent.futures.Future[T]:
        """Begin a task there, which ends when it has done its work, and not with the future."""

    @abstractmethod
    def close(self) -> None:
        """End the event loop and its thread."""

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        async def call() -> T:
            return function(*args, **options)

        here = threading.current_thread() is self.thread
        return function(*args, **options) if here else self.submit(call).result(LIMIT)

    def wait(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
        if threading.current_thread() is self.thread:
            raise RuntimeError("the event loop must not wait for itself")
        return self.submit(function, *args, **options).result()


class Future:
    """netq.Delivery, as far as the checks use it, of a Delivery of the front."""

    def __init__(self, elsewhere: Elsewhere, future: Any) -> None:
        self._elsewhere, self._future = elsewhere, future
        self.peer = future.peer
        self.done = functools.partial(elsewhere.call, future.done)  # a future of asyncio is for its event loop only
        self.cancelled = future.delivery.cancelled  # what left too late is cancelled here, and delivered there
        self.cancel = functools.partial(elsewhere.call, future.cancel)

    @property
    def futures(self) -> list[Future]:
        return [Future(self._elsewhere, part) for part in self._future.futures]

    def result(self, timeout: float | None = None) -> None:
        async def result() -> None:
            await self._future

        self._elsewhere.submit(result).result(None if self.done() else timeout)  # 0: if it is done, say how

    def exception(self, timeout: float | None = None) -> Exception | None:
        try:
            self.result(timeout)
        except netq.NetqError as error:
            return error
        return None


class Adapter:
    """netq.core.Communicator, as far as the checks use it, of the front that `new` makes."""

    def __init__(
        self, elsewhere: Elsewhere, new: Callable[..., Any], purpose: Purpose, options: CommunicatorOptions
    ) -> None:
        self._front = front = elsewhere.call(new, purpose=purpose, options=options)
        self._elsewhere = elsewhere
        self.id, self.netloc, self.options = front.id, front.netloc, front.options
        self._endpoint = front._core._endpoint
        self.get = functools.partial(elsewhere.wait, front.get)
        self.close = functools.partial(elsewhere.wait, front.close)
        self.statistics = functools.partial(elsewhere.wait, front.statistics)

    def put(self, *args: Any, **options: Any) -> Future:
        return Future(self._elsewhere, self._elsewhere.call(self._front.put, *args, **options))

    def __enter__(self) -> Adapter:
        return self

    def __exit__(self, *error: Any) -> None:
        self._elsewhere.wait(self._front.__aexit__, *error)


def maker(elsewhere: Elsewhere, new: Callable[..., Any]) -> Make:
    """Return what the checks make their communicators with."""
    return lambda purpose, options: cast(netq.Communicator, Adapter(elsewhere, new, purpose, options))
