"""The client's side: finds a bench server and asks it for transfers and echoes.

Called by workloads.py, sweep.py and load.py. A client does one thing at a time, in one thread.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from netq.bench import protocol, streaming
from netq.bench.plan import Plan
from netq.bench.protocol import BenchError, Counted
from netq.bench.resources import Facts, Meter, Usage
from netq.core import Communicator

WARM_UP = 100  # round trips before those that count: they fill caches and the memory that messages recycle


class Sides(NamedTuple):
    """What each side used."""

    client: Usage
    server: Usage


class Transfer(NamedTuple):
    """A finished transfer: at the end of its seconds all messages have arrived."""

    seconds: float
    up: Counted
    down: Counted
    used: Sides


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

    def transfer(self, direction: str, plan: Plan) -> Transfer:
        """Send the messages of a plan "up" to the server, have it send them "down", or "both" at once."""
        self._end.put(("transfer", direction, plan.pairs, plan.seed))
        protocol.expect(self._end.get, "ready")  # the server may refuse; so ask before memory is allocated here
        made = iter(()) if direction == "down" else streaming.messages(plan)
        meter = Meter()
        begin = time.perf_counter_ns()
        self._end.put(("go",))
        down = Counted(0, 0)
        if direction == "up":
            streaming.send(self._end, made)
        elif direction == "down":
            down = streaming.receive(self._end, plan.count)
        else:
            down = streaming.exchange(self._end, plan, made)
        up, server_used = protocol.read_done(protocol.expect(self._end.get, "done"))
        end = time.perf_counter_ns()
        whole, nothing = Counted(plan.count, plan.nbytes), Counted(0, 0)
        _check("the server", up, nothing if direction == "down" else whole)
        _check("this side", down, nothing if direction == "up" else whole)
        return Transfer((end - begin) / 1e9, up, down, Sides(meter.read(), server_used))

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


def _check(who: str, came: Counted, sent: Counted) -> None:
    if came != sent:
        raise BenchError(f"{who} has {came.messages} messages of {came.nbytes} bytes; sent were {sent}")
