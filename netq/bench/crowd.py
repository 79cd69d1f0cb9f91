"""Clients of one server that do the same at the same time, each in a thread of its own.

Called by works.py, from the thread that opened the communicators and closes them. If one client fails, or Ctrl-C comes,
the others end when their communicators close; then the caller joins `threads`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait

from netq.bench import flow
from netq.bench.client import Client, Sides, Transfer
from netq.bench.plan import Plan
from netq.bench.protocol import Counted
from netq.bench.usage import at_once
from netq.errors import strip_tracebacks


class Crowd:
    """One client or more, all with the same server. The threads that are begun are appended to `threads`."""

    def __init__(self, clients: Sequence[Client], threads: list[threading.Thread]) -> None:
        self._clients = clients
        self._threads = threads

    def transfer(self, direction: str, plan: Plan, show: flow.Show, delay: float = 0.0) -> Transfer:
        """Have each client make this transfer, all at once; return their sum.

        They start together. The sum lasts from the first start to the last end. `show` is told of the first client's
        progress.
        """
        if len(self._clients) == 1:
            return self._clients[0].transfer(direction, plan, show, delay)
        start = threading.Barrier(len(self._clients))
        results: list[Future[Transfer]] = []
        try:
            for client in self._clients:
                shown = flow.show_nothing if results else show
                transfer = functools.partial(client.transfer, direction, plan, shown, delay, start.wait)
                results.append(self._begin(transfer, start))
            done, _ = wait(results, return_when=FIRST_EXCEPTION)
        finally:
            start.abort()
        return _sum([result.result() for result in done])

    def _begin(self, transfer: Callable[[], Transfer], start: threading.Barrier) -> Future[Transfer]:
        """Call it in a thread of its own."""
        result: Future[Transfer] = Future()

        def run() -> None:
            try:
                result.set_result(transfer())
            except threading.BrokenBarrierError:  # another client has failed, and its error is the one to raise
                return
            except Exception as error:  # without its frames: they hold the messages, and the result would hold them
                result.set_exception(strip_tracebacks(error))
                start.abort()

        self._threads.append(threading.Thread(target=run, name="bench-client", daemon=True))
        self._threads[-1].start()
        return result


def _sum(done: Sequence[Transfer]) -> Transfer:
    return Transfer(
        min(each.begin for each in done),
        max(each.end for each in done),
        _counted([each.up for each in done]),
        _counted([each.down for each in done]),
        Sides(at_once([each.used.client for each in done]), at_once([each.used.server for each in done])),
    )


def _counted(all_of_them: Sequence[Counted]) -> Counted:
    return Counted(sum(each.messages for each in all_of_them), sum(each.nbytes for each in all_of_them))
