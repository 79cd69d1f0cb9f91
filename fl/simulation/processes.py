"""The worker processes of clients with connections: starts them, collects their errors, and ends them.

Called by fl/simulation/network.py and fl/flower/runner.py; the code that runs in a worker is
fl/simulation/worker.py. Knows nothing of rounds.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import wait
from typing import Any, NamedTuple, Self

import netq
from fl.errors import SimulationError
from fl.simulation.calls import Calls
from fl.simulation.launch import Method, Process, deferred_sigint
from fl.simulation.worker import Share, Start, work

_EXIT_TIMEOUT = 2.0  # seconds that a process has after the last round, to print what it has to print and exit


class _Worker(NamedTuple):
    """A process that runs some of the clients."""

    share: Share
    process: Process

    def __str__(self) -> str:
        return f"the process of client {', '.join(map(str, self.share))} {self.process.fate}"


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
            worker.process.pipe.close()
        if kind is None and self._error is not None:
            raise SimulationError(str(self._error))

    def start(self, how: Method) -> None:
        """Start the processes. They wait for `run`. Raises InvalidOption."""
        for share in self._shares:
            others = [worker.process.pipe for worker in self._workers]
            with deferred_sigint():
                self._workers.append(_Worker(share, Process(how, partial(work, share, self._calls), others)))

    def connected(self, client: uuid.UUID) -> None:
        """Note that a client has connected."""
        self._absent.discard(client.int)
        if not self._absent:
            self._complete.set()

    def grant_turn(self, client: int, number: int) -> None:
        """Allow a client to answer in round `number`."""
        for worker in self._workers:
            if client in worker.share:
                worker.process.send((client, number))

    @contextlib.contextmanager
    def run(self, start: Start, close: Callable[[float], None]) -> Iterator[None]:
        """Connect the clients to the server. Raises SimulationError if a process fails within the `with` block.

        close: closes the server, without waiting for its clients, after the first error of a process. A round may find
               that they have gone before it finds that its server is closed.
        """
        self._receiver = threading.Thread(target=self._receive, args=(close,), name="fl-workers", daemon=True)
        self._receiver.start()
        try:
            for worker in self._workers:
                worker.process.send(start)
            self._complete.wait()
            yield
        except BaseException as error:
            self._end()
            if isinstance(error, netq.Closed | SimulationError) and self._error is not None:
                raise SimulationError(str(self._error)) from None
            raise

    def _receive(self, close: Callable[[float], None]) -> None:
        """Receive from all processes until their pipes end. The first error closes the server."""
        running: dict[Any, _Worker] = {worker.process.pipe: worker for worker in self._workers}
        while running:
            for pipe in wait(list(running)):
                worker = running[pipe]
                try:
                    error: str | _Worker | None = worker.process.pipe.recv()
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
                worker.process.end()
