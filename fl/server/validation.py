"""Checks the arguments of a server before anything begins.

Called by fl/server/federation.py. Owns the error messages: each names the argument, and what was expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import netq
from fl.callbacks.base import Callback
from fl.checks import MODEL_IS
from fl.compression.compressor import Compression
from fl.envelope import RESERVED
from fl.errors import InvalidUpdate
from fl.homomorphic.codec import HEADER
from fl.homomorphic.options import Homomorphic
from fl.privacy.privacy import Privacy
from fl.schedules import resolved
from fl.secure.layout import LARGEST
from fl.secure.options import SecureAggregation
from fl.server.patience import Patience
from fl.strategies.base import Strategy
from fl.strategies.fedavg import FedAvg
from fl.tensors.blocks import Scratch, is_finite, source_of
from fl.tensors.roles import SENT, Roles, of_role
from fl.tensors.serialization import messages
from fl.tensors.spec import Model, specs_of
from netq.text import describe, did_you_mean
from netq.validate import expect, is_number, is_whole, whole


def check_settings(
    model: Model,
    strategy: Strategy | None,
    min_clients: int,
    wait: int | None,
    patience: Patience | None,
    config: object,
) -> None:
    """Raise InvalidOption unless these are valid arguments of fl.Server; InvalidUpdate for a model without a mean."""
    expect(isinstance(model, Mapping) and len(model) > 0, "Server.model", model, MODEL_IS)
    specs_of(model)
    expect(isinstance(strategy, Strategy | None), "Server.strategy", strategy, "an object, as in fl.FedAvg()")
    expect(is_whole(min_clients, 1), "Server.min_clients", min_clients, "1 or more, a whole number")
    enough = f"{min_clients} or more, a whole number: min_clients are needed for every round"
    expect(wait is None or is_whole(wait, min_clients), "Server.wait", wait, enough)
    right = isinstance(patience, Patience | None)
    expect(right, "Server.patience", patience, "an object, as in fl.Patience(deadline=60)")
    form = "a dict of plain values by name, or a function that returns one for a client"
    expect(config is None or isinstance(config, Mapping) or callable(config), "Server.config", config, form)
    if isinstance(config, Mapping):
        check_config(resolved_first(config, "Server.config"), "Server.config")


def check_relays(relays: object, whose: str = "Server.relays") -> None:
    """Raise InvalidOption unless this says which clients may be relays."""
    named = isinstance(relays, list | tuple | set | frozenset) and all(isinstance(each, str) for each in relays)
    form = 'True, False, or a list of names or ids, as in ["relay.north.farm"]'
    expect(isinstance(relays, bool) or named, whose, relays, form)


def check_secure(
    secure: object,
    strategy: Strategy,
    model: Model,
    roles: Roles,
    config: object,
    *,
    with_noise: bool,
) -> None:
    """Raise InvalidOption unless updates for this strategy, and of this model, can be summed under masks.

    with_noise: whether the clients add noise.
    """
    if secure is None:
        return
    expect(isinstance(secure, SecureAggregation), "Server.secure", secure, "an object, as in fl.SecureAggregation()")
    assert isinstance(secure, SecureAggregation)
    name = type(strategy).__name__
    wrong = {
        "the metrics of SecureAggregation have no noise, and say more of a client than epsilon does; expected "
        "metrics=()": with_noise and len(secure.metrics) > 0,
        f"{name} looks at single updates, and the server learns their mean only; expected FedAvg, FedProx, FedAvgM, "
        "FedAdagrad, FedAdam or FedYogi": not strategy.takes_means,
        f"{name} has the compression {strategy.compression}; a vector under masks cannot be packed; expected none": (
            strategy.compression != Compression()
        ),
        f"{name} takes late updates, and masks fit those of one round only; expected staleness=None": (
            strategy.staleness is not None
        ),
        f"{name} has no bound of the examples of a client; expected max_examples, as in {name}(max_examples=10_000), "
        'or "equal" if all clients are to weigh the same': (strategy.examples(LARGEST) == LARGEST and not with_noise),
        "the config is a function, and a client whose task is another than those of all has no masks in common with "
        "them; expected a dict": callable(config),
    }
    for why, is_so in wrong.items():
        if is_so:
            raise netq.InvalidOption(f"Server.secure: {why}")
    scratch = Scratch()
    for tensor, value in of_role(model, roles, *SENT).items():
        if not is_finite(source_of(tensor, value), scratch):
            raise netq.InvalidOption(
                f'Server.secure: {tensor!r} holds infinity, whose change is no number; expected the role "constant" '
                'or "local"'
            )


def check_homomorphic(
    homomorphic: Homomorphic | None,
    strategy: Strategy,
    model: Model,
    *,
    relays: bool,
    with_noise: bool,
) -> None:
    """Raise InvalidOption unless ciphertexts can be summed for this strategy."""
    if homomorphic is None:
        if HEADER in model:
            raise netq.InvalidOption("Server.secure: the model is encrypted; expected the fl.Homomorphic of its rounds")
        return
    name = type(strategy).__name__
    wrong = {
        f"{name} does more than the mean of the updates, and the server has ciphertexts only; expected FedAvg or "
        "FedProx": not (isinstance(strategy, FedAvg) and strategy.is_mean),
        f"{name} has the compression {strategy.compression}; ciphertexts cannot be packed; expected none": (
            strategy.compression != Compression()
        ),
        f"{name} takes late updates, and a sum of ciphertexts has those of one round only; expected staleness=None": (
            strategy.staleness is not None
        ),
        "ciphertexts do not pass relays; expected relays=False": relays,
        "the server cannot clip ciphertexts, so there is no differential privacy; expected privacy=None, or "
        "SecureAggregation": with_noise,
    }
    for why, is_so in wrong.items():
        if is_so:
            raise netq.InvalidOption(f"Server.secure: {why}")


def check_privacy(privacy: Privacy, strategy: Strategy, model: Model, roles: Roles, min_clients: int) -> None:
    """Raise InvalidOption unless noise covers all that a client adds to a model by this strategy."""
    name, is_drawn = type(strategy).__name__, privacy.is_drawn
    trained = of_role(model, roles, "trained")
    others = [each for each, tensor in of_role(model, roles, *SENT).items() if roles[each] != "trained"]
    wrong = {
        f"{name} looks at single updates, and gets their mean with noise only; expected FedAvg, FedProx, FedAvgM, "
        "FedAdagrad, FedAdam or FedYogi": not strategy.takes_means,
        f"{name} takes late updates, with which a client adds twice to a model; expected staleness=None": (
            strategy.staleness is not None
        ),
        f"{name} selects a part of the clients, and DifferentialPrivacy.sampling draws them; expected fraction=1.0": (
            is_drawn and strategy.enough(10**6) != 10**6
        ),
        "the server knows who is asked, and with secure aggregation nothing is to be known to it; expected "
        "DifferentialPrivacy.sampling=1.0": is_drawn and privacy.at_clients,
        f"noise can be added to trained tensors only, and not to {', '.join(map(repr, others[:3]))}, which follow the "
        'data; expected GroupNorm in place of BatchNorm, or the role "local" or "constant" (docs/how-to/roles.md)': (
            bool(others)
        ),
        f"{name}: its model has no trained element": not any(spec.size for spec in specs_of(trained).values()),
    }
    for why, is_so in wrong.items():
        if is_so:
            raise netq.InvalidOption(f"Server.privacy: {why}")
    try:
        privacy.check(specs_of(trained), min_clients)
    except InvalidUpdate as error:
        raise netq.InvalidOption(f"Server.privacy: {error}") from None


def not_through_relays(strategy: Strategy, *, privacy: bool = False) -> str:
    """Return why updates for this strategy cannot pass a relay, and what to do."""
    name = "the clip of DifferentialPrivacy" if privacy else type(strategy).__name__
    return f"{name} needs each update, and a relay sends one sum: connect the clients to the server itself"


class Evaluation(NamedTuple):
    """Which rounds are evaluated, and by how many of their clients."""

    every: int = 1  # rounds; 0: none is evaluated
    fraction: float = 1.0  # of the clients that would evaluate; at least one


def checked_evaluation(evaluate: bool | Mapping[str, Any]) -> Evaluation:
    """Return what the argument of fl.Server says. Raises InvalidOption."""
    if isinstance(evaluate, bool):
        return Evaluation(every=int(evaluate))
    form = 'True, False, or a mapping, as in {"fraction": 0.2, "every": 5}'
    expect(isinstance(evaluate, Mapping), "Server.evaluate", evaluate, form)
    for name in evaluate:
        if name not in Evaluation._fields:
            raise netq.InvalidOption(f"Server.evaluate: {name!r}; {did_you_mean(str(name), Evaluation._fields)}")
    found = Evaluation(**evaluate)
    whole("Server.evaluate.every", found.every, 1)
    right = is_number(found.fraction, 0, 1) and found.fraction > 0
    expect(right, "Server.evaluate.fraction", found.fraction, "a number above 0, and 1 at most")
    return found


def resolved_first(config: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Return a config with the values of round 1. Raises InvalidOption for a callable that is no schedule."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        try:
            found |= resolved({name: value}, 1)
        except Exception as error:  # of the user's callable: it may be a network, which is no schedule
            form = "a plain value, or a function of the number of the round"
            raise netq.InvalidOption(
                f"{whose}: {name!r}: with 1 it raises {describe(error)}; expected {form}"
            ) from error
    return found


def check_config(config: Mapping[str, Any], whose: str) -> None:
    """Raise InvalidOption unless this config can be sent to clients. `whose`: its name in the error."""
    for name, meaning in RESERVED.items():
        if name in config:
            raise netq.InvalidOption(f"{whose}: {name!r} is {meaning}; expected another name")
    try:
        messages().dump(config)
    except netq.SerializationError as error:
        raise netq.InvalidOption(f"{whose}: {error}") from None


def checked_callbacks(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    """Return the callbacks. Raises InvalidOption."""
    expect(isinstance(callbacks, Iterable), "Server.callbacks", callbacks, "a list of them")
    found = tuple(callbacks)
    for each in found:
        expect(isinstance(each, Callback), "Server.callbacks", each, "objects of classes that inherit from fl.Callback")
    return found
