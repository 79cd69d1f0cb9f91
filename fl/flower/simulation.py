"""A Flower app on one machine: the ServerApp in this process, the nodes in others, over loopback TCP.

Called by users and `fl flower simulate`. fl/simulation/processes.py starts the worker processes and ends them; there is
no Ray. Each node has a communicator and a thread of its own in one of the processes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

from flwr.app import Context, Message

import netq
from fl.flower.apps import ClientApp, ServerApp, check_client_app, check_server_app
from fl.flower.grid import Grid
from fl.flower.node import Node
from fl.flower.runner import run_on
from fl.simulation.calls import Calls
from fl.simulation.processes import WorkerPool
from fl.simulation.worker import Start
from netq.validate import expect, is_whole


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

    def one_by_one(message: Message, context: Context) -> Message:
        with calls.alone(int(context.node_config["partition-id"]), message.metadata.message_type):
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
                return run_on(grid, server_app)
