"""The processes of a simulation, from outside: starts them, listens to them, ends them, and leaves nothing behind.

Called by fl/simulation/simulate.py; what runs in them is fl/simulation/worker.py. Knows nothing of rounds.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
import uuid
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

import netq
from fl.errors import SimulationError
from fl.server.server import Server
from fl.simulation.worker import Share, Start, work

_PATIENCE = 2.0  # seconds in which a process ends by itself after the last round, with what it has to print
_DOOR = 3  # the descriptor of a spawned process's pipe
_PROGRAM = f"""
import sys
from multiprocessing.connection import Connection
door = Connection({_DOOR})
sys.path[:] = door.recv()
from fl.simulation.worker import work_unpickled
work_unpickled(door)
"""


class _Child:
    """A process with some of the clients."""

    def __init__(self, share: Share, pid: int, door: Connection) -> None:
        self.share = share
        self.door = door
        self._pid = pid
        self._status: int | None = None  # when it has been waited for

    def say(self, what: object) -> None:
        """Tell it; if it has ended, whoever listens to it will know."""
        with contextlib.suppress(OSError):
            self.door.send(what)

    def end(self) -> None:
        """Kill it, if it has not ended by itself, and wait until it is gone. After what it has said its door ends."""
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            with socket.socket(fileno=os.dup(self.door.fileno())) as door:
                door.shutdown(socket.SHUT_RDWR)  # somebody whom it has forked may hold the other end still

    def __str__(self) -> str:
        """How it ended."""
        status = self._status or 0
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return f"the process of client {', '.join(map(str, self.share))} {how}; its log, or the system's, may say why"


class WorkerPool:
    """All processes. A context manager."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self._shares = shares
        self._children: list[_Child] = []
        self._absent = {part for share in shares for part in share}
        self._partitions = len(self._absent)
        self._complete = threading.Event()  # all clients are connected, or never will be
        self._trouble: str | _Child | None = None  # the first: what a process said, or one that ended
        self._ending = threading.Lock()
        self._ended = False
        self._listener: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give them a moment, after the last round; end them; leave nothing."""
        if self._listener is not None and error is None:
            self._listener.join(_PATIENCE)
        self._end()
        if self._listener is not None:
            self._listener.join()  # they are gone, and so their doors have ended
        for child in self._children:
            child.door.close()

    def start(self, how: str) -> None:
        """Start the processes, by "fork" or "spawn". They wait for the server. Raises InvalidOption."""
        launch = _fork if how == "fork" else _spawn
        for share in self._shares:
            ours, theirs = Pipe()
            with theirs, _uninterrupted():
                pid = launch(share, theirs, [*(child.door for child in self._children), ours])
                self._children.append(_Child(share, pid, ours))

    def came(self, client: uuid.UUID) -> None:
        """A client has connected."""
        self._absent.discard(client.int)
        if not self._absent:
            self._complete.set()

    def grant(self, client: int, number: int) -> None:
        """Let a client answer in a round."""
        for child in self._children:
            if client in child.share:
                child.say((client, number))

    @contextlib.contextmanager
    def at_work(self, server: Server, protocol: netq.Protocol, ordered: bool) -> Iterator[None]:
        """Bring clients and server together. Raises SimulationError when one of the processes fails meanwhile."""
        self._listener = threading.Thread(target=self._listen, args=(server,), name="fl-crew", daemon=True)
        self._listener.start()
        try:
            for child in self._children:
                child.say(Start(server.netloc, protocol, self._partitions, ordered))
            self._complete.wait()
            yield
        except BaseException as error:
            self._end()
            if isinstance(error, netq.Closed) and self._trouble is not None:
                raise SimulationError(str(self._trouble)) from None
            raise

    def _listen(self, server: Server) -> None:
        """Hear all processes to their end. The first trouble closes the server, and so wakes its thread."""
        speaking: dict[Any, _Child] = {child.door: child for child in self._children}
        while speaking:
            for door in wait(list(speaking)):
                child = speaking[door]
                try:
                    trouble: str | _Child | None = child.door.recv()
                except (EOFError, OSError):
                    trouble = child  # unless it has said that it was done
                if trouble is None or trouble is child:
                    del speaking[door]
                if trouble is not None and not self._ended:
                    self._trouble = trouble
                    self._end()
                    server.close(0.0)
                    self._complete.set()

    def _end(self) -> None:
        """End all that have not ended; what is heard of them from then on is of our doing."""
        self._ended = True
        with self._ending:
            for child in self._children:
                child.end()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until we know of a new process, and it knows that it is not meant."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork(share: Share, theirs: Connection, ours: Sequence[Connection]) -> int:
    """Start a copy of this process, and return its id; `ours` are the parent's ends of all pipes."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or what waits there is written twice
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12, about threads: see docs/how-to/simulation.md
        pid = os.fork()
    if pid != 0:
        return pid
    status = 1
    try:
        for door in ours:
            door.close()  # or they would not end with the parent
        work(share, theirs)
        status = 0
    finally:
        os._exit(status)  # what the parent does at its end is not the copy's to do


def _spawn(share: Share, theirs: Connection, ours: Sequence[Connection]) -> int:
    """Start an interpreter, and return its process's id. Raises InvalidOption."""
    try:
        pickled = pickle.dumps(share)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise netq.InvalidOption(
            f"simulate.clients: cannot be pickled: {error}; expected functions of a module, or start='fork'"
        ) from error
    inherited = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), _DOOR)]
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", _PROGRAM], os.environ, file_actions=inherited)
    with contextlib.suppress(OSError):  # of one that ends at once, as will be heard
        ours[-1].send(sys.path)
        ours[-1].send_bytes(pickled)
    return pid
