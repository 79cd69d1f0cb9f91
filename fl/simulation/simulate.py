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
import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any

import netq
from fl.callbacks import plots
from fl.client import Client
from fl.errors import SimulationError
from fl.privacy.privacy import Privacy
from fl.properties import title
from fl.report import MEASURED, FailureKind, RoundReport
from fl.server.federation import Federation
from fl.server.patience import Patience
from fl.server.server import Server
from fl.server.validation import checked_callbacks
from fl.simulation.arguments import Engine as EngineName
from fl.simulation.arguments import as_client, check_clients, check_engine, check_names, check_settings
from fl.simulation.calls import Calls
from fl.simulation.chunks import ChunkWorker, Engine
from fl.simulation.devices import Devices
from fl.simulation.kept import Kept
from fl.simulation.launch import Method, cores
from fl.simulation.network import connected
from fl.simulation.output import shown
from fl.simulation.pool import ProcessPool
from fl.simulation.population import Population
from fl.simulation.rounds import AtOnce, Training, VirtualServer
from fl.simulation.timed import ByClock, Clock
from fl.strategies.base import Strategy
from fl.strategies.fedavg import FedAvg
from fl.tensors.spec import Model, nbytes
from fl.trainer import Train
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
    engine: EngineName = "processes",
    processes: int | None = None,
    protocol: netq.Protocol = netq.Protocol.TCP,
    start: Method = "fork",
    keep: str | os.PathLike[str] | None = None,
    devices: Devices | None = None,
    address: str | None = None,
    actors: Mapping[str, Any] | None = None,
    measure: Callable[[Any], Any] | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Result:
    """Run a federation in processes of this machine or in actors of Ray, and return its result.

    clients:   train functions, or fl.Client objects, one for each client. `[train] * 8` are eight clients: each finds
               its number in its config as "partition" (0, 1, …) and the number of clients as "partitions". The
               partition is also its id in reports (`id.int`).
    engine:    "processes", "ray": clients are virtual, and any process does any of them: what a client keeps from round
               to round is in config["state"], and nowhere else. "network": each client has a connection to the server,
               and stays in one process.
    processes: their number, or that of Ray's actors. One client of a process trains at a time. None: one process for
               each core, or as many actors as Ray has room for.
    protocol:  of engine "network": Protocol.TCP or Protocol.SHM.
    start:     "fork" accepts any function, also of a notebook; "spawn" accepts functions that can be imported.
    keep:      a new folder for what virtual clients keep. None: it is in memory.
    devices:   how long the devices of virtual clients train, how fast their links are, when they are there
               (fl.Devices). Times of reports are then those of a virtual clock. None: all are there, and none is late;
               for an asynchronous strategy: Devices().
    address:   of a Ray cluster, as for ray.init: "auto", "ray://host:10001". None: a Ray of this machine, or the one
               that the program has begun.
    actors:    what Ray gives each actor: {"num_gpus": 0.25}.
    measure:   called with the model after each round, in this process. If it returns a dict, its numbers are in the
               `evaluation` of the result's reports; their names begin with `server_`.
    seed:      of the clients' random numbers (docs/how-to/simulation.md, "Random numbers"), 0 or more. None: a new one,
               which the result has.
    progress:  whether stderr gets a line for each round. None: in a terminal or a notebook, unless an fl.Progress is
               among the callbacks.
    settings:  the other arguments of fl.Server, except `options`; `memory_limit`, `wait`, `relays` and `secure` are of
               engine "network".
               patience: None: that of a server without pauses.

    Two runs with one engine and one seed give the same model to the last bit, for any number of processes, if clients
    draw random numbers only from what it seeds, and the strategy depends on its seed only. Asynchronous strategies with
    engine "network" are the exception, as they take updates as they arrive; so is `privacy`, with a server's own noise.
    Raises SimulationError, InvalidOption, and what fl.Server and `measure` raise.
    """
    check_names(settings, [name for name in inspect.signature(simulate).parameters if name != "settings"])
    expect(isinstance(strategy, Strategy | None), "simulate.strategy", strategy, "an object, as in fl.FedAvg()")
    strategy = strategy or FedAvg()
    expect(is_whole(rounds, 0), "simulate.rounds", rounds, "a whole number")
    of_engine = {"start": start, "protocol": protocol, "keep": keep, "devices": devices}
    check_engine(engine, {**settings, **of_engine, "address": address, "actors": actors})
    right = "an fl.Devices, as of fl.Devices.from_csv('devices.csv')"
    expect(isinstance(devices, Devices | None), "simulate.devices", devices, right)
    expect(measure is None or callable(measure), "simulate.measure", measure, "a function of a model")
    expect(isinstance(keep, str | os.PathLike | None), "simulate.keep", keep, "a new folder, or None")
    check_clients(clients, processes)
    expect(seed is None or is_whole(seed, 0), "simulate.seed", seed, "a whole number, 0 or more, or None")
    seed = secrets.randbits(63) if seed is None else seed
    settings = {"min_clients": min(max(2, strategy.least), len(clients)), **settings}
    settings.setdefault("patience", Patience(void_pause=0.0))
    check_settings(settings, clients)
    own = checked_callbacks(settings.pop("callbacks", ()))
    settings |= {"strategy": strategy, "callbacks": [*own, *shown(progress, own)]}
    made: AbstractContextManager[Server | VirtualServer]
    make: Callable[[ChunkWorker], AbstractContextManager[Engine]]
    if engine == "network":
        count = min(processes or cores(), len(clients))
        made = connected(model, list(map(as_client, clients)), count, protocol, start, seed, settings)
    elif engine == "ray":
        from fl.simulation.ray_pool import RayPool

        make = partial(RayPool, count=processes, address=address, options=actors or {})
        made = _virtual(model, clients, make, keep, devices, seed, settings)
    else:
        make = partial(ProcessPool, count=min(processes or cores(), len(clients)), how=start)
        made = _virtual(model, clients, make, keep, devices, seed, settings)
    reports: list[RoundReport] = []
    measured: list[Any] = []
    with made as server:
        log.info("simulating %d clients, with seed %d", len(clients), seed)
        for report in server.rounds(rounds):
            _raise_if_hopeless(report, FailureKind.INVALID, *([] if devices else [FailureKind.LOST]))
            if measure is not None:
                measured.append(measure(server.model))
            reports.append(_with(report, measured))
    return Result(dict(server.model), reports, measured, seed)


@contextmanager
def _virtual(
    model: Model,
    clients: Sequence[Train | Client],
    make: Callable[[ChunkWorker], AbstractContextManager[Engine]],
    keep: str | os.PathLike[str] | None,
    devices: Devices | None,
    seed: int,
    settings: Mapping[str, Any],
) -> Iterator[VirtualServer]:
    """Yield a server of virtual clients. make: makes the engine, which is ended with the `with` block."""
    settings = {**_DEFAULTS, **settings}
    if (options := settings.get("privacy")) is not None:  # noise that can be repeated
        settings["privacy"] = Privacy(options, at_clients=False, source=random.Random(f"{seed} privacy"))
        settings["privacy"].check_population(len(clients), "simulate.clients")
    federation = Federation(model, **settings)
    with closing(federation):
        strategy = federation.strategy
        is_timed = devices is not None or strategy.buffer is not None
        given = devices or Devices()
        profiles = given.of(len(clients)) if is_timed else []
        kept = Kept(keep)
        folds = federation.aggregation.merges and not is_timed
        with make(ChunkWorker(clients, strategy, federation.roles, Calls(seed), folds=folds)) as engine:
            population = Population(clients, engine, kept, federation)
            training: Training = AtOnce(federation, population)
            if is_timed:
                clock = Clock(population, profiles, given.begin, federation.patience.grace, given.seed)
                training = ByClock(federation, population, clock)
            yield VirtualServer(federation, population, training)


_DEFAULTS = {"wait": None, "roles": None, "config": None, "evaluate": False, "checkpoint": None}


def _with(report: RoundReport, measured: Sequence[Any]) -> RoundReport:
    """Return a report with what was measured last among its evaluation, if that is a dict of numbers."""
    found = measured[-1] if measured and isinstance(measured[-1], Mapping) else {}
    numbers = {f"{MEASURED}{name}": float(value) for name, value in found.items() if isinstance(value, Real)}
    return replace(report, evaluation={**numbers, **report.evaluation}) if numbers else report


def _raise_if_hopeless(report: RoundReport, *kinds: FailureKind) -> None:
    """Raise SimulationError if all have failed in these ways: the next attempt has the same functions and data."""
    failures = report.failures
    if not report.clients and failures and all(each.why in kinds for each in failures.values()):
        client, failure = next(iter(failures.items()))
        raise SimulationError(f"round {report.number}: no client has a valid update; {title(client)}: {failure}")
