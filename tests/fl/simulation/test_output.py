"""What a simulation prints: whole lines of clients, with their names; a line a round where people read."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
import time
import uuid
from typing import Any

import numpy as np
import pytest

import fl
from fl.simulation.output import Lines, RoundLines, shown

PROGRAM = """
import numpy as np, fl
def train(model, config):
    for word in ("one", "two"):
        print(word, end=" ")
    print(config["partition"])
    print("no end", end="")
    return fl.Update({"w": model["w"] + 1}, 1)
fl.simulate({"w": np.zeros(2)}, [train] * 4, 2, processes=2, seed=1)
"""


def run_in(name: str, act: Any) -> None:
    thread = threading.Thread(target=act, name=name)
    thread.start()
    thread.join()


def test_words_of_two_threads_become_whole_lines() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    run_in("client 1", lambda: print("one", end=" ", file=lines))
    run_in("client 2", lambda: print("two\nthree", file=lines))
    assert stream.getvalue() == "client 2 | two\nclient 2 | three\n"
    lines.finish()
    assert stream.getvalue().endswith("three\nclient 1 | one \n")


def test_long_line_comes_in_pieces() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.write("x" * 10_000)
    assert stream.getvalue()


def test_stream_is_still_one() -> None:
    with open(os.devnull, "w") as file:
        lines = Lines(file)
        assert lines.fileno() == file.fileno()
        assert not lines.isatty()
        lines.writelines(["a\n", "b\n"])


def test_clients_of_all_processes_print_whole_lines_with_their_names() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    lines = sorted(done.stdout.splitlines())
    texts = ("no end", "no end", "one two {}", "one two {}")
    assert lines == [f"client {number} | {text.format(number)}" for number in range(4) for text in texts]
    assert done.stderr == ""


def test_a_terminal_gets_a_line_a_round() -> None:
    main, other = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=other, timeout=120, check=True
    )
    os.close(other)
    shown_lines = os.read(main, 10_000).decode()
    os.close(main)
    assert done.stdout
    assert [line[:18] for line in shown_lines.splitlines()] == ["round 1: 4 clients", "round 2: 4 clients"]


def test_progress_by_argument(capsys: pytest.CaptureFixture[str]) -> None:
    fl.simulate({"w": np.zeros(2)}, [lambda model, config: fl.Update(model, 1)], 1, progress=True)
    assert capsys.readouterr().err.startswith("round 1: 1 clients")
    fl.simulate({"w": np.zeros(2)}, [lambda model, config: fl.Update(model, 1)], 1, progress=False)
    assert capsys.readouterr().err == ""


def test_a_long_round_says_how_far_it_has_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([10.0, 10.1, 10.2, 11.0, 11.1])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    lines, one, other = RoundLines(), uuid.UUID(int=1), uuid.UUID(int=2)
    lines.round_begins(3, [one, other])
    for client, state in ((one, "TRAINING"), (other, "TRAINING"), (one, "DONE"), (other, "FAILED")):
        lines.client_is(client, fl.ClientState[state], 0)
    assert capsys.readouterr().err == "\rround 3: 1 of 2 clients, 1 s"
    lines.round_ends("the report", {})  # type: ignore[arg-type]
    assert capsys.readouterr().err == f"\r{'':28}\rthe report\n"


def test_a_progress_of_the_users_own_is_enough() -> None:
    assert shown(True, [fl.Progress()]) == []
    assert [type(each) for each in shown(True, [])] == [RoundLines]
