"""Latency by rate: an open loop (load.py) at one rate after the other, until a rate is not reached.

A rate is reached if the echoes come as fast as the messages are due: REACHED of it, at least. Above the highest such
rate messages queue up, so their latency only says how long the try was. It ends as soon as p99.9 exceeds that.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from netq.bench import output
from netq.bench.client import Client
from netq.bench.load import TAIL, Figures, Load, Try, attempt
from netq.bench.output import Column
from netq.bench.progress import Progress
from netq.bench.statistics import spread
from netq.bench.workloads import MICROSECOND

REACHED = 0.95  # share of the rate that is answered in the time of a try
MOST = 100  # rates of a curve
TARGET = 5.0  # milliseconds: a line in the plot, for p99.9

COLUMNS = {  # by the key in JSON and CSV; docs/reference/bench.md lists them too
    "rate": Column("rate, /s", ",.12g"),
    "messages": Column("messages", ",d"),
    "answered_per_second": Column("answered, /s", ",.1f"),
    "p50_us": Column("p50, µs", ",.1f"),
    "p99_us": Column("p99, µs", ",.1f"),
    "p99_9_us": Column("p99.9, µs", ",.1f"),
    "max_us": Column("max, µs", ",.1f"),
}


def measure(client: Client, load: Load, rates: list[float], progress: Progress) -> Figures:
    """Return the figures of each rate that is reached, and the first one that is not, None if all are."""
    longest = round(load.seconds * 1e9)
    curve: list[Figures] = []
    for rate in rates:
        progress.say(f"{rate:,.12g} messages a second, for {load.seconds:g} s")
        tried = attempt(client, load, rate, longest)
        if not is_reached(tried):
            return {"curve": curve, "not_reached": rate}
        curve.append(row(tried))
    return {"curve": curve, "not_reached": None}


def is_reached(tried: Try) -> bool:
    """Whether the echoes came at the rate."""
    return tried.complete and tried.count / tried.seconds >= REACHED * tried.rate


def row(tried: Try) -> Figures:
    """Return the figures of a rate, under the keys of COLUMNS."""
    found = spread(tried.latencies, MICROSECOND)
    return {
        "rate": tried.rate,
        "messages": tried.count,
        "answered_per_second": tried.count / tried.seconds,
        "p50_us": found["p50"],
        "p99_us": found["p99"],
        "p99_9_us": found[f"p{TAIL}"],
        "max_us": found["max"],
    }


def table(figures: Figures) -> Iterator[str]:
    """Yield the lines of the table, aligned, and one about the rate that ended it."""
    rows = [[format(each[key], column.format) for key, column in COLUMNS.items()] for each in figures["curve"]]
    yield from output.aligned(list(COLUMNS.values()), rows)
    if figures["not_reached"] is not None:
        yield f"{figures['not_reached']:,.12g} messages a second are not reached: the curve ends there"


def write(options: argparse.Namespace, figures: Figures) -> None:
    """Write the files that the options name. Raises NotWritten."""
    if options.csv is not None:
        with output.reporting("csv"):
            output.write_csv(options.csv, list(COLUMNS), figures["curve"])
    if options.plot is not None:
        with output.reporting("plot"), output.drawn(options.plot) as axes:
            for key, style in (("p50_us", "o-"), ("p99_us", "o--"), ("p99_9_us", "o:")):
                rates, times = ([each[name] for each in figures["curve"]] for name in ("rate", key))
                axes.plot(rates, [each / 1e3 for each in times], style, label=COLUMNS[key].title.partition(",")[0])
            axes.axhline(TARGET, color="grey", linewidth=0.8)
            scale = "log" if figures["curve"] else "linear"  # nothing has no logarithm
            axes.set(xlabel="messages a second", ylabel="latency, ms", xscale=scale, yscale=scale)
            axes.legend()
