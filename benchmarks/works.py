"""What the client and the server of a measurement do, over any peer. Run by side.py.

One server serves all works but `exchange`: a header says how many messages of which size follow, and how they are
answered. So the client alone decides what is measured.

A Wire is the connection that a peer of benchmarks/peers opens. Its calls are coroutines. Those of a peer whose calls
block never suspend; `drive` runs them without an event loop.
"""

from __future__ import annotations

import asyncio
import math
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from benchmarks.task import Task, check, check_same, message
from netq.bench.resources import Meter
from netq.bench.statistics import REACHED, percentile, search

T = TypeVar("T")
ACK = b"."  # sent when everything has arrived
# Size and number of the messages that follow; bytes of the answer to each, 0: one ACK answers all; and a mode.
HEADER = struct.Struct("!qqqB")
PLAIN, COUNTS, COMPARED = range(3)  # modes: the messages count, or the first one is compared with what was sent
SMALL = 64 * 1024  # bytes: up to this size the messages of a sweep are `bytes`, above they are arrays
LEAST = 3  # messages of each size of a sweep that count
WARM = 0.1  # share of the time of a sweep, for messages that do not count
RATES = tuple(round(1000 * 2 ** (step / 2)) for step in range(16))  # messages a second, of a curve: to 181,000


class Wire(Protocol):
    """One end of a connection between two processes. In a load, one thread sends and another receives."""

    async def send(self, message: Any) -> None:
        """Send a message, which the caller does not change. May return before it is sent."""

    async def receive(self, size: int) -> Any:
        """Wait for the next message. `size`: its bytes, for peers that must know. Released before the next call."""

    async def close(self) -> None:
        """Close, after everything is sent."""


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose calls block."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("it waits for an event loop; there is none")


class Side:
    """One process of a measurement, and its figures: memory from `baseline` on, time and CPU from `begin` to `end`."""

    def __init__(self, wire: Wire, task: Task, *, in_loop: bool) -> None:
        self.wire = wire
        self.task = task
        self.figures: dict[str, Any] = {}
        self._in_loop = in_loop

    def baseline(self) -> None:
        """Measure memory from now on. The message to send is allocated; nothing has been received."""
        self._meter = Meter()

    def begin(self) -> None:
        """Measure time and CPU from now on. All processes share this clock (CLOCK_MONOTONIC)."""
        self._meter.begin()
        self.figures["began"] = time.perf_counter()

    def end(self) -> None:
        """Keep the figures."""
        self.figures["ended"] = time.perf_counter()
        used = self._meter.read()
        self.figures |= {"cpu": used.cpu / 1e9, "resident": used.resident, "extra": used.extra}

    async def exchange(self, *, first: bool) -> None:
        """Send and receive a mixture. In an event loop a task sends: `send` may wait until the other side reads."""
        plan, wire = self.task.plan, self.wire
        messages = [message(self.task.kind, size) for size, _ in plan.pairs]

        async def send_all() -> None:
            for index in plan.order():
                await wire.send(messages[index])

        self.baseline()
        await self._synchronize(first)
        self.begin()
        nbytes, sending = 0, None
        if first or self.task.together:
            if self._in_loop:
                sending = self._beside(send_all())
            else:
                await send_all()
        for index in plan.order():
            nbytes += len(await wire.receive(plan.pairs[index][0]))
        if sending is not None:
            await sending()
        if not first and not self.task.together:
            await send_all()
        await self._synchronize(first)
        self.end()
        check(nbytes, 1, plan.nbytes)

    async def _synchronize(self, first: bool) -> None:
        if first:
            await self.wire.send(ACK)
        await self.wire.receive(len(ACK))
        if not first:
            await self.wire.send(ACK)

    def _beside(self, work: Coroutine[Any, Any, None]) -> Callable[[], Awaitable[None]]:
        """Run a coroutine at the same time, in a task or a thread; return a function to wait for its end."""
        if self._in_loop:
            task = asyncio.create_task(work)
            return lambda: task
        thread = threading.Thread(target=drive, args=[work])
        thread.start()

        async def join() -> None:
            thread.join()

        return join

    async def _sleep(self, seconds: float) -> None:
        if self._in_loop:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)


class Server(Side):
    """The server: it does what the headers say."""

    async def run(self) -> None:
        if self.task.work == "exchange":
            return await self.exchange(first=False)
        self.baseline()
        while True:
            size, count, reply, mode = HEADER.unpack(await self.wire.receive(HEADER.size))
            if not count:
                return None
            if mode == COUNTS:
                self.begin()
            await (self._answer(size, count, reply, mode) if reply else self._take(size, count, mode))
            if mode == COUNTS:
                self.end()
            if not reply:
                await self.wire.send(ACK)

    async def _take(self, size: int, count: int, mode: int) -> None:
        nbytes, receive = 0, self.wire.receive
        for number in range(count):
            received = await receive(size)
            nbytes += len(received)
            if mode == COMPARED and not number:
                check_same(size, received)
            del received
        check(nbytes, count, size)

    async def _answer(self, size: int, count: int, reply: int, mode: int) -> None:
        nbytes, answer, wire = 0, None if reply == size else message(self.task.kind, reply), self.wire
        for _ in range(count):
            received = await wire.receive(size)
            nbytes += len(received)
            await wire.send(received if answer is None else answer)
            del received
        check(nbytes, count, size)


class Client(Side):
    """The client: a method for each work."""

    async def run(self) -> None:
        await getattr(self, self.task.work)()
        if self.task.work != "exchange":
            await self.wire.send(HEADER.pack(0, 0, 0, PLAIN))

    async def exchange(self, *, first: bool = True) -> None:
        await super().exchange(first=first)

    async def one_way(self) -> None:
        await self._measure(self._stream)

    async def echo(self) -> None:
        self.figures["times"] = await self._measure(self._trips)

    async def load(self) -> None:
        """Find the highest rate whose p99.9 is within the limit. Each rate is tried twice: the machine may be busy."""
        data, rates = self._prepare(), search()
        rate = next(rates)
        try:
            while True:
                holds = False
                for _ in range(2):
                    holds = holds or percentile("99.9", sorted(await self._at_rate(data, rate))) < self.task.limit
                rate = rates.send(holds)
        except StopIteration as found:
            self.figures["rate"] = found.value

    async def curve(self) -> None:
        """Measure the latency at each rate, until one is not reached. Each is tried twice: the machine may be busy."""
        data = self._prepare()
        await self._at_rate(data, RATES[0])
        self.figures["curve"] = []
        for rate in RATES:
            tried = best([point(rate, await self._at_rate(data, rate)) for _ in range(2)])
            self.figures["curve"].append(tried)
            if not is_reached(tried):
                break

    async def sweep(self) -> None:
        """Measure round trips, then messages one way, for one size after the other."""
        self.figures["steps"] = {}
        for size in self.task.sizes():
            data = message("object" if size <= SMALL else "array", size)
            _, _, times = await self._in_time(self._trips, data)
            count, seconds, _ = await self._in_time(self._stream, data)
            self.figures["steps"][size] = {"times": times, "count": count, "seconds": seconds}

    def _prepare(self) -> Any:
        data = message(self.task.kind, self.task.size)
        self.baseline()
        return data

    async def _measure(self, run: Callable[[Any, int, int], Awaitable[T]]) -> T:
        """Send the messages of the warm-up, then those that count."""
        data = self._prepare()
        if self.task.warm:
            await run(data, self.task.warm, COMPARED)
        self.begin()
        found = await run(data, self.task.count, COUNTS)
        self.end()
        return found

    async def _in_time(self, run: Callable[[Any, int, int], Awaitable[T]], data: Any) -> tuple[int, float, T]:
        """Send one message, then a tenth of what fits into the time, then all: their number, seconds and result."""
        count, took = 1, math.inf
        for share, least, mode in ((0.0, 1, COMPARED), (WARM, 1, PLAIN), (1.0, LEAST, PLAIN)):
            count = max(least, int(count * share * self.task.seconds / took))
            begin = time.perf_counter()
            found = await run(data, count, mode)
            took = time.perf_counter() - begin
        return count, took, found

    async def _stream(self, data: Any, count: int, mode: int) -> None:
        send = self.wire.send
        await send(HEADER.pack(len(data), count, 0, mode))
        for _ in range(count):
            await send(data)
        await self.wire.receive(len(ACK))

    async def _trips(self, data: Any, count: int, mode: int) -> list[int]:
        """Make round trips; return the nanoseconds of each."""
        clock, send, receive = time.perf_counter_ns, self.wire.send, self.wire.receive
        reply, nbytes, times = self.task.reply or len(data), 0, []
        await send(HEADER.pack(len(data), count, reply, mode))
        for number in range(count):
            sent = clock()
            await send(data)
            received = await receive(reply)
            times.append(clock() - sent)
            nbytes += len(received)
            if mode == COMPARED and not number:
                check_same(reply, received)
            del received
        check(nbytes, count, reply)
        return times

    async def _at_rate(self, data: Any, rate: float) -> list[float]:
        """Send at a rate; return the seconds from when each message was due until its echo arrived."""
        count, size = max(int(rate * self.task.seconds), 1), len(data)
        await self.wire.send(HEADER.pack(size, count, size, PLAIN))
        begin = time.perf_counter() + 0.001
        joined = self._beside(self._pace(data, rate, count, begin))
        delays = []
        for number in range(count):
            await self.wire.receive(size)
            delays.append(time.perf_counter() - begin - number / rate)
        await joined()
        return delays

    async def _pace(self, data: Any, rate: float, count: int, begin: float) -> None:
        for number in range(count):
            pause = begin + number / rate - time.perf_counter()
            if pause > 0:
                await self._sleep(pause)
            await self.wire.send(data)


def point(rate: float, delays: Sequence[float]) -> dict[str, float]:
    """Return a rate, the rate of the echoes, and latencies in milliseconds.

    delays: of each message, in seconds, in the order of sending.
    """
    answered, ordered = len(delays) / (len(delays) / rate + delays[-1]), sorted(delays)
    latencies = {f"p{percent}": percentile(percent, ordered) * 1e3 for percent in ("50", "99", "99.9")}
    return {"rate": rate, "answered": answered, **latencies}


def best(tries: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the try with the lowest p99.9, of those that reached the rate, if any did."""
    return min(tries, key=lambda each: (not is_reached(each), each["p99.9"]))


def is_reached(point: dict[str, float]) -> bool:
    """Whether the echoes came as fast as the messages were due."""
    return point["answered"] >= REACHED * point["rate"]
