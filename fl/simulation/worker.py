"""A process of a simulation, from inside: some of its clients, each with a communicator and a thread of its own.

Started by fl/simulation/processes.py; it hears from the parent through one pipe, its door: first where the server is,
then whose turn it is to answer. It says what went wrong, and that all is done. When the door ends, so does the process.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
import traceback
import uuid
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import NamedTuple

import netq
from fl.client import Client
from fl.messages import Failure, Report, Task, Update

Share = Mapping[int, Client]  # by partition: the clients of one process


class Start(NamedTuple):
    """What a process has to know before its clients can begin."""

    netloc: netq.NetworkLocation
    protocol: netq.Protocol
    partitions: int
    ordered: bool  # whether clients wait for their turn


def work(share: Share, door: Connection) -> None:
    """Run clients until the server ends the federation."""
    _keep(door)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which then ends us
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # the pool of the parent is not in a fork; and a core is a process's
    desk = _Desk(door)
    logging.getLogger("netq.fl").addHandler(_Alarm(desk))
    start = desk.begin()
    threads = [
        threading.Thread(target=_take_part, args=(desk, start, part, client), name=f"client {part}")
        for part, client in share.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    desk.say(None)


def _keep(door: Connection) -> None:
    """Keep it from the processes that clients start: the parent hears by its end that this process has ended."""
    os.set_inheritable(door.fileno(), False)
    os.register_at_fork(after_in_child=door.close)


def work_unpickled(door: Connection) -> None:
    """Do the same with clients that come through the door."""
    try:
        share = pickle.loads(door.recv_bytes())
    except Exception as error:  # of the user's module, on import
        hint = "the clients cannot be unpickled; expected functions of a module that can be imported, or start='fork'"
        door.send(f"{hint}\n{''.join(traceback.format_exception(error))}")
        return
    work(share, door)


class _Desk:
    """What the clients of one process share."""

    def __init__(self, door: Connection) -> None:
        self._door = door
        self._saying = threading.Lock()
        self._changed = threading.Condition()
        self._turns: dict[int, int] = {}  # by client: the last round in which it may answer
        self.at_work = threading.Lock()  # of whoever trains: the user's functions need not bear threads

    def begin(self) -> Start:
        """Wait for the server; from then on, listen."""
        try:
            start: Start = self._door.recv()
        except (EOFError, OSError):
            os._exit(1)
        threading.Thread(target=self._listen, daemon=True).start()
        return start

    def say(self, trouble: str | None) -> None:
        """Tell the parent what went wrong; or, if nothing did, that all is done."""
        with self._saying:
            self._door.send(trouble)

    def await_turn(self, client: int, number: int) -> None:
        """Wait until a client may answer in a round."""
        with self._changed:
            self._changed.wait_for(lambda: self._turns.get(client, 0) >= number)

    def _listen(self) -> None:
        try:
            while True:
                client, number = self._door.recv()
                with self._changed:
                    self._turns[client] = number
                    self._changed.notify_all()
        except (EOFError, OSError):  # the parent has gone, by whatever way
            os._exit(1)


class _Simulated(Client):
    """A client that knows its place, and waits for its turn. What it does is another's."""

    def __init__(self, client: Client, part: int, desk: _Desk, start: Start) -> None:
        self._client = client
        self._part = part
        self._desk = desk
        self._start = start

    def _do(self, task: Task) -> Update | Report | Failure:
        config = {**task.config, "partition": self._part, "partitions": self._start.partitions}
        with self._desk.at_work:
            content = self._client._do(replace(task, config=config))
        if self._start.ordered and task.job.purpose == "train":
            self._desk.await_turn(self._part, task.job.round)
        return content


class _Alarm(logging.Handler):
    """Tells the parent of the errors that a client logs: those of the user's functions, and of what they return."""

    def __init__(self, desk: _Desk) -> None:
        super().__init__(logging.ERROR)
        self._desk = desk

    def emit(self, record: logging.LogRecord) -> None:
        """Say which client it is; the thread has its name."""
        self._desk.say(f"{record.threadName}: {self.format(record)}")


def _take_part(desk: _Desk, start: Start, part: int, client: Client) -> None:
    options = netq.CommunicatorOptions(id=uuid.UUID(int=part), netloc=start.netloc)
    try:
        _Simulated(client, part, desk, start).run(options, start.protocol)
    except BaseException as error:  # also SystemExit, of the user's function: nobody would miss the thread
        desk.say(f"client {part}: {''.join(traceback.format_exception(error))}")
