"""Sweep: round trips, and messages one way, for one size after the other; its table, file and plot.

Each size has the same time, so small messages are many and large ones few. `Found` has what was measured so far: if the
server is lost at a large size, the smaller ones are reported.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netq.bench import output, streaming
from netq.bench.client import Client
from netq.bench.output import Column
from netq.bench.plan import MOST_MESSAGES, Plan, format_size
from netq.bench.protocol import RefusedByServer
from netq.bench.statistics import percentile
from netq.bench.workloads import MICROSECOND, Figures

TRANSFERS = 5  # that count for each size; their median is reported
_WARM_UP = 0.1  # share of the time, before round trips that count
_MOST_TRIPS = 1_000_000  # for one size: 8 MB
_TICKS = 16  # sizes with a label in the plot

COLUMNS = {  # by the key in JSON and CSV; docs/reference/bench.md lists them too
    "size": Column("size", format_size),
    "round_trips": Column("round trips", ",d"),
    "min_us": Column("min, µs", ",.1f"),
    "p50_us": Column("p50, µs", ",.1f"),
    "p99_us": Column("p99, µs", ",.1f"),
    "max_us": Column("max, µs", ",.1f"),
    "messages": Column("messages", ",d"),
    "messages_per_second": Column("messages/s", ",.1f"),
    "gb_per_second": Column("GB/s", ".3g"),
}


@dataclass
class Found:
    """What was measured so far: rows under the keys of COLUMNS; and why sizes were left out."""

    left_out: dict[int, str]
    rows: list[Figures] = field(default_factory=list)

    def figures(self) -> Figures:
        """Return the figures under their keys in JSON."""
        left_out = [{"size": size, "why": why} for size, why in sorted(self.left_out.items())]
        return {"sizes": self.rows, "left_out": left_out}


def sweep(client: Client, sizes: Sequence[int], seconds: float, found: Found) -> None:
    """Measure each size, the smallest first; add a row to `found` for each.

    If the server refuses a size, this one and the larger ones are left out: it ignores the client from then on. Raises
    RefusedByServer if it refuses the smallest.
    """
    for done, size in enumerate(sizes):
        try:
            row = _measure(client, size, seconds)
        except RefusedByServer as error:
            if not found.rows:
                raise
            found.left_out |= dict.fromkeys(sizes[done:], str(error))
            return
        found.rows.append(row)


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


def row(size: int, trips: Sequence[int], messages: int, rates: Sequence[float]) -> Figures:
    """Return a row, of the nanoseconds of round trips and the messages a second of each transfer."""
    ordered, rate = sorted(trips), statistics.median(rates)
    return {
        "size": size,
        "round_trips": len(ordered),
        "min_us": ordered[0] / MICROSECOND,
        "p50_us": percentile("50", ordered) / MICROSECOND,
        "p99_us": percentile("99", ordered) / MICROSECOND,
        "max_us": ordered[-1] / MICROSECOND,
        "messages": messages,
        "messages_per_second": rate,
        "gb_per_second": rate * size / 1e9,
    }


def _measure(client: Client, size: int, seconds: float) -> Figures:
    with client.echoing(size) as echoes:
        measure_for(echoes.end, echoes.message, seconds * _WARM_UP)
        trips = measure_for(echoes.end, echoes.message, seconds)
    return row(size, trips, *_send(client, size, seconds, statistics.median(trips) / 1e9))


def _send(client: Client, size: int, seconds: float, round_trip: float) -> tuple[int, list[float]]:
    """Make transfers; return the messages of those that count, and the messages a second of each.

    A first transfer, which does not count, has as many messages as round trips would have the time for. Each further
    one has as many as the one before had the time for. Where even a message takes long, fewer transfers are made.
    """
    share, spent = seconds / TRANSFERS, 0.0
    count = _bounded(share / round_trip)
    messages, rates = 0, []
    for number in range(1 + TRANSFERS):
        transfer = client.transfer("up", Plan(((size, count),)))
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


def table(figures: Figures) -> Iterator[str]:
    """Yield the lines of the table, and one for each reason why sizes are left out."""
    yield from output.table(COLUMNS, figures["sizes"])
    for why in dict.fromkeys(each["why"] for each in figures["left_out"]):
        sizes = [format_size(each["size"]) for each in figures["left_out"] if each["why"] == why]
        yield f"left out: {', '.join(sizes)}: {why}"


def write(csv: Path | None, plot: Path | None, rows: list[Figures]) -> None:
    """Write the files. Raises NotWritten."""
    if csv is not None:
        output.write_csv(csv, COLUMNS, rows)
    if plot is not None:
        with output.reporting("plot"), output.drawn(plot, 2) as axes:
            _draw(axes[0], axes[1], rows)


def _draw(upper: Any, lower: Any, rows: list[Figures]) -> None:
    sizes = [each["size"] for each in rows]
    for key, style in (("p50_us", "o-"), ("p99_us", "o--")):
        upper.plot(sizes, [each[key] for each in rows], style, markersize=3, label=key[:3])
    upper.set(ylabel="round trip, µs", xscale="log", yscale="log")
    upper.legend()
    right = lower.twinx()
    for axes, key, style in ((lower, "gb_per_second", "C0o-"), (right, "messages_per_second", "C1o--")):
        axes.plot(sizes, [each[key] for each in rows], style, markersize=3)
        axes.set_ylabel(f"one way, {COLUMNS[key].title}", color=style[:2])
        axes.set_yscale("log")
    labelled = sizes[:: 1 + len(sizes) // _TICKS]
    lower.set_xticks(labelled, [format_size(size) for size in labelled], rotation=45)
    lower.minorticks_off()
