"""A page of a file of rounds: finished, growing, cut, or of another version."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fl.__main__ import app
from fl.page import file
from fl.page.file import FileSource
from fl.page.history import History
from tests.fl.federation import SOON

BEGIN = {"time": 1.0, "begin": {"strategy": "FedAvg", "rounds": 5}}


def line(number: int, **others: Any) -> str:
    values = {"time": 2.0, "round": number, "clients": ["a"], "metrics": {}, "evaluation": {}, "bytes_in": 1}
    return json.dumps({**values, "bytes_out": 1, "seconds": 1.0, **others}) + "\n"


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    monkeypatch.setattr(file, "_LOOK", 0.01)
    with ExitStack() as stack:
        yield stack


def opened(path: Path, stack: ExitStack) -> History:
    history = History()
    stack.callback(FileSource(path, history).close)
    return history


def numbers(history: History) -> list[int]:
    return [each["round"] for each in history.rounds()[0]]


def test_rounds_and_details_of_a_file(tmp_path: Path, sources: ExitStack) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(json.dumps(BEGIN) + "\n" + line(1) + line(2))
    history = opened(path, sources)
    assert numbers(history) == [1, 2]
    assert history.summary(running=False)["strategy"] == "FedAvg"


def test_file_that_grows_is_followed(tmp_path: Path, sources: ExitStack) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(line(1))
    history = opened(path, sources)
    with path.open("a") as out:
        out.write(line(2))
    end = time.monotonic() + SOON
    while numbers(history) != [1, 2]:
        assert time.monotonic() < end


@pytest.mark.parametrize("cut", ['{"time": 3.0, "rou', '{"time": 3.0, "begin": ', "\x00\x00", "[]"])
def test_cut_line_is_left_out(tmp_path: Path, sources: ExitStack, cut: str) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(line(1) + cut)
    assert numbers(opened(path, sources)) == [1]


def test_file_of_an_old_version_is_shown(tmp_path: Path, sources: ExitStack) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 1, "metrics": {}, "evaluation": {}, "bytes_in": 1, "bytes_out": 2}\n')
    assert numbers(opened(path, sources)) == [1]


def test_command_serves_a_file_until_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(line(1))
    command = [sys.executable, "-m", "fl", "page", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        with urllib.request.urlopen(f"{url}rounds.json", timeout=SOON) as answer:
            assert json.load(answer)["count"] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(SOON) == 130


def test_command_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["page", str(tmp_path / "none.jsonl")])
    assert done.exit_code == 2
    assert "none.jsonl: no such file" in done.output


def test_file_without_rounds_is_refused(tmp_path: Path, sources: ExitStack) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text("hello\n")
    with pytest.raises(ValueError, match="no line of it is a round"):
        opened(path, sources)


def test_file_that_is_moved_away_changes_nothing(tmp_path: Path, sources: ExitStack) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(line(1))
    history = opened(path, sources)
    path.unlink()
    path.write_text("hello\n")
    end = time.monotonic() + SOON
    while not history.summary(running=False)["log"]:  # it says so
        assert time.monotonic() < end
    assert numbers(history) == [1]
