"""The asyncio front keeps the contract: each check of the public suite, through an adapter.

In uvloop those run that wait, cancel and close; tests/netq/test_aio.py runs whole in both event loops.
"""

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
from netq.testing.checks import closing as closes
from netq.testing.checks import waiting
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


IN_UVLOOP = (*waiting.CHECKS, *closes.CHECKS)  # the rest waits as these do
TABLE = [*(("asyncio", check) for check in CHECKS), *(("uvloop", check) for check in IN_UVLOOP)]


@pytest.mark.slow
@pytest.mark.usefixtures("fewer")
@pytest.mark.parametrize(("kind", "check"), TABLE, ids=lambda part: getattr(part, "__name__", part))
def test_conformance(kind: str, check: Callable[[Make], None]) -> None:
    with closing(ElsewhereInAsyncio(kind)) as elsewhere:
        check(maker(elsewhere, netq.aio.new))
