"""Switches tests between the two codecs: netq/protocol/codec.py and netq/protocol/_codec.c."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from types import ModuleType
from unittest import mock

from netq.protocol import codec

FUNCTIONS = ("batch", "settle", "take")


def load_python() -> ModuleType:
    """Return netq/protocol/codec.py, without the compiled replacements."""
    spec = importlib.util.spec_from_file_location("netq.python_codec", codec.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(os.environ, NETQ_PURE="1"):
        spec.loader.exec_module(module)
    return module


PYTHON = load_python()


@contextlib.contextmanager
def use_python() -> Iterator[None]:
    """Use the Python functions of netq/protocol/codec.py, which can be interrupted at each bytecode."""
    with mock.patch.multiple(codec, **{name: getattr(PYTHON, name) for name in FUNCTIONS}):
        yield
