"""edge simulate: values of the command line, copies of the device's file, cgroups, the relay, and runs of boards.

The runs need root, cgroups and network namespaces; elsewhere they are skipped, or fail with NETQ_FAULTS=must.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from edge import __main__ as command
from edge.boards import leftovers, network
from edge.boards.cgroups import Cgroup, Hierarchy, Usage
from edge.boards.device import Device
from edge.boards.limits import Limits
from edge.boards.network import Network
from edge.boards.relay import Relay
from edge.boards.tools import CannotSimulate, check_programs
from edge.config import Config, from_environment
from netq.errors import InvalidOption
from netq.security import certificates
from netq.testing.fixtures import LIMIT

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "digits" / "client.toml"
with socket.create_server(("127.0.0.1", 0)) as _server:
    CLOSED = _server.getsockname()[1]  # a port at which no server listens
RIGHT = {"boards": "8", "cpus": "0.25", "memory": "128M", "bandwidth": "1Mbit", "delay": "50ms"}


# The command line.


def test_values_of_the_command_line() -> None:
    assert Limits.parse(**RIGHT) == Limits(8, 0.25, 128 * 2**20, 1_000_000, 0.05)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("memory", "16384K", 2**24),
        ("memory", "0.5G", 2**29),
        ("rate", "250kbit", 250_000),
        ("rate", "2.5Mbit", 2_500_000),
        ("rate", "1Gbit", 10**9),
        ("delay", "0ms", 0.0),
        ("delay", "1.5s", 1.5),
    ],
)
def test_units(name: str, text: str, value: float) -> None:
    argument = {"rate": "bandwidth"}.get(name, name)
    assert getattr(Limits.parse(**{**RIGHT, argument: text}), name) == value


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        *(("boards", text) for text in ("0", "201", "-1", "2.5", "two", "", "٣", "9" * 20)),
        *(("cpus", text) for text in ("0", "0.001", "-0.5", "1e-1", "nan", "inf", "100000", ".5", "0.5 ")),
        *(("memory", text) for text in ("128", "128m", "128MB", "128 M", "1M", "-128M", "1e2M", "M", "128M\n")),
        *(("bandwidth", text) for text in ("1", "1mbit", "1Mbps", "1 Mbit", "1kbit", "11Gbit", "-1Mbit", "Mbit")),
        *(("delay", text) for text in ("50", "50 ms", "-50ms", "11s", "50us", "ms")),
    ],
)
def test_wrong_value_is_named(argument: str, text: str) -> None:
    with pytest.raises(InvalidOption, match=rf"^--{argument}: .*; expected .*, as in "):
        Limits.parse(**{**RIGHT, argument: text})


def test_wrong_value_ends_with_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["simulate", str(EXAMPLE), "--boards", "2", "--memory", "128"]) == 2
    expected = "edge: --memory: '128'; expected 16M or more, with K, M or G, as in 128M\n"
    assert capsys.readouterr() == ("", expected)


def test_without_root_ends_with_status_2(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert command.main(["simulate", str(EXAMPLE), "--boards", "2"]) == 2
    expected = "edge: boards need root on Linux, and this user is 1000; run it with sudo, or in a virtual machine\n"
    assert capsys.readouterr() == ("", expected)


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotSimulate, match=r"not installed: ip, tc, setpriv, mount; .* iproute2 mount util-linux"):
        check_programs()


def test_signals_are_restored(capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    command.main(["simulate", str(EXAMPLE), "--boards", "0"])
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == before


# The device's file.


def write(
    folder: Path,
    more: str = "",
    host: str = "127.0.0.1",
    port: int = CLOSED,
    train: str = "numpy:mean",
) -> Path:
    path = folder / "client.toml"
    text = f'[server]\nhost = "{host}"\nport = {port}\n[client]\ntrain = "{train}"\n[connection]\nretry_max = 0.1\n'
    path.write_text(text + more)
    return path


def test_boards_differ_by_id_state_and_partition(tmp_path: Path) -> None:
    path = write(tmp_path, "[settings]\nrate = 0.5\n")
    device = Device.load(path, 4)
    first, second = (
        Config.load(path, from_environment(device.overrides(board, 4, tmp_path, 2**27))) for board in (2, 3)
    )
    assert first.settings == {"rate": 0.5, "partition": 2, "partitions": 4}
    assert second.settings["partition"] == 3
    assert first.state == tmp_path / "board-2"
    assert first.id != second.id
    assert first.options().connection.message_size == 2**27 // 5  # the agent of a board does not see its cgroup


def test_boards_write_the_last_model_to_a_file_each(tmp_path: Path) -> None:
    path = write(tmp_path, '[model]\npath = "model.npz"\n[policy]\naudit = "audit.jsonl"\n')
    device = Device.load(path, 2)
    own = [Config.load(path, from_environment(device.overrides(board, 2, tmp_path, 2**27))) for board in (0, 1)]
    assert [each.model for each in own] == [tmp_path / "model-0.npz", tmp_path / "model-1.npz"]
    assert [each.policy.audit for each in own] == [tmp_path / "audit-0.jsonl", tmp_path / "audit-1.jsonl"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[flower]\n", r"\[flower\]: is a Flower app's table; `fl flower simulate APP`"),
        ("[sever]\n", r"\[sever\]: no such table; did you mean"),
    ],
)
def test_file_that_boards_cannot_use(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Device.load(write(tmp_path, more), 2)


@pytest.mark.parametrize("host", ["::1", "no-such-host.invalid", "an..empty.label"])
def test_server_without_an_ipv4_address(tmp_path: Path, host: str) -> None:
    with pytest.raises(InvalidOption, match=f"server.host: '{host}'.* IPv4 address"):
        Device.load(write(tmp_path, host=host), 2)


def test_certificate_of_one_device_serves_one_board(tmp_path: Path) -> None:
    certificates.init(tmp_path)
    certificates.issue(tmp_path, "board")
    path = write(
        tmp_path, '[security]\nkey = "board-key.pem"\ncertificate = "board.pem"\nauthority = "authority.pem"\n'
    )
    Config.load(path, from_environment(Device.load(path, 1).overrides(0, 1, tmp_path, 2**27)))
    with pytest.raises(InvalidOption, match="names one id, and --boards is 2"):
        Device.load(path, 2)


# Names and cgroups.


def test_a_run_is_dead_when_its_process_is(tmp_path: Path) -> None:
    own = leftovers.run_name()
    pid, started = own.split("-")[-2:]
    reused = f"edge-boards-{pid}-{int(started) + 1}"  # the id is in use again, by another process
    for name in (own, f"{own}-3", reused, f"{reused}-router", "edge-boards-x", "netq-1-2"):
        (tmp_path / name).mkdir()
    assert [path.name for path in leftovers.dead(tmp_path)] == [reused, f"{reused}-router"]


VERSION_1 = {
    "cpu": {"cpu.cfs_period_us": "", "cpu.cfs_quota_us": "", "cpu.stat": "nr_throttled 3\nthrottled_time 2500000000\n"},
    "cpuacct": {"cpuacct.usage": "1500000000\n"},
    "memory": {
        "memory.limit_in_bytes": "",
        "memory.memsw.limit_in_bytes": "",
        "memory.max_usage_in_bytes": "1048576\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    },
    "pids": {"pids.max": ""},
}
VERSION_2 = {
    "cpu.max": "",
    "cpu.stat": "usage_usec 1500000\nnr_throttled 3\nthrottled_usec 2500000\n",
    "memory.max": "",
    "memory.swap.max": "",
    "memory.peak": "1048576\n",
    "memory.events": "oom 1\noom_kill 1\n",
    "pids.max": "",
    "cgroup.subtree_control": "",
}
USED = Usage(memory_peak=1048576, cpu=1.5, throttled=2.5, oom_kills=1)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, dict[str, str]], None]:
    """Put the kernel's files into each folder that is made below a root."""
    contents: dict[Path, dict[str, str]] = {}
    make = Path.mkdir

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        make(path, *arguments, **options)
        for root, files in contents.items():
            if path.is_relative_to(root):
                fill(path, files)

    def fill(folder: Path, files: dict[str, str]) -> None:
        for name, text in {**files, "cgroup.procs": ""}.items():
            (folder / name).write_text(text)

    def kernel(root: Path, files: dict[str, str]) -> None:
        root.mkdir()
        fill(root, files)
        contents[root] = files

    monkeypatch.setattr(Path, "mkdir", mkdir)
    return kernel


def test_cgroup_of_version_1(tmp_path: Path, kernel: Callable[[Path, dict[str, str]], None]) -> None:
    for name, files in VERSION_1.items():
        kernel(tmp_path / name, files)
    mounts = "".join(f"cgroup {tmp_path / name} cgroup rw,{name} 0 0\n" for name in VERSION_1)
    hierarchy = Hierarchy.find(mounts, tmp_path)
    cgroup = Cgroup(hierarchy.make_run("run"), "board-0")
    cgroup.make(Limits.parse(**RIGHT))
    values = {
        "cpu/run/board-0/cpu.cfs_period_us": "100000",
        "cpu/run/board-0/cpu.cfs_quota_us": "25000",
        "memory/run/board-0/memory.limit_in_bytes": "134217728",
        "memory/run/board-0/memory.memsw.limit_in_bytes": "134217728",
        "pids/run/board-0/pids.max": "512",
    }
    assert {name: (tmp_path / name).read_text() for name in values} == values
    assert cgroup.doors == [str(tmp_path / name / "run" / "board-0" / "cgroup.procs") for name in VERSION_1]
    assert cgroup.usage() == USED


def test_cgroup_of_version_2(tmp_path: Path, kernel: Callable[[Path, dict[str, str]], None]) -> None:
    root = tmp_path / "cgroup"
    kernel(root, VERSION_2)
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    cgroup = Cgroup(Hierarchy.find("", root).make_run("run"), "board-0")
    cgroup.make(Limits.parse(**RIGHT))
    values = {
        "cgroup.subtree_control": "+cpu +memory +pids",
        "run/cgroup.subtree_control": "+cpu +memory +pids",
        "run/board-0/cpu.max": "25000 100000",
        "run/board-0/memory.max": "134217728",
        "run/board-0/memory.swap.max": "0",
        "run/board-0/pids.max": "512",
    }
    assert {name: (root / name).read_text() for name in values} == values
    assert cgroup.doors == [str(root / "run" / "board-0" / "cgroup.procs")]
    assert cgroup.usage() == USED


def test_machine_without_a_controller(tmp_path: Path) -> None:
    with pytest.raises(CannotSimulate, match="no controller cpuacct, memory, pids is mounted"):
        Hierarchy.find("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu pids\n")
    with pytest.raises(CannotSimulate, match="has no controller memory"):
        Hierarchy.find("", tmp_path)


# The relay.


async def relayed(delay: float, upstream: socket.socket | None, data: bytes) -> tuple[bytes, float]:
    """Send data through a relay to a server that returns it; return what came back, and after how many seconds."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as absent:
        address = (upstream or absent).getsockname()
        if upstream is None:
            absent.close()
        server = None if upstream is None else await asyncio.start_server(echo, sock=upstream)
        serving = asyncio.create_task(Relay(listener, address, delay, 10**6).serve())
        started = time.monotonic()
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            writer.write(data)
            writer.write_eof()
            answer = await reader.read()
        finally:
            writer.close()
            serving.cancel()
            await asyncio.wait([serving])
            if server is not None:
                server.close()
        return answer, time.monotonic() - started


@pytest.mark.parametrize("size", [0, 1, 1_000_000])
def test_relay_delays_each_way(size: int) -> None:
    data = os.urandom(size)
    answer, seconds = asyncio.run(relayed(0.05, socket.create_server(("127.0.0.1", 0)), data))
    assert answer == data
    assert seconds >= 0.1


def test_relay_resets_a_connection_when_no_server_listens() -> None:
    with pytest.raises(ConnectionResetError):
        asyncio.run(relayed(0.0, None, b""))


# Runs of boards.


@pytest.fixture(scope="session")
def possible() -> None:
    """Skip or fail where no boards can be made."""
    try:
        if os.geteuid() != 0:
            raise CannotSimulate("root is needed")
        check_programs()
        with ExitStack() as stack:
            run = Hierarchy.find(Path("/proc/self/mounts").read_text()).make_run(leftovers.run_name())
            stack.callback(run.remove)
            Network(leftovers.run_name(), Limits.parse(**{**RIGHT, "boards": "1"}), "127.0.0.1", 1).make(stack)
    except (CannotSimulate, OSError) as error:
        (pytest.fail if os.environ.get("NETQ_FAULTS") == "must" else pytest.skip)(f"no boards can be made: {error}")


@contextlib.contextmanager
def simulation(config: Path, *arguments: str, leaves: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a process; kill it at the end, if it is still there, and check whether something is left."""
    command = [sys.executable, "-m", "edge", "simulate", str(config), *arguments]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{config.parent}"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    with process:
        try:
            yield process
        finally:
            process.kill()
    assert bool(left(process.pid)) == leaves, left(process.pid)


def left(pid: int) -> list[Path]:
    """Return the namespaces, cgroups and folders of the run of a process."""
    places = [network.NAMESPACES, Path("/run"), *Path("/sys/fs/cgroup").glob("*/"), Path("/sys/fs/cgroup")]
    return [path for place in places for path in leftovers.of_runs(place) if path.name.split("-")[2] == str(pid)]


def next_log(process: subprocess.Popen[str], text: str) -> None:
    """Read the log until a line has the text."""
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    assert any(text in line for line in lines), f"the log ends without {text!r}"


@pytest.mark.slow
def test_two_boards_finish_a_federation(possible: None, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.digits.aggregator", "--port=0", "--clients=2", "--rounds=2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        path = tmp_path / "client.toml"
        path.write_text(EXAMPLE.read_text().replace("51966", str(port)).replace("127.0.0.1", "localhost"))
        limits = ["--boards=2", "--cpus=0.5", "--memory=256M", "--bandwidth=1Mbit", "--delay=20ms"]
        with simulation(path, *limits) as process:
            output, log = process.communicate(timeout=90)
        *_, last = map(json.loads, server.stdout)
    assert (process.returncode, last["round"], last["clients"]) == (0, 2, 2), log
    assert last["seconds"] > 0.3  # 20 kB each way at 1 Mbit/s take 0.16 s
    assert sorted(re.findall(r"board (\d) ended after .* s: status 0\n", output)) == ["0", "1"]
    assert "board 0 | " in log
    assert "board 1 | " in log
    *_, head, first, second = (line.split() for line in output.splitlines())
    assert head[:2] == ["board", "status"]
    for row in (first, second):
        board, status, seconds, peak, cpu, throttled, kills, sent, received = map(float, row)
        assert (status, kills) == (0, 0), board
        assert 20 < peak < 256
        assert 0 < cpu < 0.6 * seconds
        assert throttled >= 0
        assert sent > 40
        assert received > 40


@pytest.mark.slow
def test_a_signal_ends_the_agents(possible: None, tmp_path: Path) -> None:
    with simulation(write(tmp_path), "--boards=1", "--cpus=1", "--memory=256M") as process:
        next_log(process, "trying again")
        process.send_signal(signal.SIGINT)
        output, log = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, log
    assert "board 0 ended" in output
    assert output.splitlines()[-1].split()[:2] == ["0", "0"]  # the board, and its exit status


STUBBORN = """\
import os, signal, subprocess, time
os.kill(os.getppid(), signal.SIGSTOP)  # the agent, which would end at SIGTERM
subprocess.Popen(["sleep", "300"])
print("no end", flush=True)
time.sleep(300)
"""


@pytest.mark.slow
def test_a_second_signal_kills_all_processes_of_a_board(possible: None, tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    with simulation(write(tmp_path, train="stubborn:train"), "--boards=1", "--cpus=1") as process:
        next_log(process, "board 0 | no end")
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)  # two signals at one moment would count as one
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert output.splitlines()[-1].split()[:2] == ["0", "SIGKILL"]


@pytest.mark.slow
def test_a_later_run_removes_what_a_killed_run_has_left(possible: None, tmp_path: Path) -> None:
    path = write(tmp_path)
    with simulation(path, "--boards=1", "--cpus=1", leaves=True) as killed:
        next_log(killed, "trying again")
        killed.kill()
        killed.communicate(timeout=LIMIT)
        groups = [path / "board-0" for path in left(killed.pid) if path.is_relative_to("/sys/fs/cgroup")]
        assert groups
        deadline = time.monotonic() + LIMIT
        while any((group / "cgroup.procs").read_text() for group in groups):  # the agent dies with the command
            assert time.monotonic() < deadline
            time.sleep(0.01)
    with simulation(path, "--boards=1", "--cpus=1") as process:
        next_log(process, "trying again")
        assert left(killed.pid) == []
        process.terminate()
        output, log = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, log
    assert "board 0 ended" in output


@pytest.mark.slow
def test_a_board_without_memory_says_so_and_waits(possible: None, tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text("train = bytearray(2**27).count\n")
    with simulation(write(tmp_path, train="greedy:train"), "--boards=1", "--cpus=1", "--memory=64M") as process:
        next_log(process, "not taking part: the process that trains does not start: the training process was killed")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=LIMIT)
    row = output.splitlines()[-1].split()
    assert row[1] == "0"
    assert int(row[6]) >= 1, "kills for want of memory"
