"""What one masked round is about: who takes part, what stands where, which model. The server says so with the task.

Each mask and each sealed packet depends on the hash of the terms. So a server that tells clients different terms, or
gives them different models, gets masks that do not vanish, and packets that cannot be opened.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fl.checks import expect
from fl.envelope import values
from fl.messages import Task
from fl.privacy.bounded import Clipping
from fl.secure.options import MAX_METRICS
from fl.tensors.blocks import Scratch, bits_of, source_of
from fl.tensors.roles import SENT, Roles, of_role
from fl.tensors.serialization import messages
from fl.tensors.spec import Model, spec_of
from netq.validate import is_number, is_whole

MAX_CLIENTS = 2**14
_PLAIN = messages()
# The fields of a Task that no function of a client sees: three are for the conversation, and `secure` has this hash.
_BY_CLIENT = ("unasked", "answered", "deadline", "secure")


@dataclass(frozen=True)
class Terms:
    """The terms of a round. Raises InvalidUpdate.

    session:  of the keys, 16 bytes in hexadecimal.
    number:   of the round's attempt in the session. It only grows.
    clients:  the ids of those that are asked, some of those of the session, in its order (fl/secure/roster.py).
    task:     the SHA-256 of what they are asked to do, and with which model (`digest`).
    ranges:   the largest change of an element, by the name of a tensor of floats.
    metrics:  the names of those that are summed.
    most:     the largest weight of a client.
    least:    of how many clients a sum is opened at least.
    recovers: whether a sum without some of the clients can be opened. If not, there are no shares.
    noise:    how updates are clipped as a whole, and the noise of their sum (fl/privacy/bounded.py). Empty: there is
              none. Otherwise all weigh 1, and no metrics are summed.
    """

    session: str
    number: int
    clients: Sequence[str]
    task: str
    ranges: Mapping[str, float]
    metrics: Sequence[str]
    most: int
    least: int
    recovers: bool
    noise: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expect(is_whole(self.number, 1, 2**53), "number", self.number, "a whole number")
        right = isinstance(self.clients, list | tuple) and 2 <= len(set(self.clients)) <= MAX_CLIENTS
        right = (
            right and len(set(self.clients)) == len(self.clients) and all(type(each) is str for each in self.clients)
        )
        expect(right, "clients", self.clients, f"2 to {MAX_CLIENTS} ids, each once")
        for name in ("session", "task"):
            expect(type(getattr(self, name)) is str, name, getattr(self, name), "a text")
        right = isinstance(self.ranges, Mapping) and all(
            is_number(each, 0, 1e300) and each for each in self.ranges.values()
        )
        expect(right, "ranges", self.ranges, "numbers above 0")
        right = isinstance(self.metrics, list | tuple) and len(self.metrics) <= MAX_METRICS
        right = right and all(type(each) is str for each in self.metrics)
        expect(right, "metrics", self.metrics, f"{MAX_METRICS} names at most")
        most = 2**53 // len(self.clients)
        expect(is_whole(self.most, 1, most), "most", self.most, f"a whole number, 1 to {most}")
        expect(is_whole(self.least, 2, len(self.clients)), "least", self.least, "2 to the number of clients")
        expect(type(self.recovers) is bool, "recovers", self.recovers, "True or False")
        expect(isinstance(self.noise, Mapping), "noise", self.noise, "a dict")
        if self.noise:
            expect(self.most == 1, "most", self.most, "1: with noise all weigh the same")
            expect(not self.metrics, "metrics", self.metrics, "none: there is no noise in them")

    @property
    def clipping(self) -> Clipping | None:
        """How updates are clipped, and the noise of their sum. Raises InvalidUpdate."""
        return Clipping(**self.noise) if self.noise else None

    @cached_property
    def hash(self) -> bytes:
        """What masks and packets depend on."""
        return hashlib.sha256(b"netq secure terms" + json.dumps(asdict(self), sort_keys=True).encode()).digest()


def digest(task: Task) -> str:
    """Return the SHA-256 of a task, in hexadecimal: of all its fields but those that differ by client.

    A new field of Task is in it. Whether a tensor is numpy's or torch's is not: that depends on what a client imports.
    """
    said = {name: value for name, value in values(task).items() if name not in (*_BY_CLIENT, "model")}
    found = hashlib.sha256(b"netq secure task" + bytes(_PLAIN.dump(said)))
    for name, tensor in task.model.items():
        shape, dtype, _ = spec_of(name, tensor)
        found.update(json.dumps([name, dtype, list(shape)]).encode())
        found.update(np.ascontiguousarray(bits_of(tensor)).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def ranges(model: Model, roles: Roles, clip: float) -> dict[str, float]:
    """Return the range of each tensor of floats that is sent: `clip` times its largest element, with a floor.

    The floor is 1/16 for what is trained: zeros are where training begins. It is 1 for a statistic, and its range is 64
    times as large, since the first round of a federation moves it from nothing to what the data are like.
    """
    scratch = Scratch()
    found = dict[str, float]()
    for name, tensor in of_role(model, roles, *SENT).items():
        source = source_of(name, tensor)
        if not source.spec.is_exact:
            largest = max((float(np.abs(block).max()) for block in source.blocks(scratch)), default=0.0)
            averaged = roles.get(name) == "averaged"
            found[name] = clip * (64 * max(1.0, largest) if averaged else max(1 / 16, largest))
    return found
