"""A callback for TensorBoard. Runs in the server's thread; imports torch and tensorboard when it is made."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
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
        self._open = partial(SummaryWriter, os.fspath(folder))
        self._writer: Any = self._open()

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Write the round's numbers."""
        if self._writer is None:  # a full disk, for example, has ended the thread of the one before
            self._writer = self._open()
        try:
            for name, value in scalars(report).items():
                self._writer.add_scalar(name, value, report.number)
            self._writer.flush()
        except OSError:
            with suppress(OSError):
                self.close()
            self._writer = None
            raise

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
