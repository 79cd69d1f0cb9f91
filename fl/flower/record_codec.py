"""Encodes and decodes Flower's records for the messages of fl/flower/messages.py, as plain values and arrays.

    RecordDict ──► [[name, "arrays", [[key, array], …]], [name, "metrics" | "config", [[key, value], …]], …]

An array is a numpy array, a view of the message's memory. If fl/tensors/serialization.py does not know its dtype or its
serialisation, it is [dtype, shape, stype, bytes as an array]. A value is a bool, int, float, str or bytes, or a list of
one of these. `decode` trusts nothing that a peer sends: it raises Unreadable, which names the place in the records and
what was expected there. Pure; any thread may call it.
"""

from __future__ import annotations

import io
import math
import re
import reprlib
from collections.abc import Mapping
from typing import Any

import flwr.app
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fl.flower._compat import EMPTY_TENSOR_KEY, SType
from fl.tensors.serialization import expect
from netq.errors import Unreadable

_NUMBERS: tuple[type, ...] = (int, float)
_VALUES: tuple[type, ...] = (bool, int, float, str, bytes)
_KINDS = {"arrays": ArrayRecord, "metrics": MetricRecord, "config": ConfigRecord}

# The header of an npy file (NEP 1) as np.save writes it for an array without fields. numpy reads it with the parser of
# Python, which fails at times in Python 3.11 before 3.11.8 when two threads use it (CPython issue 106905).
_NPY_HEADER = re.compile(
    rb"\x93NUMPY(?:\x01\x00(?P<size1>..)|\x02\x00(?P<size2>....))"
    rb"(?P<dict>\{'descr': '(?P<dtype>[^']+)', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>[\d, ]*)\), \} *\n)",
    re.DOTALL,
)


class Array(flwr.app.Array):
    """A flwr.app.Array that holds a numpy array. Its `data`, the bytes of an npy file, is made on access.

    `numpy()` returns a new copy each time, as flwr.app.Array does, or the array itself (`copy=False`). Assign it to a
    key of an ArrayRecord: `ArrayRecord(a dict)` would make a new Array from the bytes. Every grid of Flower accepts it.
    """

    def __init__(self, ndarray: NDArray[Any], *, copy: bool = True) -> None:
        ndarray = np.asarray(ndarray)  # an instance of a subclass would be pickled by its class
        self.__dict__.update(dtype=str(ndarray.dtype), shape=tuple(ndarray.shape), stype=SType.NUMPY)
        self.__dict__.update(_ndarray=ndarray, _copy=copy)

    def __getattr__(self, name: str) -> bytes:
        if name != "data" or "_ndarray" not in self.__dict__:
            raise AttributeError(name)
        file = io.BytesIO()
        np.save(file, self.__dict__["_ndarray"], allow_pickle=False)
        return file.getvalue()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, flwr.app.Array):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in ("dtype", "shape", "stype", "data"))

    __hash__ = None  # type: ignore[assignment]  # as that of flwr.app.Array

    def numpy(self) -> NDArray[Any]:
        """Return the array."""
        array: NDArray[Any] = self.__dict__["_ndarray"]
        return array.copy() if self.__dict__["_copy"] else array


def arrays(model: Mapping[str, Any]) -> ArrayRecord:
    """Return the numpy arrays and torch tensors of a model as a record that shares their memory.

    Sending the record copies no array, so the model must not change until the round is over.
    """
    record = ArrayRecord()
    for name, tensor in model.items():
        record[name] = Array(tensor if isinstance(tensor, np.ndarray) else tensor.detach().cpu().numpy())
    return record


def nbytes(records: RecordDict) -> int:
    """Return the bytes of the arrays and values, about."""
    arrays = [array for record in records.array_records.values() for array in record.values()]
    others = [*records.metric_records.values(), *records.config_records.values()]
    return sum(map(_array_nbytes, arrays)) + sum(int(record.count_bytes()) for record in others)


def _array_nbytes(array: flwr.app.Array) -> int:
    return int(array.__dict__["_ndarray"].nbytes) if isinstance(array, Array) else len(array.data)


# Out


def encode(records: RecordDict) -> list[Any]:
    """Return records as plain values. Arrays share their memory with the records, which must not change meanwhile."""
    seen: set[tuple[int, int]] = set()
    plain = []
    for name, record in records.items():
        if isinstance(record, ArrayRecord):
            plain.append([name, "arrays", [[key, _encode_array(array, seen)] for key, array in record.items()]])
        else:
            kind = "metrics" if isinstance(record, MetricRecord) else "config"
            plain.append([name, kind, [[key, _encode_value(value)] for key, value in record.items()]])
    return plain


def _encode_array(array: flwr.app.Array, seen: set[tuple[int, int]]) -> Any:
    ndarray = array.__dict__["_ndarray"] if isinstance(array, Array) else _of_npy(array)
    if ndarray is None or not _is_plain(ndarray.dtype):
        return [array.dtype, [*array.shape], array.stype, np.frombuffer(array.data, np.uint8)]
    memory = ndarray.__array_interface__["data"][0], ndarray.nbytes
    if memory in seen:  # else the arrays would share memory on arrival, which Flower's arrays never do
        return ndarray.copy()
    seen.add(memory)
    return ndarray


def _of_npy(array: flwr.app.Array) -> NDArray[Any] | None:
    """Return a view of the array in the bytes of an npy file. None if they are none, or hold Python objects."""
    if array.stype != SType.NUMPY:
        return None
    header = _NPY_HEADER.match(array.data)
    if header is None or int.from_bytes(header["size1"] or header["size2"], "little") != len(header["dict"]):
        return None
    try:
        shape = tuple(int(size) for size in header["shape"].split(b",") if size.strip())
        flat: NDArray[Any] = np.frombuffer(array.data, header["dtype"].decode(), math.prod(shape), header.end())
    except (ValueError, TypeError):
        return None
    return flat.reshape(shape[::-1]).T if header["fortran"] == b"True" else flat.reshape(shape)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Return whether fl/tensors/serialization.py knows the dtype: bool and numbers, but no platform's long double."""
    return dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _encode_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_encode_value(each) for each in value]
    for kind in _VALUES:  # in this order: a bool is an int; a numpy float is a float
        if isinstance(value, kind):
            plain = kind(value)
            if kind is int and not _is_64_bits(plain):
                raise ValueError(f"a whole number of {plain.bit_length()} bits in a record; expected 64 at most")
            return plain
    raise TypeError(f"a {type(value).__name__} in a record; expected one of {_names(_VALUES)}")


def _is_64_bits(value: int) -> bool:
    return -(2**63) <= value < 2**64


# In


def decode(plain: Any, *, copy: bool) -> RecordDict:
    """Return the records that were encoded. `copy`: `numpy()` of their arrays returns a new copy each time."""
    records = RecordDict()
    seen: set[int] = set()
    for name, kind, items in _items("the records", plain, 3):
        where = f"the record {reprlib.repr(name)}"
        expect(type(name) is str and name not in records, where, "a name that comes once")
        expect(type(kind) is str and kind in _KINDS, f"the kind of {where}", f"one of {', '.join(_KINDS)}")
        record = records[name] = _KINDS[kind]()
        for key, value in _items(where, items, 2):
            expect(type(key) is str and key not in record, f"a key of {where}", "a name that comes once")
            there = f"{where}, {reprlib.repr(key)}"
            if kind == "arrays":
                record[key] = _decode_array(there, key, value, seen, copy)
            else:
                check_value(there, value, _NUMBERS if kind == "metrics" else _VALUES)
                record[key] = value
    return records


def _decode_array(where: str, key: str, value: Any, seen: set[int], copy: bool) -> flwr.app.Array:
    if type(value) is np.ndarray:
        _expect_new(where, value, seen)
        return Array(value, copy=copy)
    expect(type(value) is list and len(value) == 4, where, "an array, or dtype, shape, stype and data")
    dtype, shape, stype, data = value
    expect(type(dtype) is str and type(stype) is str, where, "names of its dtype and its stype")
    expect(type(shape) is list and all(type(size) is int for size in shape), where, "a shape of whole numbers")
    expect(type(data) is np.ndarray and data.dtype == np.uint8 and data.ndim == 1, where, "its data as bytes")
    _expect_new(where, data, seen)
    array = flwr.app.Array(dtype=dtype, shape=tuple(shape), stype=stype, data=data.tobytes())
    if stype == SType.NUMPY and (key != EMPTY_TENSOR_KEY or data.size):
        _check_npy(where, array)
    return array


def _expect_new(where: str, array: NDArray[Any], seen: set[int]) -> None:
    address = array.__array_interface__["data"][0]
    expect(not array.nbytes or address not in seen, where, "memory of its own")
    seen.add(address)


def check_value(where: str, value: Any, kinds: tuple[type, ...] = _VALUES) -> None:
    """Raise Unreadable unless this is a value of one of these types, or a list of one of them."""
    if type(value) is list:
        right = all(type(each) in kinds and type(each) is type(value[0]) for each in value)
        expect(right, where, f"a list of one of {_names(kinds)}")
    else:
        expect(type(value) in kinds, where, f"one of {_names(kinds)}, or a list of one")
    for each in value if type(value) is list else (value,):
        expect(type(each) is not int or _is_64_bits(each), where, "whole numbers of 64 bits")


def _items(where: str, value: Any, size: int) -> list[Any]:
    right = type(value) is list and all(type(item) is list and len(item) == size for item in value)
    expect(right, where, f"a list of lists of {size}")
    items: list[Any] = value
    return items


def _check_npy(where: str, array: flwr.app.Array) -> None:
    expected = "an npy file without Python objects"
    try:
        found = array.numpy()
    except Exception as error:  # numpy may raise anything for damaged data
        raise Unreadable(f"{where}: expected {expected}: {error}") from error
    expect(type(found) is np.ndarray, where, expected)


def _names(kinds: tuple[type, ...]) -> str:
    return ", ".join(kind.__name__ for kind in kinds)
