"""CKKS by TenSEAL: one vector of values becomes one ciphertext, ciphertexts are added, and their sum is decrypted.

The only module that knows TenSEAL, which it imports when a key is used. Ciphertexts are serialised in SEAL's format,
without TenSEAL's envelope: TenSEAL 0.3.18 crashes on envelopes without a ciphertext. So the reader makes the envelope.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.errors import InvalidUpdate
from fl.homomorphic.options import EVERYTHING, KeyFile, Parameters
from netq.errors import InvalidOption
from netq.text import describe
from netq.version import DISTRIBUTION

_HEAD = 400  # bytes of a ciphertext besides its numbers, at most; SEAL's headers have 113, and zstd adds few


class Context:
    """Adds ciphertexts. Has no secret key. Raises InvalidOption."""

    def __init__(self, file: KeyFile) -> None:
        self.key = file.key
        self.parameters = file.parameters
        self._context = _public(file.parameters)
        slots = _varint(file.parameters.slots)
        self._before = b"\x0a" + _varint(len(slots)) + slots + b"\x12"
        self._after = b"\x19" + struct.pack("<d", 2.0**file.parameters.scale)

    @property
    def largest(self) -> int:
        """Bytes of a serialised ciphertext, at most."""
        return self.memory + _HEAD

    @property
    def memory(self) -> int:
        """Bytes of a ciphertext in memory: two polynomials for each prime."""
        return 2 * (len(self.parameters.moduli) - 1) * self.parameters.degree * 8

    def load(self, payload: bytes | memoryview) -> Any:
        """Return a ciphertext of a peer, of `largest` bytes at most. Raises InvalidUpdate."""
        envelope = b"".join((self._before, _varint(len(payload)), payload, self._after))
        try:
            vector = _tenseal().ckks_vector_from(self._context, envelope)
            inner = vector.ciphertext()[0]
            is_right = inner.is_ntt_form() and not inner.is_transparent()  # which SEAL refuses to add
            level = inner.size(), inner.coeff_modulus_size(), inner.scale, is_right
        except (ValueError, RuntimeError, IndexError) as error:
            raise InvalidUpdate(f"it is no ciphertext of these parameters: {describe(error)}") from None
        if level != (2, len(self.parameters.moduli) - 1, 2.0**self.parameters.scale, True):
            raise InvalidUpdate("it is no fresh ciphertext, nor a sum of such; expected one with the parameters' scale")
        return vector

    def dump(self, vector: Any) -> bytes:
        """Return a ciphertext, serialised."""
        envelope: bytes = vector.serialize()
        start = len(self._before)
        while envelope[start] & 0x80:  # the length, of seven bits a byte
            start += 1
        return envelope[start + 1 : -len(self._after)]


class Key(Context):
    """Encrypts and decrypts, too."""

    def __init__(self, file: KeyFile) -> None:
        super().__init__(file)
        assert file.secret is not None
        public = self._context
        try:
            self._context = _tenseal().context_from(file.secret)
            right = self._context.is_private() and _dumped(self._context, False) == _dumped(public, False)
        except (ValueError, RuntimeError) as error:
            raise InvalidOption(f"the homomorphic key cannot be read: {describe(error)}") from None
        if not right:
            raise InvalidOption("the homomorphic key is of other parameters than its file says; make a new one")

    def encrypt(self, values: NDArray[np.float64]) -> bytes:
        """Return the ciphertext of as many values as there are slots, or fewer, which zeros follow."""
        padded = np.zeros(self.parameters.slots)
        padded[: values.size] = values
        return self.dump(_tenseal().ckks_vector(self._context, padded))

    def decrypt(self, payload: bytes | memoryview) -> NDArray[np.float64]:
        """Return the values of all slots. Raises InvalidUpdate."""
        return np.array(self.load(payload).decrypt(), np.float64)


def new_key(parameters: Parameters, encrypt: Sequence[str] = EVERYTHING) -> KeyFile:
    """Return a new secret key, for the tensors of these patterns. Raises InvalidOption, also if there is no TenSEAL."""
    return KeyFile.of_secret(parameters, _dumped(_new(parameters), True), encrypt)


def _new(parameters: Parameters) -> Any:
    # Every client has the secret key, so it encrypts with that: the noise is smaller than with a public key.
    ts = _tenseal()
    bits = list(parameters.moduli)
    kind = ts.ENCRYPTION_TYPE.SYMMETRIC
    context = ts.context(ts.SCHEME_TYPE.CKKS, parameters.degree, coeff_mod_bit_sizes=bits, encryption_type=kind)
    context.global_scale = 2.0**parameters.scale
    return context


def _public(parameters: Parameters) -> Any:
    """Return a context without any key: TenSEAL makes one with a new key, which is dropped."""
    return _tenseal().context_from(_dumped(_new(parameters), False))


def _dumped(context: Any, is_secret: bool) -> bytes:
    found: bytes = context.serialize(
        save_public_key=False, save_secret_key=is_secret, save_galois_keys=False, save_relin_keys=False
    )
    return found


def _varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError:
        raise InvalidOption(
            f"homomorphic encryption needs TenSEAL: pip install '{DISTRIBUTION}[homomorphic]'"
        ) from None
    return tenseal
