"""The command fl: processes with real clients; their files, their log, their exit status."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import pty
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import fl
import netq
from edge.__main__ import main as edge_main
from fl.callbacks.jsonl import JsonLines, read
from fl.config.server import Config
from fl.server.checkpoint import Checkpoint
from netq.security import certificates
from tests.fl.federation import SOON, A, B, C, D, adds, at, gives, zeros
from tests.programs.in_process import own_process
from tests.programs.reading import Reading

pytest.importorskip("typer")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "fl"]


def measure(model: Mapping[str, Any]) -> dict[str, float]:
    """What the server's process measures."""
    return {"sum": model["w"].sum()}


def train(model: Mapping[str, Any], config: Mapping[str, Any]) -> fl.Update:
    """What a device's process does."""
    return fl.Update({"w": model["w"] + np.float32(config["step"])}, 1)


def halves() -> dict[str, Any]:
    """A model that .npz cannot hold, and .safetensors can."""
    import torch

    return {"w": torch.zeros(3, dtype=torch.bfloat16)}


def suffixed() -> dict[str, Any]:
    """A model with a name that np.load would look for elsewhere."""
    return {"w.npy": np.zeros(3, np.float32)}


def write(
    folder: Path, *, port: int = 0, rounds: int = 3, protocol: str = "tcp", server: str = "", more: str = ""
) -> Path:
    path = folder / "aggregator.toml"
    path.write_text(f"""
        [server]
        host = "127.0.0.1"
        port = {port}
        rounds = {rounds}
        protocol = "{protocol}"
        checkpoint = "federation.ckpt"
        {server}
        [model]
        initial = "tests.fl.federation:zeros"
        measure = "tests.fl.test_main:measure"
        save = "model.npz"
        [callbacks]
        json = "rounds.jsonl"
        {more}
    """)
    return path


class Serving(Reading):
    """`fl serve`, as a process."""

    def __init__(self, config: Path) -> None:
        command = [*COMMAND, "serve", str(config)]
        super().__init__(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True))
        self.netloc = netq.NetworkLocation("127.0.0.1", int(self.wait("listening at 127.0.0.1:").split(";")[0]))


@contextlib.contextmanager
def serving(config: Path) -> Iterator[Serving]:
    served = Serving(config)
    try:
        yield served
    finally:
        served.process.kill()
        served.process.wait()
        assert served.process.stderr is not None
        served.process.stderr.close()


@contextlib.contextmanager
def clients(netloc: netq.NetworkLocation, *ids: uuid.UUID) -> Iterator[None]:
    """Clients that add 1, until the federation is over."""
    with ThreadPoolExecutor(len(ids)) as pool:
        runs = [pool.submit(fl.Client(adds(1)).run, at(netloc, id)) for id in ids]
        yield
        for run in runs:
            run.result()


def finish(config: Path) -> None:
    """Do the rounds of a file, in this process."""
    loaded = Config.load(config)
    with loaded.server([JsonLines(config.parent / "rounds.jsonl")]) as server, clients(server.netloc, A, B):
        for _ in server.rounds(loaded.rounds):
            pass
        server.close()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=50
    )


class Outcome(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def call(*arguments: str) -> Outcome:
    """Run a command in this process. For commands that do not serve."""
    from fl.__main__ import app

    with own_process() as (out, errors), pytest.raises(SystemExit) as exited:
        app(arguments, prog_name="fl")
    status = exited.value.code
    assert isinstance(status, int)
    return Outcome(status, out.getvalue(), errors.getvalue())


def w(path: Path) -> list[float]:
    with np.load(path) as model:
        found: list[float] = model["w"].tolist()
    return found


def test_serve_runs_its_rounds_and_ends_the_clients(tmp_path: Path) -> None:
    with serving(write(tmp_path)) as served, clients(served.netloc, A, B):
        assert served.end() == 0
    rounds = read(tmp_path / "rounds.jsonl")
    assert [(round["round"], round["evaluation"]) for round in rounds] == [
        (1, {"server_sum": 3.0}),
        (2, {"server_sum": 6.0}),
        (3, {"server_sum": 9.0}),
    ]
    assert w(tmp_path / "model.npz") == [3.0] * 3
    assert "round 3: 2 clients, 0 failed, evaluated server_sum 9," in served.said
    assert not list(tmp_path.glob("*.new"))


def test_devices_take_part_until_the_server_ends(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serving(write(tmp_path, rounds=2)))
        devices = [stack.enter_context(_device(tmp_path, served.netloc, step)) for step in (1, 3)]
        assert served.end() == 0
        assert [device.wait() for device in devices] == [0, 0]
    assert w(tmp_path / "model.npz") == [4.0] * 3


@contextlib.contextmanager
def _device(folder: Path, netloc: netq.NetworkLocation, step: int) -> Iterator[subprocess.Popen[bytes]]:
    config = folder / f"device{step}.toml"
    config.write_text(f"""
        [server]
        host = "{netloc.host}"
        port = {netloc.port}
        [client]
        train = "tests.fl.test_main:train"
        [settings]
        step = {step}
        [training]
        keep = true
    """)
    with subprocess.Popen(
        [sys.executable, "-m", "edge", "run", str(config)], cwd=ROOT, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_clients_wait_after_sigterm_for_the_next_server(tmp_path: Path) -> None:
    with serving(write(tmp_path, rounds=10**6)) as first, clients(first.netloc, A, B):
        first.wait("round 2: 2 clients")
        first.process.send_signal(signal.SIGTERM)
        assert first.end() == 0
        assert "Traceback" not in first.said
        done = len(read(tmp_path / "rounds.jsonl"))
        with serving(write(tmp_path, port=first.netloc.port, rounds=done + 3)) as second:
            assert second.end() == 0
    count = done + 3
    missing = set(range(1, count + 1)) - {round["round"] for round in read(tmp_path / "rounds.jsonl")}
    assert missing <= {done + 1}  # whose checkpoint was written, and then SIGTERM came
    assert w(tmp_path / "model.npz") == [float(count)] * 3


def test_killed_server_resumes_from_its_last_round(tmp_path: Path) -> None:
    with serving(write(tmp_path, rounds=10**6)) as first, clients(first.netloc, A, B):
        first.wait("round 2: 2 clients")
        first.process.kill()
        first.end()
        rounds = len(read(tmp_path / "rounds.jsonl")) + 2  # the last may have counted, and not been written down
        with serving(write(tmp_path, port=first.netloc.port, rounds=rounds)) as second:
            assert second.end() == 0
    assert w(tmp_path / "model.npz") == [float(rounds)] * 3


def lingers() -> dict[str, Any]:
    """A model that never comes; and it does not end when it is told to, either."""
    try:
        print("it begins", file=sys.stderr, flush=True)
        signal.pause()
    finally:
        print("it is to end", file=sys.stderr, flush=True)
        signal.pause()
    return {}


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_second_signal_ends_the_process_at_once(tmp_path: Path, signum: signal.Signals, status: int) -> None:
    config = write(tmp_path)
    config.write_text(config.read_text().replace("tests.fl.federation:zeros", "tests.fl.test_main:lingers"))
    command = [*COMMAND, "serve", str(config)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for said in ("it begins", "it is to end"):
                assert process.stderr.readline() == f"{said}\n"
                process.send_signal(signum)
            assert process.stderr.read() == ""
        except BaseException:
            process.kill()  # it would never end if a shell has set SIGINT to be ignored
            raise
    assert process.returncode == status


def test_ctrl_c_is_status_130(tmp_path: Path) -> None:
    with serving(write(tmp_path)) as served:
        served.process.send_signal(signal.SIGINT)
        assert served.end() == 130
    assert "Traceback" not in served.said


def test_restart_after_the_last_round_saves_the_model(tmp_path: Path) -> None:
    config = write(tmp_path, server="linger = 0")
    finish(config)
    assert run("serve", str(config)).returncode == 0
    assert w(tmp_path / "model.npz") == [3.0] * 3


def test_a_server_without_rounds_left_tells_late_clients(tmp_path: Path) -> None:
    config = write(tmp_path)
    finish(config)
    with serving(config) as served:
        with clients(served.netloc, C, D):
            pass  # their run returns
        served.process.terminate()
        assert served.end() == 0
    assert "for 60 s, clients that connect are told that the federation is over" in served.said


def test_a_stalled_federation_ends_with_status_1_and_its_clients_wait(tmp_path: Path) -> None:
    server = "min_clients = 1\nvoid_rounds = 3\nvoid_pause = 0.01"
    with serving(write(tmp_path, server=server)) as served, ThreadPoolExecutor(1) as pool:
        client = pool.submit(fl.Client(gives(math.nan)).run, at(served.netloc, A))
        assert served.end() == 1
        assert not (tmp_path / "model.npz").exists()
        assert not client.done()
        last = served.said.strip().splitlines()[-1]
        assert last.startswith(
            "fl: round 1 did not count 3 times in a row (void_rounds); in the last attempt 1 clients"
        )
        assert "client 1: 'w' holds NaN" in last
        _, *rounds = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
        assert [(each["round"], each["attempt"], each["clients"]) for each in rounds] == [(1, n, []) for n in (1, 2, 3)]
        with fl.Server(zeros(), at(served.netloc), min_clients=1) as successor:  # the client waits for it
            assert successor.round().failures.keys() == {A}
        client.result(SOON)


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("prometheus_client", "tensorboard", "torch", "rich")),
    reason="what [callbacks] names is not installed",
)
def test_all_callbacks_at_once(tmp_path: Path) -> None:
    config = write(tmp_path, more='progress = true\ntensorboard = "runs"\nprometheus = 0\n')
    with serving(config) as served, clients(served.netloc, A, B):
        assert served.end() == 0
    assert "round 3: 2 clients, 0 failed" in served.said
    assert list((tmp_path / "runs").glob("events.out.tfevents.*"))


def test_terminal_shows_states_and_log(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb") as screen, os.fdopen(theirs, "wb") as stderr:
        config = write(tmp_path, more="progress = true")
        process = subprocess.Popen(
            [*COMMAND, "serve", str(config)], cwd=ROOT, stderr=stderr, env={**os.environ, "TERM": "xterm"}
        )
        seen = b""
        try:
            while b"waiting for clients: 0 of 2" not in seen or b"training " not in seen:
                seen += os.read(screen.fileno(), 65536)
            process.terminate()
            assert process.wait() == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rounds": 0}, "server.rounds: 0; expected a whole number, 1 or more"),
        ({"protocol": "udp"}, "server.protocol: 'udp'; expected"),
        ({"more": "[security]"}, "security.key: None; a server needs its private key, a PEM file"),
        ({"more": 'mlflow = "mlruns"'}, "callbacks.mlflow: 'mlruns'; expected the address of an MLflow server"),
        ({"more": '[strategy]\nname = "FedAdm"'}, "strategy.name: 'FedAdm': no such strategy; did you mean FedAdam?"),
    ],
)
def test_mistake_is_one_line_and_status_2(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    config = write(tmp_path, **change)
    done = call("serve", str(config))
    assert done.returncode == 2
    assert done.stderr.startswith(f"fl: {config}: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("initial", "said"),
    [
        (
            "halves",
            "'w' is bfloat16 of shape (3,); expected a dtype that .npz has, as float32 is one; .safetensors has "
            "bfloat16",
        ),
        ("suffixed", "'w.npy': no name that .npz can have; expected a printable text that does not end in .npy"),
    ],
)
def test_unsavable_model_is_refused_before_round_1(tmp_path: Path, initial: str, said: str) -> None:
    pytest.importorskip("torch")
    config = write(tmp_path)
    config.write_text(config.read_text().replace("tests.fl.federation:zeros", f"tests.fl.test_main:{initial}"))
    done = call("serve", str(config))
    assert done.returncode == 2
    assert done.stderr == f"fl: {config}: model.save: {said}\n"  # and it has not listened
    done = call("simulate", str(config), "--train", "tests.fl.test_main:train")
    assert (done.returncode, done.stderr) == (2, f"fl: {config}: model.save: {said}\n")


def test_bfloat16_leaves_as_safetensors_and_by_export(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from safetensors.torch import load_file

    config = write(tmp_path, rounds=1)
    text = config.read_text().replace("tests.fl.federation:zeros", "tests.fl.test_main:halves")
    config.write_text(text.replace("measure =", "# ").replace("model.npz", "model.safetensors"))
    with serving(config) as served, clients(served.netloc, A, B):
        assert served.end() == 0
    saved = load_file(tmp_path / "model.safetensors")["w"]
    assert (str(saved.dtype), saved.tolist()) == ("torch.bfloat16", [1.0] * 3)
    out = tmp_path / "exported.safetensors"
    done = call("export", str(tmp_path / "federation.ckpt"), str(out))
    assert (done.returncode, done.stdout) == (0, f"{out}: the model of round 1, 1 tensors\n")
    assert load_file(out)["w"].equal(saved)
    done = call("export", str(tmp_path / "federation.ckpt"), str(tmp_path / "exported.npz"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "MODEL: 'w' is bfloat16 of shape (3,); expected a dtype that .npz has" in done.stderr
    assert not (tmp_path / "exported.npz").exists()


def test_export_writes_the_model_of_a_checkpoint(tmp_path: Path) -> None:
    finish(write(tmp_path))
    checkpoint, out = tmp_path / "federation.ckpt", tmp_path / "exported.npz"
    (tmp_path / "federation.ckpt").rename(tmp_path / "federation.ckpt.previous")  # a machine stopped between renames
    done = call("export", str(checkpoint), str(out))
    assert (done.returncode, done.stdout) == (0, f"{out}: the model of round 3, 1 tensors\n")
    assert w(out) == [3.0] * 3
    assert run("export", str(checkpoint), str(tmp_path / "exported.bin")).returncode == 2


@pytest.mark.parametrize(
    ("checkpoint", "out", "said"),
    [
        ("none", "m.npz", "none: cannot be read (No such file or directory); expected a checkpoint"),
        ("text", "m.npz", "text: is no checkpoint; it begins with b'"),
        ("other", "m.npz", "other: has no model; expected a checkpoint of an fl.Server"),
        ("none", "m.bin", "m.bin'; expected a name that ends in .npz or .safetensors"),
        ("none", "away/m.npz", "away/m.npz'; there is no folder"),
    ],
)
def test_export_says_what_is_wrong(tmp_path: Path, checkpoint: str, out: str, said: str) -> None:
    (tmp_path / "text").write_text("no checkpoint")
    other = Checkpoint(tmp_path / "other")
    other.save({"number": 3})
    other.close()
    done = call("export", str(tmp_path / checkpoint), str(tmp_path / out))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert not (tmp_path / out).exists()


def test_serve_warns_that_it_drops_the_model(tmp_path: Path) -> None:
    with fl.Server(zeros(), at(netq.NetworkLocation("127.0.0.1", 0))) as other:
        config = write(tmp_path, port=other.netloc.port)  # which is in use, so that it ends after the warning
        text = config.read_text()
        dropped = f'{config}: the last model will be dropped; to keep it set model.save, as in save = "model.npz", or'
        for lines in (["save", "checkpoint"], ["save"], ["checkpoint"]):
            kept = [line for line in text.splitlines() if line.split("=")[0].strip() not in lines]
            config.write_text("\n".join(kept))
            assert (dropped in call("serve", str(config)).stderr) is (len(lines) == 2)
        (tmp_path / "server.context").touch()  # which is read after the warning
        plain = ("save", "checkpoint", "measure")
        kept = [line for line in text.splitlines() if line.split("=")[0].strip() not in plain]
        config.write_text("\n".join([*kept, "[secure]", 'context = "server.context"']))
        assert "dropped; to keep it set server.checkpoint\n" in call("serve", str(config)).stderr


@pytest.mark.parametrize("progress", ["false", "true"])
def test_rounds_go_on_after_the_log_reader_closes(tmp_path: Path, progress: str) -> None:
    pytest.importorskip("rich")
    with serving(write(tmp_path, more=f"progress = {progress}")) as served:
        assert served.process.stderr is not None
        served.process.stderr.close()
        with clients(served.netloc, A, B):
            assert served.process.wait() == 0
    assert [round["round"] for round in read(tmp_path / "rounds.jsonl")] == [1, 2, 3]
    assert w(tmp_path / "model.npz") == [3.0] * 3


def test_address_in_use_is_one_line_and_status_1(tmp_path: Path) -> None:
    with fl.Server(zeros(), at(netq.NetworkLocation("127.0.0.1", 0))) as server:
        done = call("serve", str(write(tmp_path, port=server.netloc.port)))
    assert done.returncode == 1
    where = f"127.0.0.1:{server.netloc.port} (server.host, server.port)"
    assert done.stderr.startswith(f"fl: {tmp_path / 'aggregator.toml'}: cannot listen at {where}: ")


def test_wrong_key_of_the_page_is_one_line_and_status_2(tmp_path: Path) -> None:
    own = certificates.init(tmp_path)
    pair = f"key = '{own.key}'\ncertificate = '{own.authority}'\nauthority = '{own.authority}'"
    path = write(tmp_path, more=f"page = '0.0.0.0:0'\n[page]\n{pair}")
    done = call("serve", str(path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"fl: {path}: page.key: {own.key}: not the key of the certificate ")


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")
def test_silent_mlflow_is_one_line_and_status_1(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and never listens, so connections are refused
        uri = f"http://127.0.0.1:{bound.getsockname()[1]}"
        config = write(tmp_path, more=f'mlflow = "{uri}"')
        done = run("serve", str(config), MLFLOW_DISABLE_TELEMETRY="true")
    assert done.returncode == 1
    assert done.stderr.startswith(f"fl: {config}: callbacks.mlflow: MLflow does not answer at {uri} (")
    assert done.stderr.count("\n") == 1


def test_checkpoint_of_another_strategy_is_status_1(tmp_path: Path) -> None:
    finish(write(tmp_path))
    done = call("serve", str(write(tmp_path, rounds=9, more='[strategy]\nname = "FedAvgM"')))
    assert done.returncode == 1
    assert "federation.ckpt: is of the strategy FedAvg, and this is FedAvgM" in done.stderr


def test_verbose_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in call("serve", "--verbose", str(tmp_path / "none.toml")).stderr
    assert "Traceback" not in call("serve", str(tmp_path / "none.toml")).stderr


def test_plot_draws_runs_and_names_what_is_missing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, out = tmp_path / "rounds.jsonl", tmp_path / "rounds.png"
    JsonLines(path).round_ends(fl.RoundReport(1, (A,), {}, {"loss": 0.5}, {}, 1.0, 10, 20), zeros())
    assert run("plot", str(path), "--out", str(out)).returncode == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    done = call("plot", str(path), "--metric", "f1", "--out", str(out))
    assert (done.returncode, done.stderr) == (
        2,
        f"fl: no round of {path} has the metric 'f1'; those there are: loss\n",
    )
    done = call("plot", str(path), "--out", str(tmp_path / "none" / "rounds.png"))
    assert done.returncode == 2
    assert done.stderr.endswith(f"; there is no folder '{tmp_path / 'none'}': make it\n")
    assert not (tmp_path / "none").exists()
    done = call("plot", str(write(tmp_path)), "--out", str(out))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "aggregator.toml: no line of it is a round" in done.stderr
    done = call("plot", str(tmp_path / "none.jsonl"), "--out", str(out))
    assert done.returncode == 2
    assert done.stderr.startswith(f"fl: {tmp_path / 'none.jsonl'}: no such file")


def test_simulate_runs_the_rounds_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, more="[strategy]\nconfig = { step = 2.0 }")
    arguments = ["--train", "tests.fl.test_main:train", "--clients", "3", "--processes", "1", "--seed", "5"]
    done = run("simulate", str(path), *arguments)
    assert done.returncode == 0, done.stderr
    assert "simulating 3 clients, with seed 5" in done.stderr
    evaluations = [{"server_sum": 6.0 * number} for number in (1, 2, 3)]
    assert [each["evaluation"] for each in read(tmp_path / "simulated-rounds.jsonl")] == evaluations
    assert w(tmp_path / "simulated-model.npz") == [6, 6, 6]
    assert not [name for name in ("rounds.jsonl", "model.npz", "federation.ckpt") if (tmp_path / name).exists()]


def test_simulate_has_engines_and_devices(tmp_path: Path) -> None:
    strategy = "[strategy]\nconfig = { step = 2.0 }"
    path, devices = write(tmp_path, server="memory_limit = 1_000_000_000", more=strategy), tmp_path / "devices.csv"
    devices.write_text("seconds\n1\n5\n")
    arguments = ["simulate", str(path), "--train", "tests.fl.test_main:train", "--clients", "2"]
    assert call(*arguments, "--devices", str(devices)).returncode == 0
    assert [each["seconds"] for each in read(tmp_path / "simulated-rounds.jsonl")] == [5, 5, 5]
    drawn = run("plot", str(tmp_path / "simulated-rounds.jsonl"), "--by", "seconds", "--out", str(tmp_path / "a.png"))
    assert drawn.returncode == 0, drawn.stderr
    assert call(*arguments, "--engine", "network").returncode == 0
    for more, said in (
        (["--engine", "dask"], "fl: --engine: 'dask'; expected 'processes' or 'ray' or 'network'"),
        (["--devices", str(tmp_path / "none.csv")], "none.csv': No such file or directory; expected a CSV file"),
        (["--address", "auto"], "fl: --address: 'auto'; expected None, or engine='ray'"),
    ):
        done = call(*arguments, *more)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert said in done.stderr


def evaluate(model: Mapping[str, Any], config: Mapping[str, Any]) -> fl.Report:
    return fl.Report(1, {"w": float(model["w"][0])})


def test_simulate_evaluates_with_a_function_of_the_clients(tmp_path: Path) -> None:
    path = write(tmp_path, server="evaluate = true", more="[strategy]\nconfig = { step = 2.0 }")
    arguments = ["simulate", str(path), "--train", "tests.fl.test_main:train", "--clients", "2", "--processes", "1"]
    done = call(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("server.evaluate is not used: --evaluate MODULE:FUNCTION gives") == 1
    assert "left out" not in done.stderr
    done = call(*arguments, "--evaluate", "tests.fl.test_main:evaluate")
    assert done.returncode == 0, done.stderr
    assert [each["evaluation"]["w"] for each in read(tmp_path / "simulated-rounds.jsonl")][-3:] == [2, 4, 6]


def test_simulate_with_too_few_clients_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 3\nmin_clients = 6"))
    done = call("simulate", str(path), "--train", "tests.fl.test_main:train", "--clients", "4")
    assert done.returncode == 2
    assert done.stderr == f"fl: {path}: server.min_clients: 6; expected 4 at most, as there are 4 clients\n"


@pytest.mark.parametrize("train", ["train", "numpy:none"])
def test_simulate_refuses_a_wrong_function(tmp_path: Path, train: str) -> None:
    done = call("simulate", str(write(tmp_path)), "--train", train)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"fl: --train: {train!r}; expected ")


def test_wrong_command_lists_the_commands() -> None:
    commands = "serve, relay, statistics, simulate, export, secure-key, plot, page, status, flower"
    assert f"No such command 'srve'; expected {commands}." in call("srve").stderr
    assert "No such command 'start'; expected run, sign, simulate." in call("flower", "start").stderr


@pytest.mark.parametrize("command", ["serve", "simulate", "export", "plot"])
def test_help_shows_an_example(command: str) -> None:
    assert f"Example: fl {command} " in call(command, "--help").stdout


@pytest.mark.parametrize("arguments", [["srve"], ["serve"], ["serve", "a", "b"], ["plot", "--colour"]])
def test_wrong_command_line_is_status_2(arguments: list[str]) -> None:
    done = call(*arguments)
    assert done.returncode == 2
    assert "Usage: fl" in done.stderr


def test_missing_typer_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ImportError('No module named typer')")
    done = run("serve", "x.toml", PYTHONPATH=f"{tmp_path}:{ROOT}", PYTHONSAFEPATH="1")
    assert done.returncode == 1
    assert done.stderr == "fl: the command line needs typer: pip install 'netq-fl[serve]'\n"


@pytest.mark.parametrize("command", ["fl serve", "edge run", "edge check", "fl plot"])
def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path, command: str) -> None:
    path = tmp_path / "evil\x1b[31m.toml"
    path.write_text('["\\u001b]0;title\\u0007"]\n')
    package, *arguments = command.split()
    if package == "fl":
        status, _, errors = call(*arguments, str(path))
    else:
        with own_process() as (_, stderr):
            status, errors = edge_main([*arguments, str(path)]), stderr.getvalue()
    assert status == 2
    assert errors.count("\n") == 1
    assert errors.removesuffix("\n").isprintable()
