"""The processes of the training: a cgroup that this process may divide, orphans, and what is said without a cgroup."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import fl
import netq
from edge.group import Cgroup, Group
from edge.limits import Limits
from netq.testing.fixtures import LIMIT
from tests.edge import training
from tests.pages import ROOT

ID = uuid.UUID(int=5)
HERE = training.__name__
HYBRID = Path("/sys/fs/cgroup/unified")  # version 2 without controllers, where version 1 has them


class FakeCgroup:
    """The files of a cgroup that has this process only, and of the two below it."""

    def __init__(self, root: Path, controllers: str = "cpu memory pids") -> None:
        self.folder = root / "unit"
        self.text = "1:name=systemd:/\n0::/unit\n"
        self.write("", ("cgroup.procs", str(os.getpid())), ("cgroup.controllers", controllers))
        self.write("", ("cgroup.subtree_control", ""), ("pids.max", "256"))
        self.write("agent", ("cgroup.procs", ""))
        files = [f"{name}.max" for name in ("memory", "pids") if name in controllers]
        files += ["memory.oom.group", "memory.swap.max"] if "memory" in controllers else []
        self.write("training", ("cgroup.procs", ""), *((name, "") for name in files))

    def write(self, inner: str, *files: tuple[str, str]) -> None:
        (self.folder / inner).mkdir(parents=True, exist_ok=True)
        for name, text in files:
            (self.folder / inner / name).write_text(text)

    def read(self, path: str) -> str:
        return (self.folder / path).read_text()


def test_own_cgroup_is_divided(tmp_path: Path) -> None:
    fake = FakeCgroup(tmp_path)
    group = Group(cgroup=Cgroup.make(Limits(memory=300), tmp_path, fake.text))
    assert fake.read("agent/cgroup.procs") == str(os.getpid())
    assert fake.read("cgroup.subtree_control") == "+memory +pids"
    assert fake.read("training/memory.max") == "300000000"
    assert fake.read("training/memory.oom.group") == "1"
    assert fake.read("training/memory.swap.max") == "0"
    assert fake.read("training/pids.max") == "224"
    assert group.is_whole
    assert (
        group.says() == "the training has a cgroup: training.memory holds for all its processes, and for shared memory"
    )


def test_child_enters_and_running_out_is_noticed(tmp_path: Path) -> None:
    fake = FakeCgroup(tmp_path)
    fake.write("training", ("memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 3\noom_group_kill 1\n"))
    group = Group(cgroup=Cgroup.make(Limits(), tmp_path, fake.text))
    group.add(4711)
    assert fake.read("training/cgroup.procs") == "4711"
    assert fake.read("training/memory.max") == "max"
    assert not group.ran_out()
    fake.write("training", ("memory.events", "max 9\noom 3\n"))
    assert group.ran_out()


def test_kernel_without_the_memory_controller_is_named(tmp_path: Path) -> None:
    fake = FakeCgroup(tmp_path, "cpu pids")
    group = Group(cgroup=Cgroup.make(Limits(memory=300), tmp_path, fake.text))
    assert fake.read("cgroup.subtree_control") == "+pids"
    assert not group.is_whole
    assert "has no controller memory; boot with cgroup_enable=memory" in group.says()


@pytest.mark.parametrize(
    ("own", "processes", "lack"),
    [
        ("4:memory:/a\n", "", "no cgroup of version 2"),
        ("0::/other\n", "", "no cgroup of version 2"),
        ("0::/unit\n", "1\n", "has other processes, too"),
    ],
)
def test_cgroup_that_is_not_this_process_s_own(tmp_path: Path, own: str, processes: str, lack: str) -> None:
    fake = FakeCgroup(tmp_path)
    fake.write("", ("cgroup.procs", f"{processes}{os.getpid()}\n"))
    with pytest.raises(OSError, match=lack):
        Cgroup.make(Limits(memory=300), tmp_path, own)
    assert fake.read("agent/cgroup.procs") == ""


_DIVIDES = """
import os, sys, time
from pathlib import Path
from edge.group import Cgroup, Group
from edge.limits import Limits
root, name = Path(sys.argv[1]), sys.argv[2]
(root / name / "cgroup.procs").write_text("0")
for file in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
    os.chown(root / name / file, 65534, 65534)  # as systemd delegates it to the user of a service
os.setgid(65534)
os.setuid(65534)
group = Group(cgroup=Cgroup.make(Limits(memory=300), root, f"0::/{name}"))
ready, tell = os.pipe()
child = os.fork()
if child == 0:
    os.read(ready, 1)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.wait()
    time.sleep(1000)
group.add(child)
os.write(tell, b"x")
while len((root / name / "training/cgroup.procs").read_text().split()) < 2:
    time.sleep(0.01)
group.kill(child)
left = [(root / name / leaf / "cgroup.procs").read_text().split() for leaf in ("agent", "training")]
print(left == [[str(os.getpid())], []])
"""


@pytest.mark.slow
def test_kernel_divides_and_empties_the_cgroup() -> None:
    folder = HYBRID / f"netq-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        (pytest.fail if os.environ.get("NETQ_FAULTS") == "must" else pytest.skip)(f"no cgroup can be made: {error}")
    try:
        command = [sys.executable, "-c", _DIVIDES, str(HYBRID), folder.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, cwd=ROOT)
        assert (done.stdout, done.stderr) == ("True\n", "")
    finally:
        for each in (folder / "training", folder / "agent", folder):
            with contextlib.suppress(FileNotFoundError):
                each.rmdir()


@contextmanager
def device(folder: Path, train: str, more: str = "", *before: str) -> Iterator[tuple[fl.Server, subprocess.Popen[str]]]:
    """A server, and a process that runs a device for it."""
    connection = netq.ConnectionOptions(linger=0.1)  # the device is killed
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), connection=connection)
    with fl.Server(
        {"w": np.zeros(3, np.float32)}, options, min_clients=1, patience=fl.Patience(deadline=LIMIT)
    ) as server:
        path = folder / "client.toml"
        path.write_text(
            f'[server]\nhost = "127.0.0.1"\nport = {server.netloc.port}\n'
            f'[client]\nid = "{ID}"\ntrain = "{HERE}:{train}"\n[connection]\nretry_max = 0.1\n'
            f"[settings]\nmark = '{folder / 'mark'}'\n{more}"
        )
        command = [*before, sys.executable, "-m", "edge", "run", str(path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            try:
                yield server, process
            finally:
                process.kill()


def is_there(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "keep"), [("hang", "false"), ("hang", "true"), ("return", "false")], ids=["killed", "kept", "ended"]
)
def test_daemon_of_the_training_ends_with_it(tmp_path: Path, how: str, keep: str) -> None:
    seconds = 10.0 if how == "hang" else LIMIT
    more = f'how = "{how}"\n[training]\nseconds = {seconds}\nkeep = {keep}\n'
    with device(tmp_path, "leaves_a_daemon", more) as (server, _):
        report = server.round()
        assert report.clients == (() if how == "hang" else (ID,))
        pid = int((tmp_path / "mark").read_text())
        deadline = time.monotonic() + LIMIT
        while is_there(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.slow
def test_limit_that_is_not_one_of_all_processes_is_said_once(tmp_path: Path) -> None:
    with device(tmp_path, "train", "[training]\nmemory = 500\n") as (server, process):
        server.round()
        server.round()
        process.terminate()
        assert process.stderr is not None
        log = process.stderr.read()
    if "the training has a cgroup" not in log:
        expected = "the training has no cgroup .*: training.memory is for each process, without shared memory"
        assert len(re.findall(expected, log)) == 1


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root, and unshare")
def test_agent_that_is_the_first_process_of_a_container(tmp_path: Path) -> None:
    with device(tmp_path, "train", "", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc") as (server, _):
        assert server.round().clients == (ID,)
