"""Checks that values can be stored."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

from fl.tensors import serialization
from netq.utils import data_pickle


def unserializable(values: Mapping[str, Any]) -> str:
    """Return an error message for the first value that cannot be serialised or loaded again, or an empty string.

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


def _refuse(module: str, name: str) -> Any:
    raise TypeError(f"has a {module}.{name} in it")


class _Checker(pickle.Pickler):
    """Visits a value as pickling does, without writing the data of arrays."""

    def persistent_id(self, obj: Any) -> Any:
        return None if serialization.dump(obj) is None else True

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        raise TypeError(f"has a {kind.__module__}.{kind.__qualname__} in it")
