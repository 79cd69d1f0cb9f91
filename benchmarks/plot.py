"""Draws a plot for each question as SVG: for each peer a bar with the median of the first figure, and its spread.

For a sweep: for each peer a line through the medians of p50, and one through those of the throughput, by size.

Equal figures give equal bytes: the file has no date and no random ids, and its text is text.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot  # after the backend is chosen
from matplotlib.figure import Figure

from benchmarks.questions import Question
from benchmarks.table import FIGURES, Samples, median, medians_by_size, values
from netq.bench.plan import format_size

NETQ, OTHERS = "#1f77b4", "#b0b0b0"  # colours of bars


def draw(question: Question, samples: Samples, folder: Path) -> None:
    """Write folder/NAME.svg."""
    with matplotlib.rc_context({"svg.hashsalt": "netq", "svg.fonttype": "none", "font.size": 9}):
        canvas = _lines(question, samples) if question.is_sweep else _bars(question, samples)
        canvas.savefig(folder / f"{question.name}.svg", metadata={"Date": None})
        pyplot.close(canvas)


def _bars(question: Question, samples: Samples) -> Figure:
    figure = question.figures[0]
    names = [name for name in reversed(question.peers) if name in samples]
    medians = [median(samples[name], figure) for name in names]
    found = [values(samples[name], figure) for name in names]
    spread = [
        [middle - min(each) for middle, each in zip(medians, found, strict=True)],
        [max(each) - middle for middle, each in zip(medians, found, strict=True)],
    ]
    canvas, axes = pyplot.subplots(figsize=(6.4, 0.7 + 0.28 * len(names)), layout="constrained")
    axes.barh(names, medians, xerr=spread, color=[NETQ if "netq" in name else OTHERS for name in names], capsize=2)
    axes.set_xlabel(_title(figure))
    axes.spines[["top", "right"]].set_visible(False)
    return canvas


def _lines(question: Question, samples: Samples) -> Figure:
    sizes, names = question.task.sizes(), [name for name in question.peers if name in samples]
    canvas, both = pyplot.subplots(1, 2, figsize=(9.6, 4), layout="constrained")
    for axes, figure in zip(both, ("p50", "throughput"), strict=True):
        for name in names:
            width = 2 if name == question.subject else 1
            found = medians_by_size(samples[name], figure, sizes)
            axes.plot(sizes, found, "o-", markersize=3, linewidth=width, label=name)
        axes.set(xlabel="size of a message", ylabel=_title(figure), xscale="log", yscale="log")
        axes.set_xticks(sizes[::2], [format_size(size) for size in sizes[::2]], rotation=45)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    both[0].legend()
    return canvas


def _title(figure: str) -> str:
    return f"{FIGURES[figure].title} ({'more' if FIGURES[figure].more_is_better else 'less'} is better)"
