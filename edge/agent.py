"""The agent of a device: takes part in a federation, and lets a child process do the tasks.

Called by edge/__main__.py and by users' scripts. Moves messages as bytes, and imports neither numpy nor the functions
of the user. Sets up no logging and handles no signals: those belong to the process.

    a task arrives ─► the record of this task is there (edge/spool.py) ──────────────► send its reply again
                  └─► a child does it (edge/child.py), and writes its record ─► keep the record, then send the reply
                                                                         └────► send the reason why there is none

A device that is not fit (edge/fitness.py) has no session: it says so, leaves, and connects again when it is fit. So the
server selects among devices that are fit.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import netq
from edge import hook
from edge.child import Answer, Child, ChildFailed
from edge.config import Config
from edge.fitness import Fitness, Gate
from edge.group import Group
from edge.guard import Guard
from edge.machine import Machine
from edge.masks import Masks
from edge.outgoing import Allowed
from edge.patience import Patience, Watched
from edge.record import Damaged, Record, write_somewhere
from edge.spool import Spool
from edge.supervisor import Supervisor
from edge.traffic import Traffic
from edge.work import Work, federation
from edge.worker import Order, Plan
from fl.conversation import Conversation, KnownServer
from fl.envelope import Described, Final, Finished, Task
from fl.errors import InvalidUpdate
from fl.membership import Membership, take_part
from netq.cli.terminal import told_if_slow
from netq.utils.stream import Stream

if TYPE_CHECKING:
    from fl.secure.masker import Protection

log = logging.getLogger("edge")

_LOOK = 10.0  # seconds between readings of the sensors
_LOOKS = 2  # at what has come during a trial
_DESCRIBED = 60.0  # seconds for a server to say what its tasks are like: one that waits for clients looks every second


def run(config: Config) -> None:
    """Take part in the federation that `config` names, until its server ends it.

    Waits for a server that is not reachable yet, and for all else that may pass by itself (edge/patience.py). Tells the
    supervisor that the environment names (systemd's $NOTIFY_SOCKET) what it does. Raises InvalidOption for what a
    person has to correct, as a function that is not in its module.
    """
    supervisor = Supervisor.from_environment()
    try:
        Agent(config, federation(config), supervisor, Group(), Patience(supervisor, Watched())).run()
    finally:
        supervisor.stopping()


class _Unfit(Exception):
    """The device is not fit for tasks; the text says why."""


class _Over(Exception):
    """The session of a check is over: a training was tried out, or the server does not describe its tasks."""


class Agent:
    """One device.

    final: the last model, at the end of the federation. An agent that begins with it takes part in none: it is to write
           the model, as the one before could not, whose file has changed since.
    """

    def __init__(
        self,
        config: Config,
        work: Work,
        supervisor: Supervisor,
        group: Group,
        patience: Patience,
        final: Final | None = None,
    ) -> None:
        self._config = config
        self._work = work
        self._supervisor = supervisor
        self._group = group
        self._patience = patience
        self._child = child_of(config, work, supervisor, group)
        self._gate = Gate(config.fit)
        self._machine = Machine()
        self._link = KnownServer()
        self._checks = config.check  # before it takes part
        self._has_failed = False  # a trial; the log has the traceback
        self._traffic = Traffic()
        self._masks = Masks(config.secure, config.options(), work.reading)
        self.final = final

    def run(self) -> None:
        """Do as `run` of this module. Raises FileChanged, too."""
        config, until = self._config, self._patience.until
        config.policy.check(config.state, config.compression)
        self._masks.check()
        options = replace(config.options(), serialization=self._work.messages)
        noun = self._work.noun
        try:
            until(lambda: config.fit.check(self._machine))
            with until(lambda: Spool(config.state)) as self._spool:
                self._guard = until(self._new_guard)
                self._supervisor.ready()  # before an import that may take longer than a start may (TimeoutStartSec)
                with told_if_slow(log, f"importing {self._work.title}"):
                    until(self._child.check)
                self._patience.passed()
                if config.training.memory is not None and not self._group.is_whole:
                    log.warning("%s", self._group.says())
                log.info("device %s, server %s:%d", config.id, *config.netloc)
                if self.final is None:
                    begin, pause = self._wait_until_fit, self._patience.pause
                    servers = config.fallback
                    take_part(options, config.protocol, noun, self._serve, begin, until, pause, fallback=servers)
                if self.final is not None and config.model is not None:
                    self._hand_over(self.final, config.model)
        finally:
            self._child.kill()

    def _new_guard(self) -> Guard:
        host, port = self._config.netloc
        return Guard(self._config.policy, self._work.rules, self._config.state, f"{host}:{port}")

    def _serve(self, queue: netq.Communicator, membership: Membership) -> None:
        """Do the tasks of a session. The first one only tries a training out, if the device checks itself."""
        if self._checks:
            self._check(queue, membership)
            return
        self._patience.passed()
        conversation = self._work.converse(queue, membership, self._link, "")
        host, port = self._config.netloc

        def idle() -> float | None:
            self._supervisor.status(f"waiting for tasks of {host}:{port}")
            if conversation.is_sending or membership.over:  # the last model comes, and no task
                return self._supervisor.alive()
            self._supervisor.check_copies()
            return self._check_fit(self._traffic.after_round())

        try:
            while (task := conversation.next_task(idle)) is not None:
                self._answer(conversation, task, queue.id)
            self.final = conversation.final if membership.over else None
        except _Unfit as unfit:
            log.info("leaving until the device is fit again: %s", unfit)
            conversation.leave(str(unfit))

    def _check(self, queue: netq.Communicator, membership: Membership) -> None:
        """Ask what tasks are like, and try a training out. The next session gets tasks. Raises ChildFailed."""
        reason = "it tries a training out before it takes part (client.check)"
        conversation = self._work.converse(queue, membership, self._link, reason)
        until, looks = time.monotonic() + _DESCRIBED, _LOOKS
        trial: ChildFailed | None = None
        tried = False

        def idle() -> float | None:
            nonlocal looks
            due = self._supervisor.alive()
            if membership.over:  # the last model comes
                return due
            self._supervisor.check_copies()
            left = until - time.monotonic()
            if tried:  # what has come meanwhile may be the end of the federation
                looks, left = looks - 1, 0.0
            if looks < 0 or (left <= 0 and not tried):
                raise _Over
            return left if due is None else min(due, left)

        try:
            while (described := conversation.next_task(idle)) is not None:
                trial, tried = self._try_out(described), True
            self.final = conversation.final if membership.over else None
        except _Over:
            if trial is not None:
                conversation.leave(f"its check has failed: {self._guard.reason(trial)}")
                raise ChildFailed(f"the check before it takes part: {trial}") from None
            if not tried:
                log.warning("the server does not say what its tasks are like; taking part unchecked (client.check)")
            self._checks = False

    def _answer(self, conversation: Conversation, task: Task, client: uuid.UUID) -> None:
        self._traffic.received(task.stream.nbytes)
        masking = self._masks.begin(task, client)
        if isinstance(masking, Finished | str):
            conversation.reply(task, masking)
            return
        if masking is not None:
            opened = self._masks.opened(masking, task)
            if isinstance(opened, str):
                conversation.reply(task, opened)
                return
            task = opened
        if refused := self._guard.begin(task):
            conversation.reply(task, self._guard.refused(task, refused))
            return
        if self._send_stored(conversation, task, masking):
            return
        if spent := self._guard.is_spent(task):
            conversation.reply(task, self._guard.refused(task, spent))
            return
        try:
            self._check_fit(self._traffic.after_task())
        except _Unfit as unfit:
            conversation.reply(task, f"it is not fit: {unfit}")
            raise
        self._supervisor.status(task.title)
        self._do(conversation, task, masking)

    def _send_stored(self, conversation: Conversation, task: Task, masking: Protection | None) -> bool:
        """Send the reply that is stored, if it is that of this task. Return whether it is."""
        last = self._spool.last
        if last is None or last.key != self._guard.key(task) or task.job == conversation.delivered:
            return False
        log.info("%s: sending the reply that was computed before", task.title)
        self._send(conversation, task, Stream.of(last.reply), last.size, masking)
        return True

    def _try_out(self, described: Described) -> ChildFailed | None:
        """Train once with a model like the server's. The next session gets tasks. Return why it fails."""
        self._supervisor.status("trying a training out")
        begin = time.monotonic()
        try:
            with self._spool.fresh() as file:
                answer = self._child.do(Order("check", is_quiet=self._has_failed), described.stream, file, None)
            os.close(answer.fd)
        except ChildFailed as error:
            self._has_failed = True
            return error
        finally:
            self._child.end()  # what the trial has left as state is not for the first task
        self._link.check = time.monotonic() - begin
        log.info("a training was tried out: %.1f s", self._link.check)
        return None

    def _hand_over(self, final: Final, path: Path) -> None:
        """Write the last model, and run the owner's command. Waits for a disk that is full. Raises FileChanged."""

        def store() -> None:
            try:
                message = self._masks.final(final.stream)
                with self._spool.fresh() as file:
                    answer = self._child.do(Order("", is_final=True), message, file, self._spool.state)
            except (ChildFailed, InvalidUpdate) as error:
                raise ChildFailed(f"model.path: the last model is not written: {error}") from None
            os.close(answer.fd)

        self._supervisor.status("writing the last model")
        self._patience.until(store)
        self._patience.passed()
        self._child.end()
        log.info("the last model is in %s", path)
        if self._config.hook:
            hook.run(self._config.hook, path, self._supervisor.alive)

    def _wait_until_fit(self) -> None:
        is_waiting = False
        while True:
            try:
                self._check_fit(self._traffic.after_round())
                return
            except _Unfit as unfit:
                log.log(logging.DEBUG if is_waiting else logging.INFO, "waiting until the device is fit: %s", unfit)
                is_waiting = True
                self._supervisor.status(f"not fit: {unfit}")
            time.sleep(self._until_next_look())

    def _check_fit(self, traffic: float) -> float | None:
        """Raise _Unfit if the device is not fit. Return after how many seconds to call this again, None: never.

        traffic: MB that 60 minutes would have with what this device would receive and send next.
        """
        if self._config.fit == Fitness():
            return self._supervisor.alive()
        if reason := self._gate.reason(replace(self._machine.read(), traffic=traffic)):
            raise _Unfit(reason)
        return self._until_next_look()

    def _until_next_look(self) -> float:
        due = self._supervisor.alive()
        return _LOOK if due is None else min(_LOOK, due)

    def _do(self, conversation: Conversation, task: Task, masking: Protection | None) -> None:
        with self._spool.fresh() as file:
            try:
                answer = self._child.do(Order(task.key, self._link.rate), task.stream, file, self._spool.state)
            except ChildFailed as error:
                log.error("%s: no update: %s; the server is told, and gives the next task", task.title, error)
                conversation.reply(task, self._guard.told(task, error))
            else:
                self._reply(conversation, task, answer, masking)
        self._child.rest()

    def _reply(self, conversation: Conversation, task: Task, answer: Answer, masking: Protection | None) -> None:
        with open(answer.fd, "rb"):  # which closes it
            try:
                record = Record.read(answer.fd, check=False)
                if record.key != task.key:
                    raise Damaged(f"it is of the task {record.key!r}")
            except Damaged as error:  # by the training: another process that it has started may write, too
                log.error("%s: no update: the child's record is wrong: %s", task.title, str(error))
                text = f"the training process has left a wrong record: {error}"
                conversation.reply(task, self._guard.told(task, text))
                self._child.end()
                return
            if task.job is not None and self._guard.policy.inspects:
                self._reply_allowed(conversation, task, answer.is_kept, record, masking)
                return
            if answer.is_kept:  # before it is sent: the server must not have an update that this device may forget
                self._spool.keep(answer.fd, record)
                log.debug("%s: the reply is stored", task.title)
            self._send(conversation, task, Stream.of(record.reply), record.size, masking)

    def _reply_allowed(
        self, conversation: Conversation, task: Task, is_kept: bool, record: Record, masking: Protection | None
    ) -> None:
        """Send what the policy lets leave. It is stored as it is sent: the next sending has the same noise."""
        found = self._guard.allowed(task, record)
        if isinstance(found, str):
            conversation.reply(task, found)
            self._child.end()  # it has changed its state, and the next one is to go on from the last record
            return
        if is_kept:
            with self._spool.fresh() as file:
                state = Stream.of(record.state)
                full = write_somewhere(file, self._guard.key(task), found.message, found.size, state)
                fd = full[0] if full else file
                self._spool.keep(fd, Record.read(fd, check=False))
                for each in full:
                    os.close(each)
        self._send(conversation, task, found.message, found.size, masking, found)

    def _send(
        self,
        conversation: Conversation,
        task: Task,
        message: Stream,
        size: int,
        masking: Protection | None,
        found: Allowed | None = None,
    ) -> None:
        """Send a reply. `found`: what it has; None: it is stored, or nothing looks into it."""
        if task.job is not None and (withheld := self._guard.sends(task, message, found)):
            conversation.reply(task, withheld)
            return
        reply: Finished | str = Finished(task.job, message, size)
        if masking is not None:
            masked = self._masks.masked(masking, task, message)
            reply = self._guard.reason(masked) if isinstance(masked, str) else masked
        if isinstance(reply, Finished):
            self._traffic.sent(reply.message.nbytes)
        conversation.reply(task, reply)


def child_of(config: Config, work: Work, supervisor: Supervisor, group: Group) -> Child:
    """Return the child process of a device, which is not started yet."""
    plan = Plan(work.tasks, work.arguments, config.training, log.getEffectiveLevel())
    return Child(plan, supervisor.alive, group)
