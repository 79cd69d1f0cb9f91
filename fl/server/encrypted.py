"""The sum of the clients' ciphertexts, which is the next model: in place of the strategy's mean of updates.

Made by fl/server/federation.py, and used as its Aggregation, in the server's thread. Has no secret key. The first model
is plain; from the first round that counts on a model is ciphertexts, their header, and the constants.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl.errors import InvalidUpdate
from fl.homomorphic.client import TERMS
from fl.homomorphic.codec import CIPHERTEXTS, HEADER, Header, join, nbytes, split, update_name
from fl.homomorphic.context import Context
from fl.homomorphic.options import Homomorphic, KeyFile
from fl.messages import Update
from fl.server.aggregation import Aggregation
from fl.strategies.base import Strategy
from fl.tensors.roles import SENT, Roles, of_role
from fl.tensors.spec import Model, specs_of
from netq.errors import InvalidOption


class EncryptedSum(Aggregation):
    """The sum of one server. Raises InvalidOption for a file that is not this server's.

    model: the first one, or one of ciphertexts, of a checkpoint.
    """

    def __init__(self, options: Homomorphic, strategy: Strategy, model: Model, roles: Roles) -> None:
        super().__init__(strategy, {}, {})  # which sees no update
        try:
            self._context = Context(KeyFile.read(options.context, is_secret=False))
        except InvalidOption as error:
            raise InvalidOption(f"Homomorphic.context: {error}") from None
        if HEADER in model:
            self._header = Header.load(model[HEADER])
        else:
            self._header = Header(self._context.key, 0, specs_of(of_role(model, roles, *SENT)))
        if self._header.key != self._context.key:
            raise InvalidOption(
                f"{options.context}: has the key {self._context.key}, and the checkpoint's model is encrypted for "
                f"{self._header.key}; expected the file of that key"
            )
        self._sum: list[Any] = []
        self._weight = self._clients = 0

    @property
    def nbytes(self) -> int:
        """Bytes of an update, at most."""
        return nbytes(self._context, self._header.specs)

    @property
    def described(self) -> Mapping[str, tuple[tuple[int, ...], str, bool]]:
        """The tensors that are encrypted, as of fl.messages.Description."""
        return {name: (spec.shape, spec.dtype, spec.device is not None) for name, spec in self._header.specs.items()}

    def terms(self, clients: int) -> Mapping[str, Any]:
        """Return `secure` of a task. clients: of how many the sum may be."""
        return {TERMS: {"key": self._context.key, "clients": clients, "most": self._strategy.examples(2**53)}}

    def fold(self, model: Model, update: Update, client: uuid.UUID, staleness: int) -> None:
        """Add an update. Raises InvalidUpdate, with nothing changed."""
        name = update_name(self._context.key)
        if list(update.model) != [name]:
            found = ", ".join(map(repr, update.model))
            raise InvalidUpdate(f"an update of {found:.100}; expected {name!r}: the client has another key, or none")
        ciphertexts, added, is_first = update.model[name], 0, not self._clients
        try:
            for at, ciphertext in enumerate(split(self._context, ciphertexts, self._header.specs)):
                vector = self._context.load(ciphertext)
                if is_first:
                    self._sum.append(vector)
                else:
                    self._sum[at] += vector
                added += 1
        except Exception:
            if is_first:
                self._sum.clear()
            parts = split(self._context, ciphertexts, self._header.specs)
            for at, ciphertext in zip(range(0 if is_first else added), parts, strict=False):
                self._sum[at] -= self._context.load(ciphertext)  # exact: integers modulo the primes
            raise
        self._weight += update.num_examples
        self._clients += 1

    @property
    def merges(self) -> bool:
        """Whether relays may add updates."""
        return False

    def finish(self, model: Model, number: int) -> dict[str, Any]:
        """Return the sum as the next model."""
        header = self._header._replace(weight=self._weight)
        found = bytearray()
        for at, vector in enumerate(self._sum):
            join(found, self._context.dump(vector))
            self._sum[at] = None  # so that there are not two sums
        self.abandon()
        ours = {CIPHERTEXTS: np.frombuffer(found, np.uint8), HEADER: header.dump()}
        return {**{name: model[name] for name in model if name not in (*header.specs, *ours)}, **ours}

    def abandon(self) -> None:
        """Discard the sum of this round."""
        super().abandon()
        self._sum, self._weight, self._clients = [], 0, 0
