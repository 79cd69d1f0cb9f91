"""Arrays and tensors in messages. They are sent from their own memory, and arrive as views of the message.

Owns the identifiers of arrays and tensors: `dump` and `load`. fl's own messages have them in JSON (fl/tensors/
json_format.py). A communicator of a user takes its options from `serialization`: pickles with these as persistent
identifiers, in which the globals are `STORAGE` (fl/tensors/storage.py) and netq's form of numpy scalars.
Never imports torch: in a program that has not imported it, torch tensors arrive as numpy arrays.

    ("numpy" | "torch" | "parameter", Storage, dtype, shape, strides, requires_grad)

`dtype` is numpy's ("<f4") for numpy and torch's ("bfloat16", little-endian) for torch. `strides` are in elements, None
for C order. Memory is not copied if the elements fill it without gaps, in any order of dimensions; other layouts are
copied to C order first. Two tensors in the same memory (tied weights) share a Storage. It is sent once, and the
tensors share memory again when they arrive. Not sent: a tensor's `grad`, its hooks, and attributes that a user added.
"""

from __future__ import annotations

import io
import math
import pickle
import sys
import threading
import weakref
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.tensors.dtypes import MAX_DIMS, TORCH_ONLY
from fl.tensors.json_format import MAX_BUFFERS, MAX_TEXT, JsonSerializer
from fl.tensors.storage import STORAGE, Storage
from netq.errors import Unreadable
from netq.options import SerializationOptions
from netq.utils import data_pickle
from netq.utils.stream import PickleSerializer
from netq.validate import is_whole

Strides = tuple[int, ...] | None  # in elements; None: C order

_CODES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
_NUMPY: dict[str, np.dtype[Any]] = {
    dtype.str: dtype for dtype in [np.dtype(order + code) for code in _CODES for order in "<>"]
}
_IN_BOTH = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_TORCH: dict[str, np.dtype[Any] | None] = {
    **{name: np.dtype(name).newbyteorder("<") for name in _IN_BOTH},
    **dict.fromkeys(TORCH_ONLY),
}
_SCALAR = "numpy.generic"  # netq has a form for scalars
_BOOLS = ("|b1", "bool")
_KINDS = ("numpy", "torch", "parameter")
_MAX_SIZE = 2**62  # elements of a dimension, or of a stride
# the types of most objects that pickle asks `dump` about: a quick exit
_BUILTIN = frozenset({str, int, float, bool, bytes, type(None), tuple, list, dict})


def serialization(*allow: str) -> SerializationOptions:
    """Return options that move arrays and tensors, builtin values, and the globals that `allow` names.

    `allow` is as for `PickleSerializer.allow_by_name`. The state_dict of a torch module is a
    "collections.OrderedDict"; `dict(module.state_dict())` needs no name.
    """
    serializer = PickleSerializer(PickleSerializer.allow_by_name(STORAGE, _SCALAR, *allow), dump, load)
    return SerializationOptions(load=serializer.load, dump=serializer.dump)


def own_file() -> PickleSerializer:
    """Return the serialiser of a file that this program reads again: as `serialization`, for any number of tensors."""
    return PickleSerializer(PickleSerializer.allow_by_name(STORAGE, _SCALAR), dump, load, bounded=False)


def unserializable(values: Mapping[str, Any]) -> str:
    """Return an error message for the first value that `own_file` cannot dump and load again, or an empty string.

    Python's own constants and containers, arrays and tensors can be serialised. Objects that pickle stores by the name
    of a class or function cannot: loading takes no names. It has limits, too (netq/utils/data_pickle.py).
    """
    for name, value in values.items():
        try:
            pickled = io.BytesIO()
            _Checker(pickled, 5).dump(value)
            data_pickle.load(pickled.getvalue(), (), _refuse, lambda identifier: None, bounded=False)
        except Exception as error:  # pickling a user's value may raise anything
            return f"{name!r}: {error}; expected plain values: numbers, texts, lists, dicts, arrays, tensors"
    return ""


def messages(text: int = MAX_TEXT, buffers: int = MAX_BUFFERS) -> JsonSerializer:
    """Return the serialiser of fl's own messages: plain values, arrays and tensors. A numpy scalar becomes a number.

    text, buffers: of a message that is loaded, at most; the text in bytes.
    """
    return JsonSerializer(dump_plain, load, text, buffers)


def dump(obj: Any) -> Any | None:
    """Return the persistent identifier of an array or tensor; None for any other object.

    Ordinary pickling, with its allow-list, also decides on object and structured arrays, subclasses, and tensors that
    are sparse, quantised, nested or without memory.
    """
    kind = type(obj)
    if kind in _BUILTIN:
        return None
    if kind is np.ndarray:
        return _dump_numpy(obj)
    torch = _torch()
    if torch is None or kind not in (torch.Tensor, torch.nn.Parameter):
        return None
    return _dump_torch(torch, obj, "torch" if kind is torch.Tensor else "parameter")


def load(pid: Any) -> Any:
    """Return the array or tensor of a persistent identifier: a writable view of the message's memory.

    The identifier comes from a peer, so every field is checked, and no memory is allocated by its claims. Raises
    Unreadable, which names the wrong field.
    """
    expect(type(pid) is tuple and len(pid) == 6, "a persistent identifier", "six fields")
    kind, storage, name, shape, strides, requires_grad = pid
    expect(type(kind) is str and kind in _KINDS, "the kind of a tensor", f"one of {', '.join(_KINDS)}")
    expect(type(storage) is Storage, "the memory of a tensor", "a Storage")
    expect(type(name) is str, "the dtype of a tensor", "a name")
    expect(_is_sizes(shape), "the shape of a tensor", f"at most {MAX_DIMS} whole numbers, 0 or more")
    expect(strides is None or _is_sizes(strides), "the strides of a tensor", "None, or whole numbers, 0 or more")
    expect(type(requires_grad) is bool, "requires_grad of a tensor", "True or False")
    key = repr((kind, name, shape, strides, requires_grad))  # a text: a peer can choose tuples of equal hash
    if key not in storage.loaded:
        storage.loaded[key] = _load_tensor(*pid)
    return storage.loaded[key]


# Serialise


class _ThreadStorages(threading.local):
    """The storages of the pickling that runs in this thread. Pickle's memo keeps them alive until it ends."""

    def __init__(self) -> None:
        self.storages: weakref.WeakValueDictionary[Hashable, Storage] = weakref.WeakValueDictionary()


_current = _ThreadStorages()


class _WritableView:
    """The memory of `owner` for numpy, writable even if the owner is read-only.

    Pickle marks a read-only buffer as such, and the receiver needs writable tensors. The sender never writes to it.
    """

    __slots__ = ("_address", "_nbytes", "owner")

    def __init__(self, owner: Any, address: int, nbytes: int) -> None:
        self.owner = owner
        self._address = address
        self._nbytes = nbytes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "|u1", "shape": (self._nbytes,), "data": (self._address, False)}


def _dump_numpy(array: NDArray[Any]) -> Any | None:
    name = array.dtype.str
    if name not in _NUMPY:
        return None
    strides: Strides = None
    if not array.flags.c_contiguous:
        if not any(stride % array.itemsize for stride in array.strides):
            strides = _dense_strides(array.shape, [stride // array.itemsize for stride in array.strides])
        if strides is None:
            array = array.copy(order="C")
    address = array.__array_interface__["data"][0]
    return "numpy", _storage("cpu", address, array.nbytes, array), name, array.shape, strides, False


def dump_plain(obj: Any) -> Any | None:
    """Do as `dump`, but return the number of a numpy scalar."""
    return _number(obj) if isinstance(obj, np.generic) else dump(obj)


def _number(scalar: np.generic) -> Any | None:
    return scalar.item() if scalar.dtype.kind in "biuf" and scalar.itemsize <= 8 else None


def _dump_torch(torch: Any, tensor: Any, kind: str) -> Any | None:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TORCH or tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
        return None
    shape = tuple(tensor.shape)
    source = tensor.detach().resolve_conj().resolve_neg()
    strides: Strides = None
    # torch infers a memory format (channels last) also from the strides of dimensions of size 1, so they are sent
    if not source.is_contiguous() or (1 in shape and source.numel()):
        strides = _dense_strides(shape, source.stride())
        if strides is None:
            source = source.contiguous()
    nbytes = source.numel() * source.itemsize
    if len(shape) > MAX_DIMS or (nbytes and not source.data_ptr()):
        return None
    storage = _storage(str(source.device), source.data_ptr(), nbytes, source)
    return kind, storage, name, shape, strides, tensor.requires_grad


def _storage(device: str, address: int, nbytes: int, owner: Any) -> Storage:
    """Return the Storage of this memory; the same one for each tensor of a message that uses the memory."""
    if nbytes == 0:
        return Storage(bytearray())
    key = (device, address, nbytes)
    storage = _current.storages.get(key)
    if storage is None:
        storage = Storage(np.asarray(_writable_view(device, address, nbytes, owner)))
        _current.storages[key] = storage
    return storage


def _writable_view(device: str, address: int, nbytes: int, owner: Any) -> _WritableView:
    if device == "cpu":
        return _WritableView(owner, address, nbytes)
    here = owner.cpu()  # keeps dense strides
    return _WritableView((owner, here), here.data_ptr(), nbytes)


def _dense_strides(shape: Sequence[int], strides: Sequence[int]) -> Strides:
    """Return the strides if the elements have no gap and no overlap, else None.

    The stride of a dimension of size 1 may be any number; it is limited, so that the receiver accepts it.
    """
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != expected:
                return None
            expected *= size
    return tuple(min(max(stride, 0), expected) for stride in strides)


# Deserialise


def _load_tensor(kind: str, storage: Storage, name: str, shape: tuple[int, ...], strides: Strides, grad: bool) -> Any:
    torch = None if kind == "numpy" else _torch()
    dtype = _numpy_dtype(kind, name) if torch is None else _torch_dtype(torch, name)
    what, memory = f"{kind} {name} of shape {shape}", storage.memory
    nbytes = math.prod(shape) * dtype.itemsize
    expect(nbytes == memory.nbytes, f"the memory of {what}, of {memory.nbytes} bytes", f"{nbytes}")
    dense = strides is None or (len(strides) == len(shape) and _dense_strides(shape, strides) == strides)
    expect(dense, f"the strides of {what}", "one for each dimension, without gap or overlap")
    expect(not memory.readonly, "the memory of the message", "writable memory, such as a bytearray")
    if not storage.are_bools:  # once, though a message may view the memory in many shapes
        _check_bools(name, memory)
        storage.are_bools = name in _BOOLS
    try:
        if torch is None:
            in_bytes = None if strides is None else [stride * dtype.itemsize for stride in strides]
            return np.ndarray(shape, dtype, memory, strides=in_bytes)
        tensor = _torch_view(torch, storage, dtype, shape, strides)
        return torch.nn.Parameter(tensor, grad) if kind == "parameter" else tensor.requires_grad_(grad)
    except (ValueError, RuntimeError, OverflowError) as error:
        raise Unreadable(f"{what} cannot be made: {error}") from error


def _torch_view(torch: Any, storage: Storage, dtype: Any, shape: tuple[int, ...], strides: Strides) -> Any:
    if storage.memory.nbytes == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    if storage.torch_storage is None:
        storage.torch_storage = torch.frombuffer(storage.memory, dtype=torch.uint8).untyped_storage()
    tensor = torch.empty(0, dtype=dtype, device="cpu")
    layout = (shape,) if strides is None else (shape, strides)
    return tensor.set_(storage.torch_storage, 0, *layout)


def _numpy_dtype(kind: str, name: str) -> np.dtype[Any]:
    known = _NUMPY if kind == "numpy" else _TORCH
    expect(name in known, f"the dtype of a {kind} tensor", f"one of {', '.join(known)}")
    dtype = known[name]
    if dtype is None:
        raise Unreadable(f"a torch.{name} tensor came, and numpy has no such dtype; import torch first, then get it")
    return dtype


def _torch_dtype(torch: Any, name: str) -> Any:
    dtype = getattr(torch, name, None) if name in _TORCH else None
    expect(dtype is not None, "the dtype of a torch tensor", f"one of {', '.join(_TORCH)}, as far as torch has it")
    return dtype


def _check_bools(name: str, memory: memoryview | bytes) -> None:
    """Raise Unreadable for a bool that is neither 0 nor 1: computing with such a bool is undefined."""
    if name in _BOOLS:
        expect(np.frombuffer(memory, np.uint8).max(initial=0) <= 1, "a bool", "0 or 1")


def _is_sizes(value: Any) -> bool:
    if type(value) is not tuple or len(value) > MAX_DIMS:
        return False
    return all(is_whole(size, 0, _MAX_SIZE) for size in value)


def expect(right: bool, what: str, expected: str) -> None:
    """Raise Unreadable unless a field of a message is right."""
    if not right:
        raise Unreadable(f"{what}: expected {expected}")


def _torch() -> Any | None:
    """Return torch if this program has imported it, else None. Waits while another thread imports it."""
    if sys.modules.get("torch") is None:
        return None
    import torch

    return torch


# What a file can hold


def _refuse(module: str, name: str) -> Any:
    raise TypeError(f"has a {module}.{name} in it")


class _Checker(pickle.Pickler):
    """Visits a value as pickling does, without writing the data of arrays."""

    def persistent_id(self, obj: Any) -> Any:
        is_scalar = isinstance(obj, np.generic) and obj.dtype.str in _NUMPY
        return True if is_scalar or dump(obj) is not None else None

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        raise TypeError(f"has a {kind.__module__}.{kind.__qualname__} in it")
