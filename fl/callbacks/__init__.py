"""Callbacks of a server: progress, files, TensorBoard, MLflow, Prometheus, plots. None of them changes a round.

May import fl.messages, fl.report and fl.errors.
"""

from fl.callbacks import jsonl, plots

__all__ = ["jsonl", "plots"]
