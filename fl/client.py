"""The client's side: wait for tasks, do them, answer. One thread, the caller's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import netq
from fl.messages import MESSAGES, PURPOSES, Failure, Reply, Report, Task, Update

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
                log.info("round %d: %s", task.round, task.purpose)
                _answer(server, partial(Reply, task.run, task.round, task.purpose), self._do(task))
                del task  # its memory, before that of the next comes

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


def _answer(server: netq.Communicator, reply: Callable[[Any], Reply], content: Update | Report | Failure) -> None:
    """Put the content; or, if it cannot travel, a Failure that says so."""

    def check(delivery: Future[None]) -> None:
        if isinstance(error := delivery.exception(), netq.MessageTooLarge):
            server.put(reply(Failure(f"its answer cannot be sent: {error}")))

    try:
        delivery = server.put(reply(content))
    except Exception as error:  # the user's content: pickling it may raise anything
        log.exception("an answer cannot be pickled")
        server.put(reply(Failure(f"its answer cannot be pickled: {type(error).__name__}: {error}")))
    else:
        delivery.add_done_callback(check)


def _next_task(server: netq.Communicator) -> Task | None:
    """Wait for a task; None when the server has ended the federation.

    The newest, if several wait: whoever was held up (a pause, a slow training) must not work off rounds that are over.
    """
    task, timeout = None, None
    while True:
        try:
            message = server.get(timeout=timeout).data
        except TimeoutError:
            return task
        except netq.Closed:
            return None
        except netq.Unreadable as error:
            log.error("a message of the server cannot be read, and is left out: %s", error)
            continue
        if isinstance(message, Task) and message.purpose in PURPOSES:
            task, timeout = message, 0.0
        else:
            log.error("the server sent a %s where a Task was expected; it is left out", type(message).__name__)
