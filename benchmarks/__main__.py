"""python -m benchmarks [QUESTION ...]: compare netq with its peers, in one table for each question.

A run of all questions with all peers writes docs/reference/benchmarks.md and benchmarks-by-size.md with their plots; a
run of all sweeps (`python -m benchmarks sweep-tcp sweep-shm`) writes the latter. Every run writes all raw figures to
out/benchmarks.json. benchmarks/questions.py defines the questions; measure.py measures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from rich.console import Console
from rich.progress import Progress, TaskID

from benchmarks import page
from benchmarks.measure import ROOT, Failed, Sample, Stage, measure, stage
from benchmarks.peers import PEERS
from benchmarks.questions import QUESTIONS, Question
from benchmarks.table import render

OUT = ROOT / "out"
Result = tuple[dict[str, list[Sample]], dict[str, str]]  # samples by peer, and why the others are missing


def main(arguments: Sequence[str] | None = None) -> None:
    args = _parse(arguments)
    if args.list:
        for question in QUESTIONS:
            print(f"{question.name:18} {question.title}: {', '.join(question.peers)}")
        return
    questions = [_fit(question, args) for question in QUESTIONS if not args.question or question.name in args.question]
    rounds = 1 if args.quick else args.rounds
    results = _run([question for question in questions if question.peers], rounds)
    _save(results)
    if not (args.only_peers or args.quick):
        _write_pages(results, rounds, all_questions=not args.question)


def _write_pages(results: dict[Question, Result], rounds: int, *, all_questions: bool) -> None:
    """Write benchmarks-by-size.md if all sweeps were measured, and benchmarks.md after a run of all questions."""
    folder, sweeps = ROOT / "docs" / "reference", [question for question in QUESTIONS if question.is_sweep]
    if set(sweeps) <= set(results):
        names = " ".join(question.name for question in sweeps)
        by_size = {question: results[question] for question in sweeps}
        page.write_by_size(folder, by_size, rounds, f"python -m benchmarks {names} --rounds {rounds}")
    if all_questions:
        others = {question: result for question, result in results.items() if not question.is_sweep}
        page.write(folder, others, rounds, f"python -m benchmarks --rounds {rounds}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="netq compared with its peers")
    parser.add_argument(
        "question", nargs="*", help="see --list; default: all questions, and the pages of docs/reference are written"
    )
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each peer (default: 5)")
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of the messages; writes no docs")
    parser.add_argument("--only-peers", metavar="PEER", nargs="+", default=[], help="measure these peers only")
    parser.add_argument("--list", action="store_true", help="list the questions and their peers")
    args = parser.parse_args(arguments)
    for what, names, known in (
        ("question", args.question, [question.name for question in QUESTIONS]),
        ("peer", args.only_peers, list(PEERS)),
    ):
        if unknown := set(names) - set(known):
            parser.error(f"no {what} {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}; expected 1 or more")
    return args


def _fit(question: Question, args: argparse.Namespace) -> Question:
    """Leave out peers that the command line does not name; with --quick, shorten the tasks."""
    peers = tuple(name for name in question.peers if not args.only_peers or name in args.only_peers)
    return replace(question, peers=peers, task=question.quick if args.quick else question.task)


def _run(questions: Sequence[Question], rounds: int) -> dict[Question, Result]:
    results: dict[Question, Result] = {}
    with stage() as place, Progress(console=Console(stderr=True)) as progress:
        whole = progress.add_task("", total=sum(len(question.peers) * rounds for question in questions))
        for question in questions:
            results[question] = samples, missing = _ask(question, rounds, place, progress, whole)
            lines = ["", f"{question.name}: {question.title}", "", *render(question, samples, missing)]
            progress.console.file.flush()
            print("\n".join(lines), flush=True)
    return results


def _ask(question: Question, rounds: int, place: Stage, progress: Progress, whole: TaskID) -> Result:
    """Measure the peers of a question in turn, round after round. A peer that fails is left out, with the reason."""
    missing = {name: why for name in question.peers if (why := _why_not(name))}
    samples: dict[str, list[Sample]] = {}
    for round in range(rounds):
        for name in question.peers:
            progress.update(whole, advance=1, description=f"{question.name}, {name}, round {round + 1} of {rounds}")
            if name in missing:
                continue
            try:
                sample = measure(PEERS[name], question.task, place)
            except Failed as error:
                missing[name] = str(error)
                samples.pop(name, None)
            else:
                samples.setdefault(name, []).append(sample)
    return samples, missing


def _why_not(name: str) -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{cores} core; two are needed" if cores < 2 else PEERS[name].why_not()


def _save(results: dict[Question, Result]) -> None:
    """Write the raw figures of every round to out/benchmarks.json."""
    found = {
        question.name: {
            "task": asdict(question.task),
            "missing": missing,
            "samples": {
                name: [{"client": s.client, "server": s.server} for s in each] for name, each in samples.items()
            },
        }
        for question, (samples, missing) in results.items()
    }
    OUT.mkdir(exist_ok=True)
    path = OUT / "benchmarks.json"
    whole = {"machine": page.machine(), "peers": page.versions(), "questions": found}
    path.write_text(json.dumps(whole), encoding="utf-8")
    print(f"\nAll figures: {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
