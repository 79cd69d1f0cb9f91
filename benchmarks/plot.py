"""Draws a plot for each question as SVG: for each peer a bar with the median of the first figure, and its spread.

For a sweep: for each peer a line through the medians of p50, and one through those of the throughput, by size. For a
curve: p99.9 by rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.questions import Question
from benchmarks.table import FIGURES, LIMIT, Samples, median, medians_by_size, reached, values
from benchmarks.works import RATES
from netq.bench.output import drawn
from netq.bench.plan import format_size

NETQ, OTHERS = "#1f77b4", "#b0b0b0"  # colours of bars


def draw(question: Question, samples: Samples, folder: Path) -> None:
    """Write folder/NAME.svg."""
    path, names = folder / f"{question.name}.svg", [name for name in question.peers if name in samples]
    if question.task.work == "sweep":
        with drawn(path, columns=2, size=(9.6, 4)) as both:
            _lines(both, question, names, samples)
    elif question.task.work == "curve":
        with drawn(path, size=(7, 4.2)) as axes:
            _curves(axes, names, samples)
    else:
        with drawn(path, size=(6.4, 0.7 + 0.28 * len(names))) as axes:
            _bars(axes, question.figures.split()[0], names[::-1], samples)


def _bars(axes: Any, figure: str, names: list[str], samples: Samples) -> None:
    medians = [median(samples[name], figure) for name in names]
    found = [values(samples[name], figure) for name in names]
    spread = [
        [middle - min(each) for middle, each in zip(medians, found, strict=True)],
        [max(each) - middle for middle, each in zip(medians, found, strict=True)],
    ]
    axes.grid(visible=False)
    axes.barh(names, medians, xerr=spread, color=[NETQ if "netq" in name else OTHERS for name in names], capsize=2)
    axes.set_xlabel(_title(figure))
    axes.spines[["top", "right"]].set_visible(False)


def _lines(both: Any, question: Question, names: list[str], samples: Samples) -> None:
    sizes = question.task.sizes()
    for axes, figure in zip(both, ("p50", "throughput"), strict=True):
        for name in names:
            width = 2 if name == question.subject else 1
            found = medians_by_size(samples[name], figure, sizes)
            axes.plot(sizes, found, "o-", markersize=3, linewidth=width, label=name)
        axes.set(xlabel="size of a message", ylabel=_title(figure), xscale="log", yscale="log")
        axes.set_xticks(sizes[::2], [format_size(size) for size in sizes[::2]], rotation=45)
        axes.minorticks_off()
    both[0].legend()


def _curves(axes: Any, names: list[str], samples: Samples) -> None:
    for name in names:
        style, points = "o-" if name.startswith("netq") else "o--", reached(samples[name])
        axes.plot([each["rate"] for each in points], [each["p99.9"] for each in points], style, ms=3, label=name)
    axes.axhline(LIMIT, color="grey", linewidth=0.8)
    axes.annotate(f"{LIMIT:g} ms", (RATES[0], LIMIT), textcoords="offset points", xytext=(0, 2), color="grey")
    axes.set(xlabel="messages a second", ylabel="p99.9, ms (less is better)", xscale="log", yscale="log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def _title(figure: str) -> str:
    return f"{FIGURES[figure].title} ({'more' if FIGURES[figure].more_is_better else 'less'} is better)"
