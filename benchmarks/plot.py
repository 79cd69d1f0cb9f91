"""Draws a plot for each question as SVG: for each peer a bar with the median of the first figure, and its spread.

Equal figures give equal bytes: the file has no date and no random ids, and its text is text.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot  # after the backend is chosen

from benchmarks.questions import Question
from benchmarks.table import FIGURES, Samples, median, values

NETQ, OTHERS = "#1f77b4", "#b0b0b0"  # colours of bars


def draw(question: Question, samples: Samples, folder: Path) -> None:
    """Write folder/NAME.svg."""
    figure = question.figures[0]
    names = [name for name in reversed(question.peers) if name in samples]
    medians = [median(samples[name], figure) for name in names]
    found = [values(samples[name], figure) for name in names]
    spread = [
        [middle - min(each) for middle, each in zip(medians, found, strict=True)],
        [max(each) - middle for middle, each in zip(medians, found, strict=True)],
    ]
    with matplotlib.rc_context({"svg.hashsalt": "netq", "svg.fonttype": "none", "font.size": 9}):
        canvas, axes = pyplot.subplots(figsize=(6.4, 0.7 + 0.28 * len(names)), layout="constrained")
        axes.barh(names, medians, xerr=spread, color=[NETQ if "netq" in name else OTHERS for name in names], capsize=2)
        better = "more" if FIGURES[figure].more_is_better else "less"
        axes.set_xlabel(f"{FIGURES[figure].title} ({better} is better)")
        axes.spines[["top", "right"]].set_visible(False)
        canvas.savefig(folder / f"{question.name}.svg", metadata={"Date": None})
        pyplot.close(canvas)
