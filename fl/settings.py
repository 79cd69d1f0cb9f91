"""What a server is told, looked at before anything begins.

Called by fl/server.py. Owns the sentences for what cannot be: each names the argument, and what was expected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import netq
from fl.model import Model, check
from fl.plain import strangers
from fl.strategy import Strategy
from fl.watch import Watcher


def check_settings(
    model: Model,
    options: netq.CommunicatorOptions | None,
    strategy: Strategy | None,
    min_clients: int,
    deadline: float,
    grace: float,
    config: Mapping[str, Any] | None,
    evaluate: bool,
) -> None:
    """Raise InvalidOption unless these are arguments of fl.Server; InvalidUpdate for a model without a mean."""
    _expect(isinstance(model, Mapping) and len(model) > 0, "model", model, "a dict of arrays or tensors by name")
    check(model, like=model)
    known = isinstance(options, netq.CommunicatorOptions | None)
    _expect(known, "options", options, "a netq.CommunicatorOptions, as in CommunicatorOptions(netloc=(host, port))")
    _expect(isinstance(strategy, Strategy | None), "strategy", strategy, "an object, as in fl.FedAvg()")
    whole = isinstance(min_clients, int) and not isinstance(min_clients, bool)
    _expect(whole and min_clients >= 1, "min_clients", min_clients, "1 or more, a whole number")
    _expect(_is_number(deadline) and deadline > 0, "deadline", deadline, "seconds, more than 0")
    _expect(_is_number(grace) and grace >= 0, "grace", grace, "seconds, 0 or more")
    _expect(isinstance(evaluate, bool), "evaluate", evaluate, "True or False")
    _expect(isinstance(config, Mapping | None), "config", config, "a dict of plain values by name")
    check_config(config or {}, "Server.config")


def check_config(config: Mapping[str, Any], whose: str) -> None:
    """Raise InvalidOption unless this can be told to clients."""
    if "round" in config:
        raise netq.InvalidOption(f"{whose}: 'round' is the number of the round; expected another name")
    if wrong := strangers(config):
        raise netq.InvalidOption(f"{whose}: {wrong}")


def checked_watchers(watchers: Iterable[Watcher]) -> tuple[Watcher, ...]:
    """Return the watchers. Raises InvalidOption."""
    several = isinstance(watchers, Iterable)
    _expect(several, "watchers", watchers, "a list of them")
    found = tuple(watchers)
    for each in found:
        _expect(isinstance(each, Watcher), "watchers", each, "objects of classes that inherit from fl.Watcher")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def _expect(right: bool, name: str, value: object, expected: str) -> None:
    if not right:
        raise netq.InvalidOption(f"Server.{name}: {value!r}; expected {expected}")
