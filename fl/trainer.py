"""Does the tasks of a server: calls the user's functions, and packs their updates. Knows no communicator.

Used by fl/client.py, and by the worker processes of fl/simulation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from fl.compression.compressor import Compression, Compressor, as_compression
from fl.errors import InvalidUpdate, describe
from fl.messages import Report, Task, Update
from fl.tensors.model import check_specs, copied, difference
from fl.tensors.spec import Model, Spec, specs_of
from netq.validate import expect

log = logging.getLogger("netq.fl")

Train = Callable[[Any, Mapping[str, Any]], Update]
Evaluate = Callable[[Any, Mapping[str, Any]], Report]


class Trainer:
    """The functions of a client, and the state of its compression. The arguments are those of fl.Client."""

    def __init__(
        self,
        train: Train,
        evaluate: Evaluate | None = None,
        compression: Compression | str | None = None,
        seed: int | None = None,
    ) -> None:
        for name, function in (("train", train), ("evaluate", evaluate)):
            right = callable(function) or (name == "evaluate" and function is None)
            expect(right, f"Client.{name}", function, "a function of a model and a config")
        self._functions: dict[str, Callable[[Any, Mapping[str, Any]], Update | Report] | None] = {
            "train": train,
            "evaluate": evaluate,
        }
        self._packing = _Packing(compression, seed)

    def do(self, task: Task) -> Update | Report | str:
        """Train or evaluate. Return the result, or the reason why there is none."""
        purpose, number = task.job.purpose, task.job.round
        function = self._functions[purpose]
        if function is None:
            return f"this client has no function to {purpose}"
        expected = Update if purpose == "train" else Report
        try:
            pack, like = self._packing.function_for(task), specs_of(task.model)
            start = copied(task.model) if pack is not None else {}
            content = function(task.model, {**task.config, "round": number})
            if not isinstance(content, expected):
                raise TypeError(f"{_name(function)} returned {type(content).__name__}; expected fl.{expected.__name__}")
            if isinstance(content, Update):
                _warn_if_unlike(number, content.model, like)
            if pack is not None and isinstance(content, Update):
                content = content.with_model(pack(content.model, start))
        except Exception as error:  # of the user's function: the server gets it as the reply
            known = isinstance(error, InvalidUpdate)  # its text says all; no traceback is needed
            why = describe(error)
            log.error("round %d: %s failed: %s", number, purpose, why, exc_info=not known)
            return why
        return content


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _warn_if_unlike(number: int, model: Model, like: Mapping[str, Spec]) -> None:
    """Warn of an update that is not like the model. It is sent all the same: some strategies accept such updates."""
    try:
        check_specs(model, like)
    except InvalidUpdate as error:
        log.warning("round %d: the update is not like the model, and most strategies refuse it: %s", number, str(error))


class _Packing:
    """Packs updates. Keeps the changes that compression left out of one update, and adds them to the next."""

    def __init__(self, compression: Compression | str | None, seed: int | None) -> None:
        self._seed = seed
        self._own = None if compression is None else as_compression(compression)
        self._compressor = Compressor(Compression())
        self._run: int | None = None  # of the server whose model was packed last

    def function_for(self, task: Task) -> Callable[[Model, Model], dict[str, Any]] | None:
        """Return a function that makes an update of the trained model and the model before. None: send the model."""
        if task.job.purpose != "train":
            return None
        compression = as_compression(task.compression) if self._own is None else self._own
        if compression == Compression():
            return difference if task.deltas else None
        if compression != self._compressor.compression:
            self._compressor = Compressor(compression, self._seed)
        if self._run != task.job.run:
            self._compressor.reset()
            self._run = task.job.run
        return self._compressor.pack
