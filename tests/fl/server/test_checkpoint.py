"""Checkpoints: whole or not there; and a server that is killed in any phase and goes on to the same model."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fl
import netq
from fl.messages import Reply, Task, Update
from fl.server.checkpoint import Checkpoint, is_there, load
from fl.tensors.serialization import serialization
from netq.errors import Unreadable
from netq.utils import data_pickle
from tests.fl.aggregation.test_update_store import disk_of
from tests.fl.federation import SOON, A, B, C, Federation, adds, at, filled, reply

STATE: dict[str, Any] = {
    "number": 7,
    "model": {"w": np.arange(6.0).reshape(2, 3), "t": torch.ones(3, dtype=torch.bfloat16)},
    "strategy": {"name": "FedAdam", "state": {"first": {"w": np.ones(100_000, np.float32)}, "rates": [0.1, None]}},
}


def save(path: Path, state: Mapping[str, Any]) -> None:
    checkpoint = Checkpoint(path)
    try:
        checkpoint.save(state)
    finally:
        checkpoint.close()


def assert_same(found: Mapping[str, Any]) -> None:
    assert found["number"] == 7
    np.testing.assert_array_equal(found["model"]["w"], STATE["model"]["w"])
    assert torch.equal(found["model"]["t"], STATE["model"]["t"])
    assert (found["strategy"]["state"]["first"]["w"] == 1).all()
    assert found["strategy"]["state"]["rates"] == [0.1, None]


def test_a_saved_state_is_loaded_into_writable_memory(tmp_path: Path) -> None:
    save(tmp_path / "c", STATE)
    found = load(tmp_path / "c")
    assert_same(found)
    found["model"]["w"][:] = 0
    assert_same(load(tmp_path / "c"))
    assert sorted(os.listdir(tmp_path)) == ["c", "c.lock"]


def test_a_state_of_more_tensors_than_a_message_may_have_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model, and one more of its optimizer."""
    monkeypatch.setattr(data_pickle, "MAX_OPCODES", 1000)
    monkeypatch.setattr(data_pickle, "MAX_MEMO", 100)
    models = [{f"{number:070}": np.full(1, number) for number in range(500)} for _ in range(2)]
    with pytest.raises(Unreadable, match="a message has more than 100 values"):
        serialization().load(serialization().dump(models))
    save(tmp_path / "c", {"model": models[0], "strategy": {"state": models[1]}})
    found = load(tmp_path / "c")
    assert found["model"] == found["strategy"]["state"] == models[0]


def test_a_damaged_checkpoint_falls_back_to_the_previous(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "c"
    save(path, STATE)
    save(path, {"number": 8})
    assert load(path) == {"number": 8}
    whole = path.read_bytes()
    for at_byte in (0, 9, 20, len(whole) - 1):
        path.write_bytes(whole[:at_byte] + bytes([whole[at_byte] ^ 1]) + whole[at_byte + 1 :])
        assert_same(load(path))
    for size in (0, 5, 16, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert_same(load(path))
    path.unlink()  # the machine stopped between the two renamings
    assert_same(load(path))
    assert caplog.text.count("going on from") == 9


def test_the_error_says_why_no_checkpoint_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with pytest.raises(fl.CheckpointError, match=r"c: cannot be read \(No such file or directory\)"):
        load(path)
    path.write_bytes(b"PK\3\4 something else altogether")
    with pytest.raises(fl.CheckpointError, match="c: is no checkpoint; it begins with b'PK"):
        load(path)
    save(path, STATE)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(fl.CheckpointError, match="it was cut off"):
        load(path)


def test_a_failed_write_leaves_the_checkpoint_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save(path, STATE)
    (tmp_path / "c.new").mkdir()
    with pytest.raises(OSError, match=r"c\.new"):
        save(path, {"number": 8})
    assert_same(load(path))


WRITER = """
import sys
from fl.server.checkpoint import Checkpoint

checkpoint = Checkpoint(sys.argv[1])
print("here", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_second_process_cannot_write_the_same_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "c")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "here\n"
        with pytest.raises(fl.CheckpointError, match="c: another process writes it; give each server a file of its"):
            fl.Server({"w": np.zeros(1)}, checkpoint=tmp_path / "c")
        other.kill()
    with Federation(checkpoint=tmp_path / "c"):
        with pytest.raises(fl.CheckpointError, match="c: another server of this process writes it"):
            fl.Server({"w": np.zeros(1)}, checkpoint=tmp_path / "c")
        with pytest.raises(subprocess.CalledProcessError):
            subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    save(tmp_path / "c", STATE)
    assert_same(load(tmp_path / "c"))


@pytest.mark.parametrize("name", ["c", "c.lock", "c.new", "c.previous"])
def test_no_link_is_followed(tmp_path: Path, name: str) -> None:
    """Other users may write to the folder, as to /tmp, and link the name to a file of the server's user."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / name).symlink_to(precious)
    if name in ("c", "c.lock"):
        with pytest.raises(fl.CheckpointError, match=r"is a link to '.*precious'; give the name|a link, which is not"):
            save(tmp_path / "c", STATE)
    else:
        save(tmp_path / "c", STATE)
        assert_same(load(tmp_path / "c"))
        save(tmp_path / "c", STATE)
        assert not (tmp_path / name).is_symlink()
    assert precious.read_text() == "mine"


def test_no_link_is_read(tmp_path: Path) -> None:
    save(tmp_path / "there", STATE)
    (tmp_path / "c").symlink_to(tmp_path / "there")
    for read in (load, is_there):
        with pytest.raises(fl.CheckpointError, match="c: is a link to"):
            read(tmp_path / "c")
    (tmp_path / "c").unlink()
    (tmp_path / "c.previous").symlink_to(tmp_path / "there")
    with pytest.raises(fl.CheckpointError, match="c: cannot be read"):
        load(tmp_path / "c")


def test_the_folder_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "here").symlink_to(tmp_path / "disk")
    save(tmp_path / "here" / "c", STATE)
    assert_same(load(tmp_path / "disk" / "c"))


def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        save(tmp_path / "c", STATE)
        save(tmp_path / "c", STATE)
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "c": 0o600,
        "c.previous": 0o600,
        "c.lock": 0o600,
    }


@pytest.mark.parametrize("name", ["c", "c.lock", "c.previous"])
def test_a_pipe_is_refused(tmp_path: Path, name: str) -> None:
    """Reading it would take for ever."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(fl.CheckpointError, match=r"a pipe or a device|No such file"):
        load(tmp_path / "c")
    if name != "c.previous":
        with pytest.raises(fl.CheckpointError, match="a pipe or a device"):
            Checkpoint(tmp_path / "c")


@pytest.mark.parametrize("name", ["/", ".", "/proc/x", "n" * 250])
def test_an_impossible_file_name_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(fl.CheckpointError, match=r"is a folder; expected|cannot be written"):
        Checkpoint(tmp_path / name)


def test_a_state_that_cannot_be_loaded_is_not_written(tmp_path: Path) -> None:
    class Remembers(fl.FedAvg):
        def state(self) -> dict[str, Any]:
            return {"seen": [A]}

    with Federation(strategy=Remembers(), min_clients=1, checkpoint=tmp_path / "c") as federation:
        federation.join(A, adds(1))
        with pytest.raises(fl.CheckpointError, match=r"c: cannot be written: 'strategy': has a uuid\.UUID in"):
            federation.round(1)
    assert os.listdir(tmp_path) == ["c.lock"]


def test_an_unwritable_path_is_refused_by_the_constructor(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious").write_text("mine")
    for path, reason in ((tmp_path / "folder", "is a folder"), (tmp_path / "none" / "c", "its folder is not there")):
        with pytest.raises(fl.CheckpointError, match=reason):
            fl.Server({"w": np.zeros(3)}, at(netq.NetworkLocation("127.0.0.1", 0)), checkpoint=path)
    assert (tmp_path / "folder" / "precious").read_text() == "mine"


def test_a_resumed_server_continues_its_rounds(tmp_path: Path) -> None:
    path = tmp_path / "c"
    strategy = {"learning_rate": 0.5, "momentum": 0.5}
    with Federation(strategy=fl.FedAvgM(**strategy), checkpoint=path) as federation:
        federation.join(A, adds(4))
        federation.join(B, adds(4))
        federation.round(2)
        federation.round(2)
        expected = federation.w  # 2, then 2 + 0.5 * (0.5 * 4 + 4) = 5
    assert expected == [5] * 3
    local = at(netq.NetworkLocation("127.0.0.1", 0))
    with fl.Server.resume(path, local, strategy=fl.FedAvgM(**strategy)) as server:
        assert server.number == 2
        assert server.model["w"].tolist() == expected
    with pytest.raises(fl.CheckpointError, match="is of the strategy FedAvgM, and this is FedAvg"):
        fl.Server.resume(path, local)
    save(path, {"something": 1})
    with pytest.raises(fl.CheckpointError, match="is not of a server: it has 'something'"):
        fl.Server.resume(path, local)


def test_answers_to_tasks_of_the_dead_server_do_not_count(tmp_path: Path) -> None:
    """The new server gives the same numbers of rounds again, perhaps for another model."""
    tasks: list[Task] = []

    def answer(task: Task) -> list[Reply]:
        tasks.append(task)
        late = Reply(replace(tasks[0].job, round=task.job.round), Update(filled(100), 1))
        return [late, reply(task, Update(filled(4), 1))] if len(tasks) == 3 else [reply(task, Update(filled(2), 1))]

    with Federation(checkpoint=tmp_path / "c", min_clients=1) as federation:
        federation.join_raw(A, answer)
        federation.round(1)
        federation.round(1)
    server = fl.Server.resume(tmp_path / "c", at(netq.NetworkLocation("127.0.0.1", 0)), min_clients=1)
    with Federation() as federation:
        federation.server.close()
        federation.server = server
        federation.join_raw(A, answer)
        assert federation.round(1).failures == {}
        assert federation.server.number == 3
        assert federation.w == [4] * 3


def test_a_full_disk_costs_a_checkpoint_and_no_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "c"
    with Federation(min_clients=1, checkpoint=path) as federation:
        federation.join(A, adds(1))
        federation.round(1)
        with disk_of(10):
            assert federation.round(1).clients == (A,)
        assert load(path)["number"] == 1
        assert sorted(os.listdir(tmp_path)) == ["c", "c.lock"]
        federation.round(1)
        assert load(path)["number"] == 3
    expected = f"round 2 has no checkpoint: [Errno 27] File too large: '{path}'; a server that is started now goes on"
    assert expected in caplog.text


def test_a_round_that_does_not_count_writes_no_checkpoint(tmp_path: Path) -> None:
    with Federation(checkpoint=tmp_path / "c") as federation:
        federation.join(A, lambda model, config: Update({"w": model["w"] * np.nan}, 1))
        federation.join(B, lambda model, config: Update({"w": model["w"] * np.nan}, 1))
        federation.round(2)
    assert not (tmp_path / "c").exists()


SERVER = """
import os, signal, sys
import numpy as np
import fl, netq
from fl.server import checkpoint

phase, path, port = sys.argv[1], sys.argv[2], int(sys.argv[3])

def die(when):
    if phase == when and server.number == 3:
        os.kill(os.getpid(), signal.SIGKILL)

class Mortal(fl.FedAdam):
    def config(self, number):
        die("selected")
        return super().config(number)

    def fold(self, model, update, *, client, staleness):
        super().fold(model, update, client=client, staleness=staleness)
        die("folding")

    def finish(self, model, *, number):
        result = super().finish(model, number=number)
        die("finished")
        return result

write = checkpoint._write

def interrupted(file, body):
    file.write(b"NETQFL01 half of it")
    file.flush()
    die("writing")
    file.seek(0)
    write(file, body)

checkpoint._write = interrupted
replace = checkpoint.Path.replace

def renamed(self, target):
    if self.name.endswith(".new"):
        die("renaming")
    return replace(self, target)

checkpoint.Path.replace = renamed

class Says(fl.Callback):
    def client_is(self, client, state, size):
        if state is fl.ClientState.TRAINING:
            die("training")

    def round_ends(self, report, model):
        print(report.number, len(report.clients), flush=True)
        die("reported")

options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port))
settings = dict(min_clients=3, strategy=Mortal(0.1, adaptivity=0.1), callbacks=[Says()], checkpoint=path)
if os.path.exists(path) or os.path.exists(path + ".previous"):
    server = fl.Server.resume(path, options, **settings)
else:
    server = fl.Server({"w": np.zeros(2000, np.float32)}, options, **settings)
with server:
    print("port", server.netloc.port, flush=True)
    for report in server.rounds(5 - server.number):
        pass
    np.save(path + ".npy", server.model["w"])
"""


def trains(id: uuid.UUID) -> Any:
    def train(model: Any, config: Mapping[str, Any]) -> Update:
        random = np.random.default_rng([id.int, config["round"]])
        return Update({"w": model["w"] + random.normal(size=2000).astype(np.float32)}, 1 + id.int)

    return train


@contextlib.contextmanager
def serving(phase: str, path: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SERVER, phase, str(path), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def run(phase: str, path: Path) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Run the federation until its server has ended, and start that again if it is killed."""
    said: list[str] = []
    with contextlib.ExitStack() as stack:
        federation = stack.enter_context(Clients())
        port = 0
        for now in (phase, "never"):
            with serving(now, path, port) as process:
                assert process.stdout is not None
                port = int(process.stdout.readline().split()[1])
                federation.join(port)
                said += process.stdout.read().splitlines()
                status = process.wait(SOON)
            if status == 0:
                break
            assert status == -signal.SIGKILL
    model: np.ndarray[Any, Any] = np.load(f"{path}.npy")
    return model, said


class Clients:
    """Three clients that outlive their server."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._joined = False

    def __enter__(self) -> Clients:
        from concurrent.futures import ThreadPoolExecutor

        self._pool = self._stack.enter_context(ThreadPoolExecutor(3))
        return self

    def join(self, port: int) -> None:
        if not self._joined:
            self._joined = True
            where = netq.NetworkLocation("127.0.0.1", port)
            self._runs = [self._pool.submit(fl.Client(trains(id)).run, at(where, id)) for id in (A, B, C)]

    def __exit__(self, *error: object) -> None:
        for running in self._runs if not any(error) else ():
            running.result(SOON)
        self._stack.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray[Any, Any]:
    model, said = run("never", tmp_path_factory.mktemp("whole") / "c")
    assert said == [f"{number} 3" for number in range(1, 6)]
    return model


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["selected", "training", "folding", "finished", "writing", "renaming", "reported"])
def test_a_killed_server_resumes_to_the_same_model(
    phase: str, tmp_path: Path, undisturbed: np.ndarray[Any, Any]
) -> None:
    model, said = run(phase, tmp_path / "c")
    rounds = [int(line.split()[0]) for line in said]
    assert rounds == sorted(rounds)
    assert set(rounds) == set(range(1, 6))
    assert all(line.endswith(" 3") for line in said)
    difference = float(np.abs(model - undisturbed).max() / np.abs(undisturbed).max())
    print(f"\nkilled when {phase}: largest relative difference {difference:.1e}")
    assert difference < 1e-6
    assert np.abs(model).max() > 0.1
