"""A worker process of a simulation: runs some of the clients, each with a communicator and a thread of its own.

The clients are fl.Clients, or Flower's nodes (fl/flower/runner.py). Started by fl/simulation/processes.py, with one
pipe to the parent process. The parent sends the server's address, then whose turn it is to answer. The worker sends the
first error, or None when all its clients are done. When the pipe closes, the worker exits.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol, TextIO, cast

import netq
from fl.client import Client
from fl.messages import Content, Task, Update
from fl.simulation.calls import Calls, with_own_arrays
from fl.simulation.output import Lines
from fl.trainer import Trainer


class Participant(Protocol):
    """A client of fl, or another program's client of the same kind."""

    def run(self, options: netq.CommunicatorOptions, protocol: netq.Protocol) -> object:
        """Take part until the server ends it."""


Share = Mapping[int, Participant]  # the clients of one process, by partition


class Start(NamedTuple):
    """What a worker needs before its clients can connect."""

    netloc: netq.NetworkLocation
    protocol: netq.Protocol
    partitions: int
    ordered: bool  # whether fl.Clients wait for their turn before they answer
    strict: bool  # whether the first error that a client logs ends the simulation


def work(share: Share, calls: Calls, pipe: Connection) -> None:
    """Run clients until the server ends the federation."""
    parent = _Parent(pipe)
    start = parent.wait_for_start()
    if start.strict:
        logging.getLogger("netq.fl").addHandler(_ErrorForwarder(parent))
    output = None if sys.stdout is None else Lines(sys.stdout)
    if output is not None:
        sys.stdout = cast("TextIO", output)
    threads = [
        threading.Thread(target=_run_client, args=(parent, start, calls, partition, client), name=f"client {partition}")
        for partition, client in share.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if output is not None:
        output.finish()
    if sys.stderr is not None:
        sys.stderr.flush()
    parent.send(None)


class _Parent:
    """The parent process, as the clients of one worker use it. Any thread may call it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()
        self._turn_changed = threading.Condition()
        self._turns: dict[int, int] = {}  # the last round in which a client may answer, by client

    def wait_for_start(self) -> Start:
        """Wait until the server is up, then receive turns in a thread."""
        try:
            start: Start = self._pipe.recv()
        except (EOFError, OSError):
            os._exit(1)
        threading.Thread(target=self._receive_turns, daemon=True).start()
        return start

    def send(self, error: str | None) -> None:
        """Report an error; None: all clients are done."""
        with self._sending:
            self._pipe.send(error)

    def await_turn(self, client: int, number: int) -> None:
        """Wait until a client may answer in round `number`."""
        with self._turn_changed:
            self._turn_changed.wait_for(lambda: self._turns.get(client, 0) >= number)

    def _receive_turns(self) -> None:
        try:
            while True:
                client, number = self._pipe.recv()
                with self._turn_changed:
                    self._turns[client] = number
                    self._turn_changed.notify_all()
        except (EOFError, OSError):  # the parent process has ended
            os._exit(1)


class _SimulatedTrainer(Trainer):
    """Does the tasks of a client: adds the partition to their config, and answers in turn."""

    def __init__(self, trainer: Trainer, partition: int, parent: _Parent, start: Start, calls: Calls) -> None:
        self._trainer = trainer
        self._partition = partition
        self._parent = parent
        self._start = start
        self._calls = calls
        self._count: Counter[str] = Counter()  # of calls by purpose
        trainer.seed_rounding(calls.rounding_seed(partition))

    def do(self, task: Task, rate: float | None = None, what: str = "") -> Content | str:
        """Train or evaluate, one client at a time, and wait for the turn of this one."""
        config = {**task.config, "partition": self._partition, "partitions": self._start.partitions}
        purpose = task.job.purpose
        self._count[purpose] += 1
        with self._calls.alone(self._partition, purpose, self._count[purpose]):
            content = self._trainer.do(replace(task, config=config), rate, what)
            if isinstance(content, Update):
                content = with_own_arrays(content)  # others train before it is sent
        if self._start.ordered and task.job.purpose == "train":
            self._parent.await_turn(self._partition, task.job.round)
        return content


class _ErrorForwarder(logging.Handler):
    """Sends the errors that clients log to the parent: errors of the user's functions, and of what they return."""

    def __init__(self, parent: _Parent) -> None:
        super().__init__(logging.ERROR)
        self._parent = parent

    def emit(self, record: logging.LogRecord) -> None:
        """Send an error with the client's name, which is the thread's name."""
        self._parent.send(f"{record.threadName}: {self.format(record)}")


def _run_client(parent: _Parent, start: Start, calls: Calls, partition: int, client: Participant) -> None:
    options = netq.CommunicatorOptions(id=uuid.UUID(int=partition), netloc=start.netloc)
    try:
        if isinstance(client, Client):
            client.final_model = False  # the parent process has it
            client.trainer = _SimulatedTrainer(client.trainer, partition, parent, start, calls)
        client.run(options, start.protocol)
    except BaseException as error:  # SystemExit of the user's function too: it would end this thread silently
        parent.send(f"client {partition}: {''.join(traceback.format_exception(error))}")
