"""The command of a device's owner: its failures are lines of the log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge import hook

SHELL = ("/bin/sh", "-c")


def test_the_path_is_added_to_the_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hook.run((*SHELL, 'echo "$1" > "$0"', str(tmp_path / "seen")), Path("model.npz"), lambda: None)
    assert (tmp_path / "seen").read_text() == "model.npz\n"
    assert not caplog.records


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ((*SHELL, "exit 7"), "model.hook: /bin/sh ended with status 7"),
        ((*SHELL, "kill -9 $$"), "model.hook: /bin/sh ended with status -9"),
        (("/no/such/program",), "model.hook: /no/such/program cannot be run (No such file or directory)"),
    ],
)
def test_failure_is_an_error_in_the_log(command: tuple[str, ...], line: str, caplog: pytest.LogCaptureFixture) -> None:
    hook.run(command, Path("model.npz"), lambda: None)
    assert caplog.messages == [line]


def test_command_that_takes_too_long_is_killed_with_what_it_has_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ticks: list[None] = []
    os.mkfifo(tmp_path / "alive")
    with open(os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK), "rb") as alive:
        command = (*SHELL, 'exec 9> "$0"; sleep 1000 & wait', str(tmp_path / "alive"))
        hook.run(command, Path("model.npz"), lambda: ticks.append(None), limit=0.5)
        os.set_blocking(alive.fileno(), True)
        assert alive.read() == b""  # nobody has the other end
    assert ticks
    assert caplog.messages == ["model.hook: /bin/sh took longer than 0.5 s; killed"]
