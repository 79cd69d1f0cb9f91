"""The trio front keeps the contract: each check of the public suite, through an adapter."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any, TypeVar

import pytest
import trio

import netq.trio
from netq.testing.conformance import CHECKS
from netq.testing.fixtures import LIMIT, Make
from tests.netq.fronts import Elsewhere, maker

T = TypeVar("T")


class ElsewhereInTrio(Elsewhere):
    def __init__(self) -> None:
        self._begun = threading.Event()
        self.thread = threading.Thread(target=trio.run, args=(self._main,))
        self.thread.start()
        assert self._begun.wait(LIMIT)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            self._begun.set()
            await trio.sleep_forever()

    def submit(
        self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any
    ) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        async def run() -> None:
            try:
                future.set_result(await function(*args, **options))
            except Exception as error:
                future.set_exception(error)

        self._token.run_sync_soon(self._nursery.start_soon, run)
        return future

    def close(self) -> None:
        self._token.run_sync_soon(self._nursery.cancel_scope.cancel)
        self.thread.join()


@pytest.mark.slow
@pytest.mark.usefixtures("fewer")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(check: Callable[[Make], None]) -> None:
    with closing(ElsewhereInTrio()) as elsewhere:
        check(maker(elsewhere, netq.trio.new))
