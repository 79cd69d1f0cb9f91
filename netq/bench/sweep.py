"""Sweep: round trips, and messages one way, for one size after the other. Called by command.py.

Each size has the same time, so small messages are many and large ones few. `Found` has what was measured so far: if the
server is lost at a large size, the smaller ones are reported.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from netq.bench import streaming
from netq.bench.client import Client, ClientGroup
from netq.bench.plan import MOST_MESSAGES, Plan
from netq.bench.progress import Progress
from netq.bench.protocol import RefusedByServer
from netq.bench.statistics import percentile
from netq.bench.workloads import MICROSECOND, Figures

TRANSFERS = 5  # that count for each size; their median is reported
_WARM_UP = 0.1  # share of the time, before round trips that count
_MOST_TRIPS = 1_000_000  # of one client for one size: 8 MB


@dataclass(frozen=True)
class Row:
    """What was measured at one size: nanoseconds of round trips, and messages a second of each transfer."""

    size: int
    trips: Sequence[int]
    messages: int
    rates: Sequence[float]

    def figures(self) -> Figures:
        """Return a line of the table; sweep_output.COLUMNS describes the keys."""
        ordered, rate = sorted(self.trips), statistics.median(self.rates)
        return {
            "size": self.size,
            "round_trips": len(ordered),
            "min_us": ordered[0] / MICROSECOND,
            "p50_us": percentile("50", ordered) / MICROSECOND,
            "p99_us": percentile("99", ordered) / MICROSECOND,
            "max_us": ordered[-1] / MICROSECOND,
            "messages": self.messages,
            "messages_per_second": rate,
            "gb_per_second": rate * self.size / 1e9,
        }


@dataclass
class Found:
    """What was measured so far, and why sizes were left out."""

    left_out: dict[int, str]
    rows: list[Row] = field(default_factory=list)

    def figures(self) -> Figures:
        """Return the figures under their keys in JSON."""
        left_out = [{"size": size, "why": why} for size, why in sorted(self.left_out.items())]
        return {"sizes": [row.figures() for row in self.rows], "left_out": left_out}


def sweep(clients: ClientGroup, sizes: Sequence[int], seconds: float, progress: Progress, found: Found) -> None:
    """Measure each size, the smallest first; add a row to `found` for each.

    If the server refuses a size, this one and the larger ones are left out: it ignores the clients from then on. Raises
    RefusedByServer if it refuses the smallest.
    """
    show = progress.bar("sweep", len(sizes))
    for done, size in enumerate(sizes):
        try:
            row = _measure(clients, size, seconds)
        except RefusedByServer as error:
            if not found.rows:
                raise
            found.left_out |= dict.fromkeys(sizes[done:], str(error))
            return
        found.rows.append(row)
        show(done + 1)


def measure_for(end: streaming.Endpoint, message: streaming.Payload, seconds: float) -> array[int]:
    """Make round trips until the time is over, at least one; return the nanoseconds of each."""
    clock, put, receive, times = time.perf_counter_ns, end.put, streaming.receive_one, array("q")
    until = clock() + round(seconds * 1e9)
    while len(times) < _MOST_TRIPS:
        begin = clock()
        put(message)
        receive(end)
        now = clock()
        times.append(now - begin)
        if now >= until:
            break
    return times


def _measure(clients: ClientGroup, size: int, seconds: float) -> Row:
    def make_round_trips(client: Client, wait: Callable[[], object]) -> array[int]:
        with client.echoing(size) as echoes:
            measure_for(echoes.end, echoes.message, seconds * _WARM_UP)
            wait()
            return measure_for(echoes.end, echoes.message, seconds)

    trips = [trip for each in clients.each(make_round_trips) for trip in each]
    messages, rates = _send(clients, size, seconds, statistics.median(trips) / 1e9)
    return Row(size, trips, messages, rates)


def _send(clients: ClientGroup, size: int, seconds: float, round_trip: float) -> tuple[int, list[float]]:
    """Make transfers; return the messages of those that count, and the messages a second of each.

    A first transfer, which does not count, has as many messages as round trips would have the time for. Each further
    one has as many as the one before had the time for. Where even a message takes long, fewer transfers are made.
    """
    share, spent = seconds / TRANSFERS, 0.0
    count = _bounded(share / round_trip)
    messages, rates = 0, []
    for number in range(1 + TRANSFERS):
        transfer = clients.transfer("up", Plan(((size, count),)), streaming.show_nothing)
        count = _bounded(count * share / transfer.seconds)
        if number:
            messages += transfer.up.messages
            rates.append(transfer.up.messages / transfer.seconds)
            spent += transfer.seconds
        if spent > 2 * seconds:
            break
    return messages, rates


def _bounded(count: float) -> int:
    return min(max(1, round(count)), MOST_MESSAGES)
