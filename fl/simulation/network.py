"""A federation whose clients have connections: the server in this process, its clients in others, over loopback.

Called by fl/simulation/simulate.py. Models and updates travel by netq, as between machines. In addition each worker
process (fl/simulation/processes.py, fl/simulation/worker.py) has one pipe to this process.

    this process                                  a worker process with some of the clients
    start the workers ──────────────────────────► wait
    listen ────────────── the address, by pipe ─► connect; tasks and answers travel by netq
    fold an update ────── the next turn, by pipe► answer
    raise SimulationError ◄── traceback, by pipe─ a user's function has raised
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import netq
from fl.callbacks.base import Callback, ClientState
from fl.client import Client
from fl.server.server import Server
from fl.simulation.calls import Calls
from fl.simulation.launch import Method
from fl.simulation.processes import WorkerPool
from fl.simulation.worker import Start
from fl.tensors.spec import Model

log = logging.getLogger("netq.fl")


@contextmanager
def connected(
    model: Model,
    clients: Sequence[Client],
    processes: int,
    protocol: netq.Protocol,
    start: Method,
    seed: int,
    settings: Mapping[str, Any],
) -> Iterator[Server]:
    """Yield a server to which all clients are connected. All processes have ended when the `with` block ends.

    settings: of fl.Server. Raises InvalidOption, SimulationError.
    """
    if protocol not in (netq.Protocol.TCP, netq.Protocol.SHM):
        raise netq.InvalidOption(f"simulate.protocol: {protocol}; expected Protocol.TCP or Protocol.SHM")
    every = dict(enumerate(clients))
    shares = [{part: every[part] for part in range(first, len(every), processes)} for first in range(processes)]
    with WorkerPool(shares, Calls(seed)) as workers:
        workers.start(start)  # before the server's communicator exists: a communicator does not work in a fork
        events = netq.EventOptions(ini=workers.connected)
        options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), events=events)
        callbacks = [_Turns(workers), *settings["callbacks"]]
        server = Server(model, options, protocol=protocol, **{**settings, "callbacks": callbacks})
        is_ordered = settings["strategy"].buffer is None
        begin = Start(server.netloc, protocol, len(clients), ordered=is_ordered, strict=True)
        with server, workers.run(begin, server.close):
            server.wait(len(clients))  # until each has said what it is like
            yield server


class _Turns(Callback):
    """Has the clients of a round answer one by one, in the order of selection, so that sums are rounded alike."""

    def __init__(self, workers: WorkerPool) -> None:
        self._workers = workers
        self._number = 0
        self._due: list[int] = []  # clients that were asked to train and have not answered; the first has the turn
        self._asking = False  # whether the server is still sending this round's tasks to train

    def round_begins(self, number: int, clients: Sequence[uuid.UUID]) -> None:
        """Start with an empty list."""
        self._number, self._due, self._asking = number, [], True

    def client_is(self, client: uuid.UUID, state: ClientState, size: int) -> None:
        """Append a client that is asked; pass the turn on when a client has answered or failed."""
        if state is ClientState.TRAINING and self._asking:
            self._due.append(client.int)
            if len(self._due) == 1:
                self._grant(client.int)
        elif state in (ClientState.DONE, ClientState.FAILED):
            self._asking = False  # the server asks all of a round before it takes the first answer
            self._pass_on(client.int, failed=state is ClientState.FAILED)

    def _pass_on(self, client: int, failed: bool) -> None:
        had_turn = self._due[:1] == [client]
        if client in self._due:
            self._due.remove(client)
        if failed and not had_turn:
            self._grant(client)  # it still waits for its turn; its late answer need not wait for others
        if had_turn and self._due:
            self._grant(self._due[0])

    def _grant(self, client: int) -> None:
        self._workers.grant_turn(client, self._number)
