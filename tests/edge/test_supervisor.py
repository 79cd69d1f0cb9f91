"""What a supervisor hears of the agent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.supervisor import Supervisor
from tests.pages import ROOT

SOON = 20.0


@pytest.fixture(params=["path", "abstract"])
def ears(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The address of a supervisor's socket, and the socket."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(name.replace("@", "\0"))
        found.settimeout(SOON)
        yield name, found


def heard(ears: socket.socket) -> list[str]:
    ears.setblocking(False)
    lines = []
    try:
        while True:
            lines.append(ears.recv(1000).decode())
    except BlockingIOError:
        return lines


def test_each_call_is_a_line(ears: tuple[str, socket.socket]) -> None:
    supervisor = Supervisor(ears[0])
    supervisor.ready()
    supervisor.status("round 1:\ntrain")
    supervisor.status("round 1:\ntrain")
    supervisor.status("waiting")
    supervisor.stopping()
    assert supervisor.alive() is None
    assert heard(ears[1]) == ["READY=1", "STATUS=round 1: train", "STATUS=waiting", "STOPPING=1"]


def test_signs_of_life_come_at_half_the_interval(
    ears: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    supervisor = Supervisor(ears[0], 60.0)
    for now, wait in ((100.0, 30.0), (110.0, 20.0), (129.0, 1.0), (130.0, 30.0)):
        assert supervisor.alive() == wait, now
    assert heard(ears[1]) == ["WATCHDOG=1"] * 2


@pytest.mark.parametrize("pid", ["", "own"])
def test_environment_names_the_supervisor(
    ears: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch, pid: str
) -> None:
    for name, value in (
        ("NOTIFY_SOCKET", ears[0]),
        ("WATCHDOG_USEC", "4000000"),
        ("WATCHDOG_PID", pid.replace("own", str(os.getpid()))),
    ):
        monkeypatch.setenv(name, value)
    supervisor = Supervisor.from_environment()
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & os.environ.keys()
    assert supervisor.alive() == 2.0
    assert heard(ears[1]) == ["WATCHDOG=1"]


@pytest.mark.parametrize(("interval", "pid"), [("4000000", "1"), ("never", ""), ("", "")])
def test_no_watchdog(monkeypatch: pytest.MonkeyPatch, interval: str, pid: str) -> None:
    for name, value in (("NOTIFY_SOCKET", "/absent"), ("WATCHDOG_USEC", interval), ("WATCHDOG_PID", pid)):
        monkeypatch.setenv(name, value)
    assert Supervisor.from_environment().alive() is None


def test_file_that_was_copied_and_has_changed_ends_the_process(tmp_path: Path) -> None:
    key, absent = tmp_path / "key.pem", tmp_path / "absent.pem"
    key.write_text("old")
    supervisor = Supervisor()
    supervisor.check_copies()
    supervisor.has_copied([key, absent])
    supervisor.check_copies()
    key.write_text("a new one")
    with pytest.raises(SystemExit) as caught:
        supervisor.check_copies()
    assert caught.value.code == 0


def test_supervisor_that_is_gone_is_no_error(tmp_path: Path) -> None:
    supervisor = Supervisor(str(tmp_path / "absent"), 1.0)
    supervisor.ready()
    assert supervisor.alive() == 0.5


@pytest.mark.slow
def test_agent_tells_its_supervisor_what_it_does(ears: tuple[str, socket.socket], tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text('[server]\nhost = "127.0.0.1"\nport = 1\n[client]\ntrain = "tests.edge.training:train"\n')
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": ears[0], "WATCHDOG_USEC": "200000"}
    command = [sys.executable, "-m", "edge", "run", str(path)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            lines = [""]
            while not lines[-1].startswith("STATUS"):
                lines.append(ears[1].recv(1000).decode())
            process.send_signal(signal.SIGTERM)
            assert process.wait(SOON) == 0
            lines += heard(ears[1])
        finally:
            process.kill()
    assert "READY=1" in lines
    assert "STATUS=waiting for tasks of 127.0.0.1:1" in lines
    assert lines.count("WATCHDOG=1") >= 2
    assert lines[-1] == "STOPPING=1"
