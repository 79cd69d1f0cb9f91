"""Latency by rate: which rates are in the curve, its table, its files, and what is refused."""

from __future__ import annotations

import argparse
import csv
import sys
from array import array
from pathlib import Path
from typing import Any, cast

import pytest

from netq.__main__ import main
from netq.bench import load, output
from netq.bench.client import Client, Sides
from netq.bench.load import Try
from netq.bench.resources import Usage
from tests.netq.bench.conftest import Run

USED = Sides(Usage(0, 0, 0), Usage(0, 0, 0))


def tried(rate: float, latency: int = 1000, late: float = 0.0, missing: int = 0) -> Try:
    """A try of a second, whose last echo came `late` seconds after the last message was due."""
    count = int(rate)
    return Try(rate, 64, count, array("q", [latency] * (count - missing)), 1.0 + late, USED)


def figures(*rates: float, not_reached: float | None = None) -> dict[str, Any]:
    return {"curve": [tried(rate).row() for rate in rates], "not_reached": not_reached}


@pytest.mark.parametrize(
    ("found", "reached"),
    [
        (tried(1000), True),
        (tried(1000, late=0.05), True),
        (tried(1000, late=0.06), False),
        (tried(1000, missing=1), False),
    ],
)
def test_rate_is_reached_if_echoes_keep_up(found: Try, reached: bool) -> None:
    assert found.is_reached is reached


def test_curve_ends_at_first_rate_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[float, int | None]]()

    def attempt(client: Client, size: int, seconds: float, rate: float, limit: int | None) -> Try:
        asked.append((rate, limit))
        return tried(rate, latency=int(rate), late=1.0 if rate == 400 else 0.0)

    monkeypatch.setattr(load, "attempt", attempt)
    found = load.curve(cast(Client, None), 64, 2.0, [100, 200, 400, 800])
    assert asked == [(100, 2 * 10**9), (200, 2 * 10**9), (400, 2 * 10**9)]
    assert [(each["rate"], each["p99_us"]) for each in found["curve"]] == [(100, 0.1), (200, 0.2)]
    assert found["not_reached"] == 400
    assert load.curve(cast(Client, None), 64, 2.0, [100, 200])["not_reached"] is None


def test_table_has_a_line_for_each_rate() -> None:
    head, first, second, last = load.table(figures(100, 2000, not_reached=4000))
    assert head.split("  ")[0] == "rate, /s"
    assert first.split() == ["100", "100", "100.0", "1.0", "1.0", "1.0", "1.0"]
    assert second.split()[:3] == ["2,000", "2,000", "2,000.0"]
    assert len(head) == len(first) == len(second)
    assert last == "4,000 messages a second are not reached: the curve ends there"
    assert len(list(load.table(figures(100)))) == 2


@pytest.fixture(scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let matplotlib open its fonts, once: it keeps them open as long as the process lives."""
    load.write(None, tmp_path_factory.mktemp("plots") / "c.svg", figures(100, 200))


@pytest.mark.slow
@pytest.mark.usefixtures("fonts")
def test_files_have_the_curve(tmp_path: Path) -> None:
    table, svg, png = tmp_path / "c.csv", tmp_path / "c.svg", tmp_path / "c.PNG"
    found = figures(100, 200)
    load.write(table, svg, found)
    load.write(None, png, found)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(load.COLUMNS)
    assert [{key: float(value) for key, value in row.items()} for row in rows] == found["curve"]
    assert svg.read_text().startswith("<?xml")
    assert png.read_bytes().startswith(b"\x89PNG")
    load.write(table, svg, figures(not_reached=100))  # no rate was reached
    assert table.read_text().splitlines() == [",".join(load.COLUMNS)]


@pytest.mark.slow
def test_command_measures_each_rate(run: Run, netloc: str, tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    printed = run("load", "--netloc", netloc, "--rates", "100,200", "--seconds", "0.5", "--csv", str(path))
    assert printed["arguments"]["rates"] == [100, 200]
    found = printed["figures"]
    reached = [each["rate"] for each in found["curve"]]
    assert [*reached, found["not_reached"]] in ([100, 200, None], [100, 200], [100])  # the machine may be busy
    assert all(0 < each["p50_us"] <= each["p99_us"] <= each["p99_9_us"] <= each["max_us"] for each in found["curve"])
    assert len(path.read_text().splitlines()) == 1 + len(reached)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--rates 5 --rate 5", "argument --rate: not allowed with argument --rates"),
        ("--rates 5 --limit 5", "argument --limit: not allowed with argument --rates"),
        ("--rates 5,4", "'5,4'; expected at most 100 rates, each above the one before"),
        ("--rates 5,5", "each above the one before"),
        ("--rates 5,", "''; expected a number from 0.1 to 1e+07"),
        ("--rates 5,1e7 --seconds 1000", "10,000,000,000 messages; expected"),
        ("--csv c.csv", "--csv needs --rates: without them there is no table"),
        ("--rate 5 --plot c.svg", "--plot needs --rates"),
        ("--rates 5 --plot c.pdf", "--plot c.pdf: expected a name that ends in .svg or .png"),
        ("--rates 5 --plot c.svg --csv c.svg", "--csv and --plot: the same file twice"),
        ("--rates 5 --csv none/c.csv", "--csv none/c.csv: No such file or directory; choose a file that can be"),
        ("--rates 5 --plot none/c.svg", "--plot none/c.svg: No such file or directory; choose a file that can be"),
    ],
)
def test_wrong_options_are_one_line(
    line: str, error: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = main(["bench", "load", *line.split()])
    except SystemExit as end:
        status = cast(int, end.code)
    said = capsys.readouterr().err
    assert status == 2
    assert error in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_missing_matplotlib_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["bench", "load", "--rates", "5", "--plot", str(tmp_path / "c.svg")]) == 2
    assert capsys.readouterr().err.endswith("pip install 'netq-fl[plots]'\n")


def test_check_leaves_files_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    output.check(argparse.Namespace(csv=path, plot=None))
    assert not path.exists()
    path.write_text("before")
    output.check(argparse.Namespace(csv=path))
    assert path.read_text() == "before"
