"""The picture of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def accuracy_by_round(accuracies: Sequence[float], path: Path) -> None:
    """Write a PNG of the test accuracy after each round, from round 1; make its folder if need be."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes a second to import
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, whatever MPLBACKEND says
    axes = figure.add_subplot(xlabel="round", ylabel="test accuracy", ylim=(0, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.plot(range(1, len(accuracies) + 1), accuracies, marker="o", markersize=4)
    if accuracies:
        axes.annotate(
            f"{accuracies[-1]:.3f}",
            (len(accuracies), accuracies[-1]),
            xytext=(0, -14),
            textcoords="offset points",
            ha="center",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
