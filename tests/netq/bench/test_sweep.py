"""`netq bench sweep`: its sizes, its table and files, and what is reported when it ends early."""

from __future__ import annotations

import csv
import shlex
import sys
import threading
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from netq.__main__ import main
from netq.bench import command, output, sweep
from netq.bench.cli import parse
from netq.bench.client import Client
from netq.bench.protocol import BenchError, RefusedByServer
from netq.bench.sweep import COLUMNS, Found, row
from tests.netq.bench.conftest import Run
from tests.netq.bench.test_load import Echoing

FEW = ("--seconds", "0.01", "--max-size", "64KiB", "--step", "256")
KEYS = list(COLUMNS)
ROW = row(2048, array("q", [3000, 1000, 2000]), 70, [10.0, 5.0, 1e6])


class Fake:
    """A client that makes transfers at a bandwidth, and fails at a size."""

    def __init__(self, fails_at: int = 0, error: BaseException | None = None) -> None:
        self.transfers: list[tuple[int, int]] = []
        self._fails_at, self._error = fails_at, error

    def echoing(self, size: int) -> Any:
        if size == self._fails_at:
            assert self._error is not None
            raise self._error
        return self

    def __enter__(self) -> Any:
        return SimpleNamespace(end=Echoing().end, message=b"")

    def __exit__(self, *error: object) -> None:
        return None

    def transfer(self, direction: str, plan: Any) -> Any:
        assert direction == "up"
        self.transfers.append((plan.largest, plan.count))
        up = SimpleNamespace(messages=plan.count)
        return SimpleNamespace(up=up, seconds=plan.count * plan.largest / 1e6)  # 1 MB a second


def measure(fake: Fake, sizes: list[int], seconds: float = 0.001) -> Found:
    found = Found({})
    sweep.sweep(cast(Client, fake), sizes, seconds, found)
    return found


def test_number_of_messages_follows_the_time_of_a_size() -> None:
    fake = Fake()
    found = measure(fake, [1, 10], seconds=0.001)
    assert [count for size, count in fake.transfers if size == 1][1:] == [200] * 5  # a fifth of the time each
    assert [count for size, count in fake.transfers if size == 10][1:] == [20] * 5
    assert [each["messages"] for each in found.rows] == [1000, 100]
    assert [each["messages_per_second"] for each in found.rows] == pytest.approx([1e6, 1e5])


def test_message_that_takes_long_is_sent_once_in_a_transfer() -> None:
    fake = Fake()
    measure(fake, [10**9])
    assert {count for _, count in fake.transfers[1:]} == {1}


def test_round_trips_end_with_the_time_and_are_one_at_least() -> None:
    assert len(sweep.measure_for(Echoing().end, b"", 0)) == 1
    assert len(sweep.measure_for(Echoing().end, b"", 0.001)) > 1


def test_number_of_round_trips_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_MOST_TRIPS", 7)
    assert len(sweep.measure_for(Echoing().end, b"", 3600)) == 7


def test_sizes_that_the_server_refuses_are_left_out() -> None:
    found = measure(Fake(100, RefusedByServer("the server refuses: too large")), [1, 10, 100, 1000])
    assert [each["size"] for each in found.rows] == [1, 10]
    assert found.figures()["left_out"] == [
        {"size": 100, "why": "the server refuses: too large"},
        {"size": 1000, "why": "the server refuses: too large"},
    ]


def test_refusal_of_the_smallest_size_is_an_error() -> None:
    with pytest.raises(RefusedByServer, match="too large"):
        measure(Fake(10, RefusedByServer("too large")), [10, 100])


def test_row_has_the_median_of_its_transfers() -> None:
    assert ROW == {
        "size": 2048,
        "round_trips": 3,
        "min_us": 1.0,
        "p50_us": 2.0,
        "p99_us": 3.0,
        "max_us": 3.0,
        "messages": 70,
        "messages_per_second": 10.0,
        "gb_per_second": 10.0 * 2048 / 1e9,
    }
    assert list(ROW) == KEYS


def test_table_is_aligned_and_names_what_is_left_out() -> None:
    rows = [ROW, row(2**20, array("q", [10**12]), 1, [0.5])]
    left_out = {2**30: "too large", 2**32: "too large", 2**34: "no memory"}
    head, first, second, *reasons = sweep.table(Found(left_out, rows).figures())
    assert head.split() == " ".join(column.title for column in COLUMNS.values()).split()
    assert first.split() == ["2KiB", "3", "1.0", "2.0", "3.0", "3.0", "70", "10.0", "2.05e-05"]
    assert second.split()[:3] == ["1MiB", "1", "1,000,000,000.0"]
    assert len({len(line) for line in (head, first, second)}) == 1
    assert reasons == ["left out: 1GiB, 4GiB: too large", "left out: 16GiB: no memory"]


@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        ("", [4**i for i in range(15)]),
        ("--min-size 3 --max-size 100 --step 10", [3, 30, 100]),
        ("--min-size 1KiB --max-size 1KiB", [1024]),
        ("--min-size 1 --max-size 4 --step 2", [1, 2, 4]),
    ],
)
def test_sizes_grow_by_the_step_up_to_the_largest(line: str, sizes: list[int]) -> None:
    assert parse(["sweep", *line.split()]).sizes == sizes


@pytest.mark.parametrize(
    ("line", "free", "sizes", "left_out"),
    [
        ("--max-size 256", 3 * 64, [1, 4, 16, 64], {256: "messages of 256B need 768.0B of this machine's memory"}),
        ("--max-size 16 --netloc here:1", 2 * 4, [1, 4], {16: "messages of 16B need 32.0B"}),
        ("--max-size 4 --netloc here:1", 8, [1, 4], {}),
    ],
)
def test_sizes_beyond_free_memory_are_left_out(
    monkeypatch: pytest.MonkeyPatch, line: str, free: int, sizes: list[int], left_out: dict[int, str]
) -> None:
    monkeypatch.setattr(command, "free_memory", lambda: free)
    options = parse(["sweep", *line.split()])
    command._check_memory(options)
    assert options.sizes == sizes
    assert options.left_out.keys() == left_out.keys()
    assert all(options.left_out[size].startswith(why) for size, why in left_out.items())


def test_smallest_size_beyond_free_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "free_memory", lambda: 10)
    with pytest.raises(command._NoMemory, match=r"--max-size: messages of 4B need 12\.0B of this machine's memory"):
        command._check_memory(parse(["sweep", "--min-size", "4"]))


@pytest.mark.slow
def test_sweep_prints_json_and_writes_its_table(run: Run, netloc: str, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    report = run("sweep", *FEW, "--netloc", netloc, "--csv", str(table))
    assert report["work"] == "sweep"
    assert (report["arguments"]["max_size"], report["arguments"]["put_merge"]) == (65536, True)
    rows = report["figures"]["sizes"]
    assert [row["size"] for row in rows] == [1, 256, 65536]
    assert report["figures"]["left_out"] == []
    for each in rows:
        assert list(each) == KEYS
        assert 0 < each["min_us"] <= each["p50_us"] <= each["p99_us"] <= each["max_us"]
        assert each["gb_per_second"] == pytest.approx(each["messages_per_second"] * each["size"] / 1e9)
    with table.open(encoding="utf-8") as file:
        assert [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)] == rows


@pytest.mark.slow
def test_sizes_above_those_of_the_server_are_named(capsys: pytest.CaptureFixture[str], netloc: str) -> None:
    line = f"sweep --seconds 0.01 --min-size 1MiB --max-size 4MiB --step 2 --netloc {netloc}"
    assert main(["bench", *line.split()]) == 0
    out, errors = capsys.readouterr()
    assert errors == ""
    title, _, _, _, row, left_out = out.splitlines()
    assert title.startswith("sweep --min-size 1MiB --max-size 4MiB --step 2 --seconds 0.01 --protocol tcp --workers 1")
    assert title == f"sweep {title.removeprefix('sweep ')}"
    assert row.split()[0] == "1MiB"
    assert left_out.startswith("left out: 2MiB, 4MiB: the server refuses: messages of 2MiB; it takes 1MiB at most")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["tcp", "shm", "grpc"])
def test_sweep_with_a_spawned_server(run: Run, protocol: str) -> None:
    if protocol == "grpc":
        pytest.importorskip("grpc")
    options = ("--protocol", protocol, "--workers", "2", "--transport-size", "4KiB")
    report = run("sweep", *FEW, *options)
    assert [row["size"] for row in report["figures"]["sizes"]] == [1, 256, 65536]
    assert all(row["round_trips"] >= 1 for row in report["figures"]["sizes"])
    assert (report["arguments"]["workers"], report["arguments"]["transport_size"]) == (2, 4096)


@pytest.fixture(scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """matplotlib keeps the files of fonts open, from the first plot on."""
    pytest.importorskip("matplotlib")
    sweep.write(None, tmp_path_factory.mktemp("fonts") / "x.png", [ROW])


@pytest.mark.slow
@pytest.mark.usefixtures("fonts")
@pytest.mark.parametrize("suffix", ["svg", "PNG"])
def test_plot_is_written_in_the_format_of_its_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"sizes.{suffix}"
    options = parse(["sweep", "--plot", str(path)])
    output.check(options)
    assert not path.exists()
    sweep.write(options.csv, options.plot, [ROW, row(2**20, array("q", [10**6]), 1, [0.5])])
    assert (b"<svg" if suffix == "svg" else b"PNG") in path.read_bytes()[:1000]


def test_plot_without_matplotlib_is_refused_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], netloc: str
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["bench", "sweep", "--netloc", netloc, "--plot", "x.svg"]) == 2
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert errors.startswith("netq bench: error: --plot needs matplotlib (")
    assert errors.endswith("): pip install 'netq-fl[plots]'\n")


@pytest.mark.parametrize("option", ["--csv", "--plot"])
def test_file_that_cannot_be_written_is_refused_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, netloc: str, option: str
) -> None:
    path = tmp_path / "none" / "x.svg"
    assert main(["bench", "sweep", "--netloc", netloc, option, str(path)]) == 2
    why = "No such file or directory; choose a file that can be written"
    assert capsys.readouterr() == ("", f"netq bench: error: {option} {path}: {why}\n")


def test_file_keeps_its_content_until_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.csv", tmp_path / "new.svg"
    old.write_text("kept")
    line = ("--netloc", "127.0.0.1:1", "--timeout", "0.1", "--csv", str(old), "--plot", str(new))
    assert main(["bench", "sweep", *line]) == 1
    assert "cannot connect to 127.0.0.1:1" in capsys.readouterr().err
    assert old.read_text() == "kept"
    assert not new.exists()


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (BenchError("it is gone"), 1, "netq bench: error: it is gone\n"),
        (KeyboardInterrupt(), 130, ""),
        (MemoryError(), 2, "netq bench: error: --max-size: no memory for such messages on this machine; choose a "),
    ],
)
def test_what_was_measured_is_reported_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    netloc: str,
    error: BaseException,
    status: int,
    said: str,
) -> None:
    def fail(client: object, sizes: object, seconds: object, found: Found) -> None:
        found.rows.append(ROW)
        raise error

    monkeypatch.setattr(sweep, "sweep", fail)
    path = tmp_path / "table.csv"
    assert main(["bench", "sweep", "--netloc", netloc, "--csv", str(path)]) == status
    out, errors = capsys.readouterr()
    assert out.splitlines()[-1].split()[0] == "2KiB"
    assert errors.startswith(said)
    assert errors.count("\n") == (1 if said else 0)
    assert path.read_text().splitlines()[1].startswith("2048,3,1.0,2.0,3.0,3.0,70,10.0,")


@pytest.mark.slow
def test_table_has_the_sizes_before_the_server_was_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], start: Any
) -> None:
    server = start("server", "--netloc", "127.0.0.1:0", "--json")
    host = server.stdout.readline().split('"')
    port = host[-1].strip(": }\n")
    measured = threading.Event()
    original = sweep._measure

    def measure_and_end(client: Any, size: int, seconds: float) -> Any:
        if measured.is_set():
            server.terminate()
            server.wait()
        measured.set()
        return original(client, size, seconds)

    monkeypatch.setattr(sweep, "_measure", measure_and_end)
    assert main(["bench", "sweep", *FEW, "--netloc", f"127.0.0.1:{port}"]) == 1
    out, errors = capsys.readouterr()
    assert out.splitlines()[-1].split()[0] == "1B"
    assert f"error: the server at 127.0.0.1:{port}: it has closed" in errors


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--min-size 4KiB --max-size 2KiB", "--min-size 4KiB is above --max-size 2KiB"),
        ("--min-size 0", "argument --min-size: '0'; expected a size from 1 byte"),
        ("--max-size many", "argument --max-size: 'many'; expected a size from 1 byte"),
        ("--step 1", "argument --step: '1'; expected a whole number from 2 to 1048576"),
        ("--step 2.5", "argument --step: '2.5'; expected a whole number"),
        ("--seconds 0", "argument --seconds: '0'; expected a number from 0.01 to 3600"),
        ("--plot x.pdf", "--plot x.pdf: expected a name that ends in .svg or .png"),
        ("--plot svg", "--plot svg: expected a name that ends in .svg or .png"),
        ("--csv x.svg --plot ./x.svg", "--csv and --plot: the same file twice; expected a file for each"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str], line: str, error: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "sweep", *shlex.split(line)])
    out, errors = capsys.readouterr()
    assert (stopped.value.code, out, errors.count("\n")) == (2, "", 1)
    assert error in errors
