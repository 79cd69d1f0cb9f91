"""netq's own forms of values in pickles. Pure; called by PickleSerializer.

Most values are pickled as their classes define it. `reduce` has forms of netq for the others: what numpy, torch and
pathlib write depends on their versions, or copies the bytes. The functions that a message names, `array` and those
below it, make the values again; so they keep their names and arguments. Memory travels out of band, in the order in
which it lies; arrays with gaps, or that repeat elements, are copied first. An array that is read-only arrives so.

netq/utils/data_values.py checks the arguments of `array` and `scalar` if they come from a peer that is not trusted.
Never imports numpy or torch before a message brings such a value.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from pickle import PickleBuffer
from types import BuiltinFunctionType
from typing import Any

_STEP = 16 * 1024 * 1024  # bytes that one call copies with the interpreter's lock held: some milliseconds
_MOVED = ("numpy._core.multiarray", "numpy.core.multiarray", "numpy.rec")  # modules that not every numpy has
_CODES = tuple("bBhHiIlLqQnNfdc?")  # formats that a memoryview can be cast to
_BUILTIN_DTYPES = 24  # numbers of numpy's own dtypes are lower

Axes = tuple[int, ...] | None  # of the value, in the order of the axes in memory; None: as they lie


def reduce(value: Any) -> Any:
    """Return what a `__reduce__` returns; NotImplemented if pickle does not need a form of netq for this value."""
    form = _FORMS.get(type(value).__module__)
    return NotImplemented if form is None else form(value)


# What messages name


def array(memory: Any, dtype: Any, shape: tuple[int, ...], axes: Axes) -> Any:
    """Return an array of numpy on this memory, whose axes are transposed afterwards."""
    import numpy

    made = numpy.ndarray(shape, dtype, memory)
    return made if axes is None else made.transpose(axes)


def scalar(dtype: Any, value: bytes) -> Any:
    """Return a scalar of numpy."""
    import numpy

    return numpy.ndarray((), dtype, value)[()]


def structure(kind: Any, fields: Any, align: bool) -> Any:
    """Return a dtype with fields."""
    import numpy

    return numpy.dtype((kind, numpy.dtype(fields, align=align)))


def moved(name: str) -> Any:
    """Return a class, or a function of the pickles of numpy, whose module has another name in other versions."""
    import numpy

    home = sys.modules[numpy.empty(0).__reduce__()[0].__module__]
    return getattr(numpy, name, None) or getattr(home, name)


def tensor(memory: Any, dtype: str, shape: tuple[int, ...], axes: Axes, kind: str, requires_grad: bool) -> Any:
    """Return a tensor of torch on this memory, or a "Parameter"."""
    import torch

    name = getattr(torch, dtype)
    flat = torch.frombuffer(memory, dtype=torch.uint8).view(name) if len(memory) else torch.empty(0, dtype=name)
    made = flat.view(shape) if axes is None else flat.view(shape).permute(axes)
    return torch.nn.Parameter(made, requires_grad) if kind == "Parameter" else made.requires_grad_(requires_grad)


def typed(code: str, memory: memoryview) -> Any:
    """Return an `array.array`: a copy of the memory."""
    import array

    made = array.array(code)
    for start in range(0, len(memory), _STEP):
        made.frombytes(memory[start : start + _STEP])
    return made


def view(memory: memoryview, code: str, shape: tuple[int, ...]) -> memoryview:
    """Return a memoryview of this memory."""
    return memory.cast(code) if len(shape) == 1 else memory.cast(code, shape)  # type: ignore[call-overload,no-any-return]


def path(name: str, *parts: str) -> pathlib.PurePath:
    """Return a path. Python 3.13 has its classes in a module of their own."""
    kind: type[pathlib.PurePath] = getattr(pathlib, name)
    return kind(*parts)


# What the sender makes of a value


def _numpy(value: Any) -> Any:
    numpy = sys.modules["numpy"]
    if type(value) is numpy.ndarray:
        return NotImplemented if value.dtype.hasobject else _array(value)
    if isinstance(value, numpy.dtype):
        return _numpy_dtype(numpy, value)
    if isinstance(value, numpy.generic) and type(value) is value.dtype.type and not value.dtype.hasobject:
        dtype = dtype_of(value)
        return scalar, (_dtype(dtype), value.tobytes() or bytes(dtype.itemsize))
    return NotImplemented


def _numpy_dtype(numpy: Any, dtype: Any) -> Any:
    if is_plain(dtype):
        return numpy.dtype, (dtype.str,)
    if dtype.names is None or dtype.metadata is not None:
        return NotImplemented
    fields = [dtype.fields[name] for name in dtype.names]
    parts = {
        "names": list(dtype.names),
        "formats": [field[0].subdtype or field[0] for field in fields],
        "offsets": [field[1] for field in fields],
        "titles": [field[2] if len(field) > 2 else None for field in fields],
        "itemsize": dtype.itemsize,
    }
    return structure, (dtype.type, parts, dtype.isalignedstruct)


def dtype_of(value: Any) -> Any:
    """Return the dtype of an array, a subclass of it, or a scalar; None for all else.

    That of an empty text has one character, as in an array of numpy: a size of 0 stands for any size.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    return value.dtype if value.dtype.itemsize else numpy.asarray(value).dtype


def is_plain(dtype: Any) -> bool:
    """Return whether `str` says all of this dtype: numbers, texts and dates of numpy itself, no structures."""
    is_single = dtype.names is None and dtype.subdtype is None
    return is_single and dtype.num < _BUILTIN_DTYPES and dtype.metadata is None


def _dtype(dtype: Any) -> Any:
    return dtype.str if is_plain(dtype) else dtype


def _array(value: Any) -> Any:
    axes: Axes = None
    if not value.flags.c_contiguous:
        order = _order(value.strides)
        if value.transpose(order).flags.c_contiguous:
            value, axes = value.transpose(order), _inverse(order)
        else:
            value = value.copy(order="C")
    memory = value.reshape(-1).view("u1") if value.nbytes else bytearray()
    return array, (PickleBuffer(memory), _dtype(value.dtype), value.shape, axes)


def _order(strides: Sequence[int]) -> list[int]:
    """Return the axes, that with the longest stride first."""
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _torch(value: Any) -> Any:
    """Return the form of a dense tensor in memory of the CPU, which is not copied. That of torch copies all bytes."""
    torch = sys.modules["torch"]
    kind = type(value)
    if kind not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided or value.__dict__:
        return NotImplemented
    is_dense = value.device.type == "cpu" and not (value.is_nested or value.is_quantized)
    if not is_dense or value._backward_hooks or "numpy" not in sys.modules:
        return NotImplemented
    source, axes = value.detach().resolve_conj().resolve_neg(), None
    if not source.is_contiguous():
        order = _order(source.stride())
        if source.permute(order).is_contiguous():
            source, axes = source.permute(order), _inverse(order)
        else:
            source = source.contiguous()
    name = str(value.dtype).removeprefix("torch.")
    # The stride of one element may be any number, and `view` needs 1.
    flat = source.as_strided((source.numel(),), (1,))
    memory = flat.view(torch.uint8).numpy() if len(flat) else bytearray()
    fields = (name, tuple(source.shape), axes, kind.__name__, value.requires_grad)
    return tensor, (PickleBuffer(memory), *fields)


def _builtin(value: Any) -> Any:
    if type(value) is memoryview and value.c_contiguous and (value.ndim == 1 or value.nbytes):
        if value.format not in _CODES:
            return NotImplemented
        return view, (PickleBuffer(value), value.format, value.shape)
    if type(value) in (type, BuiltinFunctionType) and value.__module__ in _MOVED:
        return moved, (value.__name__,)
    return NotImplemented


def _typed(value: Any) -> Any:
    kind = sys.modules["array"].array
    return (typed, (value.typecode, PickleBuffer(value))) if type(value) is kind else NotImplemented


def _path(value: Any) -> Any:
    return (path, (type(value).__name__, *value.parts)) if isinstance(value, pathlib.PurePath) else NotImplemented


_FORMS = {
    "numpy": _numpy,
    "numpy.dtypes": _numpy,
    "torch": _torch,
    "torch.nn.parameter": _torch,
    "builtins": _builtin,
    "array": _typed,
    "pathlib._local": _path,
}
