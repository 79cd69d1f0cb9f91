"""Does the tasks of a server: calls the user's functions, and packs their updates. Knows no communicator.

Used by fl/client.py, by the worker processes of fl/simulation, and by the child process of edge (edge/worker.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from fl.column_statistics import Query
from fl.compression.auto import AUTO, choose
from fl.compression.compressor import Compression, Compressor, as_compression
from fl.envelope import Finished, Job
from fl.envelope import Task as Envelope
from fl.errors import InvalidUpdate
from fl.homomorphic.client import Encrypting
from fl.messages import (
    MESSAGES,
    Answered,
    Content,
    Masked,
    Reply,
    Report,
    Secured,
    Skip,
    Task,
    Update,
    build,
    counted,
    with_fields,
)
from fl.secure.masker import Masker, Protection
from fl.subtotal import Subtotal
from fl.tensors.blocks import Scratch, check_finite, sources
from fl.tensors.model import copied, difference
from fl.tensors.roles import SENT, Roles, equal, of_role
from fl.tensors.spec import Model, Spec, nbytes, specs_of
from netq.errors import SecurityError, Unreadable
from netq.text import describe
from netq.validate import expect, is_function, whole

log = logging.getLogger("netq.fl")

_NONE = Compression()

Train = Callable[[Any, Mapping[str, Any]], Update | Skip]
Evaluate = Callable[[Any, Mapping[str, Any]], Report | Skip]
Columns = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Trainer:
    """The functions of a client, and what they and the compression keep. The arguments are those of fl.Client.

    state: the dict that train gets as config["state"]. What train changes in it stays, unless train fails. A Skip is no
           failure.
    local: the model's local tensors, of the last training: train and evaluate get them back with the next model.
    """

    def __init__(
        self,
        train: Train,
        evaluate: Evaluate | None = None,
        compression: Compression | str | None = None,
        seed: int | None = None,
        columns: Columns | None = None,
        min_count: int = 10,
    ) -> None:
        for name, function in (("train", train), ("evaluate", evaluate)):
            right = is_function(function) or (name == "evaluate" and function is None)
            expect(right, f"Client.{name}", function, "a function of a model and a config, not an async one")
        right = columns is None or is_function(columns)
        expect(right, "Client.columns", columns, "a function of a config, not an async one")
        self._columns = columns
        self._min_count = whole("Client.min_count", min_count, 1)
        self._functions: dict[str, Callable[[Any, Mapping[str, Any]], Content] | None] = {
            "train": train,
            "evaluate": evaluate,
        }
        self._packing = _Packing(compression, seed)
        self._warns = True  # of an update that most strategies refuse
        self.state: dict[str, Any] = {}
        self.local: dict[str, Any] = {}

    def packs(self, task: Task) -> bool:
        """Return whether the update of a task is packed, or sent as a difference."""
        return self._packing.packs(task)

    def begin_anew(self, kept: Mapping[str, Any], seed: int | None) -> None:
        """Become the trainer of another client, with the same functions and compression.

        kept: what `save` of it has returned. seed: of its random rounding. Updates are checked elsewhere.
        """
        self._warns = False
        self.state, self.local = {}, {}
        self._packing.begin_anew(seed)
        if kept:
            self.restore(kept)

    @property
    def seed(self) -> int | None:
        """Of the random rounding, if the client has one of its own."""
        return self._packing.own_seed

    @property
    def evaluates(self) -> bool:
        """Whether there is a function to evaluate."""
        return self._functions["evaluate"] is not None

    def answer(self, task: Envelope, rate: float | None = None, masker: Masker | None = None) -> Finished | str:
        """Do a task that came as bytes. Return the reply as bytes, or the reason why there is none.

        rate:   of the link to the server, in bytes a second; None: not measured.
        masker: this client's part in secure aggregation.
        """
        is_step = task.job.purpose == "secure"
        log.log(logging.DEBUG if is_step else logging.INFO, "round %d: %s", task.job.round, task.job.purpose)
        try:
            whole: Any = MESSAGES.load(task.stream) if task.values is None else build(task.values)
            content = self._do_masked(whole, rate, None if masker is None else masker.begin(whole))
        except Unreadable as error:
            log.error("round %d: the task cannot be read: %s", task.job.round, error)
            return f"the task cannot be read: {error}"
        except (InvalidUpdate, SecurityError) as error:
            if is_step:  # which has a number of its own; the server says what comes of it
                log.info("a step of secure aggregation: %s", error)
            else:
                log.error("round %d: %s", task.job.round, error)
            return str(error)
        return content if isinstance(content, str) else finished(task.job, content)

    def _do_masked(
        self, task: Task, rate: float | None, masking: Protection | Answered | None
    ) -> Content | Secured | str:
        """Do a task, and put the result under masks if there are any, or encrypt it."""
        if isinstance(masking, Answered):
            return masking
        task = masking.opened(task) if isinstance(masking, Encrypting) else task
        content = self._statistics(task) if task.job.purpose == "statistics" else self.do(task, rate)
        return content if masking is None or isinstance(content, str) else masking.mask(content)

    def _statistics(self, task: Task) -> Answered | Skip | str:
        """Return the statistics of the data that a server asks for, or the reason why there are none."""
        if self._columns is None:
            return "this client has no function `columns`, so it gives no statistics of its data"
        try:
            vector, withheld = Query.of(task.config).measure(self._columns(dict(task.config)), self._min_count)
        except Skip as skip:
            return Skip(skip.reason)
        except InvalidUpdate as error:
            log.error("no statistics: %s", error)
            return str(error)
        except Exception as error:  # of the user's function, whose text may have a value of the data
            log.exception("no statistics: %s", describe(error))
            return "its function `columns` has failed; the log of the client says more"
        given = [name for name in task.config["columns"] if name not in withheld]
        log.info("the server gets statistics of %s", ", ".join(given) or "no column")
        for name, reason in withheld.items():
            log.info("column %s is withheld: %s", name, reason)
        return Answered({"vector": vector, "withheld": withheld})

    def do(self, task: Task, rate: float | None = None, what: str = "") -> Content | str:
        """Train or evaluate. Return the result, or the reason why there is none. `what`: for the log."""
        purpose, number = task.job.purpose, task.job.round
        what = what or f"round {number}: {purpose}"
        function = self._functions[purpose]
        if function is None:
            return f"this client has no function to {purpose}"
        expected: type[Update | Report] = Update if purpose == "train" else Report
        try:
            packs = self._packing.packs(task)
            like = specs_of(task.model) if self._warns else None
            start = copied(of_role(task.model, task.roles, "trained")) if packs else {}
            constants = copied(of_role(task.model, task.roles, "constant")) if task.roles else {}
            state, local = dict(self.state), copied(of_role(self.local, task.roles, "local"))
            begin = time.perf_counter()
            config = {**task.config, "round": number, "state": state}
            content = _called(function, expected, {**task.model, **local}, config)
            seconds = time.perf_counter() - begin
            if isinstance(content, Skip):
                log.info("%s is skipped: %s", what, content)
            if isinstance(content, Update):
                local = of_role(content.model, task.roles, "local") if task.roles else {}
                specs_of(local)  # it can be kept
                local = copied(local)
                model = _without(content.model, local, constants) if task.roles else content.model
                if like is not None:
                    _warn_if_unlike(what, model, task.roles, like)
                if packs:
                    trained = of_role(model, task.roles, "trained")
                    model |= self._packing.pack(task, trained, start, seconds, rate)
                content = with_fields(content, model=model)
            if purpose == "train":
                self.state, self.local = state, local
        except Exception as error:  # of the user's function: the server gets it as the reply
            known = isinstance(error, InvalidUpdate)  # its text says all; no traceback is needed
            why = describe(error)
            log.error("%s failed: %s", what, why, exc_info=not known)
            return why
        return content

    def seed_rounding(self, seed: int) -> None:
        """Seed the random rounding of updates, unless the client has a seed of its own."""
        self._packing.seed = seed if self._packing.seed is None else self._packing.seed

    def save(self) -> dict[str, Any]:
        """Return what another Trainer needs to go on as this one would: plain values, arrays and tensors by name.

        Empty if there is nothing. The arrays are not copied.
        """
        saved = self._packing.save()
        kept = {"state": self.state, "local": self.local}
        return {**saved, **kept} if saved or any(kept.values()) else {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `save` has returned. Changes its arrays later. Raises ValueError for other values."""
        try:
            self._packing.restore(saved)
            self.state, self.local = dict(saved["state"]), dict(saved["local"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"these are no values of a Trainer: {describe(error)}") from error


def _called(
    function: Callable[..., Any], expected: type[Update | Report], model: Any, config: Mapping[str, Any]
) -> Content:
    """Return what a function of the user has returned, or the Skip that it has raised."""
    try:
        content = function(model, config)
    except Skip as skip:
        return Skip(skip.reason)  # another one: its traceback would keep the model
    if not isinstance(content, (expected, Skip)):
        raise TypeError(f"{_name(function)} returned {type(content).__name__}; expected fl.{expected.__name__}")
    return counted(content)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _without(model: Model, local: Model, constants: Model) -> dict[str, Any]:
    """Return what is sent of a trained model. Raises InvalidUpdate for a constant that training has changed."""
    for name, constant in constants.items():
        if name in model and not equal(name, model[name], constant):
            raise InvalidUpdate(
                f"{name!r} is constant, and training has changed it; expected the value that came, or the role "
                '"averaged" at the server'
            )
    return {name: tensor for name, tensor in model.items() if name not in local and name not in constants}


def finished(job: Job, content: Content | Secured | Subtotal) -> Finished | str:
    """Return the reply to a task as bytes, or the reason why it cannot be sent."""
    try:
        message = MESSAGES.dump(Reply(job, content))
    except Exception as error:  # serialising the user's values may raise anything
        log.error("an answer cannot be sent: %s", describe(error))
        return f"its answer cannot be sent: {describe(error)}"
    return Finished(job, message, content.nbytes if isinstance(content, Update | Subtotal | Masked) else 0)


def _warn_if_unlike(what: str, model: Model, roles: Roles, like: Mapping[str, Spec]) -> None:
    """Warn of an update that is not finite, or not like the model. It is sent all the same: some strategies take it."""
    scratch = Scratch()
    try:
        for name, source in sources(model, {name: like[name] for name in of_role(like, roles, *SENT)}):
            if name not in roles:
                check_finite(name, source, scratch)
    except InvalidUpdate as error:
        log.warning("%s: most strategies refuse this update: %s", what, str(error))


class _Packing:
    """Packs updates. Keeps the changes that compression left out of one update, and adds them to the next."""

    def __init__(self, compression: Compression | str | None, seed: int | None) -> None:
        self.seed = self.own_seed = seed
        self._is_used = False  # it has packed an update, or keeps something
        self._own = compression if compression in (None, AUTO) else as_compression(compression)
        self._asked: Mapping[str, Any] = {}  # of the last task, and what that means
        self._parsed = _NONE
        self._compressor = Compressor(_NONE)
        self._run: int | None = None  # of the server whose model was packed last

    def begin_anew(self, seed: int | None) -> None:
        """Keep nothing, with another seed."""
        self.seed = seed
        if self._is_used:
            self._compressor, self._run, self._is_used = Compressor(_NONE), None, False

    def save(self) -> dict[str, Any]:
        """Return the residual, and what it belongs to. Empty if there is none."""
        residuals = self._compressor.residuals
        compression = str(self._compressor.compression)
        return {"residuals": residuals, "compression": compression, "run": self._run} if residuals else {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `save` has returned."""
        self._is_used = True
        if "residuals" in saved:
            self._use(as_compression(saved["compression"]))
            self._compressor.residuals.update(saved["residuals"])
            self._run = saved["run"]

    def packs(self, task: Task) -> bool:
        """Return whether an update is made of the trained model and the model before. False: the model is sent."""
        return task.job.purpose == "train" and (task.deltas or self._compression(task) != _NONE)

    def pack(self, task: Task, model: Model, start: Model, seconds: float, rate: float | None) -> dict[str, Any]:
        """Return the update of a model that was trained for `seconds`. Raises InvalidUpdate."""
        self._is_used = True
        compression = self._compression(task)
        if isinstance(compression, str):
            compression = choose(nbytes(start), sum(spec.size for spec in specs_of(start).values()), seconds, rate)
            link = "the link is not measured yet" if rate is None else f"the link takes {rate / 1000:.1f} kB a second"
            log.info("round %d: %s; compression %s", task.job.round, link, compression)
        elif compression == _NONE:
            return difference(model, start)
        if self._run != task.job.run:
            self._compressor.reset()
            self._run = task.job.run
        self._use(compression)
        return self._compressor.pack(model, start)

    def _compression(self, task: Task) -> Compression | str:
        if self._own is not None:
            return self._own
        if task.compression is not self._asked:  # the clients of a chunk have it from one task
            self._asked, self._parsed = task.compression, as_compression(task.compression)
        return self._parsed

    def _use(self, compression: Compression) -> None:
        """Pack so from now on. What was not sent before is still to be sent."""
        if compression != self._compressor.compression:
            residuals = self._compressor.residuals
            self._compressor = Compressor(compression, self.seed)
            self._compressor.residuals.update(residuals)
