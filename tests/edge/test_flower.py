"""`edge run --flower`: devices that run a Flower ClientApp, each a process, for a grid in this one."""

from __future__ import annotations

import importlib
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netq
from tests.edge.flower_devices import SOON, Device, edge, install
from tests.fl.flower.author import Author
from tests.pages import ROOT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # click's, of what typer does
    flwr: Any = pytest.importorskip("flwr.app", reason="no flwr here: pip install 'flwr>=1.39,<2'")
    flower, edge_flower, strategies = (
        importlib.import_module(name) for name in ("fl.flower", "edge.flower", "flwr.serverapp.strategy")
    )

KILLED = "the training process was killed (SIGKILL); the system does that when memory runs out"
GRACE = 1.0  # seconds without a link after which a device is not waited for


@contextmanager
def serving(**settings: Any) -> Iterator[Any]:
    """A grid, which does not wait for the devices that the test has killed."""
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    with flower.Grid(options, grace=GRACE, **settings) as grid:
        yield grid
        grid.close(0.0)


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[Any]:
    install(tmp_path)
    with serving() as grid:
        yield grid


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_devices_take_part_until_the_grid_is_closed(tmp_path: Path, grid: Any) -> None:
    devices = [Device(tmp_path, grid.netloc.port, step=step) for step in (1.0, 3.0)]
    with ExitStack() as stack:
        processes = [stack.enter_context(device.running()) for device in devices]
        grid.wait(2, SOON)
        strategy = strategies.FedAvg(fraction_evaluate=0.0)
        result = strategy.start(grid, flower.arrays({"w": np.zeros(3)}), num_rounds=2)
        assert result.arrays["w"].numpy().tolist() == [4, 4, 4]
        grid.close()
        assert [process.wait(SOON) for process in processes] == [0, 0]


@pytest.mark.slow
def test_killed_device_returns_as_the_same_node(tmp_path: Path, grid: Any) -> None:
    device = Device(tmp_path, grid.netloc.port)

    def ask() -> Iterator[Any]:
        return iter(grid.send_and_receive(flower.Streamed([flwr.Message(flwr.RecordDict(), device.node, "query")])))

    with device.running() as process:
        grid.wait(1, SOON)
        replies = ask()
        wait_until(device.mark.exists)
        process.send_signal(signal.SIGKILL)
        error = next(replies).error
        assert error.code == 5
        assert f"node {device.node} ({device.id}): no connection for" in error.reason
        assert f"(grace {GRACE:g} s)" in error.reason
    device.mark.unlink()
    with device.running() as process:
        assert grid.wait(1, SOON) == [device.node]
        replies = ask()
        wait_until(device.mark.exists)
        process.send_signal(signal.SIGTERM)
        error = next(replies).error
        assert (error.code, error.reason) == (5, f"node {device.node} ({device.id}): it has gone")
        assert process.wait(SOON) == 0


def ask(grid: Any, device: Device, kind: str) -> Any:
    (reply,) = grid.send_and_receive([flwr.Message(flwr.RecordDict(), device.node, kind)])
    return reply


def counted(reply: Any) -> int:
    assert not reply.has_error(), reply.error
    return int(reply.content["m"]["n"])


@pytest.mark.slow
def test_app_runs_in_a_process_of_its_own(tmp_path: Path, grid: Any) -> None:
    device = Device(tmp_path, grid.netloc.port, "[training]\nkeep = false\n")
    with device.running() as process:
        grid.wait(1, SOON)
        replies = [ask(grid, device, "query.count") for _ in range(2)]
        maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert [counted(reply) for reply in replies] == [1, 2]  # the next process goes on with the state
    pids = {reply.content["m"]["pid"] for reply in replies}
    assert len(pids | {process.pid}) == 3
    assert "numpy" not in maps
    assert "grpc" not in maps
    assert 0 < grid.usage[device.node]["usage.cpu_seconds"] < SOON
    assert 10 < grid.usage[device.node]["usage.memory_mb"] < 10_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "kind", "reason"),
    [
        ("", "query.die", KILLED),
        pytest.param(  # on a busy machine the next process needs seconds to start
            "[training]\nseconds = 8\n",
            "query",
            "it took longer than training.seconds (8); killed",
            marks=pytest.mark.alone,
        ),
        ("[training]\nkeep = false\n", "query.die", KILLED),
        ("[training]\nmemory = 1000\n", "query.fill", "<class 'MemoryError'>:<''>"),
    ],
)
def test_failing_process_is_an_error_and_is_replaced(
    tmp_path: Path, grid: Any, more: str, kind: str, reason: str
) -> None:
    device = Device(tmp_path, grid.netloc.port, more)
    with device.running():
        grid.wait(1, SOON)
        error = ask(grid, device, kind).error
        assert (error.code, error.reason) == (2, reason)
        assert counted(ask(grid, device, "query.count")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["true", "false"])
def test_delivered_app_is_stored_by_the_process_of_the_app(tmp_path: Path, keep: str) -> None:
    author = Author(tmp_path)
    table = f'[training]\nkeep = {keep}\n[app]\nfolder = "apps"\nsigner = "{author.files.certificate}"\n'
    with serving(delivery=author.signed(1, value=10)) as grid:
        device = Device(tmp_path, grid.netloc.port, table, app=None)
        for _ in range(2):
            with device.running() as process:
                grid.wait(1, SOON)
                replies = [ask(grid, device, "query") for _ in range(2)]
                process.terminate()  # and not killed: `wait` might count a device that has gone
                assert process.wait(SOON) == 0
            assert [reply.content["it"]["value"] for reply in replies] == [11, 11]
    assert [path.name for path in (tmp_path / "apps").iterdir()] == [author.app(1, value=10).version]


@pytest.mark.slow
def test_delivered_app_of_another_author_is_refused(tmp_path: Path) -> None:
    author, other = Author(tmp_path), Author(tmp_path, "other")
    table = f'[app]\nfolder = "apps"\nsigner = "{author.files.certificate}"\n'
    with serving(delivery=(app := other.signed(1))) as grid:
        device = Device(tmp_path, grid.netloc.port, table, app=None)
        with device.running():
            grid.wait(1, SOON)
            error = ask(grid, device, "query").error
    assert error.code == 2
    assert error.reason.startswith(f"this node refuses the app {app.version}: no certificate in ")
    assert list((tmp_path / "apps").iterdir()) == []


@pytest.mark.slow
def test_check_imports_the_app_and_reaches_the_grid(tmp_path: Path, grid: Any) -> None:
    device = Device(tmp_path, grid.netloc.port)
    done = edge("check", "--flower", "farm_app:app", device.path.name, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["functions", "fit", "state", "server", "link", "all"]
    assert lines[0][1].startswith("farm_app:app: imported in ")


@pytest.mark.slow
def test_device_that_is_not_fit_does_not_connect(tmp_path: Path, grid: Any) -> None:
    device = Device(tmp_path, grid.netloc.port, "[fit]\nmin_free_memory = 1e9\n")
    with device.running() as process:
        assert process.stderr is not None
        lines = "".join(process.stderr.readline() for _ in range(2))
    assert "waiting until the device is fit: free memory " in lines
    assert grid.get_node_ids() == []


@pytest.mark.parametrize(
    ("app", "text", "line"),
    [
        ("farm_app:app", "[flower]\nx = [1]\n", "flower.x: [1]; expected a text, a number, true or false"),
        ("farm_app:app", "[client]\ntrain = 'a:b'\n", "client.train: is not for --flower, whose app trains and"),
        ("farm_app:app", "[client]\ncompression = 'int8'\n", "client.compression: is not for --flower, whose mess"),
        ("farm_app:app", "[client]\nproperties = { a = 1 }\n", "client.properties: is not for --flower, whose mess"),
        ("farm_app:app", "[model]\npath = 'm.npz'\n", "[model]: is not for --flower, whose server sends no last mod"),
        ("farm_app:app", "[settings]\nx = 1\n", "[settings]: is not for --flower; a node's config is the table [fl"),
        (
            "farm_app:app",
            "[app]\nfolder = 'apps'\n",
            "[app]: the server delivers the app, and --flower farm_app:app names",
        ),
        ("farm_app:app", "[flowers]\n", "[flowers]: no such table; "),
        ("farm_app:app", "[client]\nid = 7\n", "client.id: 7; expected a UUID"),
    ],
)
def test_mistake_in_the_file_is_one_line(tmp_path: Path, app: str, text: str, line: str) -> None:
    path = tmp_path / "client.toml"
    path.write_text("[server]\nhost = 'a'\nport = 1\n" + text)
    with pytest.raises(netq.InvalidOption) as caught:
        edge_flower.load(path, app)
    assert str(caught.value).startswith(f"{path}: {line}")


def test_value_in_place_of_a_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text("flower = 1\n[server]\nhost = 'a'\nport = 1\n")
    with pytest.raises(netq.InvalidOption, match=r"flower: 1; expected a table: begin it with a line \[flower\]"):
        edge_flower.load(path, "farm_app:app")


@pytest.mark.parametrize(
    ("app", "reason"),
    [
        (":app", 'expected "module:app"'),
        ("farm_app:apple", "expected a function of that name, but farm_app has no apple: did you mean app?"),
        ("farm_app:number", "expected a flwr.clientapp.ClientApp, and this is 7"),
        (
            "farm_app:server",
            "expected a flwr.clientapp.ClientApp, and this is <flwr.serverapp.server_app.ServerApp obj",
        ),
        ("farm_app:ClientApp", "expected a flwr.clientapp.ClientApp, and this is <class 'flwr.clientapp.client_app."),
        ("numpy:zeros", "expected a flwr.clientapp.ClientApp, and this is <built-in function zeros>"),
    ],
)
@pytest.mark.slow
def test_wrong_app_name_is_one_line_and_status_2(tmp_path: Path, app: str, reason: str) -> None:
    install(tmp_path)
    path = tmp_path / "client.toml"
    path.write_text("[server]\nhost = 'a'\nport = 1\n")
    done = edge("run", "--flower", app, str(path), folder=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"edge: --flower: {app!r}; ")
    assert reason in line


def test_folder_names_the_app_and_pairs_the_config(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text("[server]\nhost = 'a'\nport = 1\n[flower]\npartition-id = 1\nname = 'x'\n")
    app = ROOT / "examples/flower_app"
    config, work = edge_flower.load(path, str(app), "partition-id=2 num-partitions=3")
    assert config.settings == work.arguments["config"] == {"partition-id": 2, "num-partitions": 3, "name": "x"}
    assert work.arguments["app"] == str(app)
    assert edge_flower.load(None, str(app))[0].netloc == ("127.0.0.1", 51966)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[app]\n", "app.folder: missing; expected a folder for the apps that arrive"),
        ("[app]\nfolder = 'apps'\n", "app.signer: missing; expected the path of a PEM file that is there"),
        ("[app]\nfolder = 'x.toml'\n", "app.folder: 'x.toml'; expected a folder, and there is a file of this name"),
        ("[app]\nfolders = 'apps'\n", "app.folders: no such key; did you mean app.folder?"),
        ("[client]\ntrain = 'a:b'\n[app]\n", "client.train: is not for --flower, whose app trains and"),
    ],
)
def test_mistake_in_the_table_app_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "x.toml").write_text(f"[server]\nhost = '127.0.0.1'\nport = 1\n{text}")
    done = edge("run", "x.toml", folder=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert line in done.stderr


@pytest.mark.slow
def test_signer_that_is_no_certificate_fails_the_check(tmp_path: Path) -> None:
    text = "[server]\nhost = '127.0.0.1'\nport = 1\n[app]\nfolder = 'apps'\nsigner = 'x.toml'\n"
    (tmp_path / "x.toml").write_text(text)
    done = edge("check", "x.toml", folder=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "app.signer: x.toml: no certificate in PEM" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--flower", "absent"],
            "absent/pyproject.toml: no such file; give the path of a Flower app's folder",
        ),
        ([], "edge: CLIENT.toml: missing; give the path of the device's file"),
        (["x.toml", "--node-config", "a=1"], "edge: --node-config: is for --flower; the settings of a device are"),
        (["--flower", "a:b", "--node-config", "a"], "edge: --node-config: 'a' (no key=value at 'a'); expected pairs"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(tmp_path: Path, arguments: list[str], line: str) -> None:
    (tmp_path / "x.toml").touch()
    done = edge("run", *arguments, folder=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert line in done.stderr
