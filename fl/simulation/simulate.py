"""A federation on one machine: the server in this process, its clients in others, over loopback TCP or shared memory.

Called by users, from a notebook or a script. Models and updates go by netq, as between machines; beside it each process
(fl/simulation/processes.py, fl/simulation/worker.py) has one pipe to this one. None outlives `simulate`, nor this
process; but those that a client's function starts are its own to end.

    this process                               a process with some of the clients
    start them ──────────────────────────────► wait
    listen ───────────────── where, by pipe ─► connect; tasks and answers go by netq
    fold ────────── whose turn it is, by pipe ► answer
    raise SimulationError ◄─ traceback, by pipe a function of the user's has raised
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import netq
from fl.callbacks.base import Callback, ClientState
from fl.client import Client, Train
from fl.report import RoundReport
from fl.server.server import Server
from fl.simulation.processes import WorkerPool
from fl.simulation.worker import Share
from fl.strategies.base import Strategy
from fl.strategies.fedavg import FedAvg
from fl.tensors.spec import Model
from netq.validate import expect


@dataclass(frozen=True)
class Result:
    """What came of a simulation: the last model; of each round the report, and what `measure` made of its model."""

    model: dict[str, Any]
    reports: Sequence[RoundReport]
    measured: Sequence[Any]


def simulate(
    model: Model,
    clients: Sequence[Train | Client],
    rounds: int = 20,
    *,
    strategy: Strategy | None = None,
    processes: int | None = None,
    protocol: netq.Protocol = netq.Protocol.TCP,
    start: Literal["fork", "spawn"] = "fork",
    measure: Callable[[Any], Any] | None = None,
    **settings: Any,
) -> Result:
    """Run a federation in processes of this machine, and return what came of it.

    clients:   train functions, or fl.Client objects, each its own. `[train] * 8` are eight: in each one's config are
               "partition" (0, 1, …), which is its id in reports too (`id.int`), and "partitions", how many there are.
    processes: so many share the clients; of those of one, one trains at a time. None: one a core.
    protocol:  Protocol.TCP or SHM.
    start:     "fork" takes any function, those of a notebook too; "spawn" those that can be imported.
    measure:   called with the model after each round, in this process.
    settings:  the other arguments of fl.Server, but for `options`.

    Updates are folded in the order in which the strategy selected their clients. So two runs give the same model, to
    the last bit, if clients and strategy are functions of their seeds; but those of an asynchronous strategy, which
    takes updates as they come. Raises SimulationError, InvalidOption, and what fl.Server and `measure` raise.
    """
    strategy = strategy or FedAvg()
    shares = _shares(clients, processes, protocol, start)
    settings = {"min_clients": min(max(2, strategy.least), len(clients)), **settings}
    if isinstance(settings["min_clients"], int) and settings["min_clients"] > len(clients):
        wanted = settings["min_clients"]
        raise netq.InvalidOption(f"simulate.min_clients: {wanted}; expected {len(clients)}, the clients, at most")
    reports: list[RoundReport] = []
    measured: list[Any] = []
    with WorkerPool(shares) as crew:
        crew.start(start)  # before there is a communicator, which is no use in a fork
        callbacks = [_Turns(crew), *settings.pop("callbacks", ())]
        events = netq.EventOptions(ini=crew.came)
        options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), events=events)
        settings |= {"strategy": strategy, "protocol": protocol}
        server = Server(model, options, callbacks=callbacks, **settings)
        with server, crew.at_work(server, protocol, ordered=strategy.buffer is None):
            for report in server.rounds(rounds):
                reports.append(report)
                if measure is not None:
                    measured.append(measure(server.model))
    return Result(dict(server.model), reports, measured)


def _shares(
    clients: Sequence[Train | Client], processes: int | None, protocol: netq.Protocol, start: str
) -> list[Share]:
    """Deal the clients out to the processes, one after the other. Raises InvalidOption."""
    if protocol not in (netq.Protocol.TCP, netq.Protocol.SHM):
        raise netq.InvalidOption(f"simulate.protocol: {protocol}; expected Protocol.TCP or Protocol.SHM")
    expect(start in ("fork", "spawn"), "simulate.start", start, "'fork' or 'spawn'")
    expect(processes is None or processes >= 1, "simulate.processes", processes, "1 or more, or None")
    all_clients = {partition: _client(partition, each) for partition, each in enumerate(clients)}
    if not all_clients:
        raise netq.InvalidOption("simulate.clients: there are none; expected train functions, or fl.Client objects")
    if len(set(map(id, all_clients.values()))) < len(all_clients):
        raise netq.InvalidOption(
            "simulate.clients: one fl.Client is there twice, and it remembers what it has not sent; expected an "
            "object for each client: [fl.Client(train) for _ in range(8)]"
        )
    count = min(processes or len(os.sched_getaffinity(0)), len(all_clients))
    return [{part: all_clients[part] for part in range(first, len(all_clients), count)} for first in range(count)]


def _client(partition: int, each: Train | Client) -> Client:
    known = isinstance(each, Client) or callable(each)
    expect(known, "simulate.clients", each, "a train function, or an fl.Client")
    return each if isinstance(each, Client) else Client(each, seed=partition)


class _Turns(Callback):
    """Lets the clients of a round answer one after the other, as they were selected: so sums come out the same."""

    def __init__(self, crew: WorkerPool) -> None:
        self._crew = crew
        self._number = 0
        self._due: list[int] = []  # who has been asked to train, and has not answered; the first has the turn
        self._asking = False  # whether whom is asked now is asked to train

    def round_begins(self, number: int, clients: Sequence[uuid.UUID]) -> None:
        """Forget the round before."""
        self._number, self._due, self._asking = number, [], True

    def client_is(self, client: uuid.UUID, state: ClientState, size: int) -> None:
        """Note who is asked; and when one has answered, or is not waited for any more, let the next."""
        if state is ClientState.TRAINING and self._asking:
            self._due.append(client.int)
            if len(self._due) == 1:
                self._grant(client.int)
        elif state in (ClientState.DONE, ClientState.FAILED):
            self._asking = False  # all had been asked before
            self._pass(client.int, late=state is ClientState.FAILED)

    def _pass(self, client: int, late: bool) -> None:
        had_turn = self._due[:1] == [client]
        if client in self._due:
            self._due.remove(client)
        if late and not had_turn:
            self._grant(client)  # its answer comes whenever it comes
        if had_turn and self._due:
            self._grant(self._due[0])

    def _grant(self, client: int) -> None:
        self._crew.grant(client, self._number)
