"""The agent of a device: takes part in a federation, and lets a child process do the tasks.

Called by edge/__main__.py and by users' scripts. Moves messages as bytes, and imports neither numpy nor the functions
of the user. Sets up no logging and handles no signals: those belong to the process.

    a task arrives ─► the record of this task is there (edge/spool.py) ──────────────► send its reply again
                  └─► a child does it (edge/child.py), and writes its record ─► send the reply, then keep the record
                                                                         └────► send the reason why there is none
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import netq
from edge.child import Answer, Child, ChildFailed
from edge.config import Config
from edge.record import Record
from edge.spool import Spool
from edge.worker import Plan
from fl.conversation import Conversation
from fl.membership import Membership, take_part
from fl.outline import OUTLINES, Finished, Job, Task
from netq.utils.stream import Stream

log = logging.getLogger("edge")


def check(config: Config) -> None:
    """Import the functions in a child process, as `run` does. Raises InvalidOption."""
    _child(config, lambda: None).check()


def run(config: Config) -> None:
    """Take part in the federation that `config` names, until its server ends it.

    Waits for a server that is not reachable yet. Raises InvalidOption if the functions cannot be imported, and what
    netq.new raises.
    """
    Agent(config).run()


class Agent:
    """One device. `tick`: called regularly; returns after how many seconds it wants to be called again, None: never."""

    def __init__(self, config: Config, tick: Callable[[], float | None] = lambda: None) -> None:
        self._config = config
        self._tick = tick
        self._child = _child(config, tick)

    def run(self) -> None:
        """Do as `run` of this module."""
        options = replace(self._config.options(), serialization=OUTLINES)
        try:
            with Spool(self._config.state) as self._spool:
                self._child.check()
                take_part(options, self._config.protocol, "federation", self._serve)
        finally:
            self._child.kill()

    def _serve(self, queue: netq.Communicator, membership: Membership) -> None:
        """Do the tasks of a session."""
        conversation = Conversation(queue, membership)
        while (task := conversation.next_task(self._tick)) is not None:
            key = _key(task.job)
            if self._spool.last is not None and self._spool.last.key == key:
                log.info("round %d: sending the update that was computed before", task.job[1])
                conversation.reply(task, _finished(task.job, self._spool.last))
            else:
                self._do(conversation, task, key)

    def _do(self, conversation: Conversation, task: Task, key: str) -> None:
        with self._spool.fresh() as file:
            try:
                answer = self._child.do(key, task.stream, file, self._spool.state)
            except ChildFailed as error:
                log.error("round %d: no reply: %s", task.job[1], error)
                conversation.reply(task, str(error))
            else:
                self._reply(conversation, task, answer)
        self._child.rest()

    def _reply(self, conversation: Conversation, task: Task, answer: Answer) -> None:
        with open(answer.fd, "rb"):  # which closes it
            record = Record.read(answer.fd, check=False)
            conversation.reply(task, _finished(task.job, record))
            if answer.is_update:
                self._spool.keep(answer.fd, record)
                log.debug("round %d: the update is stored", task.job[1])


def _child(config: Config, tick: Callable[[], float | None]) -> Child:
    return Child(Plan(config.tasks(), "fl", config.training, log.getEffectiveLevel()), tick)


def _key(job: Job) -> str:
    return " ".join(map(str, job))


def _finished(job: Job, record: Record) -> Finished:
    return Finished(job, Stream.of(record.reply), record.size)
