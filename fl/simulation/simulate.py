"""A federation on one machine: the server in this process, its clients in others, over loopback TCP or shared memory.

Called by users, from a notebook or a script. Models and updates travel by netq, as between machines. In addition each
worker process (fl/simulation/processes.py, fl/simulation/worker.py) has one pipe to this process. All workers end
before `simulate` returns, and when this process ends. Processes that a client's function starts are the user's to end.

    this process                                  a worker process with some of the clients
    start the workers ──────────────────────────► wait
    listen ────────────── the address, by pipe ─► connect; tasks and answers travel by netq
    fold an update ────── the next turn, by pipe► answer
    raise SimulationError ◄── traceback, by pipe─ a user's function has raised
"""

from __future__ import annotations

import base64
import html
import inspect
import io
import logging
import os
import secrets
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import netq
from fl.callbacks import plots
from fl.callbacks.base import Callback, ClientState
from fl.client import Client
from fl.errors import SimulationError
from fl.properties import title
from fl.report import FailureKind, RoundReport
from fl.server.patience import Patience
from fl.server.server import Server
from fl.server.validation import checked_callbacks
from fl.simulation.calls import Calls
from fl.simulation.output import shown
from fl.simulation.processes import WorkerPool
from fl.simulation.worker import Share, Start
from fl.strategies.base import Strategy
from fl.strategies.fedavg import FedAvg
from fl.tensors.spec import Model, nbytes
from fl.trainer import Train
from netq.text import did_you_mean
from netq.validate import expect, is_whole

log = logging.getLogger("netq.fl")


@dataclass(frozen=True)
class Result:
    """The result of a simulation.

    model:    the last one.
    reports:  of all attempts of rounds.
    measured: what `measure` returned after each of them.
    seed:     with it, `simulate` repeats this run.
    """

    model: dict[str, Any]
    reports: Sequence[RoundReport]
    measured: Sequence[Any]
    seed: int

    def __repr__(self) -> str:
        last = f"; {self.reports[-1]}" if self.reports else ""
        counted = sum(bool(report.clients) for report in self.reports)
        size = nbytes(self.model) / 1e6
        return f"<Result: {counted} rounds, {len(self.model)} tensors of {size:.3g} MB, seed {self.seed}{last}>"

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows: the line above, and the first metric and the bytes by round."""
        try:
            figure = plots.rounds({"": self.reports})
        except (ValueError, ImportError):  # no metric; no matplotlib
            return None
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=80)
        picture = base64.b64encode(image.getvalue()).decode()
        return f'<pre>{html.escape(repr(self))}</pre><img alt="rounds" src="data:image/png;base64,{picture}">'


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
    seed: int | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Result:
    """Run a federation in processes of this machine, and return its result.

    clients:   train functions, or fl.Client objects, one for each client. `[train] * 8` are eight clients: each finds
               its number in its config as "partition" (0, 1, …) and the number of clients as "partitions". The
               partition is also its id in reports (`id.int`).
    processes: number of processes that share the clients. One client of a process trains at a time. None: one process
               for each core.
    protocol:  Protocol.TCP or Protocol.SHM.
    start:     "fork" accepts any function, also of a notebook; "spawn" accepts functions that can be imported.
    measure:   called with the model after each round, in this process.
    seed:      of the clients' random numbers (docs/how-to/simulation.md, "Random numbers"), 0 or more. None: a new one,
               which the result has.
    progress:  whether stderr gets a line for each round. None: in a terminal or a notebook, unless an fl.Progress is
               among the callbacks.
    settings:  the other arguments of fl.Server, except `options`. patience: None: that of a server without pauses.

    Updates are folded in the order in which the strategy selected their clients. Two runs with one seed give the same
    model to the last bit if clients draw random numbers only from what it seeds, and the strategy depends on its seed
    only. Asynchronous strategies are the exception: they take updates as they arrive. Raises SimulationError,
    InvalidOption, and what fl.Server and `measure` raise.
    """
    expect(isinstance(strategy, Strategy | None), "simulate.strategy", strategy, "an object, as in fl.FedAvg()")
    strategy = strategy or FedAvg()
    expect(is_whole(rounds, 0), "simulate.rounds", rounds, "a whole number")
    for name in settings:
        if name not in _SETTINGS:
            raise TypeError(f"simulate has no argument {name!r}; {_argument_like(name)}")
    shares = _shares(clients, processes, protocol, start)
    expect(seed is None or is_whole(seed, 0), "simulate.seed", seed, "a whole number, 0 or more, or None")
    seed = secrets.randbits(63) if seed is None else seed
    settings = {"min_clients": min(max(2, strategy.least), len(clients)), **settings}
    settings.setdefault("patience", Patience(void_pause=0.0))
    for name in ("min_clients", "wait"):  # of more clients the server would wait for ever
        wanted, there = settings.get(name), len(clients)
        enough = not isinstance(wanted, int) or wanted <= there
        expect(enough, f"simulate.{name}", wanted, f"{there} at most, as there are {there} clients")
    asked = settings.get("evaluate", False)
    can = any(isinstance(each, Client) and each.trainer.evaluates for each in clients)
    expect(can or not asked, "simulate.evaluate", asked, "a client that can, as in fl.Client(train, evaluate)")
    reports: list[RoundReport] = []
    measured: list[Any] = []
    with WorkerPool(shares, Calls(seed)) as workers:
        workers.start(start)  # before the server's communicator exists: a communicator does not work in a fork
        own = checked_callbacks(settings.pop("callbacks", ()))
        callbacks = [_Turns(workers), *own, *shown(progress, own)]
        events = netq.EventOptions(ini=workers.connected)
        options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), events=events)
        settings |= {"strategy": strategy, "protocol": protocol}
        server = Server(model, options, callbacks=callbacks, **settings)
        log.info("simulating %d clients in %d processes, with seed %d", len(clients), len(shares), seed)
        begin = Start(server.netloc, protocol, len(clients), ordered=strategy.buffer is None, strict=True)
        with server, workers.run(begin, server.close):
            server.wait(len(clients))  # until each has said what it is like
            for report in server.rounds(rounds):
                reports.append(report)
                _raise_if_hopeless(report)
                if measure is not None:
                    measured.append(measure(server.model))
    return Result(dict(server.model), reports, measured, seed)


def _raise_if_hopeless(report: RoundReport) -> None:
    """Raise SimulationError if no update fits the model: the next attempt has the same functions and data."""
    failures = report.failures
    if not report.clients and failures and all(each.why is FailureKind.INVALID for each in failures.values()):
        client, failure = next(iter(failures.items()))
        raise SimulationError(f"round {report.number}: no client has a valid update; {title(client)}: {failure}")


def _argument_like(name: str) -> str:
    if name in ("num_rounds", "n_rounds", "epochs"):
        return "did you mean rounds?"
    if name in ("num_clients", "num_supernodes"):
        return "did you mean clients, as in [train] * 4?"
    return did_you_mean(name, [*inspect.signature(simulate).parameters, *_SETTINGS])


_SETTINGS = set(inspect.signature(Server).parameters) - {"model", "options", "strategy", "protocol"}


def _shares(
    clients: Sequence[Train | Client], processes: int | None, protocol: netq.Protocol, start: str
) -> list[Share]:
    """Distribute the clients over the processes, round-robin. Raises InvalidOption."""
    if protocol not in (netq.Protocol.TCP, netq.Protocol.SHM):
        raise netq.InvalidOption(f"simulate.protocol: {protocol}; expected Protocol.TCP or Protocol.SHM")
    expect(start in ("fork", "spawn"), "simulate.start", start, "'fork' or 'spawn'")
    listed = isinstance(clients, Sequence) and not isinstance(clients, str)
    expect(listed, "simulate.clients", clients, "a list with a train function for each client, as in [train] * 4")
    expect(processes is None or processes >= 1, "simulate.processes", processes, "1 or more, or None")
    all_clients = dict(enumerate(map(_client, clients)))
    if not all_clients:
        raise netq.InvalidOption("simulate.clients: there are none; expected train functions, or fl.Client objects")
    if len(set(map(id, all_clients.values()))) < len(all_clients):
        raise netq.InvalidOption(
            "simulate.clients: one fl.Client is there twice, and it remembers what it has not sent; expected an "
            "object for each client: [fl.Client(train) for _ in range(8)]"
        )
    count = min(processes or len(os.sched_getaffinity(0)), len(all_clients))
    return [{part: all_clients[part] for part in range(first, len(all_clients), count)} for first in range(count)]


def _client(each: Train | Client) -> Client:
    known = isinstance(each, Client) or callable(each)
    expect(known, "simulate.clients", each, "a train function, or an fl.Client")
    return each if isinstance(each, Client) else Client(each)


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
