"""The asyncio front keeps the contract: each check of the public suite, through an adapter, in both event loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any, TypeVar

import pytest
import uvloop

import netq.aio
from netq.testing.conformance import CHECKS
from netq.testing.fixtures import Make
from tests.netq.fronts import Elsewhere, maker

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

T = TypeVar("T")


@pytest.fixture(scope="module", autouse=True)
def libuv() -> None:
    """Let libuv open the pipe that it has once in a process, and never closes, before a test begins."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))


class ElsewhereInAsyncio(Elsewhere):
    def __init__(self, kind: str) -> None:
        self._runner = asyncio.Runner(loop_factory=LOOPS[kind])
        self._loop = self._runner.get_loop()
        self.thread = threading.Thread(target=self._loop.run_forever)
        self.thread.start()

    def submit(
        self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any
    ) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(function(*args, **options), self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.thread.join()
        self._runner.close()


SLOW = {"check_order"}  # each call of the adapter crosses threads twice
PARAMETERS = [
    pytest.param(check, id=check.__name__.removeprefix("check_"), marks=[pytest.mark.slow] * (check.__name__ in SLOW))
    for check in CHECKS
]


@pytest.mark.slow
@pytest.mark.usefixtures("fewer")
@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("check", PARAMETERS)
def test_conformance(check: Callable[[Make], None], kind: str) -> None:
    with closing(ElsewhereInAsyncio(kind)) as elsewhere:
        check(maker(elsewhere, netq.aio.new))
