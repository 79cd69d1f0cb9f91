"""The sweeps of the benchmarks: every peer passes every size, and the page has tables and plots by size."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import page, plot
from benchmarks.measure import Sample, measure, stage
from benchmarks.meter import Meter
from benchmarks.peers import PEERS, raw
from benchmarks.questions import QUESTIONS, Question
from benchmarks.sweep import HEADER, LEAST, sweep_server
from benchmarks.table import FIGURES, render
from benchmarks.task import Task

SWEEPS = [question for question in QUESTIONS if question.is_sweep]
TASK = Task("sweep", "array", 2**20, 1, seconds=0.002, smallest=1, step=10)
SIZES = [1, 2**10, 2**20]
QUESTION = Question("by-size", "Title", TASK, ("p50", "throughput"), ("netq tcp", "raw", "pyzmq"), (), TASK, "A note.")


def sample(factor: float) -> Sample:
    """A round in which a message takes 1 µs, and one more for each KiB, times a factor."""
    microseconds = {size: factor * (1 + size // 1024) for size in SIZES}
    steps = {
        str(size): {"times": [round(us * 1000)], "count": 10, "seconds": 10 * us / 1e6}
        for size, us in microseconds.items()
    }
    return Sample(TASK, {"steps": steps}, {})


SAMPLES = {"netq tcp": [sample(2), sample(1), sample(9)], "raw": [sample(1)] * 3}
MISSING = {"pyzmq": "pip install pyzmq"}


@pytest.mark.slow
@pytest.mark.parametrize("name", dict.fromkeys(name for question in SWEEPS for name in question.peers))
def test_peer_passes_messages_of_every_size(name: str) -> None:
    if why := PEERS[name].why_not():
        pytest.skip(f"{name} is not here: {why}")
    with stage() as place:
        found = measure(PEERS[name], TASK, place)
    assert TASK.sizes() == SIZES
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
        assert bytes(wire.receive(5)) == b"12345"  # three bytes of the next message were read, too
        assert bytes(wire.receive(20)) == b"abcdefghijklmnopqrst"
    wire.close()


def test_server_fails_if_bytes_are_missing() -> None:
    class Short:
        def send(self, message: object) -> None:
            raise AssertionError("it is not sent back")

        def receive(self, size: int) -> bytes:
            return HEADER.pack(8, 2, False) if size == HEADER.size else b"short"

        def close(self) -> None:
            return None

    with pytest.raises(RuntimeError, match="10 bytes came; expected 2 messages of 8"):
        sweep_server(Short(), TASK, Meter())


def test_tables_have_sizes_as_rows_and_ratios_to_netq() -> None:
    lines = render(QUESTION, SAMPLES, MISSING)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert rows[0] == ["p50, µs", "netq tcp", "raw"]
    assert [row[0] for row in rows[2:5]] == ["1B", "1KiB", "1MiB"]
    assert rows[2][1:] == ["2 (1.00)", "1 (0.50)"]
    assert rows[4][1:] == ["2,050 (1.00)", "1,025 (0.50)"]
    assert rows[5] == ["GB/s", "netq tcp", "raw"]
    assert rows[8][1:] == ["0.256 (1.00)", "0.512 (2.00)"]
    assert lines[-1] == "- pyzmq is not here: pip install pyzmq"


def test_table_without_netq_has_no_ratios() -> None:
    lines = render(QUESTION, {"raw": SAMPLES["raw"]}, {"netq tcp": "broken"})
    assert lines[2].split("|")[2].strip() == "1"


@pytest.fixture(scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """matplotlib keeps the files of fonts open, from the first plot on."""
    plot.draw(QUESTION, SAMPLES, tmp_path_factory.mktemp("fonts"))


@pytest.mark.slow
@pytest.mark.usefixtures("fonts")
def test_page_by_size_and_plots_are_deterministic(tmp_path_factory: pytest.TempPathFactory) -> None:
    written = []
    for _ in range(2):
        folder = tmp_path_factory.mktemp("docs")
        page.write_by_size(folder, {QUESTION: (SAMPLES, MISSING)}, 3, "python -m benchmarks by-size")
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
        ("", {"benchmarks.md", "benchmarks-by-size.md"}),
        ("sweep-tcp sweep-shm", {"benchmarks-by-size.md"}),
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
    monkeypatch.setattr(
        page, "write", lambda folder, results, *_: written.update({"benchmarks.md": [q.name for q in results]})
    )
    monkeypatch.setattr(
        page,
        "write_by_size",
        lambda folder, results, *_: written.update({"benchmarks-by-size.md": [q.name for q in results]}),
    )
    command.main(line.split())
    assert written.keys() == pages
    assert not any(name.startswith("sweep") for name in written.get("benchmarks.md", []))
    assert written.get("benchmarks-by-size.md", ["sweep-tcp", "sweep-shm"]) == ["sweep-tcp", "sweep-shm"]


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
