"""Tables, files and the plot of a sweep. docs/reference/bench.md lists COLUMNS, too."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from netq.bench import output
from netq.bench.output import Column
from netq.bench.plan import format_size
from netq.bench.sweep import Row
from netq.bench.workloads import Figures

_TICKS = 16  # sizes with a label in the plot

COLUMNS = {  # by the key in JSON and CSV
    "size": Column("size", "d"),
    "round_trips": Column("round trips", ",d"),
    "min_us": Column("min, µs", ",.1f"),
    "p50_us": Column("p50, µs", ",.1f"),
    "p99_us": Column("p99, µs", ",.1f"),
    "max_us": Column("max, µs", ",.1f"),
    "messages": Column("messages", ",d"),
    "messages_per_second": Column("messages/s", ",.1f"),
    "gb_per_second": Column("GB/s", ".3g"),
}


def table(figures: Figures) -> Iterator[str]:
    """Yield the lines of the table, aligned, and one for each reason why sizes are left out."""
    rows = []
    for each in figures["sizes"]:
        cells = {key: format(each[key], column.format) for key, column in COLUMNS.items()}
        rows.append(list((cells | {"size": format_size(each["size"])}).values()))
    yield from output.aligned(list(COLUMNS.values()), rows)
    for why in dict.fromkeys(each["why"] for each in figures["left_out"]):
        sizes = [format_size(each["size"]) for each in figures["left_out"] if each["why"] == why]
        yield f"left out: {', '.join(sizes)}: {why}"


def write(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Write the files that the options name. Raises NotWritten."""
    writers = {"csv": _write_csv, "raw": _write_raw, "plot": _draw}
    for name, path in output.named(options):
        with output.reporting(name):
            writers[name](path, rows)


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    output.write_csv(path, list(COLUMNS), (row.figures() for row in rows))


def _write_raw(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("size", "kind", "sample"))
        for row in rows:
            writer.writerows((row.size, "round_trip_ns", trip) for trip in row.trips)
            writer.writerows((row.size, "messages_per_second", rate) for rate in row.rates)


def _draw(path: Path, rows: Sequence[Row]) -> None:
    sizes, found = [row.size for row in rows], [row.figures() for row in rows]
    with output.drawn(path, 2) as (upper, lower):
        for key, style in (("p50_us", "o-"), ("p99_us", "o--")):
            upper.plot(sizes, [each[key] for each in found], style, markersize=3, label=key[:3])
        upper.set(ylabel="round trip, µs", xscale="log", yscale="log")
        upper.legend()
        right = lower.twinx()
        for axes, key, style in ((lower, "gb_per_second", "C0o-"), (right, "messages_per_second", "C1o--")):
            axes.plot(sizes, [each[key] for each in found], style, markersize=3)
            axes.set_ylabel(f"one way, {COLUMNS[key].title}", color=style[:2])
            axes.set_yscale("log")
        labelled = sizes[:: 1 + len(sizes) // _TICKS]
        lower.set_xticks(labelled, [format_size(size) for size in labelled], rotation=45)
        lower.minorticks_off()
