"""The interface of strategies: which clients train, with what configuration, and how updates become the next model.

One thread calls a strategy, the server's:

    restore                                 if the server resumes from a checkpoint
    begin                                   once
    select, config, fold, fold, …, finish   in each round; `fold` for each update as it arrives
    partial, merge                          between them, where updates are folded in several places
    reject                                  if the model that `finish` returned is not finite
    abandon                                 if the round does not count, or `finish` has failed
    state                                   after each round that counts, for the checkpoint

A strategy never sees a connection. docs/how-to/strategy.md shows how to write one.
"""

from __future__ import annotations

import abc
import functools
import inspect
import logging
import math
import random
import re
import reprlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fl.aggregation.mean import WeightedMean
from fl.compression.compressor import Compression, as_compression
from fl.messages import Update
from fl.properties import Properties, Where, check_where, matches, title
from fl.tensors.roles import Role
from fl.tensors.spec import Model
from netq.errors import InvalidOption
from netq.text import describe, did_you_mean
from netq.validate import expect, is_number, is_whole, whole

log = logging.getLogger("netq.fl")

Discount = Callable[[int], float]  # staleness in rounds (0: in time) -> factor of the weight, at most 1


class Strategy(abc.ABC):
    """How a federation learns. Subclasses write `begin`, `fold`, `finish` and `abandon`; the others have a default.

    fraction:    fraction of the connected clients that take part in a round, above 0, at most 1; at least one client.
    oversample:  additional clients that are asked, as a fraction of those needed. The round ends when enough have
                 answered.
    config:      values that all clients get in every round: numbers, texts, lists, dicts, arrays.
    compression: how clients compress their updates (fl.Compression or its text). A client's own compression takes
                 precedence. None: no compression.
    staleness:   weight of a late update as a function of its age in rounds: fl.polynomial, fl.hinge, a function, or a
                 text such as "hinge(10, 4)". None: late updates are refused.
    where:       which clients take part: values, or lists of values, by property, as in {"region": "eu"}; or a function
                 of a client's properties. None: all.
    seed:        of the random selection of clients, together with the number of the round.
    max_examples: bound on the `num_examples` of an update or report, which clients claim and which cannot be verified:
                 larger numbers count as this one. "equal": all count as 1. None: no bound.
    """

    buffer: int | None = None  # updates after which an asynchronous strategy makes a model; None: it works in rounds
    least = 1  # updates; with fewer, `finish` raises TooFewUpdates. A property if it depends on options
    deltas = False  # whether `fold` gets the differences from the model that the client was sent, instead of models
    roles: tuple[Role, ...] = ("trained",)  # of the tensors that it gets; the server takes the means of the others
    seed = 0  # of the selection: the option

    def __init__(
        self,
        *,
        fraction: float = 1.0,
        oversample: float = 0.0,
        config: Mapping[str, Any] | None = None,
        compression: Compression | str | None = None,
        staleness: Discount | str | None = None,
        where: Where | None = None,
        seed: int = 0,
        max_examples: int | str | None = None,
        **unknown: Any,
    ) -> None:
        for name in unknown:
            raise TypeError(
                f"{type(self).__name__} has no option {name!r}; {option_like(name, options_of(type(self)))}"
            )
        self._fraction = within(f"{type(self).__name__}.fraction", fraction, 0, 1)
        self._oversample = within(f"{type(self).__name__}.oversample", oversample, 0, 1000, include_low=True)
        valid = isinstance(config, Mapping | None)
        expect(valid, f"{type(self).__name__}.config", config, "a dict of plain values by name")
        self._config = dict(config or {})
        check_where(where, f"{type(self).__name__}.where")
        self._where = where
        self.properties: Mapping[uuid.UUID, Properties] = {}
        self.seed = whole(f"{type(self).__name__}.seed", seed, -(2**63))
        bounded = max_examples in (None, "equal") or is_whole(max_examples, 1)
        expect(bounded, f"{type(self).__name__}.max_examples", max_examples, "a whole number of 1 or more, or 'equal'")
        self._max_examples = 1 if isinstance(max_examples, str) else max_examples
        self.compression = Compression() if compression is None else as_compression(compression)
        self.staleness = None if staleness is None else as_discount(staleness)

    def select(self, number: int, clients: Sequence[uuid.UUID]) -> Sequence[uuid.UUID]:
        """Return the connected clients that take part in round `number` (1, 2, …). Random, but reproducible.

        `self.properties` has what each client says of itself.
        """
        if self._where is not None:
            clients = [each for each in clients if self._is_wanted(each)]
            if not clients:
                log.warning("round %d: no client has the properties that are wanted: %s", number, self._where)
                return []
        count = math.ceil(self.enough(len(clients)) * (1 + self._oversample))
        return random.Random(f"{self.seed} {number}").sample(sorted(clients), min(count, len(clients)))

    def _is_wanted(self, client: uuid.UUID) -> bool:
        properties = self.properties.get(client, {})
        try:
            return matches(self._where, properties)
        except Exception as error:  # of the user's function: a client may say of itself what it likes
            has = f"it says of itself {reprlib.repr(dict(properties))}, for which `where` raises {describe(error)}"
            text = "%s: takes no part: %s; expected True or False for any properties, also for none"
            log.warning(text, title(client), has)
            return False

    def enough(self, clients: int) -> int:
        """Return the number of answers that ends a round, for a number of connected clients."""
        return max(1, round(self._fraction * clients))

    def config(self, number: int) -> Mapping[str, Any]:
        """Return the config that the clients get with the model in round `number`."""
        return self._config

    def examples(self, claimed: int) -> int:
        """Return the number of examples by which an answer counts, of the number that its client claims."""
        return claimed if self._max_examples is None else min(claimed, self._max_examples)

    def discount(self, staleness: int) -> float:
        """Return the factor by which the weight of an update of this age in rounds is multiplied."""
        return 1.0 if staleness == 0 or self.staleness is None else self.staleness(staleness)

    @abc.abstractmethod
    def begin(self, model: Model) -> None:
        """Prepare for models like this one, before the first round. Raises InvalidUpdate for unusable dtypes."""

    @abc.abstractmethod
    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Fold in one update of `model`. The arrays belong to the server again when this returns.

        client:    the id of the client that sent the update.
        staleness: the age of the update in rounds; 0 in time.

        Raises InvalidUpdate to refuse the update; then nothing has changed.
        """

    @abc.abstractmethod
    def finish(self, model: Model, *, number: int) -> Model:
        """Return the model of the next round: `model`, changed by the updates folded since the last call.

        number: the round that ends; `select` and `config` had the same number.
        """

    @abc.abstractmethod
    def abandon(self) -> None:
        """Discard the updates folded since the last `finish`: the round does not count."""

    @property
    def folding(self) -> dict[str, Any]:
        """What its sums depend on, as plain values: the class that has `fold`, and options that `fold` reads.

        A relay folds with a strategy of its own, whose `folding` is that of its server's (fl.Relay). A subclass whose
        `fold` reads further options adds them.
        """
        kind = next(each for each in type(self).__mro__ if "fold" in vars(each)) if self.merges else type(self)
        return {"fold": kind.__name__, "merges": self.merges, "max_examples": self._max_examples}

    @property
    def merges(self) -> bool:
        """Whether it has a `merge` that fits its `fold`: no class overrides `fold` alone."""
        for kind in type(self).__mro__:
            if "merge" in vars(kind):
                return kind is not Strategy
            if "fold" in vars(kind):
                return False
        return False

    @property
    def takes_means(self) -> bool:
        """Whether the mean of a round's updates, folded as one update, gives the model that these would give.

        Secure aggregation needs it.
        """
        return False

    def partial(self) -> dict[str, Any]:
        """Return what was folded since the last `finish`, for `merge` of another object like this, and begin again.

        Plain values and arrays, whose memory is the caller's. A strategy that needs each update has neither of the two.
        """
        raise NotImplementedError(f"{type(self).__name__} has no partial")

    def merge(self, partial: Mapping[str, Any]) -> None:
        """Fold what `partial` of another object like this has returned, as if its updates were folded here.

        Raises InvalidUpdate, with nothing changed, for one that does not fit.
        """
        raise NotImplementedError(f"{type(self).__name__} has no merge")

    def reject(self) -> None:
        """Discard the state that led to the last result of `finish`: it is not finite, and the server does not use it.

        State that is kept from round to round, such as the moments of an optimiser, may not be finite either: reset it.
        """
        self.abandon()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: plain values and arrays, which stay in the memory of the strategy."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # a strategy without state has none to restore
        """Continue from what `state` returned. Called before `begin`."""


class MeanStrategy(Strategy):
    """A strategy that folds updates into one mean, `self._mean`. Subclasses write `fold` and `finish`."""

    def begin(self, model: Model) -> None:
        """Allocate the memory of the mean."""
        self._mean = WeightedMean(model)

    def abandon(self) -> None:
        """Discard the updates."""
        self._mean.reset()


def options_of(kind: type) -> list[str]:
    """Return the names of a strategy's options: those of its class, and of its parents if it has **options for them."""
    names: list[str] = []
    for parent in kind.__mro__:
        if "__init__" in vars(parent):
            parameters = list(inspect.signature(vars(parent)["__init__"]).parameters.values())[1:]
            names += [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
            if parent is Strategy or not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return list(dict.fromkeys(names))


def option_like(name: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown option: what Flower's option of this name is here, or the nearest of those known."""
    if name in _FLOWER and (_FLOWER[name] in known or " " in _FLOWER[name]):
        return f"what Flower calls {name} is {_FLOWER[name]} here"
    return did_you_mean(name, known)


_FLOWER = {  # its strategies' options, and what they are here
    "eta": "learning_rate",
    "server_learning_rate": "learning_rate",
    "tau": "adaptivity",
    "eta_l": "the learning rate of your clients, which their train function has, and `config` may send",
    "proximal_mu": "mu",
    "server_momentum": "momentum",
    "fraction_fit": "fraction",
    "fraction_train": "fraction",
    "fraction_evaluate": 'the argument `evaluate` of the server, as in {"fraction": 0.2}',
    **dict.fromkeys(
        (
            *("min_available_clients", "min_fit_clients", "min_evaluate_clients"),
            *("min_available_nodes", "min_train_nodes", "min_evaluate_nodes"),
        ),
        "the argument `min_clients` of the server",
    ),
    **dict.fromkeys(("on_fit_config_fn", "on_evaluate_config_fn"), "`config`, whose values may be fl.schedules"),
    **dict.fromkeys(("initial_parameters", "initial_arrays"), "the first argument of the server"),
    "evaluate_fn": "fl.Measured, or `measure` of fl.simulate",
    "num_malicious_nodes": "byzantine",
    "num_malicious_clients": "byzantine",
    "num_nodes_to_select": "keep",
}


def as_discount(value: Discount | Mapping[str, Any] | str) -> Discount:
    """Return a Discount from one, from its text ("hinge(10, 4)") or from a table ({"name": "hinge", "bound": 4}).

    Raises InvalidOption.
    """
    if isinstance(value, str):
        found = re.fullmatch(r"(\w+)\s*(?:\(([-+.\w\s,]*)\))?", value.strip())
        numbers = (found[2] or "").split(",") if found else ()
        discount = _make(value, found and found[1], [number for number in numbers if number.strip()], {})
    elif isinstance(value, Mapping):
        options = dict(value)
        discount = _make(value, options.pop("name", None), (), options)
    else:
        discount = value
    try:
        within("staleness", discount(1), 0, math.inf, include_low=True)
    except (TypeError, ValueError):
        raise InvalidOption(f"staleness: {value!r}; expected {_DISCOUNT}, of a staleness to a weight") from None
    return discount


_DISCOUNT = '"polynomial(0.5)", "hinge(10, 4)", or a function, such as fl.polynomial(0.5)'  # for error messages


def _make(value: object, name: Any, numbers: Iterable[str], options: Mapping[str, Any]) -> Discount:
    makers: dict[str, Callable[..., Discount]] = {"polynomial": polynomial, "hinge": hinge}
    if not isinstance(name, str) or name not in makers:
        raise InvalidOption(f"staleness: {value!r}; expected {_DISCOUNT}")
    try:
        return makers[name](*map(float, numbers), **options)
    except (ValueError, TypeError) as error:
        raise InvalidOption(f"staleness: {value!r}: {error}; see fl.{name}") from None


def polynomial(exponent: float = 0.5) -> Discount:
    """Return the discount (1 + staleness) ** -exponent (FedAsync: Xie et al., 2019, section 5.2; FedBuff has 0.5)."""
    within("exponent", exponent, 0, math.inf, include_low=True)
    return functools.partial(_polynomial, exponent)


def _polynomial(exponent: float, staleness: int) -> float:
    return float((1 + staleness) ** -exponent)


def hinge(slope: float = 10.0, bound: int = 4) -> Discount:
    """Return the discount 1 up to `bound`, then 1 / (slope * (staleness - bound) + 1) (FedAsync, section 5.2)."""
    within("slope", slope, 0, math.inf)
    return functools.partial(_hinge, slope, bound)


def _hinge(slope: float, bound: int, staleness: int) -> float:
    return 1.0 if staleness <= bound else 1 / (slope * (staleness - bound) + 1)


def within(name: str, value: float, low: float, high: float, *, include_low: bool = False) -> float:
    """Return an option's value; raises InvalidOption unless it is a finite number above `low` and at most `high`."""
    valid = is_number(value, low, high) and math.isfinite(value) and (include_low or value != low)
    expected = f"{low:g} or more" if include_low else f"more than {low:g}"
    expect(valid, name, value, expected + (f", and {high:g} at most" if high < math.inf else ""))
    return value
