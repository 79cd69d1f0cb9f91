"""Who trains, with what configuration, and how their updates become the next model.

A strategy is called by one thread, the server's: `begin` once; then in each round `select`, `config`, `fold` for each
update as it arrives, and `finish` or `abandon`; `reject`, if it finished with no model. It never sees a socket.
Whatever it refuses with InvalidUpdate counts as that client's failure, and must have changed nothing.
docs/reference/strategies.md writes one.
"""

from __future__ import annotations

import abc
import inspect
import math
import random
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fl.compression.compressor import Compression, as_compression
from fl.messages import Update
from fl.tensors.spec import Model
from netq.errors import InvalidOption
from netq.text import did_you_mean
from netq.validate import expect, is_number, whole

Discount = Callable[[int], float]  # of a staleness in rounds, 0 for none, to a factor of the weight, 1 at most


class Strategy(abc.ABC):
    """How a federation learns. Subclass it, and write `begin`, `fold`, `finish` and `abandon`; the rest has a default.

    fraction:    of the connected clients that take part in a round, more than 0 to 1; one at least. Drawn by `seed`
                 and round.
    oversample:  so many more are asked, as a fraction of those needed; the round ends when enough have answered.
    config:      what the clients are told in every round. Plain values: numbers, texts, lists, dicts, arrays.
    compression: how clients pack their updates (fl.Compression, or its text), unless one knows better; None: not at all
    staleness:   the weight of an update that comes a round late or more, by how many rounds: a function, or the text of
                 one, as in "polynomial(0.5)" or "hinge(10, 4)"; None: it is refused.
    """

    buffer: int | None = None  # of an asynchronous strategy: after so many updates there is a new model
    least = 1  # updates without which `finish` raises TooFewUpdates
    deltas = False  # whether `fold` wants differences from the model that the client was sent, not models

    def __init__(
        self,
        *,
        fraction: float = 1.0,
        oversample: float = 0.0,
        config: Mapping[str, Any] | None = None,
        compression: Compression | str | None = None,
        staleness: Discount | str | None = None,
        seed: int = 0,
        **unknown: Any,
    ) -> None:
        for name in unknown:
            known = options_of(type(self))
            raise TypeError(f"{type(self).__name__} has no option {name!r}; {did_you_mean(name, known)}")
        self._fraction = within(f"{type(self).__name__}.fraction", fraction, 0, 1)
        self._oversample = within(f"{type(self).__name__}.oversample", oversample, 0, 1000, include_low=True)
        right = isinstance(config, Mapping | None)
        expect(right, f"{type(self).__name__}.config", config, "a dict of plain values by name")
        self._config = dict(config or {})
        self._seed = whole(f"{type(self).__name__}.seed", seed, -(2**63))
        self.compression = Compression() if compression is None else as_compression(compression)
        self.staleness = None if staleness is None else as_discount(staleness)

    def select(self, number: int, clients: Sequence[uuid.UUID]) -> Sequence[uuid.UUID]:
        """Return those of the connected clients that take part in round `number` (1, 2, …): at random, reproducibly."""
        count = math.ceil(self.enough(len(clients)) * (1 + self._oversample))
        return random.Random(f"{self._seed} {number}").sample(sorted(clients), min(count, len(clients)))

    def enough(self, clients: int) -> int:
        """Return how many answers end a round, when so many clients are connected."""
        return max(1, round(self._fraction * clients))

    def config(self, number: int) -> Mapping[str, Any]:
        """Return what the clients are told in round `number` beside the model."""
        return self._config

    def discount(self, staleness: int) -> float:
        """Return the factor of the weight of an update that is so many rounds late."""
        return 1.0 if staleness == 0 or self.staleness is None else self.staleness(staleness)

    @abc.abstractmethod
    def begin(self, model: Model) -> None:
        """Learn what models look like, before the first round; raises InvalidUpdate if it can do nothing with them."""

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
        """Forget the updates folded since the last `finish`: the round does not count."""

    def reject(self) -> None:
        """Forget what has led to the model that `finish` returned: it is not finite, and is not taken.

        A memory from round to round that is as far gone as the model begins anew.
        """
        self.abandon()

    def state(self) -> dict[str, Any]:
        """Return what must be kept from round to round, plain values and arrays; it is the strategy's own memory."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # nothing is kept, nothing is restored
        """Go on from what `state` returned; called before `begin`."""


def options_of(kind: type) -> list[str]:
    """Return the names of a strategy's options: its own, and those of its parents as long as it passes others on."""
    names: list[str] = []
    for each in kind.__mro__:
        if "__init__" in vars(each):
            parameters = list(inspect.signature(vars(each)["__init__"]).parameters.values())[1:]
            names += [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
            if each is Strategy or not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return list(dict.fromkeys(names))


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


_DISCOUNT = '"polynomial(0.5)", "hinge(10, 4)", or a function, such as fl.polynomial(0.5)'


def _make(value: object, name: Any, numbers: Iterable[str], options: Mapping[str, Any]) -> Discount:
    makers: dict[str, Callable[..., Discount]] = {"polynomial": polynomial, "hinge": hinge}
    if not isinstance(name, str) or name not in makers:
        raise InvalidOption(f"staleness: {value!r}; expected {_DISCOUNT}")
    try:
        return makers[name](*map(float, numbers), **options)
    except (ValueError, TypeError) as error:
        raise InvalidOption(f"staleness: {value!r}: {error}; see fl.{name}") from None


def polynomial(exponent: float = 0.5) -> Discount:
    """Return (1 + staleness) ** -exponent (FedAsync: Xie et al., 2019, section 5.2; FedBuff has 0.5)."""
    within("exponent", exponent, 0, math.inf, include_low=True)
    return lambda staleness: float((1 + staleness) ** -exponent)


def hinge(slope: float = 10.0, bound: int = 4) -> Discount:
    """Return 1 up to `bound`, then 1 / (slope * (staleness - bound) + 1) (FedAsync: Xie et al., 2019, section 5.2)."""
    within("slope", slope, 0, math.inf)
    return lambda staleness: 1.0 if staleness <= bound else 1 / (slope * (staleness - bound) + 1)


def within(name: str, value: float, low: float, high: float, *, include_low: bool = False) -> float:
    """Return an option's value; raises InvalidOption unless it is a finite number above `low` and at most `high`."""
    right = is_number(value, low, high) and math.isfinite(value) and (include_low or value != low)
    more = f"{low:g} or more" if include_low else f"more than {low:g}"
    expect(right, name, value, more + (f", and {high:g} at most" if high < math.inf else ""))
    return value
