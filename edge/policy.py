"""What a device lets leave: the rules of the table [policy]. Pure; imports numpy only for rules of noise.

edge/guard.py applies them in the agent's process, to the replies of fl's functions and of Flower's apps alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netq.errors import InvalidOption
from netq.validate import expect, flag

if TYPE_CHECKING:
    from fl.privacy.accountant import Ledger, Noise


@dataclass(frozen=True)
class Policy:
    """The rules of a device. Raises InvalidOption.

    tensors:          patterns of names that may leave, as in ("head.*",). None: all. A value of a reply that is no
                      single number counts as a tensor, whatever its place.
    metrics:          patterns of the single numbers that may leave. None: all.
    clip:             the largest L2 norm of the change in an update, over all its tensors.
    noise_multiplier: the standard deviation of the noise in each element, in multiples of `clip`.
    delta:            of the budget.
    max_epsilon:      the device gives no more updates when the next one would exceed it. None: it only counts.
    approve:          whether a person approves the source of tasks first.
    audit:            file that has a line for each decision. None: none is written.
    """

    tensors: Sequence[str] | None = None
    metrics: Sequence[str] | None = None
    clip: float | None = None
    noise_multiplier: float | None = None
    delta: float = 1e-5
    max_epsilon: float | None = None
    approve: bool = False
    audit: Path | None = None

    def __post_init__(self) -> None:
        for key in ("tensors", "metrics"):
            patterns = getattr(self, key)
            right = patterns is None or (isinstance(patterns, list | tuple) and all(map(_is_name, patterns)))
            expect(right, f"Policy.{key}", patterns, 'a list of names, which may have * and ?, as in ["head.*"]')
            object.__setattr__(self, key, None if patterns is None else tuple(patterns))
        flag("Policy.approve", self.approve)
        self._check_names()
        self._check_noise()

    def _check_names(self) -> None:
        both = ("metrics", "tensors") if self.metrics is None else ("tensors", "metrics")
        if self.noises:
            expect(
                self.metrics is None, "Policy.metrics", self.metrics, "none: no metric leaves with an update's noise"
            )
        elif (self.tensors is None) != (self.metrics is None):
            raise InvalidOption(
                f'Policy.{both[0]}: missing; with policy.{both[1]}, name these too, or say ["*"] for all'
            )

    def _check_noise(self) -> None:
        if self.clip is None and self.noise_multiplier is None:
            expect(
                self.max_epsilon is None, "Policy.max_epsilon", self.max_epsilon, "it with clip and noise_multiplier"
            )
            return
        for key, other in (("clip", "noise_multiplier"), ("noise_multiplier", "clip")):
            if getattr(self, key) is None:
                raise InvalidOption(f"Policy.{key}: missing; expected a number, as there is policy.{other}")
        from fl.privacy.accountant import Ledger  # numpy, which an agent without noise does not need
        from fl.privacy.options import DifferentialPrivacy

        assert self.clip is not None
        assert self.noise_multiplier is not None
        try:
            DifferentialPrivacy(self.clip, self.noise_multiplier, self.delta, self.max_epsilon)
        except InvalidOption as error:
            raise InvalidOption(str(error).replace("DifferentialPrivacy.", "Policy.")) from None
        first = self.spent(Ledger().add(self.noise))
        right = self.max_epsilon is None or first <= self.max_epsilon
        expect(right, "Policy.max_epsilon", self.max_epsilon, f"more than the {first:.3g} of one update, or more noise")

    def check(self, state: Path | None, compression: object) -> None:
        """Raise InvalidOption for what the rest of the device's file contradicts."""
        for key, is_used in (("noise_multiplier", self.noises), ("approve", self.approve)):
            if is_used and state is None:
                raise InvalidOption(f"policy.{key}: needs client.state, a folder that remembers it after a restart")
        if self.noises and compression is not None:
            text = "an update with the noise of [policy] is sent as it is; leave one of them out"
            raise InvalidOption(f"client.compression: {compression!r}; {text}")

    @property
    def noises(self) -> bool:
        """Whether updates are clipped and get noise."""
        return self.noise_multiplier is not None

    @property
    def restricts(self) -> bool:
        """Whether it bounds what a reply may have: then no text of the training leaves either."""
        return self.noises or self.tensors is not None or self.metrics is not None

    @property
    def inspects(self) -> bool:
        """Whether the agent reads each reply."""
        return self.restricts or self.audit is not None

    @property
    def noise(self) -> Noise:
        """Of one update. Two updates that are clipped differ by 2 · clip, and the server sees each one."""
        from fl.privacy.accountant import Noise

        assert self.noise_multiplier is not None
        return Noise(self.noise_multiplier / 2)

    @property
    def mark(self) -> str:
        """What names this policy in the key of a stored reply: one of another policy is not sent again."""
        rules = (self.tensors, self.metrics, self.clip, self.noise_multiplier)
        return f" {hashlib.sha256(repr(rules).encode()).hexdigest()[:16]}" if self.restricts else ""

    def spent(self, ledger: Ledger) -> float:
        """Return the epsilon of a ledger."""
        return ledger.epsilon(self.delta)

    def lets_tensor(self, name: str) -> bool:
        """Return whether a tensor of this name may leave."""
        return _matches(name, self.tensors)

    def lets_metric(self, name: str) -> bool:
        """Return whether a number of this name may leave."""
        return not self.noises and _matches(name, self.metrics)


def _is_name(pattern: Any) -> bool:
    return isinstance(pattern, str) and pattern != ""


def _matches(name: str, patterns: Sequence[str] | None) -> bool:
    # fnmatch has sets of characters, too; names have brackets: "layers[0]"
    return patterns is None or any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns)
