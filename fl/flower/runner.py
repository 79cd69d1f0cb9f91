"""Runs a Flower ServerApp in the caller's thread, with the nodes that connect or with processes of this machine.

Called by users and fl/__main__.py. In a simulation nodes are virtual (fl/flower/virtual.py), or each has a communicator
and a thread of its own in one of the worker processes (fl/simulation/processes.py), and loopback TCP.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict

import netq
from fl.flower._compat import SUPERLINK_NODE_ID
from fl.flower.apps import ClientApp, ServerApp, check_client_app, check_server_app
from fl.flower.grid import Grid
from fl.flower.masked_rounds import MaxExamples
from fl.flower.node import Node
from fl.flower.signed_app import SignedApp
from fl.flower.virtual import NodeWorker, VirtualGrid
from fl.secure.options import SecureAggregation
from fl.simulation.arguments import Engine as EngineName
from fl.simulation.arguments import check_engine
from fl.simulation.calls import Calls
from fl.simulation.launch import cores
from fl.simulation.pool import ProcessPool
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
    secure: SecureAggregation | None = None,
    max_examples: MaxExamples = None,
) -> Context:
    """Run an unmodified ServerApp, with any strategy, when `min_nodes` are connected. Return its context.

    A strategy waits by itself for the nodes that it needs. When the app returns, the nodes' `run` returns too. If the
    app raises, the nodes wait for the next server.

    server_app: a ServerApp, or a function of (grid, context). Raises InvalidOption for anything else.
    run_config: `context.run_config` on both sides.
    app_version: AppFolder.version of the app's folder; a node whose app has another version is logged on both sides.
    delivery:   the app's files with their signature (SignedApp.load), for nodes that take them from the server.
    stay:       whether the nodes wait for the next server also when the app returns.

    For `options`, `grace`, `secure`, `max_examples` and other errors see Grid.
    """
    check_server_app("run.server_app", server_app)
    settings: dict[str, Any] = {"run_config": run_config, "app_version": app_version, "delivery": delivery}
    settings |= {"secure": secure, "max_examples": max_examples}
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
    engine: EngineName = "processes",
    processes: int | None = None,
    address: str | None = None,
    actors: Mapping[str, Any] | None = None,
) -> Context:
    """Run a ServerApp with nodes in processes of this machine or in actors of Ray, and return its context.

    nodes:     each finds its number in `context.node_config` as "partition-id" (0, 1, …), and the number of nodes as
               "num-partitions".
    engine, address, actors: as of fl.simulate. With "processes" and "ray" nodes are virtual: what an app keeps is in
               `context.state`, and nowhere else.
    processes: their number, or that of actors. The ClientApp handles one message at a time in each. None: one process
               for each core, or as many actors as Ray has room for.

    The processes begin as copies of this one (fork), so that what the apps' modules have imported is there once. If a
    ClientApp raises, the ServerApp gets an error as the reply, as in a deployment; so it does for the messages of a
    process that ends. With "network" that raises SimulationError. Raises InvalidOption, and what the ServerApp raises.
    """
    check_server_app("simulate.server_app", server_app)
    check_client_app("simulate.client_app", client_app)
    expect(is_whole(nodes, 1), "simulate.nodes", nodes, "a whole number, 1 or more")
    check_engine(engine, {"address": address, "actors": actors})
    expect(processes is None or is_whole(processes, 1), "simulate.processes", processes, "1 or more, or None")
    count = min(processes or cores(), nodes)
    calls = Calls(secrets.randbits(63))  # each process has a copy
    if engine == "network":
        return _connected(server_app, client_app, nodes, run_config, count, calls)
    worker, pool = NodeWorker(client_app, nodes, calls), None
    if engine == "ray":
        from fl.simulation.ray_pool import RayPool

        pool = RayPool(worker, processes, address, actors or {})
    with pool or ProcessPool(worker, count, "fork") as workers, VirtualGrid(workers, nodes, run_config) as grid:
        return _run_on(grid, server_app)


def _connected(
    server_app: ServerApp,
    client_app: ClientApp,
    nodes: int,
    run_config: Mapping[str, bool | int | float | str] | None,
    processes: int,
    calls: Calls,
) -> Context:
    """Simulate with nodes that are connected to a grid."""
    counts: Counter[tuple[int, str]] = Counter()

    def one_by_one(message: Message, context: Context) -> Message:
        call = int(context.node_config["partition-id"]), message.metadata.message_type
        counts[call] += 1
        with calls.alone(*call, counts[call]):
            return client_app(message, context)

    every = [Node(one_by_one, {"partition-id": number, "num-partitions": nodes}) for number in range(nodes)]
    shares = [{part: every[part] for part in range(first, nodes, processes)} for first in range(processes)]
    with WorkerPool(shares, calls) as workers:
        workers.start("fork")  # before the grid's communicator exists: a communicator does not work in a fork
        events = netq.EventOptions(ini=workers.connected)
        options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), events=events)
        with Grid(options, run_config=run_config) as grid:
            begin = Start(grid.netloc, netq.Protocol.TCP, nodes, ordered=False, strict=False)
            with workers.run(begin, grid.close):
                return _run_on(grid, server_app)


def _run_on(grid: Grid | VirtualGrid, server_app: ServerApp) -> Context:
    """Run a ServerApp with the nodes of a grid. Return its context."""
    context = Context(grid.run.run_id, SUPERLINK_NODE_ID, {}, RecordDict(), dict(grid.run_config))
    server_app(grid, context)
    return context
