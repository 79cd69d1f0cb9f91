"""Callbacks of a server: progress, files, TensorBoard, MLflow, Prometheus, plots. None of them changes a round.

May import fl.messages, fl.report and fl.errors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl.callbacks import jsonl, plots

__all__ = ["jsonl", "plots"]


def __getattr__(name: str) -> Any:
    """Import a public module: `fl.callbacks.jsonl.read` needs no import but that of fl."""
    if name not in __all__:
        raise AttributeError(f"module 'fl.callbacks' has no attribute {name!r}")
    return importlib.import_module(f"fl.callbacks.{name}")
