"""The files of `netq bench`: a table as CSV, and a plot of it. matplotlib is imported for plots only.

The options `csv` and `plot` name them. `check` is called before anything is measured.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from netq.version import DISTRIBUTION

PLOTS = (".svg", ".png")  # suffixes of --plot
_FILES = ("csv", "plot")


class NotWritten(Exception):
    """A file cannot be written. The text is one line for the user."""


def check(options: argparse.Namespace) -> None:
    """Raise NotWritten or ImportError if files that the options name could not be written. Leaves them as they are."""
    for name in _FILES:
        path = getattr(options, name, None)
        if path is None:
            continue
        is_new = not path.exists()
        with _reporting(name):
            path.open("ab").close()
        if is_new:
            path.unlink()
    if getattr(options, "plot", None) is not None:
        try:
            import matplotlib.figure  # noqa: F401
        except ImportError as error:
            raise ImportError(f"--plot needs matplotlib ({error}): pip install '{DISTRIBUTION}[plots]'") from error


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, below a line with the names of the columns. Raises NotWritten."""
    with _reporting("csv"), path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


@contextmanager
def drawn(path: Path) -> Iterator[Any]:
    """Yield the axes of a plot, and write it at the end of a with statement, as its suffix says. Raises NotWritten."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # needs no display, whatever MPLBACKEND is
    axes = figure.subplots()
    yield axes
    axes.grid(alpha=0.3)
    with _reporting("plot"):
        figure.savefig(path, format=path.suffix[1:].lower(), dpi=120)


@contextmanager
def _reporting(name: str) -> Iterator[None]:
    """Turn an OSError of a with statement into NotWritten, which names the option."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"--{name} {error.filename}: {error.strerror}; choose a file that can be written") from error
