"""The client's side: wait for tasks, do them, answer. One thread, the caller's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import netq
from fl.messages import MESSAGES, Failure, Reply, Report, Task, Update

log = logging.getLogger("netq.fl")

Train = Callable[[Any, Mapping[str, Any]], Update]
Evaluate = Callable[[Any, Mapping[str, Any]], Report]


class Client:
    """Trains when a server asks for it.

    train(model, config) -> Update: `model` is a dict of arrays or tensors that are the function's to change;
        `config` has "round" (1, 2, …) and whatever the strategy adds. An exception is reported to the server,
        which does without this client in this round; the client goes on.
    evaluate(model, config) -> Report: the same, for a server that asks how well a model does. Optional.
    """

    def __init__(self, train: Train, evaluate: Evaluate | None = None) -> None:
        self._does: dict[str, Callable[[Any, Mapping[str, Any]], Update | Report] | None] = {
            "train": train,
            "evaluate": evaluate,
        }

    def run(self, options: netq.CommunicatorOptions | None = None, protocol: netq.Protocol = netq.Protocol.TCP) -> None:
        """Take part until the server ends the federation. An absent server is waited for, a lost one too.

        The options' serialisation is replaced by that of the federation's messages.
        """
        options = replace(options or netq.CommunicatorOptions(), serialization=MESSAGES)
        with netq.new(protocol, netq.Purpose.CLIENT, options) as server:
            while (task := _next_task(server)) is not None:
                server.put(Reply(task.round, task.purpose, self._do(task)))

    def _do(self, task: Task) -> Update | Report | Failure:
        function = self._does[task.purpose]
        if function is None:
            return Failure(f"this client has no function to {task.purpose}")
        expected = Update if task.purpose == "train" else Report
        try:
            content = function(task.model, {**task.config, "round": task.round})
            if not isinstance(content, expected):
                raise TypeError(f"{function!r} returned {type(content).__name__}; expected fl.{expected.__name__}")
        except Exception as error:  # the user's code: its failure is an answer
            log.exception("round %d: %s failed", task.round, task.purpose)
            return Failure(f"{type(error).__name__}: {error}")
        return content


def _next_task(server: netq.Communicator) -> Task | None:
    """Wait for a task; None when the server has ended the federation."""
    while True:
        try:
            task = server.get().data
        except netq.Closed:
            return None
        except netq.Unreadable as error:
            log.error("a message of the server cannot be read, and is left out: %s", error)
            continue
        if isinstance(task, Task) and task.purpose in ("train", "evaluate"):
            return task
        log.error("the server sent a %s where a Task was expected; it is left out", type(task).__name__)
