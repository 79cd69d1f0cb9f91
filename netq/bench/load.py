"""Load: messages at a rate, echoed. How late the echoes are, the highest rate that holds, and latency by rate.

The loop is open: a message is due at its time, whatever happened to earlier ones, and its latency counts from that
moment. So a stall counts in the latency of every message that was due in it. A bench that waits for each echo before it
sends again counts the stall once (coordinated omission; Gil Tene, "How NOT to Measure Latency").

One thread sends and receives, because two would wait for each other's turn in the interpreter.

A curve tries one rate after the other, until the echoes come slower than the messages are due. Above that rate messages
queue up, so their latency only says how long the try was. A try ends as soon as p99.9 exceeds its seconds.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netq.bench import output, streaming
from netq.bench.client import Client, Sides
from netq.bench.output import Column
from netq.bench.statistics import REACHED, may_exceed, percentile, search, spread
from netq.bench.workloads import MICROSECOND, Figures, side

TAIL = "99.9"  # the percentile that a limit is for
MOST_RATES = 100  # of a curve
TARGET = 5.0  # milliseconds: a line in the plot of a curve, for p99.9
_IN_FLIGHT = 16_384  # messages; a message that is due waits while so many have no echo, and the wait is in its latency
_LEAD = 1_000_000  # nanoseconds from the beginning to the first message

COLUMNS = {  # of a curve, by the key in JSON and CSV; docs/reference/bench.md lists them too
    "rate": Column("rate, /s", ",.12g"),
    "messages": Column("messages", ",d"),
    "answered_per_second": Column("answered, /s", ",.1f"),
    "p50_us": Column("p50, µs", ",.1f"),
    "p99_us": Column("p99, µs", ",.1f"),
    "p99_9_us": Column("p99.9, µs", ",.1f"),
    "max_us": Column("max, µs", ",.1f"),
}


@dataclass(frozen=True)
class Try:
    """One rate, tried. `latencies` are fewer than `count` if the try ended early because the rate could not hold."""

    rate: float
    size: int
    count: int
    latencies: array[int]  # nanoseconds
    seconds: float
    used: Sides

    @property
    def complete(self) -> bool:
        """Whether the try ran to its end."""
        return len(self.latencies) == self.count

    @property
    def is_reached(self) -> bool:
        """Whether the echoes came at the rate."""
        return self.complete and self.count / self.seconds >= REACHED * self.rate

    def holds(self, limit: int) -> bool:
        """Whether the percentile TAIL is at most `limit` nanoseconds."""
        return self.complete and percentile(TAIL, sorted(self.latencies)) <= limit

    def figures(self) -> Figures:
        """Return the figures under their keys in JSON."""
        return {
            "rate": self.rate,
            "messages": self.count,
            "bytes": self.count * self.size,
            "seconds": self.seconds,
            "answered_per_second": self.count / self.seconds,
            "microseconds": spread(self.latencies, MICROSECOND),
            "client": side(self.used.client),
            "server": side(self.used.server),
        }

    def row(self) -> Figures:
        """Return a row of a curve, under the keys of COLUMNS."""
        found = spread(self.latencies, MICROSECOND)
        late = {f"{each.replace('.', '_')}_us": found[each] for each in ("p50", "p99", f"p{TAIL}", "max")}
        return {"rate": self.rate, "messages": self.count, "answered_per_second": self.count / self.seconds, **late}


def at_rate(client: Client, size: int, seconds: float, rate: float) -> Figures:
    """Send at one rate, and return its figures."""
    return attempt(client, size, seconds, rate, None).figures()


def highest_rate(client: Client, size: int, seconds: float, milliseconds: float) -> Figures:
    """Search for the highest rate with TAIL within a limit.

    A rate that fails is tried twice: the machine may be busy.
    """
    limit, tries = round(milliseconds * 1e6), list[Try]()

    def holds(rate: float) -> bool:
        for _ in range(2):
            tries.append(attempt(client, size, seconds, rate, limit))
            if tries[-1].holds(limit):
                return True
        return False

    found = highest(holds)
    tried = [{"rate": each.rate, "holds": each.holds(limit)} for each in tries]
    best = next((each for each in reversed(tries) if each.rate == found and each.holds(limit)), None)
    return {"limit_milliseconds": milliseconds, "tries": tried, **(best.figures() if best else {"rate": 0.0})}


def curve(client: Client, size: int, seconds: float, rates: list[float]) -> Figures:
    """Return a row for each rate that is reached, and the first rate that is not, None if all are."""
    rows: list[Figures] = []
    for rate in rates:
        tried = attempt(client, size, seconds, rate, round(seconds * 1e9))
        if not tried.is_reached:
            return {"curve": rows, "not_reached": rate}
        rows.append(tried.row())
    return {"curve": rows, "not_reached": None}


def highest(holds: Callable[[float], bool]) -> float:
    """Return the highest rate that holds; 0 if none does."""
    rates = search()
    rate = next(rates)
    try:
        while True:
            rate = rates.send(holds(rate))
    except StopIteration as found:
        return float(found.value)


def attempt(client: Client, size: int, seconds: float, rate: float, limit: int | None) -> Try:
    """Send at a rate for some seconds. `limit`: as in `send_at_rate`."""
    count = max(1, round(rate * seconds))
    with client.echoing(size) as echoes:
        echoes.warm_up()
        begin = time.perf_counter_ns()
        latencies = send_at_rate(echoes.end, echoes.message, rate, count, limit)
        took = (time.perf_counter_ns() - begin) / 1e9
    assert echoes.used is not None
    return Try(rate, size, count, latencies, took, echoes.used)


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


def table(figures: Figures) -> Iterator[str]:
    """Yield the lines of the table of a curve, and one about the rate that ended it."""
    yield from output.table(COLUMNS, figures["curve"])
    if figures["not_reached"] is not None:
        yield f"{figures['not_reached']:,.12g} messages a second are not reached: the curve ends there"


def write(csv: Path | None, plot: Path | None, figures: Figures) -> None:
    """Write the files of a curve. Raises NotWritten."""
    rows = figures["curve"]
    if csv is not None:
        output.write_csv(csv, COLUMNS, rows)
    if plot is not None:
        with output.reporting("plot"), output.drawn(plot) as axes:
            _draw(axes, rows)


def _draw(axes: Any, rows: list[Figures]) -> None:
    for key, style in (("p50_us", "o-"), ("p99_us", "o--"), ("p99_9_us", "o:")):
        rates, times = ([each[name] for each in rows] for name in ("rate", key))
        axes.plot(rates, [each / 1e3 for each in times], style, label=COLUMNS[key].title.partition(",")[0])
    axes.axhline(TARGET, color="grey", linewidth=0.8)
    scale = "log" if rows else "linear"  # nothing has no logarithm
    axes.set(xlabel="messages a second", ylabel="latency, ms", xscale=scale, yscale=scale)
    axes.legend()
