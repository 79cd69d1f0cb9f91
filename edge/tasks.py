"""Does the tasks of a federation in the child process: the user's functions, with the device's settings.

Adds to the metrics of each reply what the function has used (edge/usage.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edge.usage import Usage
from fl.compression.auto import AUTO
from fl.compression.compressor import Compression, as_compression
from fl.compression.packed import Unpacked
from fl.envelope import Described, Finished, Job
from fl.errors import InvalidUpdate
from fl.homomorphic.codec import HEADER
from fl.messages import MESSAGES, WITH_VALUES, Content, Description, Report, Task, Update
from fl.tensors import files
from fl.tensors.dtypes import TORCH_ONLY
from fl.tensors.model import check_specs
from fl.tensors.roles import SENT, of_role
from fl.tensors.serialization import own_file, unserializable
from fl.tensors.spec import DTYPES, Model, specs_of
from fl.trainer import Trainer, finished
from netq.errors import InvalidOption
from netq.options import UNLIMITED
from netq.text import printable
from netq.toml_file import function
from netq.utils.stream import Stream

_STATE = own_file()


class TrainingTasks:
    """The functions of a device. Raises InvalidOption, which names table and key.

    train, evaluate: "module:function".
    compression:     its fields by name, its text, or "auto"; None: as the server says.
    settings:        joined to the config of each task, and stronger than it.
    model:           the file for the last model; None: `store` is not called.
    largest:         bytes of the largest message that the device takes.
    columns:         "module:function", with the settings as its config. None: there are no statistics.
    min_count:       as of fl.Client.
    """

    def __init__(
        self,
        train: str,
        evaluate: str | None,
        compression: Mapping[str, Any] | str | None,
        settings: Mapping[str, Any],
        model: Path | None = None,
        largest: int = UNLIMITED,
        columns: str | None = None,
        min_count: int = 10,
    ) -> None:
        if model is not None:
            files.check_name(model, "model.path")
        self._model = model
        self._settings = settings
        self._largest = largest
        self._usage = Usage()
        functions = [
            None if name is None else self._measured(function(f"client.{key}", name, f"farm.training:{key}"))
            for key, name in (("train", train), ("evaluate", evaluate))
        ]
        assert functions[0] is not None
        packing = None if compression is None else _compression(compression)
        data = None if columns is None else function("client.columns", columns, "farm.training:columns")
        data = data and self._with_settings(data)
        self._trainer = Trainer(functions[0], functions[1], packing, columns=data, min_count=min_count)

    def answer(self, task: Stream, rate: float | None = None) -> Finished | str:
        """Do a task. Return the reply as bytes, or the reason why there is none. `rate`: see fl.trainer.Trainer.

        A Description in place of a task is tried out by a training with a model like the server's, of zeros. Its update
        has to be like the model. The state that it leaves is not for the next task: this process ends after it.
        """
        before = self._trainer.state, self._trainer.local
        message = WITH_VALUES.load(task)
        answer = self._try_out(message) if isinstance(message, Described) else self._trainer.answer(message, rate)
        if wrong := unserializable(self._trainer.state):
            self._trainer.state, self._trainer.local = before
            return f"config['state'] cannot be kept: {wrong}"
        return answer

    def _try_out(self, described: Described) -> Finished | str:
        try:
            description = MESSAGES.load(described.stream)
            check_size(described_size(description), self._largest)
            trial = _trial(description)
        except InvalidUpdate as error:
            return str(error)
        content = self._trainer.do(trial, what="the trial of a training")
        if isinstance(content, str):
            return content
        return _unlike(trial, content) or finished(trial.job, content)

    def keeps(self, answer: Finished) -> bool:
        """Return whether an answer is to be kept: an evaluation changes no state, and can be repeated."""
        purpose: str = answer.job.purpose
        return purpose == "train"

    def store(self, final: Stream) -> None:
        """Write the last model, with the local tensors of this device. Raises InvalidOption, OSError."""
        assert self._model is not None
        model = {**MESSAGES.load(final).model, **self._trainer.local}
        if HEADER in model:
            raise InvalidOption("it is encrypted, and this device has no key; expected secure.key (fl secure-key)")
        self._check_file(model)
        files.save(self._model, model)

    def save(self) -> Stream:
        """Return the state after the last task."""
        saved = self._trainer.save()
        return _STATE.dump(saved) if saved else Stream()

    def restore(self, state: Stream) -> None:
        """Go on from a state. Raises ValueError, Unreadable."""
        self._trainer.restore(_STATE.load(state))

    def _check_file(self, model: Model) -> None:
        """Raise InvalidOption for a model that the owner's file cannot hold."""
        if self._model is not None:
            files.check(self._model, model, "model.path")

    def _with_settings(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda config: function({**config, **self._settings})

    def _measured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with the device's settings in its config, and with what it used in its metrics."""

        def measured(model: Any, config: Mapping[str, Any]) -> Any:
            self._check_file(model)  # now: at the end it would be too late
            self._usage.begin()
            content = function(model, {**config, **self._settings})
            known = isinstance(content, Update | Report)
            return replace(content, metrics={**content.metrics, **self._usage.measured()}) if known else content

        measured.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)
        return measured


def described_size(description: Description) -> int:
    """Return the bytes of the server's model. Raises InvalidUpdate for a dtype that no model has."""
    size = 0
    for name, (shape, dtype, is_torch) in description.tensors.items():
        if dtype not in DTYPES or (dtype in TORCH_ONLY and not is_torch):
            tensor = f"the tensor {printable(repr(name), 100)} as {printable(repr(dtype), 100)}"
            known = ", ".join(DTYPES)
            raise InvalidUpdate(f"the server describes {tensor}; expected one of {known}: it has another version of fl")
        bits = re.search("[0-9]+", dtype)
        size += math.prod(shape) * (1 if bits is None else int(bits[0]) // 8)  # bool has a byte
    return size


def check_size(size: int, largest: int) -> None:
    """Raise InvalidUpdate if the server cannot send a model of this size to this device."""
    if size > largest:
        raise InvalidUpdate(
            f"the server's model has {size / 1e6:.3g} MB, and this device takes messages of {largest / 1e6:.3g} MB at "
            "most, so the server cannot send it. The limit is connection.message_size; if the file has none, the "
            "smaller of training.memory and a fifth of the memory here"
        )


def _trial(description: Description) -> Task:
    """Return a task as the server describes it, with a model of zeros."""
    return Task(
        Job(0, description.round, "train"),
        {name: _zeros(*tensor) for name, tensor in description.tensors.items()},
        description.config,
        deltas=description.deltas,
        compression=description.compression,
        roles=description.roles,
    )


def _zeros(shape: tuple[int, ...], dtype: str, is_torch: bool) -> Any:
    if not is_torch:
        return np.zeros(shape, dtype)
    import torch

    return torch.zeros(shape, dtype=getattr(torch, dtype))


def _unlike(trial: Task, content: Content) -> str:
    """Return why the update of a trial is not like its model; "" if it is, or if there is none."""
    if not isinstance(content, Update):
        return ""
    try:
        sent = of_role(trial.model, trial.roles, *SENT)
        check_specs(Unpacked(content.model, sent, deltas=trial.deltas), specs_of(sent))
    except InvalidUpdate as error:
        return f"the update is not like the model, and most strategies refuse it: {error}"
    return ""


def _compression(value: Mapping[str, Any] | str) -> Compression | str:
    if value == AUTO:
        return AUTO
    try:
        return as_compression(value)
    except ValueError as error:
        reason = str(error).removeprefix("compression: ")
        hint = '; or "auto" in place of all' if isinstance(value, str) else ""
        raise InvalidOption(f"client.compression: {reason}{hint}") from None
    except ImportError as error:
        raise InvalidOption(f"client.compression: {value!r}; {error}") from None
