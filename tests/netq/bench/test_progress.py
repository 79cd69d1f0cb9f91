"""The progress bar: on a terminal with rich, and nowhere else."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from netq.bench.progress import Progress, progress

console = pytest.importorskip("rich.console")
rich_progress = pytest.importorskip("rich.progress")


@pytest.fixture
def screen() -> Iterator[tuple[Progress, io.StringIO]]:
    file = io.StringIO()
    terminal: Any = console.Console(file=file, force_terminal=True)
    with rich_progress.Progress(console=terminal, auto_refresh=False) as bars:
        yield Progress(bars), file


def test_bar_is_drawn_at_intervals_and_at_the_end(screen: tuple[Progress, io.StringIO]) -> None:
    shown, file = screen
    show = shown.bar("latency", 10_000)
    show(1)
    once = file.getvalue()
    assert "latency" in once
    for done in range(2, 500):
        show(done)
    assert file.getvalue().count("latency") <= once.count("latency") + 5  # as many seconds
    show(10_000)
    assert "100%" in file.getvalue()


def test_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as shown:
        shown.say("1,000 messages a second?")
        shown.bar("latency", 2)(2)
    assert capsys.readouterr() == ("", "")


def test_no_bar_without_rich(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress() as shown:
        shown.bar("latency", 2)(2)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_bar_is_on_stderr_and_figures_on_stdout(netloc: str) -> None:
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "netq", "bench", "latency", "--count", "50", "--netloc", netloc, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=True, text=True)
        drawn = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.stdout.startswith('{"work": "latency"')
    assert "latency" in drawn
