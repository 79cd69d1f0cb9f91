"""Checks the arguments of fl.simulate before anything begins. Each error names the argument, and what was expected."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import netq
from fl.client import Client
from fl.server.server import Server
from fl.trainer import Train
from netq.text import did_you_mean
from netq.validate import expect, is_whole

Engine: TypeAlias = Literal["processes", "ray", "network"]

ENGINES = get_args(Engine)
_SETTINGS = set(inspect.signature(Server).parameters) - {"model", "options", "strategy", "protocol"}
_OF_ENGINES: Mapping[str, tuple[Any, tuple[Engine, ...]]] = {  # by argument: its default, and the engines that have it
    "start": ("fork", ("processes", "network")),
    "protocol": (netq.Protocol.TCP, ("network",)),
    "memory_limit": (None, ("network",)),
    "wait": (None, ("network",)),
    "relays": (False, ("network",)),
    "secure": (None, ("network",)),
    "keep": (None, ("processes", "ray")),
    "devices": (None, ("processes", "ray")),
    "address": (None, ("ray",)),
    "actors": (None, ("ray",)),
}
_ALIKE = {
    **dict.fromkeys(("num_rounds", "n_rounds", "epochs"), "did you mean rounds?"),
    **dict.fromkeys(("num_clients", "num_supernodes"), "did you mean clients, as in [train] * 4?"),
    **dict.fromkeys(("deadline", "close_early"), "it is a field of patience, as in patience=fl.Patience(deadline=60)"),
    **dict.fromkeys(("fraction", "clients_per_round"), "it is the strategy's, as in strategy=fl.FedAvg(fraction=0.1)"),
    **dict.fromkeys(("backend", "backend_name"), "did you mean engine?"),
    **dict.fromkeys(("backend_config", "client_resources"), 'did you mean actors, as in {"num_gpus": 0.25}?'),
}


def check_names(settings: Mapping[str, Any], arguments: Sequence[str]) -> None:
    """Raise TypeError for settings that fl.Server does not have."""
    for name in settings:
        if name not in _SETTINGS:
            hint = _ALIKE.get(name) or did_you_mean(name, [*arguments, *sorted(_SETTINGS)])
            raise TypeError(f"simulate has no argument {name!r}; {hint}")


def check_engine(engine: Engine, arguments: Mapping[str, Any]) -> None:
    """Raise InvalidOption for arguments that this engine does not have."""
    expect(engine in ENGINES, "simulate.engine", engine, " or ".join(map(repr, ENGINES)))
    actors = arguments.get("actors")
    expect(isinstance(actors, Mapping | None), "simulate.actors", actors, "a dict, as {'num_gpus': 0.25}")
    for name, (default, engines) in _OF_ENGINES.items():
        value = arguments.get(name, default)
        others = " or ".join(f"engine={each!r}" for each in engines)
        is_default = value is default or (isinstance(value, str) and value == default)
        expect(is_default or engine in engines, f"simulate.{name}", value, f"{default!r}, or {others}")


def check_clients(clients: Sequence[Train | Client], processes: int | None) -> None:
    """Raise InvalidOption unless these are clients, and can be distributed over processes."""
    listed = isinstance(clients, Sequence) and not isinstance(clients, str)
    expect(listed, "simulate.clients", clients, "a list with a train function for each client, as in [train] * 4")
    expect(processes is None or is_whole(processes, 1), "simulate.processes", processes, "1 or more, or None")
    if not clients:
        raise netq.InvalidOption("simulate.clients: there are none; expected train functions, or fl.Client objects")
    for each in {id(each): each for each in clients}.values():
        known = isinstance(each, Client) or callable(each)
        expect(known, "simulate.clients", each, "a train function, or an fl.Client")
        as_client(each)
    objects = [id(each) for each in clients if isinstance(each, Client)]
    if len(set(objects)) < len(objects):
        raise netq.InvalidOption(
            "simulate.clients: one fl.Client is there twice, and it remembers what it has not sent; expected an "
            "object for each client: [fl.Client(train) for _ in range(8)]"
        )


def as_client(each: Train | Client) -> Client:
    """Return an fl.Client of a train function, or of itself."""
    return each if isinstance(each, Client) else Client(each)


def check_settings(settings: Mapping[str, Any], clients: Sequence[Train | Client]) -> None:
    """Raise InvalidOption for settings of a server that these clients do not allow."""
    for name in ("min_clients", "wait"):  # of more clients the server would wait for ever
        wanted, there = settings.get(name), len(clients)
        enough = not isinstance(wanted, int) or wanted <= there
        expect(enough, f"simulate.{name}", wanted, f"{there} at most, as there are {there} clients")
    asked = settings.get("evaluate", False)
    can = any(isinstance(each, Client) and each.trainer.evaluates for each in clients)
    expect(can or not asked, "simulate.evaluate", asked, "a client that can, as in fl.Client(train, evaluate)")
