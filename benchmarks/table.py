"""Computes figures from samples, medians from figures, tables and verdicts from medians. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.measure import Sample
from benchmarks.questions import Goal, Question
from benchmarks.works import RATES, is_reached
from netq.bench.output import markdown
from netq.bench.plan import format_size
from netq.bench.statistics import percentile

Samples = Mapping[str, Sequence[Sample]]  # by peer, one sample for each round
Missing = Mapping[str, str]  # by peer: why it is missing
LIMIT = 5.0  # milliseconds of p99.9, in a curve


@dataclass(frozen=True)
class Figure:
    """One column: its title, how it is computed from a sample, and whether more is better."""

    title: str
    of: Callable[[Sample], float]
    more_is_better: bool = False
    digits: int = 2


def _cpu(sample: Sample) -> float:
    return float(sample.client["cpu"] + sample.server["cpu"])


def _worse(key: str) -> Callable[[Sample], float]:
    return lambda sample: float(max(sample.client[key], sample.server[key]))


def _late(percent: str) -> Callable[[Sample], float]:
    return lambda sample: percentile(percent, sorted(sample.client["times"])) / 1e3


FIGURES = {
    "throughput": Figure("GB/s", lambda s: s.task.bytes / s.seconds / 1e9, more_is_better=True),
    "messages": Figure("messages/s", lambda s: s.task.messages / s.seconds, more_is_better=True, digits=0),
    "rate": Figure("messages/s", lambda s: float(s.client["rate"]), more_is_better=True, digits=0),
    **{f"p{percent}": Figure(f"p{percent}, µs", _late(percent), digits=1) for percent in ("50", "99", "99.9")},
    "cpu": Figure("CPU s/GB, both sides", lambda s: _cpu(s) / s.task.bytes * 1e9),
    "cpu_message": Figure("CPU µs/message, both sides", lambda s: _cpu(s) / s.task.messages * 1e6, digits=1),
    "extra": Figure("extra memory, × message", lambda s: _worse("extra")(s) / s.task.size),
    "resident": Figure("peak memory, MiB", lambda s: _worse("resident")(s) / 2**20, digits=0),
}


def values(samples: Sequence[Sample], figure: str) -> list[float]:
    """Return a figure for each round."""
    return [FIGURES[figure].of(sample) for sample in samples]


def median(samples: Sequence[Sample], figure: str) -> float:
    """Return the median of a figure over all rounds."""
    return statistics.median(values(samples, figure))


def verdict(goal: Goal, samples: Samples) -> tuple[bool | None, str]:
    """Return whether the goal holds (None: nothing to judge), and a sentence about it."""
    figure = FIGURES[goal.figure]
    sign, bound = ("≥", goal.at_least) if goal.at_least is not None else ("≤", goal.at_most)
    assert bound is not None
    others = [name for name in goal.others if name in samples]
    whom = f" × {'the best of ' if len(goal.others) > 1 else ''}{', '.join(goal.others)}" if goal.others else ""
    wish = f"{goal.subject}, {figure.title}: {sign} {bound:.3g}{whom}"
    if goal.subject not in samples or (goal.others and not others):
        return None, f"{wish}: not judged, a peer is missing"
    found = median(samples[goal.subject], goal.figure)
    if others:
        best = (max if figure.more_is_better else min)(others, key=lambda name: median(samples[name], goal.figure))
        reference = median(samples[best], goal.figure)
        wish += f" ({best})" if len(goal.others) > 1 else ""
        if not (found or reference):
            return None, f"{wish}: not judged, both are 0"
        found = found / reference if reference else float("inf")
    holds = found >= bound if goal.at_least is not None else found <= bound
    return holds, f"{wish}: {found:.3g}, {'holds' if holds else '**missed**'}"


def render(question: Question, samples: Samples, missing: Missing) -> list[str]:
    """Return the question's table and goals as lines of Markdown, aligned for readers of the plain text."""
    if question.task.work == "sweep":
        return _by_size(question, samples, missing)
    if question.task.work == "curve":
        return _by_rate(samples, missing)
    head = ["", *(FIGURES[name].title for name in question.figures.split())]
    head.insert(2, f"× {question.subject}")
    rows = [_row(question, samples, name, missing) for name in question.peers if name in samples or name in missing]
    goals = [f"- {verdict(goal, samples)[1]}" for goal in question.goals]
    return [*markdown([head, *rows]), "", *goals, *_absent(missing)]


def _absent(missing: Missing) -> list[str]:
    return [f"- {name} is not here: {why}" for name, why in missing.items()]


def medians_by_size(samples: Sequence[Sample], figure: str, sizes: Sequence[int]) -> list[float]:
    """Return the median of a figure over all rounds of a sweep, for each size."""
    return [median([sample.at(size) for sample in samples], figure) for size in sizes]


def _by_size(question: Question, samples: Samples, missing: Missing) -> list[str]:
    """Return a table for each figure of a sweep: sizes are rows, and peers columns with their ratio to the subject."""
    sizes, names = question.task.sizes(), [name for name in question.peers if name in samples]
    lines: list[str] = []
    for figure in question.figures.split():
        found = {name: medians_by_size(samples[name], figure, sizes) for name in names}
        own = found.get(question.subject)
        rows = [
            [format_size(size), *(_with_ratio(found[name][i], own[i] if own else 0.0) for name in names)]
            for i, size in enumerate(sizes)
        ]
        lines += [*markdown([[FIGURES[figure].title, *names], *rows]), ""]
    return lines + _absent(missing)


def reached(samples: Sequence[Sample]) -> list[dict[str, float]]:
    """Return the points of a curve whose rate was reached."""
    return [point for point in samples[0].client["curve"] if is_reached(point)]


def _within(curve: Sequence[dict[str, float]]) -> float:
    """Return the highest rate up to which p99.9 is within LIMIT at each rate; 0 if it never is."""
    good = itertools.takewhile(lambda point: point["p99.9"] <= LIMIT, curve)
    return max((point["rate"] for point in good), default=0.0)


def _by_rate(samples: Samples, missing: Missing) -> list[str]:
    """Return a table of peers, and one of p99.9 by rate."""
    curves = {name: reached(each) for name, each in samples.items()}
    head = ["", f"p99.9 within {LIMIT:g} ms up to", "reached", "p50 at 1,000/s, ms", "p99.9 at 1,000/s, ms"]
    rows = []
    for name, curve in curves.items():
        highest = max((point["rate"] for point in curve), default=0.0)
        first = [f"{curve[0][key]:.2f}" for key in ("p50", "p99.9")] if curve else ["", ""]
        rows.append([name, f"{_within(curve):,.0f}/s", f"{highest:,.0f}/s", *first])
    found = {name: {point["rate"]: f"{point['p99.9']:.2f}" for point in curve} for name, curve in curves.items()}
    used = [rate for rate in RATES if any(rate in each for each in found.values())]
    by_rate = [[f"{rate:,}", *(each.get(rate, "") for each in found.values())] for rate in used]
    absent = _absent(missing)
    return [
        *markdown([head, *rows]),
        *(["", *absent] if absent else []),
        *("", "p99.9 in milliseconds, by messages a second:", ""),
        *markdown([["messages/s", *found], *by_rate]),
    ]


def _with_ratio(value: float, own: float) -> str:
    shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{shown} ({value / own:.2f})" if own else shown


def _row(question: Question, samples: Samples, name: str, missing: Missing) -> list[str]:
    if name not in samples:
        return [name, "not here", *[""] * len(question.figures.split())]
    figures = question.figures.split()
    cells, first = [_cell(samples[name], figure) for figure in figures], figures[0]
    subject = samples.get(question.subject)
    own = median(subject, first) if subject else 0.0
    return [name, cells[0], f"{median(samples[name], first) / own:.2f}" if own else "", *cells[1:]]


def _cell(samples: Sequence[Sample], figure: str) -> str:
    found, digits = values(samples, figure), FIGURES[figure].digits
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(found), statistics.median(found), max(found)))
    return f"{middle} ({low} to {high})"
