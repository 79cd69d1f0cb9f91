"""The rows of the page: the processes of each, and how they are started, as their own documents recommend."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.broker import free_port
from benchmarks.federation import work
from benchmarks.federation.processes import Processes

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "farm"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "netq"

[tool.flwr.app.components]
serverapp = "farm.server_app:app"
clientapp = "farm.client_app:app"

[tool.flwr.app.config]
"""

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True)
class Row:
    """A way to run the rounds: `run` starts all it needs, and returns when the rounds are over."""

    name: str
    run: Callable[[Processes], None]
    environment: Mapping[str, str] = field(default_factory=dict)


def _sides(processes: Processes, kind: str, *folder: str, clients: int = work.CLIENTS) -> None:
    """Run a server and clients of sides.py."""
    port = free_port()
    command = "benchmarks.federation.sides", kind
    server = processes.python(*command, "server", str(port), *folder)
    if kind == "legacy":  # whose clients do not try again
        processes.until_listens(port)
    for _ in range(clients):
        processes.python(*command, "client", str(port), *folder)
    processes.wait(server)


def _tls(processes: Processes) -> None:
    from netq.security import certificates

    certificates.init(processes.folder)
    _sides(processes, "fl", str(processes.folder))


def _deployment(processes: Processes) -> None:
    port = _project(processes)
    host = ["--host=127.0.0.1", f"--port={port}", "--disable-runtime-dependency-installation"]
    processes.start("flower-superlink", "--insecure", *host)
    processes.until_listens(port)
    for partition in range(work.CLIENTS):
        where = [f"--superlink=127.0.0.1:{port}", f"--port={free_port()}"]
        processes.start("flower-supernode", "--insecure", *where, f"--node-config=partition-id={partition}")
    processes.wait(processes.start("flwr", "run", ".", "mine", "--stream"))


def _ray(processes: Processes) -> None:
    port = _project(processes)
    host = ["--host=127.0.0.1", f"--port={port}", "--isolation=subprocess"]
    processes.start("flower-superlink", "--insecure", "--simulation", *host)
    processes.until_listens(port)
    config = f"client-resources-num-cpus=1 num-supernodes={work.CLIENTS}"
    processes.wait(processes.start("flwr", "run", ".", "mine", "--stream", "--federation-config", config))


def _project(processes: Processes) -> int:
    """Write an app for `flwr run`, and return the port of its SuperLink."""
    port, text = free_port(), "from benchmarks.federation.apps import {0}\n\napp = {0}\n"
    write_app(processes.folder, port, text.format("client_app"), text.format("server_app"))
    return port


def write_app(folder: Path, port: int, client: str, server: str, config: str = "") -> None:
    """Write the files for `flwr run . mine`: an app of two modules, and in FLWR_HOME, `home`, the SuperLink's address.

    `config`: lines of the app's run config.
    """
    farm, home = folder / "farm", folder / "home"
    farm.mkdir()
    home.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT + config)
    for name, text in (("__init__", ""), ("client_app", client), ("server_app", server)):
        (farm / f"{name}.py").write_text(text)
    lines = f'[superlink]\ndefault = "mine"\n[superlink.mine]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(lines)


def _of_size(clients: int, megabytes: int) -> Row:
    size = {"FEDERATION_CLIENTS": str(clients), "FEDERATION_MB": str(megabytes)}
    return Row(f"{clients} clients, {megabytes} MB", functools.partial(_sides, kind="fl", clients=clients), size)


_FL, _GRID = functools.partial(_sides, kind="fl"), functools.partial(_sides, kind="grid")
ROWS = (
    Row("fl, TCP", _FL),
    Row("fl, TLS", _tls),
    Row("Flower's FedAvg over fl.flower", _GRID),
    Row("fl.flower.FedAvg over fl.flower", _GRID, {"FEDERATION_KERNEL": "1"}),
    Row("flwr, legacy gRPC", functools.partial(_sides, kind="legacy")),
    Row("flwr, simulation on Ray", _ray),
    Row("flwr, deployment", _deployment),
)

# fl over TCP, for the memory of the server's process. The last row has a model above 2 GB, the limit of a message of
# protobuf.
SIZES = (
    *(_of_size(clients, work.MODEL_MB) for clients in (2, 8, 32)),
    _of_size(2, 22 * work.MODEL_MB),
)
