"""The tasks of benchmarks/blocking.py for peers whose calls are awaited. blocking.py describes them."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

from benchmarks.load import RATES, best, is_reached, percentile, point, search
from benchmarks.meter import Meter
from benchmarks.task import ACK, Task, check, check_same, message


class Wire(Protocol):
    """One end of a connection between two processes."""

    async def send(self, message: Any) -> None:
        """Send a message, which the caller does not change. May return before it is sent."""

    async def receive(self, size: int) -> Any:
        """Wait for the next message. `size`: its bytes, for peers that must know. Released before the next call."""

    async def close(self) -> None:
        """Close, after everything is sent."""


async def one_way_client(wire: Wire, task: Task, meter: Meter) -> None:
    data = message(task.kind, task.size)
    meter.baseline()
    for _ in range(task.warm):
        await wire.send(data)
    await wire.receive(len(ACK))
    meter.begin()
    for _ in range(task.count):
        await wire.send(data)
    await wire.receive(len(ACK))
    meter.end()


async def one_way_server(wire: Wire, task: Task, meter: Meter) -> None:
    meter.baseline()
    for number in range(task.warm):
        received = await wire.receive(task.size)
        if number == 0:
            check_same(task.size, received)
        del received
    await wire.send(ACK)
    meter.begin()
    nbytes = 0
    for _ in range(task.count):
        nbytes += len(await wire.receive(task.size))
    meter.end()
    check(task.count, nbytes, task.count, task.count * task.size)
    await wire.send(ACK)


async def echo_client(wire: Wire, task: Task, meter: Meter) -> None:
    data = message(task.kind, task.size)
    meter.baseline()
    for _ in range(task.warm):
        await wire.send(data)
        check_same(task.size, await wire.receive(task.size))
    meter.begin()
    nbytes = 0
    for _ in range(task.count):
        await wire.send(data)
        nbytes += len(await wire.receive(task.size))
    meter.end()
    check(task.count, nbytes, task.count, task.count * task.size)


async def echo_server(wire: Wire, task: Task, meter: Meter) -> None:
    meter.baseline()
    for number in range(task.warm + task.count):
        if number == task.warm:
            meter.begin()
        await wire.send(await wire.receive(task.size))
    meter.end()


async def round_trip_client(wire: Wire, task: Task, meter: Meter) -> None:
    data, reply, clock, times = message(task.kind, task.size), task.reply or task.size, time.perf_counter_ns, []
    meter.baseline()
    for _ in range(task.warm):
        await wire.send(data)
        check_same(reply, await wire.receive(reply))
    meter.begin()
    for _ in range(task.count):
        sent = clock()
        await wire.send(data)
        await wire.receive(reply)
        times.append(clock() - sent)
    meter.end()
    meter.times = times


async def round_trip_server(wire: Wire, task: Task, meter: Meter) -> None:
    data = message(task.kind, task.reply or task.size)
    meter.baseline()
    for number in range(task.warm + task.count):
        if number == task.warm:
            meter.begin()
        await wire.receive(task.size)
        await wire.send(data)
    meter.end()


async def load_client(wire: Wire, task: Task, meter: Meter) -> None:
    data = message(task.kind, task.size)
    meter.baseline()
    meter.begin()
    rates = search()
    sustained: bool | None = None
    try:
        while True:
            rate = rates.send(sustained)  # type: ignore[arg-type]  # a generator's first send must be None
            sustained = False
            for _ in range(2):
                sustained = sustained or percentile(await _at_rate(wire, data, rate, task), 99.9) < task.limit
    except StopIteration as found:
        meter.rate = found.value
    meter.end()
    await wire.send(ACK)


async def load_server(wire: Wire, task: Task, meter: Meter) -> None:
    meter.baseline()
    meter.begin()
    while len(received := await wire.receive(task.size)) > len(ACK):
        await wire.send(received)
    meter.end()


async def exchange_client(wire: Wire, task: Task, meter: Meter) -> None:
    await _exchange(wire, task, meter, first=True)


async def exchange_server(wire: Wire, task: Task, meter: Meter) -> None:
    await _exchange(wire, task, meter, first=False)


async def _exchange(wire: Wire, task: Task, meter: Meter, *, first: bool) -> None:
    """Each side sends in a task of its own: `send` may wait until the other side reads."""
    sizes = task.mixture()
    messages = {size: message(task.kind, size) for size in set(sizes)}
    meter.baseline()
    await _synchronize(wire, first)
    meter.begin()
    nbytes = 0
    sender = asyncio.create_task(_send_all(wire, messages, sizes if first or task.together else []))
    for size in sizes:
        nbytes += len(await wire.receive(size))
    await sender
    if not first and not task.together:
        await _send_all(wire, messages, sizes)
    await _synchronize(wire, first)
    meter.end()
    check(len(sizes), nbytes, len(sizes), sum(sizes))


async def _send_all(wire: Wire, messages: dict[int, Any], sizes: list[int]) -> None:
    for size in sizes:
        await wire.send(messages[size])


async def _synchronize(wire: Wire, first: bool) -> None:
    if first:
        await wire.send(ACK)
    await wire.receive(len(ACK))
    if not first:
        await wire.send(ACK)


async def curve_client(wire: Wire, task: Task, meter: Meter) -> None:
    data = message(task.kind, task.size)
    meter.baseline()
    await _at_rate(wire, data, RATES[0], task)
    meter.begin()
    for rate in RATES:
        meter.curve.append(best([point(rate, await _at_rate(wire, data, rate, task)) for _ in range(2)]))
        if not is_reached(meter.curve[-1]):
            break
    meter.end()
    await wire.send(ACK)


curve_server = load_server


async def _at_rate(wire: Wire, data: Any, rate: float, task: Task) -> list[float]:
    count = max(int(rate * task.seconds), 1)
    begin = time.perf_counter() + 0.001
    sender = asyncio.create_task(_pace(wire, data, rate, count, begin))
    delays = []
    for number in range(count):
        await wire.receive(task.size)
        delays.append(time.perf_counter() - begin - number / rate)
    await sender
    return delays


async def _pace(wire: Wire, data: Any, rate: float, count: int, begin: float) -> None:
    for number in range(count):
        pause = begin + number / rate - time.perf_counter()
        if pause > 0:
            await asyncio.sleep(pause)
        await wire.send(data)
