"""python -m benchmarks [QUESTION ...]: compare netq with its peers, in tables for each question.

A run of all questions of a page of docs/reference, with all peers, writes that page with its plots. Every run writes
all raw figures to out/benchmarks.json. benchmarks/questions.py defines the questions; measure.py measures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

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
    asked = [each for each in QUESTIONS if (each.name in args.question if args.question else each.page)]
    questions = [_fit(question, args) for question in asked]
    rounds = 1 if args.quick else args.rounds
    results = _run([question for question in questions if question.peers], rounds)
    _save(results)
    if not (args.only_peers or args.quick):
        _write_pages(results, rounds)


def _write_pages(results: dict[Question, Result], rounds: int) -> None:
    """Write the pages whose questions were all measured."""
    for name in page.TOPS:
        questions = [question for question in QUESTIONS if question.page == name]
        if set(questions) <= set(results):
            names = [] if name == "benchmarks" else [question.name for question in questions]
            command = " ".join(["python -m benchmarks", *names, f"--rounds {rounds}"])
            page.write(ROOT / "docs/reference", name, {each: results[each] for each in questions}, rounds, command)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="netq compared with its peers")
    parser.add_argument("question", nargs="*", help="see --list; default: all that have a page of docs/reference")
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
    with stage() as place:
        for question in questions:
            results[question] = samples, missing = _ask(question, rounds, place)
            print("\n".join(["", f"{question.name}: {question.title}", "", *render(question, samples, missing)]))
            sys.stdout.flush()
    return results


def _ask(question: Question, rounds: int, place: Stage) -> Result:
    """Measure the peers of a question in turn, round after round. A peer that fails is left out, with the reason.

    A curve has one round: each of its rates is tried twice.
    """
    missing = {name: why for name in question.peers if (why := _why_not(name))}
    samples: dict[str, list[Sample]] = {}
    for round in range(1 if question.task.work == "curve" else rounds):
        for name in question.peers:
            if name in missing:
                continue
            print(f"{question.name}, {name}, round {round + 1}", file=sys.stderr, flush=True)
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
            "samples": {name: [[each.client, each.server] for each in sampled] for name, sampled in samples.items()},
        }
        for question, (samples, missing) in results.items()
    }
    OUT.mkdir(exist_ok=True)
    path = OUT / "benchmarks.json"
    whole = {"machine": page.machine(), "peers": page.versions(PEERS), "questions": found}
    path.write_text(json.dumps(whole), encoding="utf-8")
    print(f"\nAll figures: {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
