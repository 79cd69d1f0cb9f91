"""Tensors as ciphertexts: a client's weighted update, and the sum of all as a model that clients open.

All floating-point tensors are packed one behind the other, after the client's weight, and the integers in ciphertexts
of their own: the error of a ciphertext grows with its largest value. In a model the ciphertexts are one array of bytes,
each behind its length, and a header in JSON says of which tensors they are.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl.compression.packed import is_shape
from fl.errors import InvalidUpdate
from fl.homomorphic.context import Context, Key
from fl.tensors.blocks import Scratch, flat, is_finite, restore, sources
from fl.tensors.dtypes import TORCH_ONLY
from fl.tensors.spec import DTYPES, Model, Spec

CIPHERTEXTS, HEADER = "fl.ciphertexts", "fl.header"  # tensors of a model that clients open
LARGEST = {False: 2.0**20, True: 2.0**31}  # of an element, by whether it is an integer: doubles have 53 bits
_TOLERANCE = 1e-4  # of the sum of the weights, as a part of it
_LENGTH = struct.Struct("<I")


class Header(NamedTuple):
    """What a model of ciphertexts is. weight: the sum of the clients' weights. specs: of the tensors."""

    key: str
    weight: int
    specs: Mapping[str, Spec]

    def dump(self) -> NDArray[np.uint8]:
        """Return it as the bytes of JSON."""
        tensors = {name: [spec.shape, spec.dtype, spec.device is not None] for name, spec in self.specs.items()}
        text = json.dumps({"key": self.key, "weight": self.weight, "tensors": tensors})
        return np.frombuffer(bytearray(text, "ascii"), np.uint8)

    @classmethod
    def load(cls, array: Any) -> Header:
        """Read one of a peer, or of a file. Raises InvalidUpdate."""
        try:
            found = json.loads(np.asarray(array, np.uint8).tobytes())
            specs = {}
            for name, (shape, dtype, is_torch) in found["tensors"].items():
                if dtype not in DTYPES or dtype in TORCH_ONLY or not is_shape(tuple(shape)):
                    raise ValueError(f"a tensor of {dtype}, {shape}")
                specs[name] = Spec(tuple(shape), dtype, "cpu" if is_torch else None)
            return cls(str(found["key"]), int(found["weight"]), specs)
        except Exception as error:  # values of a peer may raise anything
            raise InvalidUpdate(f"the header of a model of ciphertexts cannot be read: {error!r:.100}") from None


def update_name(key: str) -> str:
    """Return the name of the one tensor of an update: so the key is known before a ciphertext is read."""
    return f"{CIPHERTEXTS} {key}"


def count(context: Context, specs: Mapping[str, Spec]) -> int:
    """Return the number of ciphertexts of a model."""
    return sum(-(-size // context.parameters.slots) for size in _sizes(specs))


def nbytes(context: Context, specs: Mapping[str, Spec]) -> int:
    """Return the bytes of the ciphertexts of a model, at most."""
    return count(context, specs) * (_LENGTH.size + context.largest)


def encrypt(key: Key, model: Model, specs: Mapping[str, Spec], examples: int, clients: int) -> NDArray[np.uint8]:
    """Return the ciphertexts of a model, times its number of examples.

    clients: of how many the sum may be. Raises InvalidUpdate, with the name of a tensor that cannot be in it.
    """
    most = key.parameters.range / clients
    if examples > most:
        raise InvalidUpdate(_beyond(f"the number of {examples} examples", most))
    vectors, scratch = {False: [np.array([float(examples)])], True: [np.empty(0)]}, Scratch()
    for name, source in sources(model, specs):
        is_exact = source.spec.is_exact
        if not is_finite(source, scratch):
            raise InvalidUpdate(f"{name!r} holds NaN or infinity; expected finite values")
        values = flat(source, scratch).view(np.float64)
        largest = float(np.abs(values).max(initial=0.0))
        if largest > LARGEST[is_exact]:
            raise InvalidUpdate(
                f"{name!r} holds more than {LARGEST[is_exact]:.3g}, whose neighbours in a ciphertext would lose digits"
            )
        if largest * examples > most:
            raise InvalidUpdate(_beyond(f"{name!r} times {examples} examples", most))
        vectors[is_exact].append(values * examples)
    slots, found = key.parameters.slots, bytearray()
    for parts in vectors.values():
        vector = np.concatenate(parts)
        for start in range(0, vector.size, slots):
            join(found, key.encrypt(vector[start : start + slots]))
    return np.frombuffer(found, np.uint8)


def join(joined: bytearray, ciphertext: bytes) -> None:
    """Append a ciphertext, behind its length."""
    joined += _LENGTH.pack(len(ciphertext))
    joined += ciphertext


def split(context: Context, ciphertexts: Any, specs: Mapping[str, Spec]) -> Iterator[memoryview]:
    """Yield the ciphertexts of a model. Raises InvalidUpdate if they are not as many, or of another length."""
    right = isinstance(ciphertexts, np.ndarray) and ciphertexts.dtype == np.uint8 and ciphertexts.ndim == 1
    if not right:
        raise InvalidUpdate(f"ciphertexts as {type(ciphertexts).__name__}; expected an array of bytes")
    left, expected = np.ascontiguousarray(ciphertexts).data, count(context, specs)
    for _ in range(expected):
        size = _LENGTH.unpack_from(left)[0] if len(left) >= _LENGTH.size else 0
        if not 0 < size <= min(len(left) - _LENGTH.size, context.largest):
            break
        yield left[_LENGTH.size : _LENGTH.size + size]
        left = left[_LENGTH.size + size :]
    else:
        if not left:
            return
    raise InvalidUpdate(f"{ciphertexts.size} bytes of ciphertexts; expected {expected} of this model, each whole")


def decrypt(key: Key, ciphertexts: Any, header: Header) -> dict[str, NDArray[Any]]:
    """Return the mean of a sum, as arrays. Raises InvalidUpdate."""
    specs, slots = header.specs, key.parameters.slots
    if header.key != key.key:
        raise InvalidUpdate(f"the model is encrypted for the key {header.key[:32]!r}, and this client has {key.key}")
    if not 0 < header.weight <= key.parameters.range:
        raise InvalidUpdate(f"the sum of {header.weight} examples; expected 1 or more, within the parameters' range")
    parts = list(split(key, ciphertexts, specs))  # first: a header may say anything
    values = np.empty(len(parts) * slots)
    for at, ciphertext in enumerate(parts):
        values[at * slots : (at + 1) * slots] = key.decrypt(ciphertext)
    values /= header.weight
    if not abs(values[0] - 1) < _TOLERANCE:
        raise InvalidUpdate(  # without the number: the server reads this, and has chosen what is decrypted
            "the sum of the weights is wrong: the server has another key's ciphertexts, or has counted other examples "
            "than its clients"
        )
    found, scratch = {}, Scratch()
    start = {False: 1, True: -(-_sizes(specs)[0] // slots) * slots}
    for name, spec in specs.items():
        at = start[spec.is_exact]
        start[spec.is_exact] += spec.numbers
        mean = values[at : at + spec.numbers].view(np.result_type(spec.accumulator, np.float64))
        found[name] = restore(mean.copy(), spec._replace(device=None), scratch)
    return found


def _sizes(specs: Mapping[str, Spec]) -> tuple[int, int]:
    """Return the length of the vector of floating-point numbers, with the weight, and that of integers."""
    exact = sum(spec.numbers for spec in specs.values() if spec.is_exact)
    return 1 + sum(spec.numbers for spec in specs.values()) - exact, exact


def _beyond(what: str, most: float) -> str:
    return (  # without the value, which the server may not read
        f"{what} is beyond the parameters' range, which has {most:.3g} for each client; expected a "
        'max_examples of the strategy, "equal" at best, or a key with other parameters'
    )
