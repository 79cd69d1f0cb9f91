"""Short runs: with faults on each wire, two at a time, for longer by `make soak`; and with interrupts."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from netq.security import certificates
from tests.soak import __main__
from tests.soak.history import What, read
from tests.soak.report import Report
from tests.soak.run import Plan, run
from tests.soak.wires import WIRES, faults

ROOT = Path(__file__).parents[2]
SECONDS, RATE, SEED, CLIENTS = 5.0, 6.0, 1, 5  # a seed that has all kinds of faults on each wire within these seconds


@pytest.mark.slow
def test_no_violation_under_faults_of_all_kinds(tmp_path: Path) -> None:
    files = certificates.init(tmp_path / "certificates")
    plans = [Plan(wire, SECONDS, SEED, CLIENTS, RATE) for wire in WIRES]
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda plan: run(plan, files, tmp_path / plan.wire), plans))
    for report in reports:
        check(report)
    cancelled = [report.counts[What.CANCELLED] for report in reports]  # on one wire there may be none
    assert sum(cancelled) > 0, cancelled


@pytest.mark.slow
def test_command_runs_each_wire_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two are enough: the test above runs the others."""
    wires = ("tls", "shm")
    monkeypatch.setattr(__main__, "WIRES", wires)
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    arguments = ["--seconds", "2", "--seed", "1", "--clients", "3", "--history", str(tmp_path / "history.jsonl")]
    status = __main__.main(arguments)
    out, err = capfd.readouterr()
    assert (status, err) == (0, "")
    for wire in wires:
        assert f"{wire}, 3 clients, 2 s, seed 1" in out
        with (tmp_path / f"history-{wire}.jsonl").open() as lines:
            assert sum(event.what is What.DELIVERED for event in read(lines)) > 100


@pytest.mark.parametrize("protocol", ["tcp", "shm"])
def test_interrupts_lose_nothing(protocol: str) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.soak.interrupts", "100", protocol]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "lost 0, twice 0, out of order 0, hanging 0, ended 0" in done.stdout


def check(report: Report) -> None:
    assert report.good, f"\n{report}"
    assert set(report.faults) == faults(report.wire), f"\n{report}"
    assert report.counts[What.ACKED] > max(100, report.counts[What.PUT] / 2), f"\n{report}"
    assert report.counts[What.DELIVERED] >= report.counts[What.ACKED], f"\n{report}"
