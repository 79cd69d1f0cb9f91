"""Writes docs/reference/benchmarks.md and its plots, from a run of all questions. Never edit that page by hand."""

from __future__ import annotations

import os
import platform
import textwrap
from collections.abc import Mapping
from pathlib import Path

from benchmarks import plot
from benchmarks.peers import PEERS
from benchmarks.questions import Question
from benchmarks.table import Missing, Samples, render, verdict
from netq.protocol import codec

TOP = """\
# Benchmarks

Written by `make bench` (`{command}`), which writes it again: do not edit. Each row is the
median of {rounds} round(s), and in brackets the least and the most of them; in each round the peers took turns
(A B A B …), so that what else the machine did hit all alike. **Only ratios within one table count.** Rows that netq
loses stay.

Each side is a process of its own, started anew for each figure: the client on core 0, the server on core 1. One way,
the clock runs from the first send, after warm-up, to the last receipt at the other side, which counts messages and
bytes. What has come is in memory, as a numpy array or a filled buffer, and is not read once more. Raw sockets fill one
buffer over and over, and know what comes; peers in event loops send the length of each message before it. "raw sliced"
sends 1 MiB and reads 128 KiB at once, which suits the processor's caches. It, "uvloop reno" and netq's TCP ask for reno
between two ends on one machine, where nothing is congested; all others have the system's congestion control, which is
{congestion} here (BBR paces by timers, which cost). The bytes of echoes and exchanges are those of both directions. CPU
is user and system time of both processes. Extra memory is the peak above what was resident before anything was sent, of
the worse side. The first message of the warm-up is compared byte for byte. Every peer is used as its own documents
advise, at its best; its module in `benchmarks/peers` says where they do. The reasons for missed goals
are in [performance.md](../explanation/performance.md).

Machine: {machine}. Peers: {peers}.

## The goals

{goals}

{missed}
"""
WIDTH = 120  # characters in a line of prose


def write(
    folder: Path,
    results: Mapping[Question, tuple[Samples, Missing]],
    rounds: int,
    command: str,
) -> None:
    """Write folder/benchmarks.md, and a plot for each question in folder/benchmarks."""
    plots = folder / "benchmarks"
    plots.mkdir(exist_ok=True)
    verdicts = [
        (holds, f"{question.title}: {text}")
        for question, (samples, _) in results.items()
        for holds, text in (verdict(goal, samples) for goal in question.goals)
    ]
    counts = [sum(holds is value for holds, _ in verdicts) for value in (True, False, None)]
    parts = [
        TOP.format(
            command=command,
            rounds=rounds,
            machine=machine(),
            congestion=Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
            peers=versions(),
            goals="{} of {} hold, {} are missed, {} could not be judged here.".format(
                counts[0], len(verdicts), *counts[1:]
            ),
            missed="\n".join(f"- {text}" for holds, text in verdicts if holds is not True),
        )
    ]
    for question, (samples, missing) in results.items():
        plot.draw(question, samples, plots)
        parts.append(section(question, samples, missing))
    text = "\n".join(wrapped(line) for line in "\n".join(parts).split("\n"))
    (folder / "benchmarks.md").write_text(text, encoding="utf-8")


def wrapped(line: str) -> str:
    """Wrap a line of prose that is too long. A line that begins with "- " stays one item."""
    if line.startswith(("|", "#", "!")) or len(line) <= WIDTH:
        return line
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def section(question: Question, samples: Samples, missing: Missing) -> str:
    """Return the section of one question."""
    note = [question.note, ""] if question.note else []
    image = f"![{question.title}](benchmarks/{question.name}.svg)"
    return "\n".join([f"## {question.title}", "", *note, *render(question, samples, missing), "", image, ""])


def machine() -> str:
    """Return a line about this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0))
    kind = f"{model or platform.machine()}, {cores} cores"
    return f"{kind}, {platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}"


def versions() -> str:
    """Return a line with the versions of the peers."""
    found = {peer.version() for peer in PEERS.values() if not peer.why_not()} - {""}
    kind = "compiled" if codec.take.__module__ == "netq.protocol._codec" else "Python"
    return ", ".join([f"netq with the {kind} codec", *sorted(found)])
