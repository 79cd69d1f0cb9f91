"""Does the tasks of a server: calls the user's functions, and packs their updates. Knows no communicator.

Used by fl/client.py, by the worker processes of fl/simulation, and by the child process of edge (edge/worker.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from fl.compression.auto import AUTO, choose
from fl.compression.compressor import Compression, Compressor, as_compression
from fl.errors import InvalidUpdate
from fl.messages import MESSAGES, Job, Reply, Report, Task, Update
from fl.outline import Finished
from fl.outline import Task as Outline
from fl.tensors.model import check_specs, copied, difference
from fl.tensors.spec import Model, Spec, nbytes, specs_of
from netq.errors import Unreadable
from netq.text import describe
from netq.validate import expect, is_function

log = logging.getLogger("netq.fl")

Train = Callable[[Any, Mapping[str, Any]], Update]
Evaluate = Callable[[Any, Mapping[str, Any]], Report]


class Trainer:
    """The functions of a client, and what they and the compression keep. The arguments are those of fl.Client.

    state: the dict that train gets as config["state"]. What train changes in it stays, unless train fails.
    """

    def __init__(
        self,
        train: Train,
        evaluate: Evaluate | None = None,
        compression: Compression | str | None = None,
        seed: int | None = None,
    ) -> None:
        for name, function in (("train", train), ("evaluate", evaluate)):
            right = is_function(function) or (name == "evaluate" and function is None)
            expect(right, f"Client.{name}", function, "a function of a model and a config, not an async one")
        self._functions: dict[str, Callable[[Any, Mapping[str, Any]], Update | Report] | None] = {
            "train": train,
            "evaluate": evaluate,
        }
        self._packing = _Packing(compression, seed)
        self.state: dict[str, Any] = {}

    def answer(self, task: Outline, rate: float | None = None) -> Finished | str:
        """Do a task that came as bytes. Return the reply as bytes, or the reason why there is none.

        rate: of the link to the server, in bytes a second; None: not measured.
        """
        log.info("round %d: %s", *task.job[1:])
        try:
            content = self.do(MESSAGES.load(task.stream), rate)
        except Unreadable as error:
            log.error("round %d: the task cannot be read: %s", task.job[1], error)
            return f"the task cannot be read: {error}"
        if isinstance(content, str):
            return content
        try:
            message = MESSAGES.dump(Reply(Job(*task.job), content))
        except Exception as error:  # serialising the user's values may raise anything
            log.error("an answer cannot be sent: %s", describe(error))
            return f"its answer cannot be sent: {describe(error)}"
        return Finished(task.job, message, content.nbytes if isinstance(content, Update) else 0)

    def do(self, task: Task, rate: float | None = None) -> Update | Report | str:
        """Train or evaluate. Return the result, or the reason why there is none."""
        purpose, number = task.job.purpose, task.job.round
        function = self._functions[purpose]
        if function is None:
            return f"this client has no function to {purpose}"
        expected = Update if purpose == "train" else Report
        try:
            packs, like = self._packing.packs(task), specs_of(task.model)
            start = copied(task.model) if packs else {}
            state = dict(self.state)
            begin = time.perf_counter()
            content = function(task.model, {**task.config, "round": number, "state": state})
            seconds = time.perf_counter() - begin
            if not isinstance(content, expected):
                raise TypeError(f"{_name(function)} returned {type(content).__name__}; expected fl.{expected.__name__}")
            if isinstance(content, Update):
                _warn_if_unlike(number, content.model, like)
            if packs and isinstance(content, Update):
                content = content.with_model(self._packing.pack(task, content.model, start, seconds, rate))
            if purpose == "train":
                self.state = state
        except Exception as error:  # of the user's function: the server gets it as the reply
            known = isinstance(error, InvalidUpdate)  # its text says all; no traceback is needed
            why = describe(error)
            text = "round %d: %s failed: %s; the server is told, and gives this client its next task"
            log.error(text, number, purpose, why, exc_info=not known)
            return why
        return content

    def save(self) -> dict[str, Any]:
        """Return what another Trainer needs to go on as this one would: plain values, arrays and tensors by name.

        Empty if there is nothing. The arrays are not copied.
        """
        saved = self._packing.save()
        return {**saved, "state": self.state} if saved or self.state else {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `save` has returned. Changes its arrays later. Raises ValueError for other values."""
        try:
            self._packing.restore(saved)
            self.state = dict(saved["state"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"these are no values of a Trainer: {describe(error)}") from error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _warn_if_unlike(number: int, model: Model, like: Mapping[str, Spec]) -> None:
    """Warn of an update that is not finite, or not like the model. It is sent all the same: some strategies take it."""
    try:
        check_specs(model, like)
    except InvalidUpdate as error:
        log.warning("round %d: most strategies refuse this update: %s", number, str(error))


class _Packing:
    """Packs updates. Keeps the changes that compression left out of one update, and adds them to the next."""

    def __init__(self, compression: Compression | str | None, seed: int | None) -> None:
        self._seed = seed
        self._own = compression if compression in (None, AUTO) else as_compression(compression)
        self._compressor = Compressor(Compression())
        self._run: int | None = None  # of the server whose model was packed last

    def save(self) -> dict[str, Any]:
        """Return the residual, and what it belongs to. Empty if there is none."""
        residuals = self._compressor.residuals
        compression = str(self._compressor.compression)
        return {"residuals": residuals, "compression": compression, "run": self._run} if residuals else {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `save` has returned."""
        if "residuals" in saved:
            self._use(as_compression(saved["compression"]))
            self._compressor.residuals.update(saved["residuals"])
            self._run = saved["run"]

    def packs(self, task: Task) -> bool:
        """Return whether an update is made of the trained model and the model before. False: the model is sent."""
        return task.job.purpose == "train" and (task.deltas or self._compression(task) != Compression())

    def pack(self, task: Task, model: Model, start: Model, seconds: float, rate: float | None) -> dict[str, Any]:
        """Return the update of a model that was trained for `seconds`. Raises InvalidUpdate."""
        compression = self._compression(task)
        if isinstance(compression, str):
            compression = choose(nbytes(start), sum(spec.size for spec in specs_of(start).values()), seconds, rate)
            log.info("round %d: %s", task.job.round, _why(compression, rate))
        elif compression == Compression():
            return difference(model, start)
        if self._run != task.job.run:
            self._compressor.reset()
            self._run = task.job.run
        self._use(compression)
        return self._compressor.pack(model, start)

    def _compression(self, task: Task) -> Compression | str:
        return as_compression(task.compression) if self._own is None else self._own

    def _use(self, compression: Compression) -> None:
        """Pack so from now on. What was not sent before is still to be sent."""
        if compression != self._compressor.compression:
            residuals = self._compressor.residuals
            self._compressor = Compressor(compression, self._seed)
            self._compressor.residuals.update(residuals)


def _why(compression: Compression, rate: float | None) -> str:
    link = "the link is not measured yet" if rate is None else f"the link takes {rate / 1000:.1f} kB a second"
    return f"{link}; compression {compression}"
