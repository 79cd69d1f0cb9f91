"""Without Flower, only test_absence.py runs: it tests that fl works without Flower."""

from __future__ import annotations

import ast
import importlib.util
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = importlib.util.find_spec("flwr") is not None

if HERE:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of click, about typer
        import flwr.serverapp  # noqa: F401
    logging.getLogger("flwr").setLevel(logging.ERROR)


@pytest.fixture(autouse=True)
def one_parser_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one thread at a time parse the header of an .npy file, as CPython before 3.11.8 needs it (gh-106905).

    Nodes are threads in these tests, and Flower's mods read Flower's own arrays: by np.load, with Python's parser.
    """
    parse, lock = ast.literal_eval, threading.RLock()

    def literal_eval(text: Any) -> Any:
        with lock:
            return parse(text)

    monkeypatch.setattr(ast, "literal_eval", literal_eval)


@pytest.fixture
def modules_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the modules of delivered apps, which nodes in this process have imported."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "farm":
            del sys.modules[name]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore test files that need Flower; test_absence.py reports this as a skip."""
    return (
        True
        if not HERE and collection_path.name.startswith("test_") and "absence" not in str(collection_path)
        else None
    )
