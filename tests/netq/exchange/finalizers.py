"""Finalizers that use an exchange, while links are cut: `python -m tests.netq.exchange.finalizers [SECONDS] [SEED]`.

The garbage collector runs as often as it can, in each thread of the process, and so do the finalizers: on top of the
loops' threads, of holders of their batons, and of the clients' threads. They publish, call, push, send, put on a plain
communicator, and answer jobs. Two threads of a user do the same meanwhile. Prints how many futures were never done
(hangs), and how many jobs were done that no worker has got (lost). Used by test_finalizers.py, too.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import random
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import netq
from netq import CommunicatorOptions, ConnectionOptions, NetworkLocation
from netq.errors import Closed
from netq.exchange import Client, Exchange
from netq.exchange.worker import Job
from netq.testing.proxy import Proxy

LIMIT = 30.0  # seconds after which a future that is not done hangs
_AHEAD = 500  # futures that are not done, at most
_CUT = 0.05  # seconds between two cuts, on average
_QUICK = ConnectionOptions(retry_min=0.001, retry_max=0.01, linger=0.2)


class Outcome(NamedTuple):
    """What became of what was asked."""

    done: int
    failed: int
    hangs: list[int]  # the numbers of futures that were not done; Site.ask says what each has asked for
    lost: int  # jobs that were done, and that no worker has got
    by_finalizers: int
    cuts: int


class Site:
    """Two clients of an exchange, a client of a plain server, and what was asked of them."""

    def __init__(self, exchange: NetworkLocation, server: NetworkLocation) -> None:
        self.front, self.back = Client(_options(exchange)), Client(_options(exchange))
        self.plain = netq.new(options=_options(server))
        self.asked: deque[tuple[int, Future[Any]]] = deque()  # each with its number
        self.got: set[int] = set()  # jobs
        self.by_finalizers = 0
        self.stop = threading.Event()
        self._numbers = itertools.count()

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be asked now."""
        return self.stop.is_set() or len(self.asked) >= _AHEAD

    def ask(self) -> None:
        """Ask for something, if there is room."""
        if self.is_full:
            return
        number = next(self._numbers)
        match number % 6:
            case 0:
                self.asked.append((number, self.front.push("queue", number)))
            case 1:
                self.asked.append((number, self.front.publish("topic", [number])))
            case 2:
                self.asked.append((number, self.back.publish("topic", [number])))
            case 3:
                self.asked.append((number, self.front.call("service", [number])))
            case 4:
                self.asked.append((number, self.front.send(self.back.id, [number])))
            case 5:
                self.asked.append((number, self.plain.put([number])))

    def ask_on(self) -> None:
        """Ask until it stops, and leave garbage."""
        while not self.stop.is_set():
            if self.is_full:
                self.stop.wait(0.001)
            self.ask()
            Garbage(self)

    def work(self) -> None:
        """Do jobs; a finalizer answers each second one."""
        for job in self.back.jobs("queue", ahead=20):
            self.got.add(job.data)
            if job.data % 12:
                Garbage(self, job)
            else:
                job.done()

    def read(self) -> None:
        """Read what others publish and send."""
        with contextlib.suppress(Closed):
            while True:
                self.back.get()

    def check(self, until: float) -> Iterator[tuple[int, BaseException | None]]:
        """Yield each number with its error, until a time, and until all are done."""
        while self.asked or time.monotonic() < until:
            try:
                number, future = self.asked.popleft()
            except IndexError:
                self.stop.wait(0.01)
                continue
            yield number, self.error_of(future)
            if time.monotonic() >= until:
                self.stop.set()

    def error_of(self, future: Future[Any]) -> BaseException | None:
        """Wait for a future. A job may be done by a finalizer: when nothing else runs any more, collect it here."""
        deadline = time.monotonic() + LIMIT
        while True:
            if self.stop.is_set():
                gc.collect()
            try:
                return future.exception(1.0)
            except TimeoutError as error:
                if time.monotonic() >= deadline:
                    return error


class Garbage:
    """A cycle, which only the collector finds."""

    def __init__(self, site: Site, job: Job | None = None) -> None:
        self.me, self.site, self.job = self, site, job

    def __del__(self) -> None:
        self.site.by_finalizers += 1
        if self.job is None:
            self.site.ask()
        else:
            self.job.done()


def run(seconds: float, seed: int) -> Outcome:
    """Ask for so many seconds, and count what becomes of it."""
    done = failed = lost = 0
    hangs = []
    with _eager_collector(), _site(seed) as (site, cuts):
        try:
            for number, error in site.check(time.monotonic() + seconds):
                if type(error) is TimeoutError:
                    hangs.append(number)
                failed += error is not None
                done += error is None
                lost += error is None and number % 6 == 0 and number not in site.got
        finally:
            site.stop.set()
    return Outcome(done, failed - len(hangs), hangs, lost, site.by_finalizers, sum(cuts))


@contextlib.contextmanager
def _eager_collector() -> Iterator[None]:
    """Collect as often as possible. Enter it before a site: garbage that is frozen would never answer its job."""
    before = gc.get_threshold()
    gc.freeze()  # what is there already is not looked at each time
    gc.set_threshold(1, 1, 1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextlib.contextmanager
def _site(seed: int) -> Iterator[tuple[Site, list[int]]]:
    """Yield a site whose threads run and whose links are cut, and the numbers of cuts."""
    with contextlib.ExitStack() as stack:
        exchange = stack.enter_context(Exchange(_options(NetworkLocation(port=0))))
        server = stack.enter_context(
            netq.new(netq.Protocol.TCP, netq.Purpose.SERVER, _options(NetworkLocation(port=0)))
        )
        proxies = [stack.enter_context(Proxy(each)) for each in (exchange.netloc, server.netloc)]
        site = Site(*[proxy.netloc for proxy in proxies])
        site.back.subscribe("#").result(LIMIT)
        site.back.serve("service", len).result(LIMIT)
        cuts: list[int] = []
        chance = random.Random(seed)

        def cut() -> None:
            while not site.stop.wait(chance.expovariate(1 / _CUT)):
                for proxy in proxies:
                    proxy.cut()
                cuts.append(len(proxies))

        def take() -> None:
            with contextlib.suppress(Closed):
                while True:
                    server.get()

        ways = (site.ask_on, site.ask_on, site.work, site.read, take, cut)
        threads = [threading.Thread(target=way, daemon=True) for way in ways]
        for thread in threads:
            thread.start()
        yield site, cuts
        for close in (site.front.close, site.back.close, site.plain.close, server.close):
            close(LIMIT)
        for thread in threads:
            thread.join(LIMIT)


def _options(netloc: NetworkLocation) -> CommunicatorOptions:
    return CommunicatorOptions(uuid.uuid4(), netloc, _QUICK)


def _main(seconds: str = "60", seed: str = "1") -> None:
    logging.getLogger("netq").setLevel(logging.ERROR)
    found = run(float(seconds), int(seed))
    print(
        f"{seconds} s, {found.cuts} cuts, {found.by_finalizers} finalizers: {found.done} done, {found.failed} failed, "
        f"{len(found.hangs)} hangs, {found.lost} lost"
    )
    if found.hangs:
        print(f"not done: {found.hangs}")


if __name__ == "__main__":
    _main(*sys.argv[1:])
