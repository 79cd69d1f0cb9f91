"""Does the tasks of a federation in the child process: the user's functions, with the device's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fl.compression.compressor import Compression, as_compression
from fl.config.toml import function
from fl.outline import OUTLINES, Finished
from fl.tensors.checks import unserializable
from fl.tensors.serialization import serialization
from fl.trainer import Trainer
from netq.errors import InvalidOption
from netq.utils.stream import Stream

_STATE = serialization()


class TrainingTasks:
    """The functions of a device. Raises InvalidOption, which names table and key.

    train, evaluate: "module:function".
    compression:     its fields by name, or its text; None: as the server says.
    settings:        joined to the config of each task, and stronger than it.
    """

    def __init__(
        self, train: str, evaluate: str | None, compression: Mapping[str, Any] | str | None, settings: Mapping[str, Any]
    ) -> None:
        self._settings = settings
        functions = [
            None if name is None else self._with_settings(function(f"client.{key}", name, f"farm.training:{key}"))
            for key, name in (("train", train), ("evaluate", evaluate))
        ]
        assert functions[0] is not None
        self._trainer = Trainer(functions[0], functions[1], None if compression is None else _compression(compression))

    def answer(self, task: Stream) -> Finished | str:
        """Do a task. Return the reply as bytes, or the reason why there is none."""
        before = self._trainer.state
        answer = self._trainer.answer(OUTLINES.load(task))
        if wrong := unserializable(self._trainer.state):
            self._trainer.state = before
            return f"config['state'] cannot be kept: {wrong}"
        return answer

    def save(self) -> Stream:
        """Return the state after the last task."""
        saved = self._trainer.save()
        return _STATE.dump(saved) if saved else Stream()

    def restore(self, state: Stream) -> None:
        """Go on from a state. Raises ValueError, Unreadable."""
        self._trainer.restore(_STATE.load(state))

    def _with_settings(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda model, config: function(model, {**config, **self._settings})


def _compression(value: Mapping[str, Any] | str) -> Compression:
    try:
        return as_compression(value)
    except ValueError as error:
        raise InvalidOption(f"client.compression: {str(error).removeprefix('compression: ')}") from None
    except ImportError as error:
        raise InvalidOption(f"client.compression: {value!r}; {error}") from None
