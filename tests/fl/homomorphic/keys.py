"""Keys of the smallest parameters, for tests, and the sum of clients that this process plays."""

from __future__ import annotations

import functools
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
from fl.envelope import Job
from fl.homomorphic.client import Encrypting
from fl.homomorphic.context import new_key
from fl.homomorphic.options import EVERYTHING, PARAMETERS, Homomorphic
from fl.messages import Task, Update
from fl.server.encrypted import EncryptedSum
from fl.tensors.roles import assign

pytest.importorskip("tenseal")
CLIENT = uuid.UUID(int=1)


def files(number: int = 0, name: str = "sums", encrypt: tuple[str, ...] = EVERYTHING) -> tuple[Path, Path]:
    """Return the clients' file, and the server's. `number`: of the key."""
    return _made(number, name, encrypt)


@functools.cache
def _made(number: int, name: str, encrypt: tuple[str, ...]) -> tuple[Path, Path]:
    folder = Path(tempfile.mkdtemp())
    made = new_key(PARAMETERS[name], encrypt)
    made.write(folder / "clients.key")
    replace(made, secret=None).write(folder / "server.context")
    return folder / "clients.key", folder / "server.context"


class Circle:
    """A server's sum, and its clients."""

    def __init__(
        self,
        model: Mapping[str, Any],
        name: str = "sums",
        clients: int = 3,
        encrypt: tuple[str, ...] = EVERYTHING,
        roles: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        key, context = files(0, name, encrypt)
        self.model: Mapping[str, Any] = model
        self.roles = assign(model, roles)
        self.sum = EncryptedSum(Homomorphic(context), fl.FedAvg(**options), model, self.roles)
        self.client = Encrypting(key)
        self._clients = clients

    @property
    def task(self) -> Task:
        secure = dict(self.sum.terms(self._clients))
        return Task(Job(1, 1, "train"), self.model, {}, roles=dict(self.roles), secure=secure)

    def update(self, model: Mapping[str, Any], examples: int) -> Update:
        """Return what a client sends of an update."""
        content = self.client.begin(self.task).mask(Update(dict(model), examples))
        assert isinstance(content, Update)
        return content

    def fold(self, update: Update) -> None:
        self.sum.fold(self.model, update, CLIENT, 0)

    def opened(self) -> dict[str, Any]:
        """Finish the round. Return its model as clients get it."""
        self.model = self.sum.finish(self.model, 1)
        return dict(self.client.begin(self.task).opened(self.task).model)


def payload(update: Update) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of the ciphertexts of an update, as a copy."""
    [ciphertexts] = update.model.values()
    copied: np.ndarray[Any, np.dtype[np.uint8]] = ciphertexts.copy()
    return copied


def with_payload(update: Update, found: bytes) -> Update:
    """Return an update with other bytes of ciphertexts."""
    [name] = update.model
    return replace(update, model={name: np.frombuffer(found, np.uint8)})
