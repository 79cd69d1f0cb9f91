"""The sum of the clients' ciphertexts, in place of the strategy's mean of the tensors that are encrypted.

Made by fl/server/federation.py, and used as its Aggregation, in the server's thread. Has no secret key. The key's file
says which tensors are encrypted; the mean of the others is the strategy's. The first model is plain; from the first
round that counts on a model is ciphertexts, their header, and the tensors that are not encrypted.
"""

from __future__ import annotations

import logging
import reprlib
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl.errors import InvalidUpdate
from fl.homomorphic.client import TERMS
from fl.homomorphic.codec import CIPHERTEXTS, HEADER, Header, join, nbytes, split, update_name
from fl.homomorphic.context import Context
from fl.homomorphic.options import Homomorphic, KeyFile
from fl.messages import Update, with_fields
from fl.server.aggregation import Aggregation
from fl.strategies.base import Strategy
from fl.tensors.blocks import Scratch, is_finite, source_of
from fl.tensors.dtypes import TORCH_ONLY
from fl.tensors.roles import SENT, Roles, matching, of_role
from fl.tensors.spec import Model, specs_of
from netq.errors import InvalidOption

log = logging.getLogger("netq.fl")


class EncryptedSum(Aggregation):
    """The sum of one server. Raises InvalidOption for a file that is not this server's.

    model: the first one, or one of ciphertexts, of a checkpoint.
    """

    def __init__(self, options: Homomorphic, strategy: Strategy, model: Model, roles: Roles) -> None:
        try:
            file = KeyFile.read(options.context, is_secret=False)
            self._context = Context(file)
        except InvalidOption as error:
            raise InvalidOption(f"Homomorphic.context: {error}") from None
        self._header = Header.load(model[HEADER]) if HEADER in model else Header(file.key, 0, {})
        if self._header.key != file.key:
            raise InvalidOption(
                f"{options.context}: has the key {file.key}, and the checkpoint's model is encrypted for "
                f"{self._header.key}; expected the file of that key"
            )
        plain = {name: tensor for name, tensor in model.items() if name not in (CIPHERTEXTS, HEADER)}
        sent = of_role(plain, roles, *SENT)
        names = sorted(sent.keys() | self._header.specs.keys())
        hidden = matching(f"Homomorphic.context: {options.context}: encrypt", file.encrypt, names)
        if HEADER not in model:
            encrypted = {name: tensor for name, tensor in sent.items() if name in hidden}
            _check(encrypted, roles)
            self._header = self._header._replace(specs=specs_of(encrypted))
        self._patterns = list(file.encrypt)
        shown = sorted(sent.keys() - hidden)
        self._of_plain: int = sum(sent[name].nbytes for name in shown)
        if shown:
            log.info("the server and the network read these tensors of updates in plain: %s", reprlib.repr(shown)[1:-1])
        others = {name: tensor for name, tensor in plain.items() if name not in self._header.specs}
        super().__init__(strategy, others, roles)
        self._begin()

    def _begin(self) -> None:
        self._sum: list[Any] = []
        self._weight = self._clients = 0

    @property
    def nbytes(self) -> int:
        """Bytes of an update, at most."""
        return nbytes(self._context, self._header.specs) + self._of_plain

    @property
    def described(self) -> Mapping[str, tuple[tuple[int, ...], str, bool]]:
        """The tensors that are encrypted, as of fl.messages.Description."""
        return {name: (spec.shape, spec.dtype, spec.device is not None) for name, spec in self._header.specs.items()}

    def terms(self, clients: int) -> Mapping[str, Any]:
        """Return `secure` of a task. clients: of how many the sum may be."""
        most = self._strategy.examples(2**53)
        return {TERMS: {"key": self._context.key, "encrypt": self._patterns, "clients": clients, "most": most}}

    def fold(self, model: Model, update: Update, client: uuid.UUID, staleness: int) -> None:
        """Add an update. Raises InvalidUpdate, with nothing changed."""
        name = update_name(self._context.key)
        if name not in update.model:
            found = ", ".join(map(repr, update.model))
            raise InvalidUpdate(f"an update of {found:.100}; expected {name!r}: the client has another key, or none")
        plain = {each: tensor for each, tensor in update.model.items() if each != name}
        ciphertexts, added, is_first = update.model[name], 0, not self._clients
        try:
            for at, ciphertext in enumerate(split(self._context, ciphertexts, self._header.specs)):
                vector = self._context.load(ciphertext)
                if is_first:
                    self._sum.append(vector)
                else:
                    self._sum[at] += vector
                added += 1
            super().fold(model, with_fields(update, model=plain), client, staleness)
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
        """Return the sum, and the mean of what is not encrypted, as the next model. Raises what `finish` does."""
        plain = super().finish(model, number)
        header = self._header._replace(weight=self._weight)
        found = bytearray()
        for at, vector in enumerate(self._sum):
            join(found, self._context.dump(vector))
            self._sum[at] = None  # so that there are not two sums
        self._begin()
        ours = {CIPHERTEXTS: np.frombuffer(found, np.uint8), HEADER: header.dump()}
        return {**{name: each for name, each in plain.items() if name not in header.specs}, **ours}

    def abandon(self) -> None:
        """Discard the sum of this round."""
        super().abandon()
        self._begin()


def _check(model: Model, roles: Roles) -> None:
    """Raise InvalidOption for a tensor that cannot be encrypted."""
    scratch = Scratch()
    for name, tensor in model.items():
        source = source_of(name, tensor)
        for why, is_so in {
            "is of the role unit, whose mean is brought to length 1 again; the server cannot": roles[name] == "unit",
            f"is {source.spec.dtype}, which is not encrypted": source.spec.dtype in TORCH_ONLY,
            "holds infinity": not is_finite(source, scratch),
        }.items():
            if is_so:
                raise InvalidOption(
                    f'Server.secure: {name!r} {why}; expected another dtype, the role "constant" or "local", or a key '
                    "that is not for it (fl secure-key --encrypt)"
                )
