"""The tasks, for peers whose calls block: what the client does and what the server does.

Called by benchmarks/side.py, in the process's main thread. A Wire is the connection that a peer of
benchmarks/peers returns. The order is the same for all peers: the client makes its message, calls `baseline`, sends the
warm-up, calls `begin`, sends the messages that are measured, and calls `end`.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from benchmarks.load import RATES, best, is_reached, percentile, point, search
from benchmarks.meter import Meter
from benchmarks.task import ACK, Task, check, check_same, message


class Wire(Protocol):
    """One end of a connection between two processes. In a load, one thread sends and another receives."""

    def send(self, message: Any) -> None:
        """Send a message, which the caller does not change. May return before it is sent."""

    def receive(self, size: int) -> Any:
        """Wait for the next message. `size`: its bytes, for peers that must know. Released before the next call."""

    def close(self) -> None:
        """Close, after everything is sent."""


def one_way_client(wire: Wire, task: Task, meter: Meter) -> None:
    data = message(task.kind, task.size)
    meter.baseline()
    for _ in range(task.warm):
        wire.send(data)
    wire.receive(len(ACK))
    meter.begin()
    for _ in range(task.count):
        wire.send(data)
    wire.receive(len(ACK))
    meter.end()


def one_way_server(wire: Wire, task: Task, meter: Meter) -> None:
    meter.baseline()
    for number in range(task.warm):
        received = wire.receive(task.size)
        if number == 0:
            check_same(task.size, received)
        del received
    wire.send(ACK)
    meter.begin()
    nbytes = 0
    for _ in range(task.count):
        nbytes += len(wire.receive(task.size))
    meter.end()
    check(task.count, nbytes, task.count, task.count * task.size)
    wire.send(ACK)


def echo_client(wire: Wire, task: Task, meter: Meter) -> None:
    data = message(task.kind, task.size)
    meter.baseline()
    for _ in range(task.warm):
        wire.send(data)
        check_same(task.size, wire.receive(task.size))
    meter.begin()
    nbytes = 0
    for _ in range(task.count):
        wire.send(data)
        nbytes += len(wire.receive(task.size))
    meter.end()
    check(task.count, nbytes, task.count, task.count * task.size)


def echo_server(wire: Wire, task: Task, meter: Meter) -> None:
    meter.baseline()
    for number in range(task.warm + task.count):
        if number == task.warm:
            meter.begin()
        wire.send(wire.receive(task.size))
    meter.end()


def round_trip_client(wire: Wire, task: Task, meter: Meter) -> None:
    data, reply, clock, times = message(task.kind, task.size), task.reply or task.size, time.perf_counter_ns, []
    meter.baseline()
    for _ in range(task.warm):
        wire.send(data)
        check_same(reply, wire.receive(reply))
    meter.begin()
    for _ in range(task.count):
        sent = clock()
        wire.send(data)
        wire.receive(reply)
        times.append(clock() - sent)
    meter.end()
    meter.times = times


def round_trip_server(wire: Wire, task: Task, meter: Meter) -> None:
    data = message(task.kind, task.reply or task.size)
    meter.baseline()
    for number in range(task.warm + task.count):
        if number == task.warm:
            meter.begin()
        wire.receive(task.size)
        wire.send(data)
    meter.end()


def load_client(wire: Wire, task: Task, meter: Meter) -> None:
    """Find the highest rate whose p99.9 is within the limit. Each rate is tried twice: the machine may be busy."""
    data = message(task.kind, task.size)
    meter.baseline()
    meter.begin()
    rates = search()
    sustained: bool | None = None
    try:
        while True:
            rate = rates.send(sustained)  # type: ignore[arg-type]  # a generator's first send must be None
            sustained = any(percentile(_at_rate(wire, data, rate, task), 99.9) < task.limit for _ in range(2))
    except StopIteration as found:
        meter.rate = found.value
    meter.end()
    wire.send(ACK)


def load_server(wire: Wire, task: Task, meter: Meter) -> None:
    meter.baseline()
    meter.begin()
    while len(received := wire.receive(task.size)) > len(ACK):
        wire.send(received)
    meter.end()


def curve_client(wire: Wire, task: Task, meter: Meter) -> None:
    """Measure the latency at each rate, until one is not reached. Each is tried twice: the machine may be busy."""
    data = message(task.kind, task.size)
    meter.baseline()
    _at_rate(wire, data, RATES[0], task)  # warms up
    meter.begin()
    for rate in RATES:
        meter.curve.append(best([point(rate, _at_rate(wire, data, rate, task)) for _ in range(2)]))
        if not is_reached(meter.curve[-1]):
            break
    meter.end()
    wire.send(ACK)


curve_server = load_server


def _at_rate(wire: Wire, data: Any, rate: float, task: Task) -> list[float]:
    """Send at a rate, whether echoes arrive or not; return the seconds from when each message was *due* to its echo.

    A stall therefore delays every message that was due in it. A loop that waits for each echo would count the stall
    once ("coordinated omission").
    """
    count = max(int(rate * task.seconds), 1)
    begin = time.perf_counter() + 0.001
    sender = threading.Thread(target=_pace, args=(wire, data, rate, count, begin))
    sender.start()
    delays = []
    for number in range(count):
        wire.receive(task.size)
        delays.append(time.perf_counter() - begin - number / rate)
    sender.join()
    return delays


def _pace(wire: Wire, data: Any, rate: float, count: int, begin: float) -> None:
    for number in range(count):
        pause = begin + number / rate - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        wire.send(data)


def exchange_client(wire: Wire, task: Task, meter: Meter) -> None:
    _exchange(wire, task, meter, first=True)


def exchange_server(wire: Wire, task: Task, meter: Meter) -> None:
    _exchange(wire, task, meter, first=False)


def _exchange(wire: Wire, task: Task, meter: Meter, *, first: bool) -> None:
    """Each side sends everything; `send` must not wait. Ends when both sides have received everything."""
    sizes = task.mixture()
    messages = {size: message(task.kind, size) for size in set(sizes)}
    meter.baseline()
    _synchronize(wire, first)
    meter.begin()
    nbytes = 0
    if first or task.together:
        for size in sizes:
            wire.send(messages[size])
    for size in sizes:
        nbytes += len(wire.receive(size))
    if not first and not task.together:
        for size in sizes:
            wire.send(messages[size])
    _synchronize(wire, first)
    meter.end()
    check(len(sizes), nbytes, len(sizes), sum(sizes))


def _synchronize(wire: Wire, first: bool) -> None:
    if first:
        wire.send(ACK)
    wire.receive(len(ACK))
    if not first:
        wire.send(ACK)
