"""Plots of one run or several: a metric and the bytes of messages, by round or by time.

Called by users and by `fl plot`. Reads reports, or files of fl.JsonLines. Imports matplotlib when it draws; needs no
display.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fl.callbacks.jsonl import missing, read, record
from fl.report import RoundReport
from netq.text import printable
from netq.utils.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Simulated(Protocol):
    """The result of a simulation."""

    @property
    def reports(self) -> Sequence[RoundReport]:
        """Of all attempts of rounds."""


Run: TypeAlias = "str | os.PathLike[str] | Iterable[RoundReport] | Simulated"
_NO_MARKUP: Any = {"parse_math": False, "usetex": False}  # clients choose the names of metrics
_LABELS = {"round": "round", "seconds": "time in seconds"}
_MARKED = 100  # rounds of a run up to which each is a point
_Rounds: TypeAlias = Sequence[Mapping[str, Any]]  # each as fl.callbacks.jsonl.record returns it


def rounds(
    runs: Mapping[str, Run],
    *,
    metric: str | None = None,
    by: str = "round",
    out: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw a metric and the bytes by round or by time, and return the figure.

    runs:   files of fl.JsonLines, reports, or results of fl.simulate, by the name of the run in the legend.
    metric: a name of the evaluation or, if no evaluation of these runs has it, of training. None: the first name found.
    by:     "round", or "seconds": of all rounds since the first one, also of those that did not count.
    out:    a file to write, as PNG, SVG or PDF by its suffix; its folder must exist.

    Raises ValueError for another `by`, if no round has the metric, or a file has no round; OSError if a file cannot be
    read or written.
    """
    if by not in _LABELS:
        raise ValueError(f"by: {by!r}; expected {' or '.join(_LABELS)}")
    rounds_of = {name: _rounds_of(run) for name, run in runs.items()}
    kind, name = _metric(rounds_of, metric)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing("fl.callbacks.plots", "matplotlib", "matplotlib", error) from error
    figure = Figure(figsize=(7, 6), layout="constrained")
    FigureCanvasAgg(figure)  # needs no display, whatever MPLBACKEND is
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    _draw_metric(upper, rounds_of, kind, name, by)
    _draw_bytes(lower, rounds_of, by)
    if out is not None:
        path = Path(out).resolve()
        with replacing(path, 0o666) as file:  # less the umask
            figure.savefig(file, format=path.suffix[1:] or "png", dpi=120)
    return figure


def _rounds_of(run: Run) -> _Rounds:
    if isinstance(run, (str, os.PathLike)):
        return read(run)
    reports: Any = run
    reports = getattr(reports, "reports", reports)
    return [record(report) for report in reports]


def _metric(runs: Mapping[str, _Rounds], name: str | None) -> tuple[str, str]:
    """Return the kind and the name of the metric to draw: one kind, so that a line has values of one quantity."""
    each = list(itertools.chain.from_iterable(runs.values()))
    there: dict[str, str] = {}  # the kind, by the name
    for kind in ("evaluation", "metrics"):
        for round in each:
            for found, value in round[kind].items():
                if not isinstance(value, list):  # of an array there is no line
                    there.setdefault(found, kind)
    if name is None and there:
        name = next(iter(there))
    if name is None or name not in there:
        wanted = "a metric" if name is None else f"the metric {name!r}"
        have = f"those there are: {', '.join(there)}" if there else "there is none: let clients or `measure` report one"
        raise ValueError(f"no round of {', '.join(runs)} has {wanted}; {have}")
    return there[name], name


def _value(value: float | list[Any] | None) -> float:
    """Return a metric's value; NaN if the round does not have it."""
    return math.nan if value is None or isinstance(value, list) else value


def _places(rounds: _Rounds, by: str) -> list[float]:
    """Return where on the x axis rounds are: each at its end."""
    return [r["round"] for r in rounds] if by == "round" else [*itertools.accumulate(r["seconds"] for r in rounds)]


def _draw_metric(axes: Axes, runs: Mapping[str, _Rounds], kind: str, name: str, by: str) -> None:
    for each in runs.values():
        found = [(place, _value(r[kind].get(name))) for place, r in zip(_places(each, by), each, strict=True)]
        found = [(place, value) for place, value in found if not math.isnan(value)]  # not each round is evaluated
        marker = "o" if len(found) <= _MARKED else ""
        axes.plot([place for place, _ in found], [value for _, value in found], marker=marker, markersize=3)
    axes.set_ylabel(printable(name), **_NO_MARKUP)
    axes.grid(alpha=0.3)
    if len(runs) > 1:
        for text in axes.legend(axes.get_lines(), list(runs)).get_texts():
            text.set(**_NO_MARKUP)


def _draw_bytes(axes: Axes, runs: Mapping[str, _Rounds], by: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for index, each in enumerate(runs.values()):
        places, colour = _places(each, by), f"C{index}"
        for kind, style in (("in", "-"), ("out", "--")):
            megabytes = [round[f"bytes_{kind}"] / 1e6 for round in each]
            axes.plot(places, megabytes, style, color=colour, label=kind if index == 0 else None)
    axes.set(xlabel=_LABELS[by], ylabel="MB a round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=by == "round"))
    axes.grid(alpha=0.3)
    axes.legend()
