"""edge simulate CLIENT.toml --boards N: agents on boards that are slow on purpose, and a table of what they used.

Owns the signals while it runs, prints to stdout and stderr, and returns the exit status:

status  when
0       all agents have ended with status 0, or SIGTERM came
1       an agent has failed, or something that was made could not be removed
2       a value, the file or this machine does not allow it: one line on stderr says why; no agent has started
130     Ctrl-C

The first Ctrl-C or SIGTERM asks the agents to leave the federation, the second kills them. Removes all that it has
made, in every case but SIGKILL; then the next run removes it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import netq
from edge.boards import leftovers, network
from edge.boards.cgroups import Cgroup, Hierarchy
from edge.boards.device import Device
from edge.boards.limits import Limits
from edge.boards.network import Network
from edge.boards.processes import PATIENCE, Agent, Ended
from edge.boards.relay import Relay
from edge.boards.tools import CannotSimulate, check_programs
from netq.cli.terminal import fail
from netq.errors import InvalidOption

FOLDERS = Path("/run")  # where the folder of a run is; only root may write there


def main_simulate(options: argparse.Namespace) -> int:
    """Run the command, in the main thread; return the exit status. `options`: its arguments, as texts."""
    with ExitStack() as stack:
        signals = Signals(stack)
        try:
            return _simulate(options, signals)
        except (InvalidOption, CannotSimulate) as error:
            return fail("edge", error, 2)
        except Interrupted:
            return signals.status
        except OSError as error:
            return fail("edge", error, 1)


class Interrupted(BaseException):
    """A signal came before the agents ran."""


class Signals:
    """Ctrl-C and SIGTERM. Before the agents run they end the command, then they call `on_signal`."""

    def __init__(self, stack: ExitStack) -> None:
        self.status = 0  # the exit status, after a signal
        self.count = 0
        self.on_signal: Callable[[], None] | None = None
        catch = netq.outside_steps(self._catch)
        for signum in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, signum, signal.signal(signum, catch))

    def _catch(self, signum: int, frame: FrameType | None) -> None:
        self.count += 1
        self.status = 130 if signum == signal.SIGINT else 0
        if self.on_signal is not None:
            self.on_signal()
        elif self.count == 1:  # a second one does not interrupt the removal of what was made
            raise Interrupted


def _simulate(options: argparse.Namespace, signals: Signals) -> int:
    limits = Limits.parse(
        boards=options.boards,
        cpus=options.cpus,
        memory=options.memory,
        bandwidth=options.bandwidth,
        delay=options.delay,
    )
    device = Device.load(Path(options.config), limits.boards)
    _check_machine()
    _warn(limits)
    hierarchy = Hierarchy.find(Path("/proc/self/mounts").read_text())
    _sweep(hierarchy)
    name = leftovers.run_name()
    with ExitStack() as stack:  # after an error, everything that was made is removed
        cgroups = _make_cgroups(stack, hierarchy, name, limits)
        net = Network(name, limits, network.SERVER if device.is_named else device.address, device.port)
        net.make(stack)
        relay = Relay(stack.enter_context(net.listen()), (device.address, device.port), limits.delay, limits.rate)
        folder, hosts = _make_folder(stack, name, device)
        own = [device.overrides(board, limits.boards, folder, limits.memory) for board in range(limits.boards)]
        agents = [
            Agent(board, cgroup, net.namespace(board), device.path, own[board], hosts)
            for board, cgroup in enumerate(cgroups)
        ]
        ended = asyncio.run(_run(agents, relay, signals))
        print(_table(ended, net.traffic()), flush=True)
    return _conclude(ended, signals)


def _check_machine() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        user = f"this user is {os.geteuid()}" if sys.platform == "linux" else f"this is {sys.platform}"
        raise CannotSimulate(f"boards need root on Linux, and {user}; run it with sudo, or in a virtual machine")
    check_programs()


def _warn(limits: Limits) -> None:
    cores = os.cpu_count() or 1
    if limits.boards * limits.cpus >= cores:
        print(
            f"edge: {limits.boards} boards of {limits.cpus:g} cores leave none of this machine's {cores} for the "
            "server and the network: the boards may be slower than you asked for",
            file=sys.stderr,
        )


def _sweep(hierarchy: Hierarchy) -> None:
    """Remove what runs have left that were killed. Their cgroups come first: they may have processes."""
    hierarchy.sweep()
    network.sweep()
    for folder in leftovers.dead(FOLDERS):
        shutil.rmtree(folder, ignore_errors=True)  # another run may remove it at this moment


def _make_cgroups(stack: ExitStack, hierarchy: Hierarchy, name: str, limits: Limits) -> list[Cgroup]:
    run = hierarchy.make_run(name)
    stack.callback(run.remove)
    cgroups = []
    for board in range(limits.boards):
        cgroup = Cgroup(run, f"board-{board}")
        stack.callback(cgroup.remove)
        cgroup.make(limits)
        cgroups.append(cgroup)
    return cgroups


def _make_folder(stack: ExitStack, name: str, device: Device) -> tuple[Path, Path | None]:
    """Make the folder of the run. Return it, and the boards' /etc/hosts if the device's file names the server."""
    folder = FOLDERS / name
    folder.mkdir(mode=0o700)
    stack.callback(shutil.rmtree, folder)
    if not device.is_named:
        return folder, None
    hosts = folder / "hosts"
    hosts.write_text(f"{network.SERVER} {device.host}\n127.0.0.1 localhost\n")
    return folder, hosts


async def _run(agents: Sequence[Agent], relay: Relay, signals: Signals) -> list[Ended]:
    """Run all agents until they have ended; signals end them before."""
    loop = asyncio.get_running_loop()
    ending: list[asyncio.TimerHandle] = []

    def stop() -> None:
        if signals.count > 1:
            return _send(agents, signal.SIGKILL)
        ending.append(loop.call_later(PATIENCE, _send, agents, signal.SIGKILL))
        return _send(agents, signal.SIGTERM)

    def on_signal() -> None:
        loop.call_soon_threadsafe(stop)

    signals.on_signal = on_signal
    try:
        async with asyncio.TaskGroup() as group:
            passing = group.create_task(relay.serve())
            boards = [group.create_task(_report(board, agent)) for board, agent in enumerate(agents)]
            await asyncio.wait(boards)
            passing.cancel()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        signals.on_signal = lambda: None  # nothing interrupts the removal
        for timer in ending:
            timer.cancel()
    return [board.result() for board in boards]


def _send(agents: Sequence[Agent], signum: signal.Signals) -> None:
    for agent in agents:
        agent.stop(signum)


async def _report(board: int, agent: Agent) -> Ended:
    ended = await agent.run()
    print(f"board {board} ended after {ended.seconds:.1f} s: status {ended.status}", flush=True)
    return ended


_HEAD = ("board", "status", "seconds", "peak MiB", "CPU s", "throttled s", "OOM kills", "sent kB", "received kB")


def _table(ended: Sequence[Ended], traffic: Sequence[tuple[int, int]]) -> str:
    """Return the table of all boards, right-aligned."""
    rows = [_HEAD, *(_row(board, *pair) for board, pair in enumerate(zip(ended, traffic, strict=True)))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _row(board: int, ended: Ended, traffic: tuple[int, int]) -> tuple[str, ...]:
    usage, (sent, received) = ended.usage, traffic
    return (
        str(board),
        ended.status,
        f"{ended.seconds:.1f}",
        "-" if usage.memory_peak is None else f"{usage.memory_peak / 2**20:.1f}",
        f"{usage.cpu:.1f}",
        f"{usage.throttled:.1f}",
        str(usage.oom_kills),
        f"{sent / 1000:.1f}",
        f"{received / 1000:.1f}",
    )


def _conclude(ended: Sequence[Ended], signals: Signals) -> int:
    if signals.count:
        return signals.status
    failed = [board for board, each in enumerate(ended) if each.status != "0"]
    if not failed:
        return 0
    killed = sum(each.usage.oom_kills > 0 for each in ended)
    why = f"; {killed} ran out of memory: give --memory more" if killed else "; their lines above say why"
    print(f"edge: {len(failed)} of {len(ended)} boards failed: {', '.join(map(str, failed))}{why}", file=sys.stderr)
    return 1
