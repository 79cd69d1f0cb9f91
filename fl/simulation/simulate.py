"""A federation on one machine: its rounds in this process, its clients in others.

Called by users, from a notebook or a script. With the engine "processes" clients are virtual (fl/simulation/rounds.py):
a chunk of them is a message to a worker process. With "network" each is connected, and models travel by netq as between
machines (fl/simulation/network.py). All workers end before `simulate` returns, and when this process ends. Processes
that a client's function starts are the user's to end.
"""

from __future__ import annotations

import base64
import html
import inspect
import io
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import netq
from fl.callbacks import plots
from fl.callbacks.base import Callback
from fl.client import Client
from fl.errors import SimulationError
from fl.properties import title
from fl.report import FailureKind, RoundReport
from fl.server.federation import Federation
from fl.server.patience import Patience
from fl.server.server import Server
from fl.server.validation import checked_callbacks
from fl.simulation import network
from fl.simulation.calls import Calls
from fl.simulation.chunks import ChunkWorker
from fl.simulation.devices import Devices
from fl.simulation.kept import Kept
from fl.simulation.launch import Method
from fl.simulation.output import shown
from fl.simulation.pool import ProcessPool
from fl.simulation.population import Population
from fl.simulation.rounds import AtOnce, Training, VirtualServer
from fl.simulation.timed import ByClock, Clock
from fl.strategies.base import Strategy
from fl.strategies.fedavg import FedAvg
from fl.tensors.spec import Model, nbytes
from fl.trainer import Train
from netq.text import did_you_mean
from netq.validate import expect, is_whole

log = logging.getLogger("netq.fl")

Engine = Literal["processes", "network"]


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
    engine: Engine = "processes",
    processes: int | None = None,
    protocol: netq.Protocol = netq.Protocol.TCP,
    start: Method = "fork",
    keep: str | os.PathLike[str] | None = None,
    devices: Devices | None = None,
    measure: Callable[[Any], Any] | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Result:
    """Run a federation in processes of this machine, and return its result.

    clients:   train functions, or fl.Client objects, one for each client. `[train] * 8` are eight clients: each finds
               its number in its config as "partition" (0, 1, …) and the number of clients as "partitions". The
               partition is also its id in reports (`id.int`).
    engine:    "processes": clients are virtual, and any process does any of them: what a client keeps from round to
               round is in config["state"], and nowhere else. "network": each client has a connection to the server, and
               stays in one process.
    processes: their number. One client of a process trains at a time. None: one process for each core.
    protocol:  of engine "network": Protocol.TCP or Protocol.SHM.
    start:     "fork" accepts any function, also of a notebook; "spawn" accepts functions that can be imported.
    keep:      of engine "processes": a new folder for what clients keep. None: it is in memory.
    devices:   of engine "processes": how long the clients' devices train, how fast their links are, when they are there
               (fl.Devices). Times of reports are then those of a virtual clock. None: all are there, and none is late;
               for an asynchronous strategy: Devices().
    measure:   called with the model after each round, in this process.
    seed:      of the clients' random numbers (docs/how-to/simulation.md, "Random numbers"), 0 or more. None: a new one,
               which the result has.
    progress:  whether stderr gets a line for each round. None: in a terminal or a notebook, unless an fl.Progress is
               among the callbacks.
    settings:  the other arguments of fl.Server, except `options`; `memory_limit` and `wait` are of engine "network".
               patience: None: that of a server without pauses.

    Two runs with one engine and one seed give the same model to the last bit, for any number of processes, if clients
    draw random numbers only from what it seeds, and the strategy depends on its seed only. Asynchronous strategies with
    engine "network" are the exception: they take updates as they arrive. Raises SimulationError, InvalidOption, and
    what fl.Server and `measure` raise.
    """
    expect(isinstance(strategy, Strategy | None), "simulate.strategy", strategy, "an object, as in fl.FedAvg()")
    strategy = strategy or FedAvg()
    expect(is_whole(rounds, 0), "simulate.rounds", rounds, "a whole number")
    expect(engine in _ENGINES, "simulate.engine", engine, " or ".join(map(repr, _ENGINES)))
    for name in settings:
        if name not in _SETTINGS:
            raise TypeError(f"simulate has no argument {name!r}; {_argument_like(name)}")
    _check_clients(clients, processes, protocol, start)
    expect(seed is None or is_whole(seed, 0), "simulate.seed", seed, "a whole number, 0 or more, or None")
    seed = secrets.randbits(63) if seed is None else seed
    settings = {"min_clients": min(max(2, strategy.least), len(clients)), **settings}
    settings.setdefault("patience", Patience(void_pause=0.0))
    expect(isinstance(devices, Devices | None), "simulate.devices", devices, "an fl.Devices")
    _check_settings(settings, clients, engine, protocol, keep, devices)
    own = checked_callbacks(settings.pop("callbacks", ()))
    reports: list[RoundReport] = []
    measured: list[Any] = []
    count = min(processes or len(os.sched_getaffinity(0)), len(clients))
    log.info("simulating %d clients in %d processes, with seed %d", len(clients), count, seed)
    begin: dict[str, Any] = {"strategy": strategy, "processes": count, "start": start, "seed": seed}
    begin |= {"callbacks": [*own, *shown(progress, own)], "settings": settings}
    made: AbstractContextManager[Server | VirtualServer]
    if engine == "network":
        made = network.connected(model, list(map(_client, clients)), protocol=protocol, **begin)
    else:
        made = _virtual(model, clients, keep=keep, devices=devices, **begin)
    with made as server:
        for report in server.rounds(rounds):
            reports.append(report)
            _raise_if_hopeless(report, FailureKind.INVALID, *([] if devices else [FailureKind.LOST]))
            if measure is not None:
                measured.append(measure(server.model))
    return Result(dict(server.model), reports, measured, seed)


@contextmanager
def _virtual(
    model: Model,
    clients: Sequence[Train | Client],
    *,
    strategy: Strategy,
    processes: int,
    start: Method,
    keep: str | os.PathLike[str] | None,
    devices: Devices | None,
    seed: int,
    callbacks: Sequence[Callback],
    settings: Mapping[str, Any],
) -> Iterator[VirtualServer]:
    """Yield the rounds of virtual clients. All processes have ended when the `with` statement ends."""
    federation = Federation(model, strategy=strategy, callbacks=callbacks, **settings)
    is_timed = devices is not None or strategy.buffer is not None
    profiles = (devices or Devices()).of(len(clients)) if is_timed else []
    worker = ChunkWorker(clients, strategy, federation.roles, Calls(seed), folds=strategy.merges and not is_timed)
    with ProcessPool(worker, processes, start) as pool:
        try:
            population = Population(clients, pool, Kept(keep), federation)
            training: Training = AtOnce(federation, population)
            if is_timed:
                given = devices or Devices()
                clock = Clock(population, profiles, given.begin, federation.patience.grace, given.seed)
                training = ByClock(federation, population, clock)
            yield VirtualServer(federation, population, training)
        finally:
            federation.close()


def _raise_if_hopeless(report: RoundReport, *kinds: FailureKind) -> None:
    """Raise SimulationError if all have failed in these ways: the next attempt has the same functions and data."""
    failures = report.failures
    if not report.clients and failures and all(each.why in kinds for each in failures.values()):
        client, failure = next(iter(failures.items()))
        raise SimulationError(f"round {report.number}: no client has a valid update; {title(client)}: {failure}")


def _argument_like(name: str) -> str:
    if name in ("num_rounds", "n_rounds", "epochs"):
        return "did you mean rounds?"
    if name in ("num_clients", "num_supernodes"):
        return "did you mean clients, as in [train] * 4?"
    return did_you_mean(name, [*inspect.signature(simulate).parameters, *_SETTINGS])


_ENGINES = ("processes", "network")
_SETTINGS = set(inspect.signature(Server).parameters) - {"model", "options", "strategy", "protocol"}
_OF_NETWORK = ("memory_limit", "wait")


def _check_clients(
    clients: Sequence[Train | Client], processes: int | None, protocol: netq.Protocol, start: str
) -> None:
    """Raise InvalidOption unless these are clients, and can be distributed over processes."""
    if protocol not in (netq.Protocol.TCP, netq.Protocol.SHM):
        raise netq.InvalidOption(f"simulate.protocol: {protocol}; expected Protocol.TCP or Protocol.SHM")
    expect(start in ("fork", "spawn"), "simulate.start", start, "'fork' or 'spawn'")
    listed = isinstance(clients, Sequence) and not isinstance(clients, str)
    expect(listed, "simulate.clients", clients, "a list with a train function for each client, as in [train] * 4")
    expect(processes is None or processes >= 1, "simulate.processes", processes, "1 or more, or None")
    if not clients:
        raise netq.InvalidOption("simulate.clients: there are none; expected train functions, or fl.Client objects")
    for each in {id(each): each for each in clients}.values():
        known = isinstance(each, Client) or callable(each)
        expect(known, "simulate.clients", each, "a train function, or an fl.Client")
        _client(each)
    objects = [id(each) for each in clients if isinstance(each, Client)]
    if len(set(objects)) < len(objects):
        raise netq.InvalidOption(
            "simulate.clients: one fl.Client is there twice, and it remembers what it has not sent; expected an "
            "object for each client: [fl.Client(train) for _ in range(8)]"
        )


def _client(each: Train | Client) -> Client:
    return each if isinstance(each, Client) else Client(each)


def _check_settings(
    settings: dict[str, Any],
    clients: Sequence[Train | Client],
    engine: Engine,
    protocol: netq.Protocol,
    keep: Any,
    devices: Any,
) -> None:
    """Raise InvalidOption for settings that these clients, or this engine, cannot have. Complete the others."""
    for name in ("min_clients", "wait"):  # of more clients the server would wait for ever
        wanted, there = settings.get(name), len(clients)
        enough = not isinstance(wanted, int) or wanted <= there
        expect(enough, f"simulate.{name}", wanted, f"{there} at most, as there are {there} clients")
    asked = settings.get("evaluate", False)
    can = any(isinstance(each, Client) and each.trainer.evaluates for each in clients)
    expect(can or not asked, "simulate.evaluate", asked, "a client that can, as in fl.Client(train, evaluate)")
    if engine == "network":
        expect(keep is None, "simulate.keep", keep, "None with engine='network': clients stay in their processes")
        expect(devices is None, "simulate.devices", devices, "None with engine='network', whose clock is real")
        return
    is_default = protocol is netq.Protocol.TCP
    expect(is_default, "simulate.protocol", protocol, "none but with engine='network': the others send nothing")
    for name in _OF_NETWORK:
        expect(settings.get(name) is None, f"simulate.{name}", settings.get(name), "None, or engine='network'")
        settings.pop(name, None)
    defaults = {"wait": None, "roles": None, "config": None, "evaluate": False, "checkpoint": None}
    settings |= {**defaults, **settings}
