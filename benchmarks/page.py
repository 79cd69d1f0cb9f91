"""Writes the pages of docs/reference that TOPS names, with their plots. Never edit these pages by hand."""

from __future__ import annotations

import os
import platform
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks import plot
from benchmarks.peers import PEERS
from benchmarks.questions import BY_SIZE, LOAD, Question
from benchmarks.table import Missing, Samples, render, verdict
from netq.protocol import codec

TOP = """\
# Benchmarks

Written by `make bench` (`{command}`), which writes it again: do not edit. Each row is the
median of {rounds} round(s), with the smallest and the largest value in brackets. In each round the peers run in turn
(A B A B …), so that other work of the machine affects all of them alike. **Only ratios within one table count.** Rows
that netq loses stay.

Each side is a process of its own, started for each figure: the client on core 0, the server on core 1. One way, the
clock runs from the first send after the warm-up to the last receipt on the other side, which counts messages and bytes.
A received message is in memory, as a numpy array or a filled buffer, and is not read again. Raw sockets fill one buffer
repeatedly, and know the sizes of messages; peers in event loops send the length before each message. "raw sliced" sends
1 MiB and reads 128 KiB at a time, which suits the processor's caches. "raw sliced", "uvloop reno" and netq's TCP select
reno between two ends on one machine, where no network is congested. All others have the congestion control of the
system: {congestion} here (BBR paces by timers, which cost time). The bytes of echoes and exchanges are those of both
directions. CPU is the user and system time of both processes. Extra memory is the peak above the resident memory before
the first send, of the side with more; some 6 MiB of the peak memory of every process are netq, whose meter all use. The
calls of each peer are coroutines, which costs each call some 0.15 µs, also where they block. The first message of the
warm-up is compared byte for byte. Each peer is used in the fastest way that its own documents recommend; its module in
`benchmarks/peers` links to them. zenoh's shared memory is off, because its rows are about TCP; it takes no arrays, so
they are copied into bytes first. iceoryx2 copies a message once, into shared memory, where its receiver reads it. The
reasons for missed goals are in [performance.md](../explanation/performance.md).

Machine: {machine}. Peers: {peers}.

## The goals

{goals}

{missed}
"""
SIZES_TOP = """\
# Benchmarks by size

Written by `{command}`, which writes it again: do not edit.

It compares netq with its alternatives from 1 byte to 256 MiB. `make bench` writes this page, too. Each figure is the
median of {rounds} round(s), and the number in brackets is its ratio to netq. In each round the peers run in turn
(A B A B …), each in a new pair of processes on a core each, which measures all sizes. **Only ratios within one table
count.** Sizes that netq loses stay. [Benchmarks](benchmarks.md) describes the peers; [`netq bench sweep`](bench.md)
measures your own link.

For each size a message goes to the server and back, one after the other, for {seconds:g} s: p50 and p99. Then
messages go one way for {seconds:g} s, from the first send until the client has the answer that all have arrived: GB/s
and messages/s. At least three messages count, so p99 of large messages is their maximum. Messages up to 64 KiB are
`bytes`, larger ones are numpy arrays. The first echo of each size is compared byte for byte. A received message is in
memory and is not read again. raw, pipes and unix socket have no framing: a header says how many messages of which size
follow.

Machine: {machine}. Peers: {peers}.
"""
LOAD_TOP = """\
# Latency by rate

For those who choose a transport for many small messages: at which rate its latency begins to grow. Written by
`{command}`, which writes it again: do not edit it.

64 bytes and their echo, between two processes on one machine, each on a core of its own. The loop is open: a message is
due at its time, whatever happened to earlier ones, and its latency counts from that moment. Each rate is tried twice,
for {seconds:g} s; the better try counts. A curve ends at the rate of which less than 95 % is answered in time. The
processes of all peers are Python, which bounds the rate of the sender, too.

Machine: {machine}. Peers: {peers}.
"""
TOPS = {"benchmarks": TOP, BY_SIZE: SIZES_TOP, LOAD: LOAD_TOP}
WIDTH = 120  # characters in a line of prose


def write(
    folder: Path, name: str, results: Mapping[Question, tuple[Samples, Missing]], rounds: int, command: str
) -> None:
    """Write a page into a folder, and a plot for each of its questions into folder/benchmarks."""
    plots = folder / "benchmarks"
    plots.mkdir(exist_ok=True)
    names = [peer for question in results for peer in question.peers]
    top = TOPS[name].format(
        command=command,
        rounds=rounds,
        seconds=next(iter(results)).task.seconds,
        machine=machine(),
        peers=versions(PEERS if name == "benchmarks" else names),
        congestion=Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        **_goals(results),
    )
    parts = [top]
    for question, (samples, missing) in results.items():
        plot.draw(question, samples, plots)
        parts.append(section(question, samples, missing, has_title=len(results) > 1))
    text = "\n".join(wrapped(line) for line in "\n".join(parts).split("\n"))
    (folder / f"{name}.md").write_text(text, encoding="utf-8")


def _goals(results: Mapping[Question, tuple[Samples, Missing]]) -> dict[str, str]:
    """Return a sentence that counts the goals, and a list of those that do not hold."""
    verdicts = [
        (holds, f"{question.title}: {text}")
        for question, (samples, _) in results.items()
        for holds, text in (verdict(goal, samples) for goal in question.goals)
    ]
    held, missed, unknown = (sum(holds is value for holds, _ in verdicts) for value in (True, False, None))
    return {
        "goals": f"{held} of {len(verdicts)} hold, {missed} are missed, {unknown} could not be judged here.",
        "missed": "\n".join(f"- {text}" for holds, text in verdicts if holds is not True),
    }


def wrapped(line: str) -> str:
    """Wrap a line of prose that is too long. A line that begins with "- " stays one item."""
    if line.startswith(("|", "#", "!")) or len(line) <= WIDTH:
        return line
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def section(question: Question, samples: Samples, missing: Missing, *, has_title: bool) -> str:
    """Return the section of one question."""
    title = [f"## {question.title}", ""] if has_title else []
    note = [question.note, ""] if question.note else []
    image = f"![{question.title}](benchmarks/{question.name}.svg)"
    return "\n".join([*title, *note, *render(question, samples, missing), "", image, ""])


def machine() -> str:
    """Return a line about this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0))
    kind = f"{model or platform.machine()}, {cores} cores"
    return f"{kind}, {platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}"


def versions(names: Iterable[str]) -> str:
    """Return a line with the versions of the peers of these names."""
    found = {PEERS[name].version() for name in names if not PEERS[name].why_not()} - {""}
    kind = "compiled" if codec.take.__module__ == "netq.protocol._codec" else "Python"
    return ", ".join([f"netq with the {kind} codec", *sorted(found)])
