"""A callback for TensorBoard. Runs in the server's thread; imports torch and tensorboard when it is made."""

from __future__ import annotations

import os
from typing import Any, Self

from fl.callbacks.base import Callback
from fl.callbacks.jsonl import missing, scalars
from fl.report import RoundReport
from fl.tensors.spec import Model


class TensorBoard(Callback):
    """Writes the scalars of each round into a folder that TensorBoard shows. A context manager."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise missing("fl.TensorBoard", "torch and tensorboard", "torch tensorboard", error) from error
        self._writer: Any = SummaryWriter(os.fspath(folder))

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Write the round's numbers."""
        for name, value in scalars(report).items():
            self._writer.add_scalar(name, value, report.number)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
