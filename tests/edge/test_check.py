"""edge check: the file, the functions that it names, the server, and a training of a model like its."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge.check
import edge.child
import fl
import netq
from edge import __main__ as command
from edge.config import Config
from fl.envelope import Describe, Introduction, Job
from fl.messages import MESSAGES, Description, Reply, Task
from netq.security import certificates
from netq.testing.fixtures import LIMIT

TRAIN = '[client]\ntrain = "numpy:mean"\n'
KEEP = "[training]\nkeep = true\n"  # one process for the check of the functions and for the task
HERE = __name__


def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Find zeros like the server's model, and the server's config."""
    assert {name: (each.shape, each.dtype.name, float(each.sum())) for name, each in model.items()} == {
        "bias": ((), "int64", 0.0),
        "w": ((300, 7), "float32", 0.0),
    }
    assert (config["rate"], config["round"]) == (0.5, 1)
    return fl.Update(model, 1)


def drops_a_tensor(model: Any, config: Mapping[str, Any]) -> fl.Update:
    return fl.Update({"w": model["w"]}, 1)


def skips(model: Any, config: Mapping[str, Any]) -> fl.Update:
    raise fl.Skip("no new pictures")


def fails(model: Any, config: Mapping[str, Any]) -> fl.Update:
    raise OSError("the sensor does not answer")


@contextlib.contextmanager
def federation(**settings: Any) -> Iterator[fl.Server]:
    """A server that waits for clients."""
    model = {"w": np.ones((300, 7), np.float32), "bias": np.array(7)}
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    with fl.Server(model, options, config={"rate": 0.5}, **settings) as server:
        waiting = threading.Thread(target=waits, args=(server,))
        waiting.start()
        yield server
        server.close(0)
        waiting.join(LIMIT)


def waits(server: fl.Server) -> None:
    with contextlib.suppress(netq.Closed):
        server.wait(2)


@pytest.fixture(autouse=True)
def restored_signals() -> Iterator[None]:
    """`main` owns its process, and handles SIGTERM; this process has other tests to run."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def no_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no process that imports the functions: the test is of what comes after that."""
    monkeypatch.setattr(edge.check, "_functions", lambda work, child: None)


@pytest.fixture
def other_server(monkeypatch: pytest.MonkeyPatch, no_functions: None) -> None:
    """The server is none of fl: do not wait for its description. Start no process that trains."""
    monkeypatch.setattr(edge.check, "PATIENCE", 0.1)


@pytest.fixture
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority that did not sign the certificate of any server."""
    return certificates.init(tmp_path_factory.mktemp("other")).authority


def write(folder: Path, port: int, more: str = TRAIN) -> str:
    path = folder / "client.toml"
    path.write_text(f'[server]\nhost = "127.0.0.1"\nport = {port}\n[connection]\nretry_max = 0.1\n{more}')
    return str(path)


def serving(
    security: netq.SecurityOptions | None = None,
    events: netq.EventOptions | None = None,
    seal: netq.SealOptions | None = None,
) -> netq.Communicator:
    options = netq.CommunicatorOptions(
        netloc=netq.NetworkLocation("127.0.0.1", 0),
        security=security,
        seal=seal,
        connection=netq.ConnectionOptions(linger=0.0),
        events=events or netq.EventOptions(),
    )
    return netq.new(purpose=netq.Purpose.SERVER, options=options)


def test_a_training_that_skips_is_said_to_skip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with federation() as server:
        path = write(tmp_path, server.netloc.port, f'[client]\ntrain = "{HERE}:skips"\n{KEEP}')
        assert command.main(["check", path]) == 0
    assert re.search(r"training  \d\.\d s; it skips this task: no new pictures\n", capsys.readouterr().out)


def test_right_file_and_answering_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with federation() as server:
        path = write(tmp_path, server.netloc.port, f'[client]\ntrain = "{HERE}:train"\n')
        assert command.main(["check", path]) == 0
        assert server.clients == ()
    out = capsys.readouterr().out
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert lines["functions"].startswith(f"{HERE}:train: imported in ")
    assert "limits" not in lines
    assert lines["fit"] == "now"
    assert lines["state"].startswith("kept in memory")
    assert lines["server"].startswith(f"127.0.0.1:{server.netloc.port} answers in ")
    assert lines["link"] == "tcp, not encrypted"
    assert " the server's, ± " in lines["clock"]
    assert lines["model"] == "2 tensors, 0.00841 MB; the next round is 1"
    assert lines["training"].endswith(" MB; an update of 0.00841 MB")
    assert out.endswith("all is well\n")


@pytest.mark.parametrize("compression", ['"auto"', '{ dtype = "float16" }', '{ dtype = "int8", top_k = 0.1 }'])
def test_training_with_compression(tmp_path: Path, capsys: pytest.CaptureFixture[str], compression: str) -> None:
    with federation() as server:
        more = f'[client]\ntrain = "{HERE}:train"\ncompression = {compression}\n{KEEP}'
        assert command.main(["check", write(tmp_path, server.netloc.port, more)]) == 0
    size = float(re.findall(r"an update of (.*) MB\n", capsys.readouterr().out)[0])
    assert size < 0.005  # 0.0084 without


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fails", "edge: the training fails: OSError: the sensor does not answer\n"),
        (
            "drops_a_tensor",
            "edge: the training fails: the update is not like the model, and most strategies refuse it: ",
        ),
    ],
)
def test_wrong_training_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, error: str) -> None:
    with federation() as server:
        path = write(tmp_path, server.netloc.port, f'[client]\ntrain = "{HERE}:{name}"\n{KEEP}')
        assert command.main(["check", path]) == 1
        assert error in capsys.readouterr().err


def test_a_training_that_fails_is_not_tried_with_no_train(tmp_path: Path) -> None:
    with federation() as server:
        path = write(tmp_path, server.netloc.port, f'[client]\ntrain = "{HERE}:fails"\n')
        assert command.main(["check", path, "--no-train"]) == 0


@pytest.mark.usefixtures("no_functions")  # a task starts the process
@pytest.mark.parametrize(("limit", "more"), [("0.016", []), ("0.008", ["--no-train"])])
def test_round_above_the_traffic_of_an_hour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: str, more: list[str]
) -> None:
    with federation() as server:
        path = write(tmp_path, server.netloc.port, f'[client]\ntrain = "{HERE}:train"\n[fit]\nmax_traffic = {limit}\n')
        assert command.main(["check", path, *more]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"edge: fit.max_traffic is {limit} MB in 60 minutes, and one round has 0.0")
        assert command.main(["check", path, *more, "--set", "fit.max_traffic=0.0172"]) == 0


@pytest.mark.slow
def test_import_that_hangs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(1000)\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        path = write(tmp_path, 1, '[client]\ntrain = "hangs:train"\n[training]\nseconds = 0.5\n')
        assert command.main(["check", path]) == 1
    out, error = capsys.readouterr()
    assert out == "functions hangs:train: \n"
    assert "does not start: it took longer than training.seconds (0.5); killed" in error


@pytest.mark.usefixtures("other_server")
def test_what_the_limit_of_memory_holds_for_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        path = write(tmp_path, server.netloc.port, TRAIN + "[training]\nmemory = 500\n")
        assert command.main(["check", path]) == 0
    line = "limits    the training has no cgroup (edge.run makes none): training.memory is for each process, "
    assert line in capsys.readouterr().out


def test_memory_that_is_too_little_for_numpy_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, 1, TRAIN + "[training]\nmemory = 10\n")
    assert command.main(["check", path]) == 1
    error = capsys.readouterr().err
    assert error.startswith("edge: the process that trains does not start: ")
    assert error.endswith("; training.memory is 10 MB, which may be too little\n")


@pytest.mark.usefixtures("other_server")
def test_other_server_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        assert command.main(["check", write(tmp_path, server.netloc.port)]) == 0
    out = capsys.readouterr().out
    assert "the server has not described it within 0.1 s" in out
    assert out.endswith("all is well so far; the model, and a training of it, were not tried\n")


@contextlib.contextmanager
def asked(
    folder: Path, status: list[int], *flags: str, more: str = ""
) -> Iterator[tuple[netq.Communicator, uuid.UUID]]:
    """A server of the test's own, which `edge check` has asked for a description, and the peer; then its status."""
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), serialization=MESSAGES)
    with netq.new(purpose="server", options=options) as server:
        path = write(folder, server.netloc.port, f'[client]\ntrain = "{HERE}:train"\n{more}')
        checking = threading.Thread(target=lambda: status.append(command.main(["check", path, *flags])))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(signal, "signal", lambda *args: None)  # works in the main thread only
            checking.start()
            peer, introduction = server.get(timeout=LIMIT)
            assert isinstance(introduction, Introduction)
            assert server.get(timeout=LIMIT).data == Describe("edge check")
            yield server, peer
            checking.join(LIMIT)


@pytest.mark.usefixtures("no_functions")
def test_a_task_that_comes_first_is_declined(tmp_path: Path) -> None:
    status: list[int] = []
    with asked(tmp_path, status, "--no-train") as (server, peer):
        job = Job(7, 3, "train")
        server.put(Task(job, {"w": np.zeros(3)}, {}), peer)
        assert server.get(timeout=LIMIT).data == Reply(job, "this is edge check, which does no tasks")
        server.put(Description(3, {}, {}, False, {}, {}, time.time()), peer)
    assert status == [0]


@pytest.mark.usefixtures("no_functions")
@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        (
            ((2**26,), "float32", False),
            "the server's model has 268 MB, and this device takes messages of 200 MB at most",
        ),
        (
            ((2**27,), "bfloat16", True),
            "the server's model has 268 MB, and this device takes messages of 200 MB at most",
        ),
        (((0,), "load", True), "the server describes the tensor 'w' as 'load'; expected one of float16, float32, "),
        (((0,), "S100000000", False), "the server describes the tensor 'w' as 'S100000000'; expected one of float16, "),
        (((0,), "bfloat16", False), "the server describes the tensor 'w' as 'bfloat16'; expected one of float16, "),
    ],
)
def test_model_that_the_device_cannot_take_is_not_made(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tensor: tuple[tuple[int, ...], str, bool],
    error: str,
) -> None:
    monkeypatch.setattr(edge.check, "_train", lambda *args: pytest.fail("it was made"))
    status: list[int] = []
    with asked(tmp_path, status, more="[training]\nmemory = 200\n") as (server, peer):
        server.put(Description(3, {"w": tensor}, {}, False, {}, {}, time.time()), peer)
    assert status == [1]
    assert capsys.readouterr().err.startswith(f"edge: {error}")


@pytest.mark.usefixtures("no_functions")
def test_folder_for_the_state_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with federation() as server:
        path = write(tmp_path, server.netloc.port, f'[client]\ntrain = "{HERE}:train"\nstate = "state"\n')
        assert command.main(["check", path, "--no-train"]) == 0
    assert f"{tmp_path / 'state'}: " in capsys.readouterr().out
    assert not list((tmp_path / "state").glob("*"))


@pytest.mark.usefixtures("other_server")
def test_sealed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server_files, own = certificates.init(tmp_path), certificates.issue(tmp_path, "board")
    table = "\n".join(["[seal]", *(f'{name} = "{path}"' for name, path in own._asdict().items())])
    seal = netq.SealOptions(server_files.key, server_files.certificate, server_files.authority)
    with serving(seal=seal) as server:
        assert command.main(["check", write(tmp_path, server.netloc.port, f"{TRAIN}{table}\n")]) == 0
    out = capsys.readouterr().out
    assert "link      tcp, sealed by MLKEM768_X25519 and " in out
    assert "not encrypted" not in out


@pytest.mark.usefixtures("other_server")
def test_own_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = certificates.init(tmp_path)
    files = certificates.issue(tmp_path, "board")
    table = "".join(f'{option} = "{path}"\n' for option, path in files._asdict().items())
    ended = threading.Event()
    events = netq.EventOptions(fin=lambda peer: ended.set())
    with serving(netq.SecurityOptions(own.key, own.certificate, own.authority), events) as server:
        assert command.main(["check", write(tmp_path, server.netloc.port, f"{TRAIN}[security]\n{table}")]) == 0
        assert ended.wait(LIMIT)  # no session is left that the device would have to take over
    out = capsys.readouterr().out
    assert "link      tcp, TLSv1.3, TLS_AES_256_GCM_SHA384, X25519MLKEM768 (post-quantum)\n" in out


@pytest.mark.slow
@pytest.mark.usefixtures("no_functions")
def test_certificate_of_an_agent_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge.check, "TIMEOUT", 2.0)
    own = certificates.init(tmp_path)
    files = certificates.issue(tmp_path, "board")
    table = "".join(f'{option} = "{path}"\n' for option, path in files._asdict().items())
    with serving(netq.SecurityOptions(own.key, own.certificate, own.authority)) as server:
        path = write(tmp_path, server.netloc.port, f"{TRAIN}[security]\n{table}")
        with netq.new(purpose="client", options=Config.load(path).options()) as agent:
            agent.put("I run").result(LIMIT)
            assert command.main(["check", path]) == 1
    error = capsys.readouterr().err
    assert "is in use by another client" in error
    assert error.endswith("; if the agent of this device runs, stop it first: they have one certificate\n")


@pytest.mark.usefixtures("other_server")
def test_check_leaves_the_session_of_the_device_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        id = "7f0c5e0a-6f0e-4c0e-9d6b-0d3c1f2a4b5c"
        assert command.main(["check", write(tmp_path, server.netloc.port, f'{TRAIN}id = "{id}"\n')]) == 0
        assert id not in {str(peer) for peer in server.statistics()}


@pytest.mark.slow
@pytest.mark.usefixtures("no_functions")
def test_silent_server_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge.check, "TIMEOUT", 1.0)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        port = bound.getsockname()[1]
        assert command.main(["check", write(tmp_path, port)]) == 1
    errors = capsys.readouterr().err
    assert f"edge: the file is right, but 127.0.0.1:{port} does not answer within 1 s (" in errors
    assert "Connection refused" in errors


@pytest.mark.slow
@pytest.mark.usefixtures("no_functions")
def test_untrusted_certificate_is_status_1(
    tmp_path: Path,
    files: certificates.Files,
    authority: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge.check, "TIMEOUT", 1.0)
    with serving(netq.SecurityOptions(files.key, files.certificate)) as server:
        path = write(tmp_path, server.netloc.port, f'{TRAIN}[security]\ncertificate = "{authority}"\n')
        assert command.main(["check", path]) == 1
        server.close(timeout=0)
    # Client and server log into one process here, so either side's warning may be the last.
    assert "does not answer within 1 s (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("", "client.train: missing"),
        ('[client]\ntrain = "numpy:meen"\n', "client.train: 'numpy:meen'"),
        (f'{TRAIN}[security]\ncertificate = "client.toml"\n', "security.certificate: "),
        (f"{TRAIN}[sekurity]\n", "[sekurity]: no such table"),
    ],
)
def test_wrong_file_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, error: str
) -> None:
    path = write(tmp_path, 9, more)
    assert command.main(["check", path]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"edge: {path}: {error}")


def test_what_a_process_has_said_before_it_ended_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it ends between two looks of the agent: at what it says, and at whether it runs."""
    waitid = os.waitid
    monkeypatch.setattr(os, "waitid", lambda kind, pid, options: waitid(kind, pid, options & ~os.WNOHANG))
    monkeypatch.setattr(edge.child, "_TICK", 0.0)
    assert command.main(["check", write(tmp_path, 9, '[client]\ntrain = "numpy:meen"\n')]) == 2
    assert "client.train: 'numpy:meen'" in capsys.readouterr().err


def test_wrong_command_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command.main(["client.toml"])
    assert end.value.code == 2
    commands = "'run', 'check', 'approve', 'audit', 'install', 'simulate'"
    assert f"invalid choice: 'client.toml' (choose from {commands})" in capsys.readouterr().err
