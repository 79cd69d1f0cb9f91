"""Each workload from end to end, over TCP on this machine, with few messages; and percentiles."""

from __future__ import annotations

import os
import platform
from array import array
from typing import Any

import pytest

from netq.__main__ import main
from netq.bench import client
from netq.bench.statistics import may_exceed, percentile, rank, spread
from tests.netq.bench.conftest import Run

USED = {"cpu_seconds", "resident_bytes", "extra_bytes"}


def check_used(figures: dict[str, Any], more: frozenset[str] = frozenset()) -> None:
    for side in ("client", "server"):
        assert figures[side].keys() == USED | more
        assert figures[side]["cpu_seconds"] >= 0
        assert figures[side]["resident_bytes"] > figures[side]["extra_bytes"] >= 0


def check_times(times: dict[str, float]) -> None:
    assert list(times) == ["min", "p50", "p90", "p99", "p99.9", "max"]
    assert list(times.values()) == sorted(times.values())
    assert times["min"] > 0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_iops_of_one_size(run: Run, netloc: str, mode: str) -> None:
    report = run("iops", "tcp", "client", mode, "--max-size", "17", "--reps", "700", "--netloc", netloc)
    figures = report["figures"]
    assert (figures["messages"], figures["bytes"]) == (2 * 700, 2 * 700 * 2**17)
    assert figures["iops"] == pytest.approx(1400 / figures["seconds"])
    assert figures["gbit_per_second"] == pytest.approx(1400 * 2**17 * 8 / 1e9 / figures["seconds"])
    check_used(figures)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_iops_of_a_range(run: Run, netloc: str, mode: str) -> None:
    sizes = ("--min-size", "4", "--max-size", "18", "--step-size", "2", "--step-expo", "0.5")
    figures = run("iops", "tcp", "client", mode, *sizes, "--reps", "2", "--netloc", netloc)["figures"]
    counts = {2**i: 2 * 2 ** ((18 - i) // 2) for i in range(4, 19, 2)}
    assert figures["messages"] == 2 * sum(counts.values())
    assert figures["bytes"] == 2 * sum(size * count for size, count in counts.items())


def test_one_message_each_way(run: Run, netloc: str) -> None:
    figures = run("iops", "tcp", "client", "async", "--max-size", "0", "--reps", "1", "--netloc", netloc)["figures"]
    assert (figures["messages"], figures["bytes"]) == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["64", "300KiB"])
def test_latency(run: Run, netloc: str, size: str) -> None:
    figures = run("latency", "--size", size, "--count", "200", "--netloc", netloc)["figures"]
    assert (figures["messages"], figures["bytes"]) == (200, 200 * (64 if size == "64" else 300 * 1024))
    check_times(figures["microseconds"])
    assert figures["microseconds"]["min"] / 1e6 * 200 <= figures["seconds"]
    check_used(figures)


@pytest.mark.parametrize(("direction", "ways"), [("up", 1), ("down", 1), ("both", 2)])
def test_throughput(run: Run, netloc: str, direction: str, ways: int) -> None:
    arguments = ("--size", "1MiB", "--count", "7", "--direction", direction)
    figures = run("throughput", *arguments, "--netloc", netloc)["figures"]
    assert (figures["messages"], figures["bytes"]) == (ways * 7, ways * 7 * 2**20)
    assert figures["gb_per_second"] == pytest.approx(figures["bytes"] / 1e9 / figures["seconds"])
    check_used(figures, frozenset({"cpu_seconds_per_gb", "extra_per_message"}))
    for side in ("client", "server"):
        assert figures[side]["extra_per_message"] == figures[side]["extra_bytes"] / 2**20


def test_load_at_a_rate(run: Run, netloc: str) -> None:
    figures = run("load", "--rate", "500", "--seconds", "0.2", "--netloc", netloc)["figures"]
    assert (figures["rate"], figures["messages"], figures["bytes"]) == (500, 100, 6400)
    assert figures["seconds"] >= 99 / 500  # the last one was not sent before it was due
    check_times(figures["microseconds"])
    check_used(figures)


@pytest.mark.slow
def test_load_searches_for_the_highest_rate(run: Run, netloc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WARM_UP", 2)
    figures = run("load", "--seconds", "0.01", "--limit", "10", "--netloc", netloc)["figures"]
    held = [each["rate"] for each in figures["tries"] if each["holds"]]
    assert figures["rate"] == max(held, default=0)
    assert figures["limit_milliseconds"] == 10
    assert not held or figures["microseconds"]["p99.9"] <= 10_000


def test_limit_that_no_rate_holds_gives_rate_0(run: Run, netloc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WARM_UP", 2)
    figures = run("load", "--seconds", "0.01", "--limit", "0.01", "--netloc", netloc)["figures"]
    assert figures["rate"] == 0
    assert figures["tries"]
    assert not any(each["holds"] for each in figures["tries"])


def test_report_has_arguments_and_platform(run: Run, netloc: str) -> None:
    report = run("latency", "--size", "2KiB", "--count", "3", "--netloc", netloc)
    assert report["work"] == "latency"
    expected = {"size": 2048, "count": 3, "protocol": "tcp", "netloc": netloc, "tls": None, "secure": False}
    assert report["arguments"] == expected
    assert report["platform"]["client"] == report["platform"]["server"]
    assert report["platform"]["client"]["python"] == platform.python_version()
    assert report["platform"]["client"].keys() == {"python", "netq", "system", "machine", "cores"}


def test_table_has_an_aligned_line_per_figure(capsys: pytest.CaptureFixture[str], netloc: str) -> None:
    assert main(["bench", "throughput", "--size", "1MiB", "--count", "2", "--netloc", netloc]) == 0
    out, errors = capsys.readouterr()
    title, ours, theirs, *rows = out.splitlines()
    assert title == f"throughput --size 1MiB --count 2 --direction up --protocol tcp --netloc {netloc}"
    assert (ours[:8], theirs[:8]) == ("client: ", "server: ")
    assert [row for row in rows if row.startswith("throughput ") and row.endswith("  GB/s")]
    assert (
        len({row.index("  GB/s" if "GB/s" in row else "  MiB") for row in rows if row.endswith(("GB/s", "MiB"))}) == 1
    )
    assert errors == ""


def test_cores_are_restored_after_a_run(run: Run) -> None:
    before = os.sched_getaffinity(0)
    figures = run("latency", "--count", "5")["figures"]  # with a server of its own
    assert figures["messages"] == 5
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("percent", "count", "expected"),
    [
        *[("50", 1, 1), ("50", 2, 1), ("50", 3, 2), ("99", 100, 99), ("99", 101, 100)],
        *[("99.9", 10, 10), ("99.9", 999, 999), ("99.9", 1000, 999), ("99.9", 1001, 1000), ("99.9", 10_000, 9990)],
    ],
)
def test_rank_is_nearest_rank(percent: str, count: int, expected: int) -> None:
    assert rank(percent, count) == expected


def test_percentiles_of_the_textbook_example() -> None:
    values = [15, 20, 35, 40, 50]
    assert [percentile(p, values) for p in ("5", "30", "40", "50", "100")] == [15, 20, 20, 35, 50]


def test_spread_sorts_and_divides() -> None:
    figures = spread(array("q", range(10_000, 0, -1)), unit=10)
    assert figures == {"min": 0.1, "p50": 500.0, "p90": 900.0, "p99": 990.0, "p99.9": 999.0, "max": 1000.0}


@pytest.mark.parametrize("count", [1, 10, 999, 1000, 1001, 2000, 54_321])
def test_may_exceed_is_the_exact_bound(count: int) -> None:
    above = may_exceed("99.9", count)
    assert percentile("99.9", [0] * (count - above) + [9] * above) == 0
    assert percentile("99.9", [0] * (count - above - 1) + [9] * (above + 1)) == 9
