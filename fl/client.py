"""The client's side: wait for tasks, do them, answer. One thread, the caller's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import netq
from fl.compression.compressor import Compression, Compressor, as_compression
from fl.errors import InvalidUpdate
from fl.messages import MESSAGES, Job, Offer, Permit, Reply, Report, Task, Update
from fl.tensors.model import check_specs, copied, difference
from fl.tensors.spec import Model, Spec, specs_of
from netq.validate import expect

log = logging.getLogger("netq.fl")

Train = Callable[[Any, Mapping[str, Any]], Update]
Evaluate = Callable[[Any, Mapping[str, Any]], Report]


class Client:
    """Trains when a server asks for it.

    train(model, config) -> Update: `model` is a dict of arrays or tensors that are the function's to change;
        `config` has "round" (1, 2, …) and whatever the strategy adds. An exception is reported to the server,
        which does without this client in this round; the client goes on.
    evaluate(model, config) -> Report: the same, for a server that asks how well a model does. Optional.
    compression: how updates are packed on this client's link (fl.Compression, or its text); None: as the server's
        strategy says. Packing takes the memory of two more models: where the round began, and what was not sent.
    seed: of what packing rounds at random; None: the system's.
    """

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
        self._does: dict[str, Callable[[Any, Mapping[str, Any]], Update | Report] | None] = {
            "train": train,
            "evaluate": evaluate,
        }
        self._packing = _Packing(compression, seed)

    def run(self, options: netq.CommunicatorOptions | None = None, protocol: netq.Protocol = netq.Protocol.TCP) -> None:
        """Take part until the server ends the federation. An absent server is waited for, a lost one too.

        The options' serialisation is replaced by that of the federation's messages.
        """
        known = isinstance(options, netq.CommunicatorOptions | None)
        expect(known, "Client.run: options", options, "a netq.CommunicatorOptions")
        options = replace(options or netq.CommunicatorOptions(), serialization=MESSAGES)
        with netq.new(protocol, netq.Purpose.CLIENT, options) as queue:
            server = _Server(queue)
            while (task := server.next_task()) is not None:
                log.info("round %d: %s", task.job.round, task.job.purpose)
                server.answer(task.job, self._do(task), task.unasked)
                del task  # its memory, before that of the next comes

    def _do(self, task: Task) -> Update | Report | str:
        purpose, number = task.job.purpose, task.job.round
        function = self._does[purpose]
        if function is None:
            return f"this client has no function to {purpose}"
        expected = Update if purpose == "train" else Report
        try:
            pack, like = self._packing.of(task), specs_of(task.model)
            start = copied(task.model) if pack is not None else {}
            content = function(task.model, {**task.config, "round": number})
            if not isinstance(content, expected):
                raise TypeError(f"{function!r} returned {type(content).__name__}; expected fl.{expected.__name__}")
            if isinstance(content, Update):
                _doubt(number, content.model, like)
            if pack is not None and isinstance(content, Update):
                content = content.with_model(pack(content.model, start))
        except Exception as error:  # the user's code: its failure is an answer
            known = isinstance(error, InvalidUpdate)  # which says what is wrong without a traceback
            log.error("round %d: %s failed: %s", number, purpose, str(error), exc_info=not known)
            return f"{type(error).__name__}: {error}"
        return content


def _doubt(number: int, model: Model, like: Mapping[str, Spec]) -> None:
    """Say in the log what the server is going to say of an update; a strategy may take what is not alike."""
    try:
        check_specs(model, like)
    except InvalidUpdate as error:
        log.warning("round %d: the update is not like the model, and most strategies refuse it: %s", number, str(error))


class _Packing:
    """What becomes of an update before it travels; what is left out of one is remembered for the next."""

    def __init__(self, compression: Compression | str | None, seed: int | None) -> None:
        self._seed = seed
        self._own = None if compression is None else as_compression(compression)
        self._compressor = Compressor(Compression())
        self._run: int | None = None  # of the server whose model it is

    def of(self, task: Task) -> Callable[[Model, Model], dict[str, Any]] | None:
        """Return what makes of a trained model, and of that which it was, what travels; None: the model itself."""
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


class _Server:
    """The server, as a client sees it: a task, an answer, a task, …"""

    def __init__(self, queue: netq.Communicator) -> None:
        self._queue = queue
        self._offered: Reply | None = None  # what waits for a permit

    def next_task(self) -> Task | None:
        """Wait for a task; None when the server has ended the federation. What is offered meanwhile is sent.

        The newest, if several wait: whoever was held up (a pause, a slow training) must not work off rounds that are
        over. What was offered for one that is over is not wanted any more.
        """
        task, timeout = None, None
        while True:
            try:
                message = self._queue.get(timeout=timeout).data
            except TimeoutError:
                return task
            except netq.Closed:
                return None
            except netq.Unreadable as error:
                log.error("a message of the server cannot be read, and is left out: %s", error)
                continue
            if isinstance(message, Task):
                self._offered = None
                task, timeout = message, 0.0
            elif isinstance(message, Permit):
                self._permitted(message.job)
            else:
                log.error("the server sent a %s where a Task was expected; it is left out", type(message).__name__)

    def answer(self, job: Job, content: Update | Report | str, unasked: int) -> None:
        """Send the answer to a task; or, if it is large, offer it, and keep it until there is a permit."""
        size = content.nbytes if isinstance(content, Update) else 0
        if size > unasked:
            self._offered = Reply(job, content)
            self._queue.put(Offer(job, size))
        else:
            self._put(Reply(job, content))

    def _permitted(self, job: Job) -> None:
        reply, self._offered = self._offered, None
        if reply is not None and reply.job == job:
            self._put(reply)

    def _put(self, reply: Reply) -> None:
        """Send a reply. If it cannot be sent, send the reason instead."""

        def check(delivery: Future[None]) -> None:
            if isinstance(error := delivery.exception(), netq.MessageTooLarge):
                self._queue.put(Reply(job, f"its answer cannot be sent: {error}"))

        job = reply.job  # not the reply: `check` lives as long as the delivery, and it is large
        try:
            delivery = self._queue.put(reply)
        except Exception as error:  # the user's content: pickling it may raise anything
            log.exception("an answer cannot be pickled")
            self._queue.put(Reply(job, f"its answer cannot be pickled: {type(error).__name__}: {error}"))
        else:
            delivery.add_done_callback(check)
