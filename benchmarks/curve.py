"""Latency by rate, netq and its peers: `python -m benchmarks.curve [--seconds S] [PEER …]`.

A run with all peers takes at most 4 minutes and writes docs/reference/benchmarks-load.md and its plot,
docs/reference/benchmarks/curve.svg. Each peer is measured as in `python -m benchmarks`, in two new processes that are
pinned to two cores: an open loop of 64 bytes and their echo (blocking.py, awaiting.py), at each of RATES until one is
not reached.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot  # after the backend is chosen

from benchmarks import page
from benchmarks.load import RATES, is_reached
from benchmarks.measure import ROOT, Failed, measure, stage
from benchmarks.peers import PEERS
from benchmarks.table import align
from benchmarks.task import Task

PEER_NAMES = ("netq tcp", "netq grpc", "grpcio", "grpcio aio", "pyzmq aio", "asyncio streams")
SECONDS = 0.5  # of a try
LIMIT = 5.0  # milliseconds of p99.9
FOLDER = ROOT / "docs" / "reference"
TOP = """\
# Latency by rate

For those who choose a transport for many small messages: at which rate its latency begins to grow. Written by
`{command}`, which writes it again: do not edit it.

64 bytes and their echo, between two processes on one machine, each on a core of its own. The loop is open: a message is
due at its time, whatever happened to earlier ones, and its latency counts from that moment. Each rate is tried twice,
for {seconds:g} s; the better try counts. A curve ends at the rate of which less than 95 % is answered in time. The
processes of all peers are Python, which bounds the rate of the sender, too.

Machine: {machine}. Peers: {peers}.

"""

Curve = list[dict[str, float]]  # points of benchmarks/load.py, those of the rates that were reached


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curve", description="latency by rate")
    parser.add_argument("peer", nargs="*", help=f"default: {', '.join(PEER_NAMES)}, and the page is written")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for each try of a rate (default: {SECONDS})")
    args = parser.parse_args(arguments)
    if unknown := set(args.peer) - set(PEERS):
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are: {', '.join(PEERS)}")
    curves, missing = measured(args.peer or PEER_NAMES, args.seconds)
    print("\n".join(report(curves, missing)))
    if not args.peer:
        command = "python -m benchmarks.curve" + (f" --seconds {args.seconds:g}" if args.seconds != SECONDS else "")
        write(FOLDER, curves, missing, args.seconds, command)


def measured(names: Sequence[str], seconds: float) -> tuple[dict[str, Curve], dict[str, str]]:
    """Return the curves by peer, and why others are missing."""
    curves: dict[str, Curve] = {}
    missing = {name: why for name in names if (why := PEERS[name].why_not())}
    task = Task("curve", "object", 64, 1, seconds=seconds)
    with stage() as place:
        for name in names:
            if name in missing:
                continue
            print(f"{name} …", file=sys.stderr, flush=True)
            try:
                found: Curve = measure(PEERS[name], task, place).client["curve"]
            except Failed as error:
                missing[name] = str(error)
            else:
                curves[name] = [point for point in found if is_reached(point)]
    return curves, missing


def within(curve: Curve) -> float:
    """Return the highest rate up to which p99.9 is within LIMIT at each rate; 0 if it never is."""
    highest = 0.0
    for point in curve:
        if point["p99.9"] > LIMIT:
            break
        highest = point["rate"]
    return highest


def report(curves: dict[str, Curve], missing: dict[str, str]) -> list[str]:
    """Return lines of Markdown: a table of peers, and one of p99.9 by rate."""
    head = ["", f"p99.9 within {LIMIT:g} ms up to", "reached", "p50 at 1,000/s, ms", "p99.9 at 1,000/s, ms"]
    rows = [
        [name, *(f"{rate:,.0f}/s" for rate in (within(curve), max([point["rate"] for point in curve], default=0)))]
        + ([f"{curve[0][key]:.2f}" for key in ("p50", "p99.9")] if curve else ["", ""])
        for name, curve in curves.items()
    ]
    found = {name: {point["rate"]: f"{point['p99.9']:.2f}" for point in curve} for name, curve in curves.items()}
    used = [rate for rate in RATES if any(rate in each for each in found.values())]
    by_rate = [[f"{rate:,}", *(each.get(rate, "") for each in found.values())] for rate in used]
    absent = [f"- {name} is not here: {why}" for name, why in missing.items()]
    return [
        *align([head, ["---"] * len(head), *rows]),
        *(["", *absent] if absent else []),
        *("", "p99.9 in milliseconds, by messages a second:", ""),
        *align([["messages/s", *found], ["---"] * (1 + len(found)), *by_rate]),
    ]


def write(folder: Path, curves: dict[str, Curve], missing: dict[str, str], seconds: float, command: str) -> None:
    """Write folder/benchmarks-load.md, and the plot."""
    draw(curves, folder / "benchmarks" / "curve.svg")
    top = TOP.format(command=command, seconds=seconds, machine=page.machine(), peers=page.versions())
    image = "![Latency by rate](benchmarks/curve.svg)"
    text = "\n".join([top.rstrip("\n"), "", image, "", *report(curves, missing), ""])
    wrapped = "\n".join(page.wrapped(line) for line in text.split("\n"))
    (folder / "benchmarks-load.md").write_text(wrapped, encoding="utf-8")


def draw(curves: dict[str, Curve], path: Path) -> None:
    """Draw p99.9 by rate, a line for each peer. Equal figures give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "netq", "svg.fonttype": "none", "font.size": 9}):
        canvas, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
        for name, curve in curves.items():
            style = "o-" if name.startswith("netq") else "o--"
            axes.plot([point["rate"] for point in curve], [point["p99.9"] for point in curve], style, ms=3, label=name)
        axes.axhline(LIMIT, color="grey", linewidth=0.8)
        axes.annotate(f"{LIMIT:g} ms", (RATES[0], LIMIT), textcoords="offset points", xytext=(0, 2), color="grey")
        axes.set(xlabel="messages a second", ylabel="p99.9, ms (less is better)", xscale="log", yscale="log")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        canvas.savefig(path, metadata={"Date": None})
        pyplot.close(canvas)


if __name__ == "__main__":
    main()
