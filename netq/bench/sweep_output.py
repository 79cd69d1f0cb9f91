"""Tables, files and the plot of a sweep. docs/reference/bench.md lists COLUMNS too. Called by command.py and report.py.

matplotlib is imported for `--plot` alone, and before anything is measured.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from netq.bench.plan import format_size
from netq.bench.sweep import Row
from netq.bench.workloads import Figures

_FILES = ("csv", "raw", "plot")  # the options that name files
_TICKS = 16  # sizes with a label in the plot


class NotWritten(Exception):
    """A file cannot be written. The text is one line for the user."""


class Column(NamedTuple):
    """How a figure is printed: its title, and its format."""

    title: str
    format: str


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
    rows = [[column.title for column in COLUMNS.values()]]
    for each in figures["sizes"]:
        cells = {key: format(each[key], column.format) for key, column in COLUMNS.items()}
        rows.append(list((cells | {"size": format_size(each["size"])}).values()))
    widths = [max(len(row[index]) for row in rows) for index in range(len(COLUMNS))]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    for why in dict.fromkeys(each["why"] for each in figures["left_out"]):
        sizes = [format_size(each["size"]) for each in figures["left_out"] if each["why"] == why]
        yield f"left out: {', '.join(sizes)}: {why}"


def check(options: argparse.Namespace) -> None:
    """Raise NotWritten or ImportError if files that the options name could not be written. Leaves them as they are."""
    for name, path in _files(options):
        is_new = not path.exists()
        try:
            path.open("ab").close()
        except OSError as error:
            raise _not_written(name, error) from error
        if is_new:
            path.unlink()
    if options.plot is not None:
        try:
            import matplotlib.figure  # noqa: F401
        except ImportError as error:
            raise ImportError(f"--plot needs matplotlib ({error}): pip install 'netq-fl[plots]'") from error


def write(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Write the files that the options name. Raises NotWritten."""
    writers = {"csv": _write_csv, "raw": _write_raw, "plot": _draw}
    for name, path in _files(options):
        try:
            writers[name](path, rows)
        except OSError as error:
            raise _not_written(name, error) from error


def _files(options: argparse.Namespace) -> list[tuple[str, Path]]:
    return [(name, path) for name in _FILES if (path := getattr(options, name)) is not None]


def _not_written(name: str, error: OSError) -> NotWritten:
    return NotWritten(f"--{name} {error.filename}: {error.strerror}; choose a file that can be written")


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(row.figures() for row in rows)


def _write_raw(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("size", "kind", "sample"))
        for row in rows:
            writer.writerows((row.size, "round_trip_ns", trip) for trip in row.trips)
            writer.writerows((row.size, "messages_per_second", rate) for rate in row.rates)


def _draw(path: Path, rows: Sequence[Row]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sizes, found = [row.size for row in rows], [row.figures() for row in rows]
    figure = Figure(figsize=(7, 7), layout="constrained")
    FigureCanvasAgg(figure)  # needs no display, whatever MPLBACKEND is
    upper, lower = figure.subplots(2, sharex=True)
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
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    figure.savefig(path, format=path.suffix[1:].lower(), dpi=120)
