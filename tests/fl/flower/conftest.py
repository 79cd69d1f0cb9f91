"""Without Flower, only test_absence.py runs: it tests that fl works without Flower."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from pathlib import Path

HERE = importlib.util.find_spec("flwr") is not None

if HERE:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of click, about typer
        import flwr.serverapp  # noqa: F401
    logging.getLogger("flwr").setLevel(logging.ERROR)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore test files that need Flower; test_absence.py reports this as a skip."""
    return (
        True
        if not HERE and collection_path.name.startswith("test_") and "absence" not in str(collection_path)
        else None
    )
