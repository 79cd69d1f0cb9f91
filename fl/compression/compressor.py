"""The client's part of compression: packs the change of a model, and keeps what was not sent for the next update.

`Compression` holds the options, `Compressor` applies them. The server's part is fl/compression/packed.py. One thread
calls this module, the client's. It never sees a peer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fl.compression import quantize, sparse
from fl.compression.packed import Packed, zstandard
from fl.errors import InvalidUpdate
from fl.tensors.blocks import Source, pairs_of_blocks, sources
from fl.tensors.dtypes import DELTA_DTYPES
from fl.tensors.spec import Model, specs_of
from netq.errors import InvalidOption
from netq.text import did_you_mean
from netq.validate import expect, flag, is_number, is_whole

CODINGS = ("float16", "bfloat16", "int8", "int4")
_DTYPES = f"None or one of {', '.join(CODINGS)}"
_MAX_LEVEL = 19  # of zstd; higher levels need much more memory


@dataclass(frozen=True)
class Compression:
    """How clients pack the changes of a model. Raises InvalidOption. Text form: "int8, top_k=0.1, zstd=3", or "none".

    dtype:          of the values that are sent: "float16", "bfloat16", "int8" or "int4"; None: the tensor's own.
    top_k:          fraction of each tensor's elements that is sent, above 0, at most 1: those of the largest magnitude.
                    None: all.
    zstd:           level of Zstandard, 1 to 19; None: no compression of the bytes. Needs zstandard.
    error_feedback: whether what was not sent is added to the next change.

    Sources: Alistarh et al., 2017 (QSGD: int8 and int4, see fl/compression/quantize.py); Aji and Heafield, 2017,
    "Sparse communication for distributed gradient descent" (top_k).
    """

    dtype: str | None = None
    top_k: float | None = None
    zstd: int | None = None
    error_feedback: bool = True

    def __post_init__(self) -> None:
        dtype, top_k, zstd = self.dtype, self.top_k, self.zstd
        expect(dtype is None or (isinstance(dtype, str) and dtype in CODINGS), "dtype", dtype, _DTYPES)
        fraction = top_k is None or (is_number(top_k, 0, 1) and top_k > 0)
        expect(fraction, "top_k", top_k, "None, or more than 0 and 1 at most")
        expect(
            zstd is None or is_whole(zstd, 1, _MAX_LEVEL), "zstd", zstd, f"None, or a whole number of 1 to {_MAX_LEVEL}"
        )
        flag("error_feedback", self.error_feedback)
        object.__setattr__(self, "top_k", None if top_k is None else float(top_k))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the Compression of a text. Raises InvalidOption."""
        expect(isinstance(text, str), "compression", text, _FORM)
        options: dict[str, Any] = {}
        for word in text.split(",") if text.strip() != "none" else ():
            name, value = [part.strip() for part in (word if "=" in word else f"dtype={word}").split("=", 1)]
            expect(name in _READ and name not in options, "compression", text, _FORM)
            options[name] = _read(name, value)
        return cls(**options)

    def __str__(self) -> str:
        words = [] if self.dtype is None else [self.dtype]
        words += [f"{name}={value}" for name, value in (("top_k", self.top_k), ("zstd", self.zstd)) if value]
        words += [] if self.error_feedback else ["error_feedback=false"]
        return ", ".join(words) or "none"


def as_compression(value: Compression | Mapping[str, Any] | str) -> Compression:
    """Return a Compression from one, from its text or from its fields by name (a table of a TOML file, a Task).

    Raises InvalidOption, and ImportError if zstandard is needed and missing.
    """
    if isinstance(value, Mapping):
        known = [each.name for each in fields(Compression)]
        for name in value:
            if name not in known:
                raise InvalidOption(f"compression: there is no option {name!r}; {did_you_mean(str(name), known)}")
        value = Compression(**value)
    compression = value if isinstance(value, Compression) else Compression.parse(value)
    if compression.zstd is not None:
        zstandard()
    return compression


class Compressor:
    """Packs a client's updates, round after round, with error feedback.

    The residual is what was not sent: small elements, and rounding errors. It is added to the next change, and takes a
    float32 for each element. Raises ImportError if zstandard is needed and missing.

    seed:      of the random rounding; None: a random one.
    residuals: the residual of each tensor, flat. `pack` changes them.

    Sources: Stich et al., 2018, "Sparsified SGD with memory", algorithm 1; Karimireddy et al., 2019, "Error feedback
    fixes SignSGD and other gradient compression schemes", algorithm 2.
    """

    def __init__(self, compression: Compression, seed: int | None = None) -> None:
        self.compression = compression
        self._seed = seed
        self.residuals: dict[str, NDArray[Any]] = {}
        if compression.zstd is not None:
            zstandard()

    @functools.cached_property
    def _random(self) -> np.random.SFC64:
        """Made by the first update: a client that has sent none has no random state that a fork would copy."""
        return np.random.SFC64(self._seed)

    def reset(self) -> None:
        """Discard the residual: it belongs to another model."""
        self.residuals.clear()

    def pack(self, model: Model, start: Model) -> dict[str, Any]:
        """Return the packed update of a model that training has changed from `start`. Changes neither of them.

        Tensors of float16, bfloat16, float32 and float64 become Packed changes; others are returned unchanged. Raises
        InvalidUpdate, with the residual unchanged, if names, shapes or dtypes differ from those of `start`, or if a
        change is NaN, infinite, or above 2**126 (float32 and float64 that are sent in full have no such limit).
        """
        for name, new, old in _pairs(model, start):
            if new.spec.dtype in DELTA_DTYPES:
                self._check(name, new, old)
        return {
            name: self._pack(name, new, old) if new.spec.dtype in DELTA_DTYPES else model[name]
            for name, new, old in _pairs(model, start)
        }

    def _check(self, name: str, new: Source, old: Source) -> None:
        coding = self._coding(new.spec.dtype)
        limit = float(np.finfo(coding).max) if self._is_lossless(coding) else quantize.LIMIT
        residual = self._residual(name, new)
        for where, change in _changes(new, old):
            with np.errstate(over="ignore", invalid="ignore"):
                total = change if residual is None else change + residual[where]
                fits = -limit <= total.min() and total.max() <= limit  # False for NaN too
            if not fits:
                raise InvalidUpdate(
                    f"{name!r} has changed by NaN, infinity or more than {limit:.3g}, which cannot be packed: the "
                    "training has diverged, or its start was not finite"
                )

    def _pack(self, name: str, new: Source, old: Source) -> Packed:
        dtype, shape = new.spec.dtype, new.spec.shape
        coding = self._coding(dtype)
        values = self._values(name, new, old, coding)
        count = self._count(values.size)
        places = sparse.largest(values, count) if count < values.size else None
        sent = values if places is None else values[places]
        data = quantize.encode(sent, coding, self._random)
        if places is not None:
            data = np.concatenate([data, sparse.encode(places, values.size)])
        packed = Packed(dtype, shape, coding, sent.size, False, data)
        if self._keeps_residual(coding):
            self.residuals[name] = values
            for where, part in packed.blocks():
                values[where] -= part
        else:
            self.residuals.pop(name, None)  # of another compression before; it is sent now
        return packed if self.compression.zstd is None else packed.compressed(self.compression.zstd)

    def _values(self, name: str, new: Source, old: Source, coding: str) -> NDArray[Any]:
        """Return the change plus the residual, flat. Overwrites the residual."""
        wide = np.float64 if coding == "float64" else np.float32
        values: NDArray[Any] | None = self._residual(name, new)
        if values is None:
            values = np.zeros(new.spec.size, wide)
        elif values.dtype != wide:
            values = values.astype(wide)
        for where, change in _changes(new, old):
            values[where] += change
        return values

    def _residual(self, name: str, new: Source) -> NDArray[np.float32] | None:
        residual = self.residuals.get(name)
        return residual if residual is not None and residual.size == new.spec.size else None  # else of another model

    def _coding(self, dtype: str) -> str:
        if self.compression.dtype is not None:
            return self.compression.dtype
        narrow = dtype == "float64" and not self._sends_all  # the residual is a float32, so more precision is not used
        return "float32" if narrow else dtype

    def _count(self, size: int) -> int:
        return size if self.compression.top_k is None else min(size, max(1, round(self.compression.top_k * size)))

    @property
    def _sends_all(self) -> bool:
        return self.compression.top_k in (None, 1)

    def _is_lossless(self, coding: str) -> bool:
        return coding in ("float32", "float64") and self._sends_all

    def _keeps_residual(self, coding: str) -> bool:
        return self.compression.error_feedback and not self._is_lossless(coding)


def _pairs(model: Model, start: Model) -> Iterator[tuple[str, Source, Source]]:
    specs = specs_of(start)
    for (name, new), (_, old) in zip(sources(model, specs), sources(start, specs), strict=True):
        yield name, new, old


def _changes(new: Source, old: Source) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield slices of the flat tensor in C order, and the changes of their elements, as float32 or float64."""
    at, wide = 0, np.float64 if new.spec.dtype == "float64" else np.float32
    for one, other in pairs_of_blocks(new, old):
        with np.errstate(over="ignore", invalid="ignore"):
            change = np.subtract(one, other, dtype=wide)
        yield slice(at, at + one.size), change
        at += one.size


_FORM = '"none", or a dtype, top_k=…, zstd=… and error_feedback=…, with commas between'
_READ: dict[str, Callable[[str], Any]] = {
    "dtype": str,
    "top_k": float,
    "zstd": int,
    "error_feedback": lambda value: {"true": True, "false": False}.get(value, value),
}


def _read(name: str, value: str) -> Any:
    try:
        return _READ[name](value)
    except ValueError:
        return value  # which is then refused, and named
