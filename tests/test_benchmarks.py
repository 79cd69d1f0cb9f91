"""The benchmarks measure what they say: every peer that is installed delivers all, and goals are judged rightly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import bytes as types
from benchmarks import curve, handshakes, page, plot, ring, serialisers
from benchmarks.load import RATES, best, is_reached, percentile, point, search
from benchmarks.measure import ROOT, Failed, Sample, Stage, measure, stage
from benchmarks.peers import PEERS, Peer
from benchmarks.peers.frames import AHEAD, Frames, pieces
from benchmarks.questions import QUESTIONS, Goal, Question
from benchmarks.table import FIGURES, render, values, verdict
from benchmarks.task import Task, check, check_same, message

ONE_WAY = Task("one_way", "array", 300_000, 5, warm=1)
ECHO = Task("echo", "object", 64, 5, warm=1)
SLOW = {"gloo"}  # torch takes seconds to import


@pytest.fixture
def place() -> Iterator[Stage]:
    with stage() as place:
        yield place


def peers() -> list[object]:
    """All rows, the slow ones marked."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in PEERS]


def present(name: str) -> Peer:
    if why := PEERS[name].why_not():
        pytest.skip(f"{name} is not here: {why}")
    return PEERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", peers())
@pytest.mark.parametrize("task", [ONE_WAY, ECHO], ids=lambda task: task.work)
def test_peer_delivers_every_message(name: str, task: Task, place: Stage) -> None:
    sample = measure(present(name), task, place)  # the sides count, and compare the first message
    assert sample.seconds > 0
    assert sample.task.messages == (5 if task is ONE_WAY else 10)
    assert sample.client["cpu"] > 0
    assert sample.server["resident"] > 2**20


def test_every_round_trip_is_timed(place: Stage) -> None:
    sample = measure(PEERS["raw"], Task("round_trip", "object", 4, 20, warm=1, reply=1024), place)
    assert len(sample.client["times"]) == 20
    assert sum(sample.client["times"]) / 1e9 <= sample.seconds


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("name", ["netq tcp", "grpcio", "grpcio aio"])
def test_exchange_goes_both_ways(name: str, together: bool, place: Stage) -> None:
    task = Task("exchange", "array", 2**14, 1, smallest=2**8, step=2, expo=0.5, together=together)
    sample = measure(present(name), task, place)
    assert sample.task.messages == 2 * (1 + 2 + 4 + 8)
    assert sample.task.bytes == 2 * (2**14 + 2 * 2**12 + 4 * 2**10 + 8 * 2**8)


def test_frames_are_reassembled_from_any_pieces() -> None:
    messages = [b"", b"one", bytes(AHEAD), b"two" * AHEAD, b"3"]
    stream = b"".join(bytes(piece) for message in messages for piece in pieces(message))
    for step in (1000, AHEAD, len(stream)):
        frames, came = Frames(), []
        for start in range(0, len(stream), step):
            frames.feed(stream[start : start + step])
            while (message := frames.take()) is not None:
                came.append(bytes(message))
        assert came == messages


def test_missing_or_wrong_message_is_detected() -> None:
    with pytest.raises(RuntimeError, match="4 messages of 256 bytes came; expected 5 of 320"):
        check(4, 256, 5, 320)
    data = message("array", 2_500_000)
    check_same(2_500_000, data)
    data[-1] ^= 1
    with pytest.raises(RuntimeError, match="not what was sent"):
        check_same(2_500_000, data)
    with pytest.raises(RuntimeError, match="not what was sent"):
        check_same(2_500_000, data[:-1])


@pytest.mark.slow
def test_failing_side_reports_why(place: Stage) -> None:
    with pytest.raises(Failed, match="no_such_work"):
        measure(PEERS["raw"], Task("no_such_work", "object", 1, 1), place)
    with pytest.raises(Failed, match="No module named"):
        measure(Peer("nobody", "nobody"), ECHO, place)


def test_missing_peer_names_what_to_install() -> None:
    assert Peer("nobody", "nobody", (("no_such_module", "no-such-package"),)).why_not() == "pip install no-such-package"


def test_one_core_is_reported_without_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert command._why_not("raw") == "1 core; two are needed"


def sample(seconds: float, peer_cpu: float = 1.0, times: tuple[int, ...] = (), rate: float = 7.0) -> Sample:
    side = {
        "began": 0.0,
        "ended": seconds,
        "cpu": peer_cpu,
        "extra": 10,
        "resident": 2**21,
        "times": times,
        "rate": rate,
    }
    return Sample(Task("one_way", "array", 10**9, 2), side, side | {"extra": 10**9})


def test_figures_use_both_sides() -> None:
    one = sample(4.0, times=(3000, 1000, 2000))
    found = {name: figure.of(one) for name, figure in FIGURES.items()}
    assert found == {
        "throughput": 0.5,
        "messages": 0.5,
        "rate": 7.0,
        "p50": 2.0,
        "p99": 3.0,
        "cpu": 1.0,
        "cpu_message": 1e6,
        "extra": 1.0,
        "resident": 2.0,
    }
    assert values([one, sample(2.0)], "throughput") == [0.5, 1.0]


SAMPLES = {
    "netq tcp": [sample(1.0), sample(1.1), sample(9.0)],
    "raw": [sample(1.0), sample(1.0), sample(1.0)],
    "pyzmq": [sample(2.2), sample(0.1), sample(3.0)],
    "netq grpc": [sample(1.0, rate=0.0)],
    "grpcio": [sample(1.0, rate=0.0)],
}


@pytest.mark.parametrize(
    ("goal", "holds", "text"),
    [
        (Goal("throughput", "netq tcp", ("raw",), at_least=0.9), True, "≥ 0.9 × raw: 0.909, holds"),
        (Goal("throughput", "netq tcp", ("raw",), at_least=0.95), False, "0.909, **missed**"),
        (Goal("throughput", "netq tcp", ("pyzmq",), at_least=2.0), True, "≥ 2 × pyzmq: 2, holds"),
        (Goal("throughput", "netq tcp", ("pyzmq", "raw"), at_least=1.0), False, "the best of pyzmq, raw (raw): 0.909"),
        (Goal("cpu", "netq tcp", ("raw",), at_most=1.0), True, "≤ 1 × raw: 1, holds"),
        (Goal("extra", "netq tcp", at_most=0.9), False, "≤ 0.9: 1, **missed**"),
        (Goal("throughput", "netq tcp", ("gloo",), at_least=1.0), None, "not judged"),
        (Goal("throughput", "netq shm", ("raw",), at_least=1.0), None, "not judged"),
        (Goal("rate", "netq grpc", ("grpcio",), at_least=1.0), None, "not judged, both are 0"),
        (Goal("rate", "netq tcp", ("grpcio",), at_least=1.0), True, "inf, holds"),
    ],
)
def test_goal_compares_medians_with_the_best_peer(goal: Goal, holds: bool | None, text: str) -> None:
    found = verdict(goal, SAMPLES)
    assert found[0] is holds
    assert text in found[1]


QUESTION = Question(
    "name",
    "Title",
    ONE_WAY,
    ("throughput", "extra"),
    ("netq tcp", "raw", "pyzmq", "gloo"),
    (Goal("throughput", "netq tcp", ("raw",), at_least=0.95),),
    ONE_WAY,
)


def test_table_has_a_row_for_missing_peers() -> None:
    lines = render(QUESTION, SAMPLES, {"gloo": "pip install torch"})
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert table[0] == ["", "GB/s", "× netq tcp", "extra memory, × message"]
    assert [row[0] for row in table[2:]] == list(QUESTION.peers)
    assert table[2][1:3] == ["1.82 (0.22 to 2.00)", "1.00"]
    assert table[3][1:3] == ["2.00 (2.00 to 2.00)", "1.10"]
    assert table[5][1] == "not here"
    assert len({len(line) for line in lines if line.startswith("|")}) == 1, "not aligned"
    assert "- gloo is not here: pip install torch" in lines
    assert any("**missed**" in line for line in lines)


@pytest.fixture(scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """matplotlib keeps the files of fonts open, from the first plot on."""
    plot.draw(QUESTION, SAMPLES, tmp_path_factory.mktemp("fonts"))
    curve.draw({"netq tcp": [{"rate": 1e3, "p99.9": 1.0}]}, tmp_path_factory.mktemp("fonts") / "curve.svg")


@pytest.mark.usefixtures("fonts")
def test_page_and_plots_are_deterministic(tmp_path_factory: pytest.TempPathFactory) -> None:
    written = []
    for _ in range(2):
        folder = tmp_path_factory.mktemp("docs")
        page.write(folder, {QUESTION: (SAMPLES, {"gloo": "pip install torch"})}, 3, "python -m benchmarks")
        written.append({file.name: file.read_bytes() for file in folder.rglob("*.*")})
    assert written[0] == written[1]
    assert sorted(written[0]) == ["benchmarks.md", "name.svg"]
    text = written[0]["benchmarks.md"].decode()
    assert "0 of 1 hold, 1 are missed, 0 could not be judged here." in text
    assert "![Title](benchmarks/name.svg)" in text
    assert len(written[0]["name.svg"]) < 20_000


CURVES = {
    "netq tcp": [{"rate": rate, "answered": rate, "p50": 0.1, "p99": 1.0, "p99.9": late} for rate, late in
                 ((1000.0, 2.0), (1414.0, 5.0), (2000.0, 7.0), (2828.0, 1.0))],
    "grpcio": [],
}  # fmt: skip


@pytest.mark.usefixtures("fonts")
def test_curves_are_written_the_same_each_time(tmp_path: Path) -> None:
    written = []
    for name in ("a", "b"):
        folder = tmp_path / name
        (folder / "benchmarks").mkdir(parents=True)
        curve.write(folder, CURVES, {"pyzmq": "pip install pyzmq"}, 0.5, "python -m benchmarks.curve")
        written.append([(folder / each).read_text() for each in ("benchmarks-load.md", "benchmarks/curve.svg")])
    assert written[0] == written[1]
    lines = [" ".join(line.split()) for line in written[0][0].splitlines()]
    assert "| netq tcp | 1,414/s | 2,828/s | 0.10 | 2.00 |" in lines
    assert "| grpcio | 0/s | 0/s | | |" in lines
    assert "| 2,000 | 7.00 | |" in lines
    assert "- pyzmq is not here: pip install pyzmq" in lines


def test_point_of_curve_has_the_rate_of_the_echoes() -> None:
    keeping_up, late = point(100.0, [0.001] * 100), point(100.0, [0.001] * 99 + [1.0])
    assert keeping_up == {"rate": 100.0, "answered": pytest.approx(99.9, 0.01), "p50": 1.0, "p99": 1.0, "p99.9": 1.0}
    assert late["answered"] == 50
    assert (is_reached(keeping_up), is_reached(late)) == (True, False)
    assert best([late | {"p99.9": 0.1}, keeping_up]) == keeping_up
    assert best([keeping_up, keeping_up | {"p99.9": 0.5}])["p99.9"] == 0.5


def test_unknown_peer_of_a_curve_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        curve.main(["pigeon"])
    assert "no peer pigeon; there are: netq tcp" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asyncio protocols", "netq tcp"])
def test_curve_is_measured_until_a_rate_is_not_reached(name: str) -> None:
    curves, missing = curve.measured([name], 0.02)
    assert missing == {}
    rates = [each["rate"] for each in curves[name]]
    assert rates == list(RATES)[: len(rates)]


@pytest.mark.slow
@pytest.mark.parametrize("peer", ring.PEERS)
def test_each_peer_is_measured_by_size(peer: str, tmp_path: Path) -> None:
    cases = [ring.Case(4, 1024), ring.Case(300_000, 300_000), ring.Case(300_000, 0)]
    started = time.perf_counter()
    trip, large, one_way = found = ring.measure(*ring.PEERS[peer], cases, 0.001, tmp_path)
    elapsed = (time.perf_counter() - started) * 1e6  # microseconds, as round trips are given
    assert 0 < trip[0] <= trip[1] <= trip[2] < elapsed
    assert 0 < large[0] <= large[1] <= large[2] < elapsed
    assert one_way[0] > 0
    table = "\n".join(ring._tables({"TCP": [found], peer: [found] * 3}, cases))
    assert "4 B → 1 KiB" in table
    assert table.count("(1.00)") == 3 * len({"TCP", peer})


@pytest.mark.slow
def test_wakeups_are_measured() -> None:
    code = "from benchmarks.wakeups import KINDS, round_trip; print(min(round_trip(KINDS[k], 20) for k in KINDS) > 0)"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "True\n"


def test_search_finds_the_highest_sustained_rate() -> None:
    rates, tried = search(start=1000, steps=8), []
    sustained = None
    try:
        while True:
            rate = rates.send(sustained)  # type: ignore[arg-type]  # the first is None
            tried.append(rate)
            sustained = rate <= 5000
    except StopIteration as stop:
        found = stop.value
    assert 4980 <= found <= 5000
    assert tried[:4] == [1000, 2000, 4000, 8000]


def test_percentiles_are_nearest_rank() -> None:
    assert [percentile(range(1, 101), percent) for percent in (0, 50, 99, 99.9, 100)] == [1, 50, 99, 100, 100]
    assert percentile([5], 50) == 5


def test_questions_name_existing_peers_and_figures() -> None:
    assert len({question.name for question in QUESTIONS}) == len(QUESTIONS)
    for question in QUESTIONS:
        assert set(question.peers) <= set(PEERS), question.name
        assert set(question.figures) <= set(FIGURES), question.name
        for goal in question.goals:
            assert {goal.subject, *goal.others} <= set(question.peers), question.name
            assert (goal.at_least is None) != (goal.at_most is None), question.name


def test_mixture_is_the_same_on_both_sides() -> None:
    task = Task("exchange", "array", 2**12, 1, smallest=2**8, step=2, expo=0.5)
    assert sorted(task.mixture()) == [2**8] * 4 + [2**10] * 2 + [2**12]
    assert task.mixture() == replace(task).mixture()
    assert Task("exchange", "array", 8, 3).mixture() == [8, 8, 8]


@pytest.mark.slow
def test_run_prints_tables_and_writes_all_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(command, "OUT", tmp_path)
    monkeypatch.setattr(command, "QUESTIONS", [replace(QUESTION, quick=ONE_WAY)])
    command.main(["--quick", "--only-peers", "netq tcp", "raw"])
    out = capsys.readouterr().out
    assert "name: Title" in out
    found = json.loads((command.OUT / "benchmarks.json").read_text())["questions"]["name"]
    assert {name: len(samples) for name, samples in found["samples"].items()} == {"netq tcp": 1, "raw": 1}


@pytest.mark.slow
def test_serialisers_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """The figures are those of a busy machine; what is checked is that there are some, for each serialiser."""
    serialisers.main(0.02)
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line]
    titles = [cells[1].strip() for cells in rows]
    for title in ("pickle", "pickle with `allow`", "msgpack", "msgpack with a type", "protobuf"):
        assert titles.count(title) == 3
    assert all(float(cell.replace(",", "")) > 0 for cells in rows if "msgpack" in cells[1] for cell in cells[2:-1])


def test_types_of_bytes_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    types.main(1, 1)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == list(types.values(10))
    assert all(float(cell) > 0 for row in rows for cell in row[1:3])


def test_the_cost_of_handshakes_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    handshakes.main(["--count", "1"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert {(row[0], row[1], row[2]) for row in rows} == {
        (group, algorithm, side)
        for group, algorithm in (
            ("X25519 (Python's ssl)", "p256"),
            ("X25519MLKEM768", "p256"),
            ("X25519MLKEM768", "ml-dsa-65"),
        )
        for side in ("server", "both")
    } | {("MLKEM768_X25519 (sealed)", algorithm, "both") for algorithm in ("p256", "ml-dsa-65")}
    sizes = [int(row[3].replace(",", "")) + int(row[4].replace(",", "")) for row in rows if row[2] == "both"]
    assert sizes[:-2] == sorted(sizes[:-2])
    assert sizes[-2] < sizes[-1]


@pytest.mark.parametrize("arguments", [["nothing"], ["--only-peers", "nobody"], ["--rounds", "0"]])
def test_wrong_arguments_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert arguments[-1] in capsys.readouterr().err
