"""The benchmarks measure what they say: every peer that is installed delivers all, and goals are judged rightly."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import page, plot, serialisers
from benchmarks.measure import ROOT, Failed, Sample, Stage, measure, stage
from benchmarks.peers import PEERS, PIECES, SPINS, Peer, raw
from benchmarks.peers.frames import AHEAD, Frames, pieces
from benchmarks.questions import QUESTIONS, Goal, Question
from benchmarks.table import FIGURES, render, values, verdict
from benchmarks.task import Task, check, check_same, message
from benchmarks.works import HEADER, LEAST, PLAIN, Server, best, drive, is_reached, point

ONE_WAY = Task("one_way", "array", 300_000, 5, warm=1)
ECHO = Task("echo", "object", 64, 5, warm=1)
SLOW = {"gloo"}  # torch takes seconds to import


@pytest.fixture
def place() -> Iterator[Stage]:
    with stage() as place:
        yield place


def peers() -> list[object]:
    """Each module with each of its loops, the slow ones marked; of the ring socket's settings one of each kind."""
    settings = {f"spin {spin} µs" for spin in SPINS[1:]} | {f"piece {piece} KiB" for piece in PIECES[1:]}
    names = [name for name in PEERS if name not in settings]
    return [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in names]


def present(name: str) -> Peer:
    if why := PEERS[name].why_not():
        pytest.skip(f"{name} is not here: {why}")
    return PEERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", peers())
def test_peer_sends_every_message_back(name: str, place: Stage) -> None:
    sample = measure(present(name), ECHO, place)  # the sides count, and compare the first message
    assert sample.seconds > 0
    assert sample.task.messages == 10
    assert sample.client["cpu"] > 0
    assert sample.server["resident"] > 2**20


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["netq tcp", "netq aio into", "pyzmq", "zenoh", "multiprocessing", "iceoryx2", "grpcio aio"]
)
def test_peer_delivers_every_array(name: str, place: Stage) -> None:
    sample = measure(present(name), ONE_WAY, place)
    assert sample.seconds > 0
    assert sample.task.messages == 5


def test_shared_memory_of_killed_peers_is_removed() -> None:
    with stage() as place:
        left = Path("/dev/shm", f"{place.folder.name}_left.data")
        left.write_bytes(b"left")
    assert not left.exists()
    assert not place.folder.exists()


def test_every_round_trip_is_timed(place: Stage) -> None:
    sample = measure(PEERS["raw"], Task("echo", "object", 4, 20, warm=1, reply=1024), place)
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
    with pytest.raises(RuntimeError, match="256 bytes came; expected 5 messages of 64"):
        check(256, 5, 64)
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
        "p99.9": 3.0,
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
    "throughput extra",
    ("netq tcp", "raw", "pyzmq", "gloo"),
    (Goal("throughput", "netq tcp", ("raw",), at_least=0.95),),
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
    plot.draw(CURVE, CURVES, tmp_path_factory.mktemp("fonts"))
    plot.draw(BY_SIZE, ROUNDS, tmp_path_factory.mktemp("fonts"))


@pytest.mark.usefixtures("fonts")
def test_page_and_plots_are_deterministic(tmp_path_factory: pytest.TempPathFactory) -> None:
    written = []
    for _ in range(2):
        folder = tmp_path_factory.mktemp("docs")
        page.write(
            folder, "benchmarks", {QUESTION: (SAMPLES, {"gloo": "pip install torch"})}, 3, "python -m benchmarks"
        )
        written.append({file.name: file.read_bytes() for file in folder.rglob("*.*")})
    assert written[0] == written[1]
    assert sorted(written[0]) == ["benchmarks.md", "name.svg"]
    text = written[0]["benchmarks.md"].decode()
    assert "0 of 1 hold, 1 are missed, 0 could not be judged here." in text
    assert "![Title](benchmarks/name.svg)" in text
    assert len(written[0]["name.svg"]) < 20_000


CURVE = next(question for question in QUESTIONS if question.task.work == "curve")
POINTS = [
    {"rate": rate, "answered": rate, "p50": 0.1, "p99": 1.0, "p99.9": late}
    for rate, late in ((1000.0, 2.0), (1414.0, 5.0), (2000.0, 7.0), (2828.0, 1.0))
]
CURVES = {
    "netq tcp": [Sample(CURVE.task, {"curve": [*POINTS, {"rate": 4000.0, "answered": 9.0}]}, {})],
    "grpcio": [Sample(CURVE.task, {"curve": []}, {})],
}


@pytest.mark.usefixtures("fonts")
def test_page_of_a_curve_ends_at_the_last_rate_reached(tmp_path: Path) -> None:
    page.write(tmp_path, "benchmarks-load", {CURVE: (CURVES, {"pyzmq aio": "pip install pyzmq"})}, 1, "python")
    assert (tmp_path / "benchmarks" / "curve.svg").exists()
    lines = [" ".join(line.split()) for line in (tmp_path / "benchmarks-load.md").read_text().splitlines()]
    assert "| netq tcp | 1,414/s | 2,828/s | 0.10 | 2.00 |" in lines
    assert "| grpcio | 0/s | 0/s | | |" in lines
    assert "| 2,000 | 7.00 | |" in lines
    assert "- pyzmq aio is not here: pip install pyzmq" in lines


def test_point_of_curve_has_the_rate_of_the_echoes() -> None:
    keeping_up, late = point(100.0, [0.001] * 100), point(100.0, [0.001] * 99 + [1.0])
    assert keeping_up == {"rate": 100.0, "answered": pytest.approx(99.9, 0.01), "p50": 1.0, "p99": 1.0, "p99.9": 1.0}
    assert late["answered"] == 50
    assert (is_reached(keeping_up), is_reached(late)) == (True, False)
    assert best([late | {"p99.9": 0.1}, keeping_up]) == keeping_up
    assert best([keeping_up, keeping_up | {"p99.9": 0.5}])["p99.9"] == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asyncio protocols", "netq tcp"])
def test_curve_is_measured_until_a_rate_is_not_reached(name: str, place: Stage) -> None:
    points = measure(PEERS[name], replace(CURVE.task, seconds=0.02), place).client["curve"]
    assert all(is_reached(each) for each in points[:-1])
    assert points[0]["rate"] == 1000


@pytest.mark.slow
def test_wakeups_are_measured() -> None:
    code = "from benchmarks.wakeups import KINDS, round_trip; print(min(round_trip(KINDS[k], 20) for k in KINDS) > 0)"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "True\n"


def test_questions_name_existing_peers_and_figures() -> None:
    assert len({question.name for question in QUESTIONS}) == len(QUESTIONS)
    for question in QUESTIONS:
        assert set(question.peers) <= set(PEERS), question.name
        assert set(question.figures.split()) <= set(FIGURES), question.name
        for goal in question.goals:
            assert {goal.subject, *goal.others} <= set(question.peers), question.name
            assert (goal.at_least is None) != (goal.at_most is None), question.name


def test_plan_of_an_exchange_has_more_small_messages() -> None:
    task = Task("exchange", "array", 2**12, 1, smallest=2**8, step=2, expo=0.5)
    assert task.plan.pairs == ((2**8, 4), (2**10, 2), (2**12, 1))
    assert Task("exchange", "array", 8, 3).plan.pairs == ((8, 3),)


def test_run_without_an_event_loop_refuses_to_wait_for_one() -> None:
    async def work() -> int:
        return 7

    assert drive(work()) == 7
    with pytest.raises(RuntimeError, match="it waits for an event loop; there is none"):
        drive(asyncio.sleep(0))


@pytest.mark.slow
def test_run_prints_tables_and_writes_all_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(command, "OUT", tmp_path)
    monkeypatch.setattr(command, "QUESTIONS", [QUESTION])
    command.main(["--quick", "--only-peers", "netq tcp", "raw"])
    out = capsys.readouterr().out
    assert "name: Title" in out
    found = json.loads((command.OUT / "benchmarks.json").read_text())["questions"]["name"]
    assert {name: len(samples) for name, samples in found["samples"].items()} == {"netq tcp": 1, "raw": 1}


@pytest.mark.slow
def test_serialisers_and_types_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """The figures are those of a busy machine; what is checked is that there are some, for each row."""
    serialisers.main(0.02, 1)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines() if line]
    titles = [row[0] for row in rows]
    for title in ("pickle", "pickle with `allow`", "msgpack", "msgpack with a type", "protobuf"):
        assert titles.count(title) == 3
    types = list(serialisers.values(10))
    assert titles[-len(types) :] == types
    measured = [row for row in rows if row[0] in types or "msgpack" in row[0]]
    assert all(float(cell.replace(",", "")) > 0 for row in measured for cell in row[1:3])


@pytest.mark.parametrize("arguments", [["nothing"], ["--only-peers", "nobody"], ["--rounds", "0"]])
def test_wrong_arguments_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert arguments[-1] in capsys.readouterr().err


SWEEPS = [question for question in QUESTIONS if question.page == "benchmarks-by-size"]
SWEEP = Task("sweep", "array", 2**20, 1, seconds=0.002, smallest=1, step=10)
SIZES = [1, 2**10, 2**20]
BY_SIZE = Question("by-size", "Title", SWEEP, "p50 throughput", ("netq tcp", "raw", "pyzmq"), note="A note.")


def swept(factor: float) -> Sample:
    """A round in which a message takes 1 µs, and one more for each KiB, times a factor."""
    microseconds = {size: factor * (1 + size // 1024) for size in SIZES}
    steps = {
        str(size): {"times": [round(us * 1000)], "count": 10, "seconds": 10 * us / 1e6}
        for size, us in microseconds.items()
    }
    return Sample(SWEEP, {"steps": steps}, {})


ROUNDS = {"netq tcp": [swept(2), swept(1), swept(9)], "raw": [swept(1)] * 3}
MISSING = {"pyzmq": "pip install pyzmq"}


@pytest.mark.slow
@pytest.mark.parametrize("name", dict.fromkeys(name for question in SWEEPS for name in question.peers))
def test_peer_passes_messages_of_every_size(name: str) -> None:
    if why := PEERS[name].why_not():
        pytest.skip(f"{name} is not here: {why}")
    with stage() as place:
        found = measure(PEERS[name], SWEEP, place)
    assert SWEEP.sizes() == SIZES
    for size in SIZES:
        one = found.at(size)
        assert len(one.client["times"]) >= LEAST
        assert one.task.count >= LEAST
        assert all(FIGURES[figure].of(one) > 0 for figure in ("p50", "p99", "throughput", "messages"))


def test_raw_wire_keeps_bytes_before_a_larger_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "AHEAD", 8)
    ours, theirs = socket.socketpair()
    wire = raw.Wire(theirs)
    with ours:
        ours.sendall(b"12345" + b"abcdefghijklmnopqrst")
        assert bytes(drive(wire.receive(5))) == b"12345"  # three bytes of the next message were read, too
        assert bytes(drive(wire.receive(20))) == b"abcdefghijklmnopqrst"
    drive(wire.close())


def test_server_fails_if_bytes_are_missing() -> None:
    class Short:
        async def send(self, message: object) -> None:
            raise AssertionError("it is not sent back")

        async def receive(self, size: int) -> bytes:
            return HEADER.pack(8, 2, 0, PLAIN) if size == HEADER.size else b"short"

        async def close(self) -> None:
            return None

    with pytest.raises(RuntimeError, match="10 bytes came; expected 2 messages of 8"):
        drive(Server(Short(), SWEEP, in_loop=False).run())


def test_tables_have_sizes_as_rows_and_ratios_to_netq() -> None:
    lines = render(BY_SIZE, ROUNDS, MISSING)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert rows[0] == ["p50, µs", "netq tcp", "raw"]
    assert [row[0] for row in rows[2:5]] == ["1B", "1KiB", "1MiB"]
    assert rows[2][1:] == ["2 (1.00)", "1 (0.50)"]
    assert rows[4][1:] == ["2,050 (1.00)", "1,025 (0.50)"]
    assert rows[5] == ["GB/s", "netq tcp", "raw"]
    assert rows[8][1:] == ["0.256 (1.00)", "0.512 (2.00)"]
    assert lines[-1] == "- pyzmq is not here: pip install pyzmq"


def test_table_without_netq_has_no_ratios() -> None:
    lines = render(BY_SIZE, {"raw": ROUNDS["raw"]}, {"netq tcp": "broken"})
    assert lines[2].split("|")[2].strip() == "1"


@pytest.mark.slow
@pytest.mark.usefixtures("fonts")
def test_page_by_size_and_plots_are_deterministic(tmp_path_factory: pytest.TempPathFactory) -> None:
    written = []
    for _ in range(2):
        folder = tmp_path_factory.mktemp("docs")
        page.write(folder, "benchmarks-by-size", {BY_SIZE: (ROUNDS, MISSING)}, 3, "python -m benchmarks by-size")
        written.append({file.name: file.read_bytes() for file in folder.rglob("*.*")})
    assert written[0] == written[1]
    assert sorted(written[0]) == ["benchmarks-by-size.md", "by-size.svg"]
    text = written[0]["benchmarks-by-size.md"].decode()
    assert "median of 3 round(s)" in text
    assert "![Title](benchmarks/by-size.svg)" in text
    assert "A note." in text
    assert text.count("| 1KiB") == 2
    drawn = written[0]["by-size.svg"].decode()
    assert all(name in drawn for name in ("netq tcp", "raw", "1MiB"))


@pytest.mark.parametrize(
    ("line", "pages"),
    [
        ("", {"benchmarks", "benchmarks-by-size", "benchmarks-load"}),
        ("sweep-tcp sweep-shm", {"benchmarks-by-size"}),
        ("curve ring", {"benchmarks-load"}),
        ("sweep-tcp", set()),
        ("sweep-tcp sweep-shm --quick", set()),
        ("sweep-tcp sweep-shm --only-peers raw pipes", set()),
        ("tcp-2mib", set()),
    ],
)
def test_pages_are_written_after_whole_runs_only(monkeypatch: pytest.MonkeyPatch, line: str, pages: set[str]) -> None:
    written = {}
    monkeypatch.setattr(command, "_run", lambda questions, rounds: dict.fromkeys(questions, ({}, {})))
    monkeypatch.setattr(command, "_save", lambda results: None)
    monkeypatch.setattr(page, "write", lambda folder, name, results, *_: written.update({name: list(results)}))
    command.main(line.split())
    assert written == {name: [question for question in QUESTIONS if question.page == name] for name in pages}


def test_quick_sweep_ends_at_smaller_messages() -> None:
    for question in SWEEPS:
        assert question.quick.sizes()[-1] < question.task.sizes()[-1] == 2**28
        assert question.quick.seconds < question.task.seconds
        assert replace(question.quick, size=2**28).sizes() == question.task.sizes()


def test_written_page_has_both_plots() -> None:
    folder = Path(__file__).parents[1] / "docs" / "reference"
    text = (folder / "benchmarks-by-size.md").read_text(encoding="utf-8")
    for question in SWEEPS:
        assert f"](benchmarks/{question.name}.svg)" in text
        assert (folder / "benchmarks" / f"{question.name}.svg").exists()
