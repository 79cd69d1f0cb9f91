"""The options of secure aggregation at a server. Pure."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from fl.errors import InvalidUpdate
from netq.errors import InvalidOption
from netq.validate import expect, flag, is_number, is_whole

MAX_METRICS = 100  # names


@dataclass(frozen=True)
class SecureAggregation:
    """The server learns the sum of the clients' updates, and no update. Raises InvalidOption.

    recovers:     whether a round goes on without clients that are lost in it, as long as enough others are there
                  (docs/explanation/secure-aggregation.md has the table). False: such a round is void, and repeated; for
                  three or four sites.
    min_clients:  of how many clients a sum is opened at least; the server's `min_clients` if that is more.
    metrics:      names of metrics of which the mean by weight is learnt, as in ("loss",), 100 at most. Values up to
                  2**20. No other metric leaves a client. One that a single client has is learnt as it is.
    clip:         the largest change of an element, in multiples of the largest element of its tensor, or of 1/16 if
                  that is smaller; of a statistic 64 times as much. What is larger is cut off, and counted
                  (`MaskedSum.clipped`).
    step:         seconds in which clients answer what is asked besides the tasks.
    """

    recovers: bool = True
    min_clients: int = 3
    metrics: Sequence[str] = ()
    clip: float = 16.0
    step: float = 30.0

    def __post_init__(self) -> None:
        flag("SecureAggregation.recovers", self.recovers)
        for name, value, right, form in (
            ("min_clients", self.min_clients, is_whole(self.min_clients, 3), "3 or more: two would know each other's"),
            ("clip", self.clip, is_number(self.clip, 1e-6, 1e6), "a number above 0, as in 16.0"),
            ("step", self.step, is_number(self.step, 1e-3) and math.isfinite(self.step), "seconds, as in 30.0"),
        ):
            expect(right, f"SecureAggregation.{name}", value, form)
        right = isinstance(self.metrics, list | tuple) and len(self.metrics) <= MAX_METRICS
        right = right and all(isinstance(each, str) for each in self.metrics)
        form = f'{MAX_METRICS} names at most, as in ["loss", "accuracy"]'
        expect(right, "SecureAggregation.metrics", self.metrics, form)
        object.__setattr__(self, "metrics", tuple(self.metrics))


def check_max_examples(name: str, value: object) -> None:
    """Raise InvalidOption unless this is the largest weight of a reply of a Flower app, or "equal"."""
    form = 'what the largest node has, or a little more, as in 10_000, or "equal": all replies weigh the same'
    expect(value == "equal" or is_whole(value, 1, 2**40), name, value, form)


@dataclass(frozen=True)
class SecurePolicy:
    """What a client wants of secure aggregation and homomorphic encryption, whatever its server says.

    Raises InvalidOption.

    required:    whether it sends vectors under masks only.
    min_clients: of how many clients a sum must be at least. Where c of them may be in league with the server, an update
                 is hidden among the others.
    noise_multiplier: the least noise that the clients add to a sum (fl.DifferentialPrivacy). Above 0, `required` is
                 True. 0: a sum may have none.
    key:         file of the clients' key of homomorphic encryption (fl secure-key). With one, `required` is True, and
                 the client takes part in such federations only, which have no noise, certificates or `min_clients`.
                 Empty: it has none.
    certificates: whether it takes part only where certificates prove the keys of the others: without, a server could
                 give it keys of its own. Its options need key, certificate and authority then, and `required` is True.
    """

    required: bool = False
    min_clients: int = 3
    noise_multiplier: float = 0.0
    certificates: bool = False
    key: str | os.PathLike[str] = ""

    def __post_init__(self) -> None:
        flag("SecurePolicy.required", self.required)
        flag("SecurePolicy.certificates", self.certificates)
        right = is_whole(self.min_clients, 2)
        expect(right, "SecurePolicy.min_clients", self.min_clients, "a whole number, 2 or more")
        right = is_number(self.noise_multiplier, 0, 1e6)
        expect(right, "SecurePolicy.noise_multiplier", self.noise_multiplier, "0 or more, as in 1.0")
        right = isinstance(self.key, str | os.PathLike)
        expect(right, "SecurePolicy.key", self.key, 'a path, as in "clients.key"')
        if self.key and (self.certificates or self.noise_multiplier > 0):
            name = "certificates" if self.certificates else "noise_multiplier"
            raise InvalidOption(f"SecurePolicy.{name}: is of masks, and `key` of homomorphic encryption; leave one out")
        required = self.required or self.certificates or self.noise_multiplier > 0 or bool(self.key)
        object.__setattr__(self, "required", required)

    def check_unmasked(self) -> None:
        """Raise InvalidUpdate if this client sends nothing without masks."""
        if self.key:
            raise InvalidUpdate(
                "this client answers under homomorphic encryption only, and the server does not use it for this"
            )
        if self.required:
            raise InvalidUpdate("this client answers under secure aggregation only, and the server does not use it")
