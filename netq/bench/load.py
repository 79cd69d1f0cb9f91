"""Load: messages at a rate, echoed. How late the echoes are, and the highest rate at which they are not late.

The loop is open: a message is due at its time, whatever happened to earlier ones, and its latency counts from that
moment. So a stall counts in the latency of every message that was due in it. A bench that waits for each echo before it
sends again counts the stall once (coordinated omission; Gil Tene, "How NOT to Measure Latency").

One thread sends and receives, because two would wait for each other's turn in the interpreter.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from netq.bench import streaming
from netq.bench.client import Client, Sides
from netq.bench.progress import Progress
from netq.bench.statistics import may_exceed, percentile, search, spread
from netq.bench.workloads import MICROSECOND, side

TAIL = "99.9"  # the percentile that a limit is for
_IN_FLIGHT = 16_384  # messages; a message that is due waits while so many have no echo, and the wait is in its latency
_LEAD = 1_000_000  # nanoseconds from the beginning to the first message

Figures = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """What is sent. With `rate` None the highest is searched for at which p99.9 is at most `limit` seconds."""

    size: int
    rate: float | None
    seconds: float
    limit: float | None

    def count(self, rate: float) -> int:
        """Return the number of messages at a rate."""
        return max(1, round(rate * self.seconds))


@dataclass(frozen=True)
class Try:
    """One rate, tried. `latencies` are fewer than `count` if the try ended early because the rate could not hold."""

    rate: float
    count: int
    latencies: array[int]  # nanoseconds
    seconds: float
    used: Sides

    @property
    def complete(self) -> bool:
        """Whether the try ran to its end."""
        return len(self.latencies) == self.count

    def holds(self, limit: int) -> bool:
        """Whether the percentile TAIL is at most `limit` nanoseconds."""
        return self.complete and percentile(TAIL, sorted(self.latencies)) <= limit


def at_rate(client: Client, load: Load, progress: Progress) -> Figures:
    """Send at one rate, and return its figures."""
    assert load.rate is not None
    progress.say(f"{load.rate:,.0f} messages a second, for {load.seconds:g} s")
    return _figures(load, attempt(client, load, load.rate, None))


def highest_rate(client: Client, load: Load, progress: Progress) -> Figures:
    """Search for the highest rate that holds. A rate that fails is tried twice: the machine may have been busy."""
    assert load.limit is not None
    limit, tries = round(load.limit * 1e9), []

    def holds(rate: float) -> bool:
        for _ in range(2):
            progress.say(f"{rate:,.0f} messages a second?")
            tries.append(attempt(client, load, rate, limit))
            if tries[-1].holds(limit):
                return True
        return False

    found = highest(holds)
    tried = [{"rate": each.rate, "holds": each.holds(limit)} for each in tries]
    best = next((each for each in reversed(tries) if each.rate == found and each.holds(limit)), None)
    return {
        "limit_milliseconds": load.limit * 1e3,
        "tries": tried,
        **({"rate": 0.0} if best is None else _figures(load, best)),
    }


def send_at_rate(
    end: streaming.Endpoint, message: streaming.Payload, rate: float, count: int, limit: int | None
) -> array[int]:
    """Send `count` messages at a rate; return the nanoseconds from when each was due until its echo arrived.

    With a limit it stops as soon as so many are above it that the percentile TAIL must be above it too.
    """
    clock, put, receive = time.perf_counter_ns, end.put, streaming.receive_one
    interval, latencies = 1e9 / rate, array("q", bytes(8 * count))
    left = count if limit is None else may_exceed(TAIL, count)
    above = math.inf if limit is None else limit
    sent = answered = 0
    begin = clock() + _LEAD
    while answered < count:
        full = sent == count or sent - answered >= _IN_FLIGHT
        wait = None if full else (begin + sent * interval - clock()) / 1e9
        if wait is not None and wait <= 0:
            put(message)
            sent += 1
            continue
        try:
            receive(end, wait)
        except TimeoutError:
            continue
        late = latencies[answered] = round(clock() - begin - answered * interval)
        answered += 1
        if late > above:
            left -= 1
            if left < 0:
                break
    return latencies[:answered]


def attempt(client: Client, load: Load, rate: float, limit: int | None) -> Try:
    """Send at a rate for the seconds of a load. `limit`: as in `send_at_rate`."""
    count = load.count(rate)
    with client.echoing(load.size) as echoes:
        echoes.warm_up()
        begin = time.perf_counter_ns()
        latencies = send_at_rate(echoes.end, echoes.message, rate, count, limit)
        seconds = (time.perf_counter_ns() - begin) / 1e9
    assert echoes.used is not None
    return Try(rate, count, latencies, seconds, echoes.used)


def _figures(load: Load, tried: Try) -> Figures:
    return {
        "rate": tried.rate,
        "messages": tried.count,
        "bytes": tried.count * load.size,
        "seconds": tried.seconds,
        "answered_per_second": tried.count / tried.seconds,
        "microseconds": spread(tried.latencies, MICROSECOND),
        "client": side(tried.used.client),
        "server": side(tried.used.server),
    }


def highest(holds: Callable[[float], bool]) -> float:
    """Return the highest rate that holds; 0 if none does."""
    rates = search()
    rate = next(rates)
    try:
        while True:
            rate = rates.send(holds(rate))
    except StopIteration as found:
        return float(found.value)
