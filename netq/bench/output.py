"""Tables, CSV files and plots: of the works that measure row by row (sweep.py, load.py), and of benchmarks/.

The options `csv` and `plot` name the files. `check` is called before anything is measured. matplotlib is imported for
plots only.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from netq.version import DISTRIBUTION

PLOTS = (".svg", ".png")  # suffixes of --plot


class NotWritten(Exception):
    """A file cannot be written. The text is one line for the user."""


class Column(NamedTuple):
    """How a figure is printed: its title, and its format, or what makes its text."""

    title: str
    format: str | Callable[[Any], str]

    def text(self, value: Any) -> str:
        """Return a figure as it is printed."""
        return format(value, self.format) if isinstance(self.format, str) else self.format(value)


def table(columns: Mapping[str, Column], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table, aligned."""
    cells = [[column.text(row[key]) for key, column in columns.items()] for row in rows]
    lines = [[column.title for column in columns.values()], *cells]
    widths = [max(map(len, each)) for each in zip(*lines, strict=True)]
    return ("  ".join(map(str.rjust, line, widths)) for line in lines)


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown, aligned for readers of the text. The first row has the titles."""
    widths = [max(3, *map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = [" | ".join(map(str.ljust, cells, widths)) for cells in rows]
    return [f"| {line} |" for line in (lines[0], " | ".join("-" * width for width in widths), *lines[1:])]


def named(options: argparse.Namespace) -> dict[str, Path]:
    """Return the files that options name, by option."""
    return {name: path for name in ("csv", "plot") if (path := getattr(options, name, None)) is not None}


def check(options: argparse.Namespace) -> None:
    """Raise NotWritten or ImportError if files that the options name could not be written. Leaves them as they are."""
    for name, path in named(options).items():
        is_new = not path.exists()
        with reporting(name):
            path.open("ab").close()
        if is_new:
            path.unlink()
    if "plot" in named(options):
        try:
            import matplotlib.figure  # noqa: F401
        except ImportError as error:
            raise ImportError(f"--plot needs matplotlib ({error}): pip install '{DISTRIBUTION}[plots]'") from error


def write_csv(path: Path, columns: Mapping[str, Column], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows, below a line with the keys of the columns. Raises NotWritten."""
    with reporting("csv"), path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)


@contextmanager
def drawn(path: Path, rows: int = 1, columns: int = 1, size: tuple[float, float] | None = None) -> Iterator[Any]:
    """Yield the axes of a plot, or of several. Write it at the end, as its suffix says: equal figures, equal bytes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "netq", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=size or (7, 2 + 2.5 * rows), layout="constrained")
        FigureCanvasAgg(figure)  # needs no display, whatever MPLBACKEND is
        axes = figure.subplots(rows, columns, sharex=True)
        for each in figure.axes:
            each.grid(alpha=0.3)
        yield axes
        kind = path.suffix[1:].lower()
        figure.savefig(path, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)


@contextmanager
def reporting(name: str) -> Iterator[None]:
    """Turn an OSError of a with statement into NotWritten, which names the option."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"--{name} {error.filename}: {error.strerror}; choose a file that can be written") from error
