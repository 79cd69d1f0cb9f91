"""Starts the worker processes of a simulation, collects their errors, and ends them.

Called by fl/simulation/simulate.py and fl/flower/runner.py; the code that runs in a worker is
fl/simulation/worker.py. Knows nothing of rounds.
docs/explanation/design.md, "Libraries taken and not taken", says why this is not multiprocessing.Process.
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
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Self

import netq
from fl.errors import SimulationError
from fl.simulation.calls import Calls
from fl.simulation.worker import Share, Start, work

_EXIT_TIMEOUT = 2.0  # seconds that a process has after the last round, to print what it has to print and exit
_PIPE = 3  # the file descriptor of a spawned process's pipe
_PROGRAM = f"""
import sys
from multiprocessing.connection import Connection
pipe = Connection({_PIPE})
sys.path[:] = pipe.recv()
from fl.simulation.worker import work_unpickled
work_unpickled(pipe)
"""


class _Worker:
    """A process that runs some of the clients."""

    def __init__(self, share: Share, pid: int, pipe: Connection) -> None:
        self.share = share
        self.pipe = pipe
        self._pid = pid
        self._status: int | None = None  # the exit status, once the process was waited for

    def send(self, message: object) -> None:
        """Send it a message. A process that has ended is not reported here but by WorkerPool._receive."""
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def end(self) -> None:
        """Kill the process if it runs, wait until it has ended, and make `recv` reach the end of its pipe."""
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            with socket.socket(fileno=os.dup(self.pipe.fileno())) as pipe:
                pipe.shutdown(socket.SHUT_RDWR)  # a process that it has forked may still hold the other end

    def __str__(self) -> str:
        """How the process ended."""
        status = self._status or 0
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return f"the process of client {', '.join(map(str, self.share))} {how}; its log, or the system's, may say why"


class WorkerPool:
    """The worker processes of one simulation. A context manager."""

    def __init__(self, shares: Sequence[Share], calls: Calls) -> None:
        self._shares = shares
        self._calls = calls
        self._workers: list[_Worker] = []
        self._absent = {partition for share in shares for partition in share}
        self._complete = threading.Event()  # all clients are connected, or an error has occurred
        self._error: str | _Worker | None = None  # the first one: an error message, or a process that ended early
        self._ending = threading.Lock()
        self._ended = False
        self._receiver: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Wait shortly for the processes after the last round, then end all of them.

        Raises SimulationError for an error that arrived too late to close the server, as one in the last round may.
        """
        if self._receiver is not None and kind is None:
            self._receiver.join(_EXIT_TIMEOUT)
        self._end()
        if self._receiver is not None:
            self._receiver.join()  # the processes have ended, so their pipes are at the end
        for worker in self._workers:
            worker.pipe.close()
        if kind is None and self._error is not None:
            raise SimulationError(str(self._error))

    def start(self, how: str) -> None:
        """Start the processes, by "fork" or "spawn". They wait for `run`. Raises InvalidOption."""
        launch = _fork if how == "fork" else _spawn
        for share in self._shares:
            ours, theirs = Pipe()
            with theirs, _sigint_blocked():
                pid = launch(share, self._calls, theirs, [*(worker.pipe for worker in self._workers), ours])
                self._workers.append(_Worker(share, pid, ours))

    def connected(self, client: uuid.UUID) -> None:
        """Note that a client has connected."""
        self._absent.discard(client.int)
        if not self._absent:
            self._complete.set()

    def grant_turn(self, client: int, number: int) -> None:
        """Allow a client to answer in round `number`."""
        for worker in self._workers:
            if client in worker.share:
                worker.send((client, number))

    @contextlib.contextmanager
    def run(self, start: Start, close: Callable[[float], None]) -> Iterator[None]:
        """Connect the clients to the server. Raises SimulationError if a process fails within the `with` block.

        close: closes the server, without waiting for its clients, after the first error of a process.
        """
        self._receiver = threading.Thread(target=self._receive, args=(close,), name="fl-workers", daemon=True)
        self._receiver.start()
        try:
            for worker in self._workers:
                worker.send(start)
            self._complete.wait()
            yield
        except BaseException as error:
            self._end()
            if isinstance(error, netq.Closed) and self._error is not None:
                raise SimulationError(str(self._error)) from None
            raise

    def _receive(self, close: Callable[[float], None]) -> None:
        """Receive from all processes until their pipes end. The first error closes the server."""
        running: dict[Any, _Worker] = {worker.pipe: worker for worker in self._workers}
        while running:
            for pipe in wait(list(running)):
                worker = running[pipe]
                try:
                    error: str | _Worker | None = worker.pipe.recv()
                except (EOFError, OSError):
                    error = worker  # it ended before it sent None
                if error is None or error is worker:
                    del running[pipe]
                if error is not None and not self._ended:
                    self._error = error
                    self._end()
                    close(0.0)
                    self._complete.set()

    def _end(self) -> None:
        """End all processes. Errors that they report from now on are consequences of that, and ignored."""
        self._ended = True
        with self._ending:
            for worker in self._workers:
                worker.end()


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Defer Ctrl-C until the new process is recorded here, and ignores SIGINT itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork(share: Share, calls: Calls, theirs: Connection, ours: Sequence[Connection]) -> int:
    """Start a copy of this process, and return its id. `ours` are the parent's ends of all pipes."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # otherwise both processes write what is buffered
    with warnings.catch_warnings():
        # Of Python 3.12, about threads: see docs/how-to/simulation.md.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid != 0:
        return pid
    status = 1
    try:
        for pipe in ours:
            pipe.close()  # otherwise the pipes stay open when the parent ends
        work(share, calls, theirs)
        status = 0
    finally:
        os._exit(status)  # exit handlers belong to the parent


def _spawn(share: Share, calls: Calls, theirs: Connection, ours: Sequence[Connection]) -> int:
    """Start a new interpreter, and return its process id. Raises InvalidOption."""
    try:
        pickled = pickle.dumps((share, calls))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise netq.InvalidOption(
            f"simulate.clients: cannot be pickled: {error}; expected functions of a module, or start='fork'"
        ) from error
    inherited = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), _PIPE)]
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", _PROGRAM], os.environ, file_actions=inherited)
    with contextlib.suppress(OSError):  # it may end at once; WorkerPool._receive reports that
        ours[-1].send(sys.path)
        ours[-1].send_bytes(pickled)
    return pid
