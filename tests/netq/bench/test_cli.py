"""Messages beyond the memory of this machine are refused before they are made; options that follow from others."""

from __future__ import annotations

import shlex

import pytest

from netq.__main__ import main
from netq.bench import command, streaming
from netq.bench.cli import parse

GIB = 2**30


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("throughput --size 1TiB", "2.0TiB"),
        ("throughput --size 1GiB --netloc here:1", None),
        ("throughput --size 1GiB --netloc here:1 --direction down", None),
        ("throughput --size 1GiB --netloc here:1 --direction both", "2.0GiB"),
        ("throughput --size 1GiB --netloc here:1 --spawn --direction both", "4.0GiB"),
        ("iops tcp both sync --max-size 40 --reps 1", "2.0TiB"),
        ("iops tcp client sync --max-size 30", None),
        ("iops tcp client async --max-size 30", "2.0GiB"),
        ("latency --size 1GiB --netloc here:1", "2.0GiB"),
        ("load --size 1GiB --netloc here:1 --spawn", "3.0GiB"),
        ("latency --size 512MiB --netloc here:1", None),
    ],
)
def test_messages_beyond_free_memory_are_refused(
    monkeypatch: pytest.MonkeyPatch, line: str, needed: str | None
) -> None:
    monkeypatch.setattr(command, "free_memory", lambda: GIB)
    parsed = parse(shlex.split(line))
    if needed is None:
        command._check_memory(parsed)
        return
    option = "--max-size" if parsed.work == "iops" else "--size"
    expected = f"{option}: messages of .* need {needed} of this machine's memory, of which 1.0GiB are free; choose a"
    with pytest.raises(command._NoMemory, match=f"{expected} smaller {option}$"):
        command._check_memory(parsed)


def test_unknown_free_memory_allows_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "free_memory", lambda: None)
    command._check_memory(parse(["throughput", "--size", "1TiB"]))


def test_size_beyond_memory_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "free_memory", lambda: GIB)
    assert main(["bench", "latency", "--size", "1TiB"]) == 2
    out, errors = capfd.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert errors.startswith("netq bench: error: --size: messages of 1TiB need 3.0TiB of this machine's")


def _no_memory(size: int) -> memoryview:
    raise MemoryError


def test_failed_allocation_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], netloc: str
) -> None:
    monkeypatch.setattr(streaming, "_noise", _no_memory)
    assert main(["bench", "throughput", "--size", "1MiB", "--netloc", netloc]) == 2
    errors = capsys.readouterr().err
    assert errors == (
        "netq bench: error: --size: no memory for such messages on this machine; choose a smaller --size\n"
    )


def test_defaults_depend_on_other_options() -> None:
    single = parse(["iops", "tcp", "both", "sync"])
    assert [single.min_size, single.step_size, single.step_expo, single.seed] == [None] * 4
    assert (single.max_size, single.reps, single.plan.pairs) == (21, 4000, ((2**21, 4000),))
    steps = parse(["iops", "tcp", "both", "sync", "--step-size", "1"])
    assert (steps.reps, steps.min_size, steps.step_expo, steps.seed) == (1, 0, 1, 0)
    assert parse(["load", "--rate", "5"]).limit is None
    assert parse(["load"]).limit == 5
