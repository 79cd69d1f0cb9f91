"""A whole federation on one machine: the aggregator and its clients as processes of their own, and a broker for MQTT.

Owns the processes and sees that none outlives it, however it ends. Called by examples/digits/__main__.py.
Nothing here is needed in real life, where each device starts `edge run` for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from examples.digits import broker
from netq.options import Protocol
from netq.security import certificates

Facts: TypeAlias = dict[str, Any]  # one line of the aggregator's (see aggregator.py), or "gone": a client, and why

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}  # the processes share few cores; threads would only wait
PATIENCE = 5.0  # seconds for a process to end when it is told to


class ProcessFailed(Exception):
    """A process of the federation has ended with an error. The text is one line."""


@dataclass(frozen=True)
class Setting:
    """What to run. `model` names a module with initial, train, evaluate and measure."""

    model: str
    rounds: int
    clients: int
    seed: int
    protocol: Protocol = Protocol.TCP


async def run(setting: Setting, folder: Path, show: Callable[[Facts], None]) -> None:
    """Run a federation, and `show` each round as it ends. `folder` gets its files; in the end, model.npz.

    Raises ProcessFailed if the aggregator fails, or the last client. Cancelled or failed, it ends every process
    before it returns.
    """
    files = certificates.init(folder / "certificates")
    processes: dict[str, Process] = {}
    try:
        port = 0  # the system's choice
        if setting.protocol is Protocol.MQTT:
            port = broker.free_port()
            processes["broker"] = await _start_broker(folder, files, port)
        command = _aggregator(setting, folder, files, port)
        aggregator = processes["aggregator"] = await _start(folder, "aggregator", sys.executable, "-m", *command)
        port = (await _port(aggregator, folder))["port"]
        for number in range(setting.clients):
            file = _client_file(setting, folder, number, port)
            processes[file.stem] = await _start(folder, file.stem, sys.executable, "-m", "edge", "run", str(file))
        await _watch(processes, folder, show)
    finally:
        await _stop(processes.values())


async def _watch(processes: dict[str, Process], folder: Path, show: Callable[[Facts], None]) -> None:
    """Show the aggregator's rounds until every process has ended. The others go on without a client that fails."""
    left = set(processes) - {"aggregator", "broker"}

    async def watch_client(name: str) -> None:
        try:
            await _end(name, processes[name], folder)
        except ProcessFailed as error:
            left.remove(name)
            show({"gone": str(error)})
            if not left:
                raise

    try:
        async with asyncio.TaskGroup() as group:
            for name in sorted(left):
                group.create_task(watch_client(name))
            group.create_task(_end("aggregator", processes["aggregator"], folder))
            async for line in _stdout(processes["aggregator"]):
                show(json.loads(line))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _start(folder: Path, name: str, *command: str) -> Process:
    """Start a command; what it says on stderr goes to a file."""
    with (folder / f"{name}.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=DEVNULL,
            stdout=PIPE if name == "aggregator" else log,
            stderr=log,
            cwd=ROOT,
            env=ENVIRONMENT,
            process_group=0,  # Ctrl-C is for us, and we tell them
        )


async def _start_broker(folder: Path, files: certificates.Files, port: int) -> Process:
    """Start mosquitto. Raises ProcessFailed if there is none, or it does not listen."""
    program = broker.program()
    if program is None:
        raise ProcessFailed("MQTT needs a broker, and mosquitto is not installed: apt-get install mosquitto")
    process = await _start(folder, "broker", program, "-c", str(broker.configuration(folder, files, port)))
    if not await broker.listening(port, lambda: process.returncode is None):
        await _end("broker", process, folder)
        raise ProcessFailed("broker ended before it listened")
    return process


async def _stop(processes: Iterable[Process]) -> None:
    """Tell all that still run to end, and end those that do not listen."""
    running = {asyncio.create_task(process.wait()): process for process in processes if process.returncode is None}
    if not running:
        return
    for process in running.values():
        with contextlib.suppress(ProcessLookupError):  # it ended by itself, just now
            process.terminate()
    _, deaf = await asyncio.wait(running, timeout=PATIENCE)
    for task in deaf:
        running[task].kill()
        await task


async def _end(name: str, process: Process, folder: Path) -> None:
    """Wait until a process has ended. Raises ProcessFailed, with its last words, if that was an error."""
    status = await process.wait()
    if status < 0:
        raise ProcessFailed(f"{name} was ended by {signal.Signals(-status).name}")
    if status > 0:
        words = (folder / f"{name}.log").read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise ProcessFailed(f"{name} ended with status {status}: {words[-1]}")


async def _port(aggregator: Process, folder: Path) -> Facts:
    async for line in _stdout(aggregator):
        facts: Facts = json.loads(line)
        return facts
    await _end("aggregator", aggregator, folder)
    raise ProcessFailed("aggregator ended before it listened")


def _stdout(process: Process) -> asyncio.StreamReader:
    assert process.stdout is not None  # made with a pipe
    return process.stdout


def _aggregator(setting: Setting, folder: Path, files: certificates.Files, port: int) -> list[str]:
    """The module and the command line of the aggregator."""
    options = {
        "protocol": setting.protocol.value,
        "port": port,
        "model": setting.model,
        "rounds": setting.rounds,
        "clients": setting.clients,
        "seed": setting.seed,
        "save": folder / "model.npz",
    }
    if setting.protocol is Protocol.MQTT:  # TLS is the broker's: here is whom they trust. Seals keep it out
        options |= {"certificate": files.authority, "seal": files.authority.parent}
    elif setting.protocol is not Protocol.SHM:
        options |= files._asdict()
    return ["examples.digits.aggregator", *(f"--{name}={value}" for name, value in options.items())]


def _client_file(setting: Setting, folder: Path, number: int, port: int) -> Path:
    """Write what `edge run` needs to know of one client."""
    path = folder / f"client-{number}.toml"
    path.write_text(f"""\
[server]
host = "127.0.0.1"
port = {port}
protocol = "{setting.protocol.value}"

[client]
train = "{setting.model}:train"
evaluate = "{setting.model}:evaluate"

[training]
keep = true  # the rounds are short, and an interpreter for each of them would take most of the time

{_security(setting.protocol, folder / "certificates", path.stem)}

[settings]
partition = {number}
partitions = {setting.clients}
""")
    return path


def _security(protocol: Protocol, folder: Path, name: str) -> str:
    """Return the tables [security] and [seal] of a client, and issue its certificate if it needs one."""
    if protocol is Protocol.SHM:
        return ""
    own = [f'{option} = "{path}"' for option, path in certificates.issue(folder, name)._asdict().items()]
    if protocol is Protocol.MQTT:
        return "\n".join(["[security]", f'certificate = "{folder / "authority.pem"}"', "", "[seal]", *own])
    return "\n".join(["[security]", *own])
