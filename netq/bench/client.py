"""The client's side: finds a bench server and asks it for transfers and echoes. One client, or several at once.

Called by workloads.py, sweep.py and load.py. A client does one thing at a time, in one thread.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from netq.bench import protocol, streaming
from netq.bench.plan import Plan
from netq.bench.protocol import BenchError, Counted
from netq.bench.resources import Facts, Meter, Usage, at_once
from netq.core import Communicator
from netq.errors import strip_tracebacks

T = TypeVar("T")
WARM_UP = 100  # round trips before those that count: they fill caches and the memory that messages recycle


class Sides(NamedTuple):
    """What each side used."""

    client: Usage
    server: Usage


class Transfer(NamedTuple):
    """A finished transfer. `begin` and `end` are nanoseconds of perf_counter_ns; at `end` all messages have arrived."""

    begin: int
    end: int
    up: Counted
    down: Counted
    used: Sides

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end - self.begin) / 1e9


class Echoes:
    """A server that puts `message` back. `used` is set at the end: what both sides used."""

    def __init__(self, end: streaming.Endpoint, message: streaming.Payload) -> None:
        self.end = end
        self.message = message
        self.used: Sides | None = None

    def warm_up(self) -> None:
        """Make round trips that do not count."""
        for _ in range(WARM_UP):
            self.end.put(self.message)
            streaming.receive_one(self.end)


class Client:
    """A client of a bench server that has said hello. `facts`: what the server runs on."""

    def __init__(self, queue: Communicator, timeout: float) -> None:
        server, hello = queue.get(timeout=timeout)
        # get(server) raises Closed when the session is over; a plain get would wait for another server.
        self._end = streaming.Endpoint(queue.put, functools.partial(queue.get, server))
        self.facts: Facts = protocol.read_hello(protocol.fields(hello, "hello"))

    def transfer(
        self,
        direction: str,
        plan: Plan,
        show: streaming.Show,
        delay: float = 0.0,
        wait: Callable[[], object] = lambda: None,
    ) -> Transfer:
        """Send the messages of a plan "up" to the server, have it send them "down", or "both" at once.

        A sender sleeps for `delay` seconds before each message. `wait` is called when both sides are ready; the
        transfer begins when it returns.
        """
        self._end.put(("transfer", direction, plan.pairs, plan.seed, delay))
        protocol.expect(self._end.get, "ready")  # the server may refuse; so ask before memory is allocated here
        made = iter(()) if direction == "down" else streaming.messages(plan)
        wait()
        meter = Meter()
        begin = time.perf_counter_ns()
        self._end.put(("go",))
        down = _move(streaming.delayed(self._end, delay), direction, plan, made, show)
        up, server_used = protocol.read_done(protocol.expect(self._end.get, "done"))
        end = time.perf_counter_ns()
        whole, nothing = Counted(plan.count, plan.nbytes), Counted(0, 0)
        _check("the server", up, nothing if direction == "down" else whole)
        _check("this side", down, nothing if direction == "up" else whole)
        return Transfer(begin, end, up, down, Sides(meter.read(), server_used))

    @contextmanager
    def echoing(self, size: int) -> Iterator[Echoes]:
        """Have the server put messages of `size` bytes back within a with statement, whose end awaits the last echo."""
        self._end.put(("echo", size))
        protocol.expect(self._end.get, "ready")
        message = streaming.payload(size)
        meter, echoes = Meter(), Echoes(self._end, message)
        yield echoes
        self._end.put(("end",))
        while type(data := self._end.get().data) is not tuple:
            continue
        _, server_used = protocol.read_done(protocol.fields(data, "done"))
        echoes.used = Sides(meter.read(), server_used)


class ClientGroup:
    """Clients of one server that do the same at the same time, each in a thread of its own.

    The thread that made the communicators closes them. If one client fails, or Ctrl-C comes, the other clients end when
    their communicators close; then the caller joins `threads`, to which the group appends what it starts.
    """

    def __init__(self, clients: Sequence[Client], threads: list[threading.Thread]) -> None:
        self._clients = clients
        self._threads = threads

    def transfer(self, direction: str, plan: Plan, show: streaming.Show, delay: float = 0.0) -> Transfer:
        """Have all clients make this transfer at once; return the sum.

        The sum lasts from the first start to the last end. `show` gets the progress of the first client.
        """

        def work(client: Client, wait: Callable[[], object]) -> Transfer:
            shown = show if client is self._clients[0] else streaming.show_nothing
            return client.transfer(direction, plan, shown, delay, wait)

        done = self.each(work)
        return done[0] if len(done) == 1 else _sum(done)

    def each(self, work: Callable[[Client, Callable[[], object]], T]) -> list[T]:
        """Call `work(client, wait)` for all clients at once; return the results.

        `work` calls `wait` when it is ready: it returns when all are, so that they start together.
        """
        if len(self._clients) == 1:
            return [work(self._clients[0], lambda: None)]
        start = threading.Barrier(len(self._clients))
        try:
            results = [self._start(functools.partial(work, client, start.wait), start) for client in self._clients]
            wait(results, return_when=FIRST_EXCEPTION)
        finally:
            start.abort()
        return [result.result() for result in results if result.done()]

    def _start(self, work: Callable[[], T], start: threading.Barrier) -> Future[T]:
        """Call `work` in a new thread."""
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(work())
            except threading.BrokenBarrierError:  # another client has failed, and its error is raised
                return
            except Exception as error:  # the frames of a traceback would keep the messages in memory
                result.set_exception(strip_tracebacks(error))
                start.abort()

        self._threads.append(threading.Thread(target=run, name="bench-client", daemon=True))
        self._threads[-1].start()
        return result


def _move(
    end: streaming.Endpoint, direction: str, plan: Plan, made: Iterator[streaming.Payload], show: streaming.Show
) -> Counted:
    if direction == "down":
        return streaming.receive(end, plan.count, show)
    if direction == "both":
        return streaming.exchange(end, plan, made, show)
    streaming.send(end, plan, made, show)
    return Counted(0, 0)


def _check(who: str, came: Counted, sent: Counted) -> None:
    if came != sent:
        raise BenchError(f"{who} has {came.messages} messages of {came.nbytes} bytes; sent were {sent}")


def _sum(done: Sequence[Transfer]) -> Transfer:
    return Transfer(
        min(each.begin for each in done),
        max(each.end for each in done),
        _total([each.up for each in done]),
        _total([each.down for each in done]),
        Sides(at_once([each.used.client for each in done]), at_once([each.used.server for each in done])),
    )


def _total(counts: Sequence[Counted]) -> Counted:
    return Counted(sum(each.messages for each in counts), sum(each.nbytes for each in counts))
