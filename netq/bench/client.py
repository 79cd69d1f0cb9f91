"""The client's side: finds a bench server, and has it take part in what is measured.

Called by works.py, load.py and crowd.py. A client does one thing at a time, in one thread.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from netq.bench import flow, protocol
from netq.bench.plan import Plan
from netq.bench.protocol import BenchError, Counted
from netq.bench.usage import Facts, Meter, Usage
from netq.core import Communicator

WARM = 100  # round trips before those that count: caches, and the memory of messages


class Sides(NamedTuple):
    """What both used."""

    client: Usage
    server: Usage


class Transfer(NamedTuple):
    """What has passed, from `begin` until the client knows that all is there. Nanoseconds of perf_counter_ns."""

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
    """A server that puts `message` back for as long as it is asked to; then `used` is what that took."""

    def __init__(self, end: flow.Endpoint, message: flow.Payload) -> None:
        self.end = end
        self.message = message
        self.used: Sides | None = None

    def warm(self) -> None:
        """Make some round trips that do not count."""
        for _ in range(WARM):
            self.end.put(self.message)
            flow.receive_one(self.end)


class Client:
    """A bench server that has said hello: `facts` is what it runs on."""

    def __init__(self, queue: Communicator, timeout: float) -> None:
        server, said = queue.get(timeout=timeout)
        self._end = flow.Endpoint(queue.put, functools.partial(queue.get, server))  # until its session is given up
        self.facts: Facts = protocol.read_hello(protocol.heard(said, "hello"))

    def transfer(
        self,
        direction: str,
        plan: Plan,
        show: flow.Show,
        delay: float = 0.0,
        wait: Callable[[], object] = lambda: None,
    ) -> Transfer:
        """Send the messages of a plan "up" to the server, have it send them "down", or "both" at once.

        A sender pauses for `delay` seconds before each message. When both sides are ready, `wait` is called; the
        transfer begins when it returns.
        """
        self._end.put(("transfer", direction, plan.pairs, plan.seed, delay))
        protocol.hear(self._end.get, "ready")  # or it refuses, and no memory is taken here
        made = iter(()) if direction == "down" else flow.messages(plan)
        wait()
        meter = Meter()
        begin = time.perf_counter_ns()
        self._end.put(("go",))
        down = _move(flow.slowed(self._end, delay), direction, plan, made, show)
        up, theirs = protocol.read_done(protocol.hear(self._end.get, "done"))
        end = time.perf_counter_ns()
        whole, nothing = Counted(plan.count, plan.nbytes), Counted(0, 0)
        _check("the server", up, nothing if direction == "down" else whole)
        _check("this side", down, nothing if direction == "up" else whole)
        return Transfer(begin, end, up, down, Sides(meter.read(), theirs))

    @contextmanager
    def echoing(self, size: int) -> Iterator[Echoes]:
        """Have the server put messages of `size` bytes back, within a with statement, whose end waits for the last."""
        self._end.put(("echo", size))
        protocol.hear(self._end.get, "ready")
        message = flow.payload(size)
        meter, echoes = Meter(), Echoes(self._end, message)
        yield echoes
        self._end.put(("end",))
        while type(data := self._end.get().data) is not tuple:
            continue
        _, theirs = protocol.read_done(protocol.heard(data, "done"))
        echoes.used = Sides(meter.read(), theirs)


def _move(end: flow.Endpoint, direction: str, plan: Plan, made: Iterator[flow.Payload], show: flow.Show) -> Counted:
    if direction == "down":
        return flow.receive(end, plan.count, show)
    if direction == "both":
        return flow.exchange(end, plan, made, show)
    flow.send(end, plan, made, show)
    return Counted(0, 0)


def _check(who: str, came: Counted, sent: Counted) -> None:
    if came != sent:
        raise BenchError(f"{who} has {came.messages} messages of {came.nbytes} bytes; sent were {sent}")
