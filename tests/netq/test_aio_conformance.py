"""The asyncio front keeps the contract: each check of the public suite, through an adapter, in both event loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any, TypeVar, cast

import pytest
import uvloop

import netq
import netq.aio
from netq import CommunicatorOptions, Purpose
from netq.aio import Delivery
from netq.testing.conformance import CHECKS
from netq.testing.fixtures import LIMIT, Make

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

T = TypeVar("T")


@pytest.fixture(scope="module", autouse=True)
def libuv() -> None:
    """Let libuv open the pipe that it has once in a process, and never closes, before a test begins."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))


class Elsewhere:
    """An event loop in a thread of its own, and calls into it."""

    def __init__(self, kind: str) -> None:
        self._runner = asyncio.Runner(loop_factory=LOOPS[kind])
        self.loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        async def call() -> T:
            return function(*args, **options)

        here = threading.current_thread() is self._thread
        return function(*args, **options) if here else self.submit(call()).result(LIMIT)

    def wait(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
        if threading.current_thread() is self._thread:
            raise RuntimeError("the event loop must not wait for itself")
        return self.submit(function(*args, **options)).result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self._runner.close()


class Future:
    """netq.Delivery, as far as the checks use it, of a Delivery of the front."""

    def __init__(self, elsewhere: Elsewhere, future: Delivery) -> None:
        self._elsewhere, self._future = elsewhere, future
        self.done, self.peer = future.done, future.peer
        self.cancelled = future.delivery.cancelled  # what left too late is cancelled here, and delivered there
        self.cancel = functools.partial(elsewhere.call, future.cancel)

    @property
    def futures(self) -> list[Future]:
        return [Future(self._elsewhere, part) for part in self._future.futures]

    def result(self, timeout: float | None = None) -> None:
        async def result() -> None:
            await self._future

        self._elsewhere.submit(result()).result(None if self.done() else timeout)  # 0: if it is done, say how

    def exception(self, timeout: float | None = None) -> Exception | None:
        try:
            self.result(timeout)
        except netq.NetqError as error:
            return error
        return None


class Adapter:
    """netq.core.Communicator, as far as the checks use it, of the front."""

    def __init__(self, elsewhere: Elsewhere, purpose: Purpose, options: CommunicatorOptions) -> None:
        self._front = front = elsewhere.call(netq.aio.new, purpose=purpose, options=options)
        self._elsewhere = elsewhere
        self.id, self.netloc, self.options = front.id, front.netloc, front.options
        self.get = functools.partial(elsewhere.wait, front.get)
        self.close = functools.partial(elsewhere.wait, front.close)
        self.statistics = functools.partial(elsewhere.wait, front.statistics)

    def put(self, *args: Any, **options: Any) -> Future:
        return Future(self._elsewhere, self._elsewhere.call(self._front.put, *args, **options))

    def __enter__(self) -> Adapter:
        return self

    def __exit__(self, *error: Any) -> None:
        self._elsewhere.wait(self._front.__aexit__, *error)


SLOW = {"check_order"}  # each call of the adapter crosses threads twice
PARAMETERS = [
    pytest.param(check, id=check.__name__.removeprefix("check_"), marks=[pytest.mark.slow] * (check.__name__ in SLOW))
    for check in CHECKS
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("check", PARAMETERS)
def test_conformance(check: Callable[[Make], None], kind: str) -> None:
    with closing(Elsewhere(kind)) as elsewhere:
        check(lambda purpose, options: cast(netq.Communicator, Adapter(elsewhere, purpose, options)))
