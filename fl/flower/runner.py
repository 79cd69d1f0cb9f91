"""Runs a Flower ServerApp in the caller's thread, with the nodes that connect or with processes of this machine.

Called by users and fl/__main__.py. For a simulation fl/simulation/processes.py starts the worker processes and ends
them; there is no Ray. Each node has a communicator and a thread of its own in one of the processes, and loopback TCP.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict

import netq
from fl.flower._compat import SUPERLINK_NODE_ID
from fl.flower.apps import ClientApp, ServerApp, check_client_app, check_server_app
from fl.flower.grid import Grid
from fl.flower.node import Node
from fl.flower.signed_app import SignedApp
from fl.simulation.calls import Calls
from fl.simulation.processes import WorkerPool
from fl.simulation.worker import Start
from netq.validate import expect, is_whole


def run(
    server_app: ServerApp,
    options: netq.CommunicatorOptions | None = None,
    protocol: netq.Protocol = netq.Protocol.TCP,
    *,
    min_nodes: int = 1,
    run_config: Mapping[str, bool | int | float | str] | None = None,
    app_version: str = "",
    delivery: SignedApp | None = None,
    grace: float = 10.0,
    stay: bool = False,
) -> Context:
    """Run an unmodified ServerApp, with any strategy, when `min_nodes` are connected. Return its context.

    A strategy waits by itself for the nodes that it needs. When the app returns, the nodes' `run` returns too. If the
    app raises, the nodes wait for the next server.

    server_app: a ServerApp, or a function of (grid, context). Raises InvalidOption for anything else.
    run_config: `context.run_config` on both sides.
    app_version: AppFolder.version of the app's folder; a node whose app has another version is logged on both sides.
    delivery:   the app's files with their signature (SignedApp.load), for nodes that take them from the server.
    stay:       whether the nodes wait for the next server also when the app returns.

    For `options`, `grace` and other errors see Grid.
    """
    check_server_app("run.server_app", server_app)
    settings: dict[str, Any] = {"run_config": run_config, "app_version": app_version, "delivery": delivery}
    with Grid(options, protocol, grace=grace, **settings) as grid:
        grid.wait(min_nodes)
        context = _run_on(grid, server_app)
        if stay:
            grid.close(0.0)
        return context


def simulate(
    server_app: ServerApp,
    client_app: ClientApp,
    nodes: int = 10,
    *,
    run_config: Mapping[str, bool | int | float | str] | None = None,
    processes: int | None = None,
) -> Context:
    """Run a ServerApp with nodes in processes of this machine, and return its context.

    nodes:     each finds its number in `context.node_config` as "partition-id" (0, 1, …), and the number of nodes as
               "num-partitions".
    processes: number of processes that share the nodes. The ClientApp handles one message at a time in each. None: one
               process for each core.

    The processes begin as copies of this one (fork), so that what the apps' modules have imported is there once. If a
    ClientApp raises, the ServerApp gets an error as the reply, as in a deployment. Raises SimulationError if a process
    ends too soon, InvalidOption, and what the ServerApp raises.
    """
    check_server_app("simulate.server_app", server_app)
    check_client_app("simulate.client_app", client_app)
    expect(is_whole(nodes, 1), "simulate.nodes", nodes, "a whole number, 1 or more")
    expect(processes is None or is_whole(processes, 1), "simulate.processes", processes, "1 or more, or None")
    calls = Calls(secrets.randbits(63))  # each process has a copy

    counts: Counter[tuple[int, str]] = Counter()

    def one_by_one(message: Message, context: Context) -> Message:
        call = int(context.node_config["partition-id"]), message.metadata.message_type
        counts[call] += 1
        with calls.alone(*call, counts[call]):
            return client_app(message, context)

    every = [Node(one_by_one, {"partition-id": number, "num-partitions": nodes}) for number in range(nodes)]
    count = min(processes or len(os.sched_getaffinity(0)), nodes)
    shares = [{part: every[part] for part in range(first, nodes, count)} for first in range(count)]
    with WorkerPool(shares, calls) as workers:
        workers.start("fork")  # before the grid's communicator exists: a communicator does not work in a fork
        events = netq.EventOptions(ini=workers.connected)
        options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), events=events)
        with Grid(options, run_config=run_config) as grid:
            begin = Start(grid.netloc, netq.Protocol.TCP, nodes, ordered=False, strict=False)
            with workers.run(begin, grid.close):
                return _run_on(grid, server_app)


def _run_on(grid: Grid, server_app: ServerApp) -> Context:
    """Run a ServerApp with the nodes of a grid. Return its context."""
    context = Context(grid.run.run_id, SUPERLINK_NODE_ID, {}, RecordDict(), dict(grid.run_config))
    server_app(grid, context)
    return context
