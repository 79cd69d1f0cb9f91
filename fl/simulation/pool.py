"""The engine "processes": worker processes of this machine do the chunks of a round (fl/simulation/chunks.py).

Used by fl/simulation/population.py and fl/flower/virtual.py, in the thread of their caller. Starts no thread here.
Each worker has one pipe to this process:

    this process                                    a worker
    the task of the round, before its first chunk ► keeps the model
    a chunk, when the worker has none ────────────► its clients train, and their updates are folded
    results ◄────────────────────────────────────── what they came to

A worker that ends loses its chunk, and another one takes its place.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Self, TextIO, cast

from fl.errors import SimulationError
from fl.simulation.chunks import PICKLES, Chunk, Worker
from fl.simulation.launch import Method, Process, deferred_sigint
from fl.simulation.output import Lines
from netq.utils.stream import Stream

log = logging.getLogger("netq.fl")

_AHEAD = 4  # chunks for each worker that may be under way, or done and waiting for the ones before them
_SMALL = 64 * 1024  # bytes of a message that is sent in one piece
_WHOLE, _SIZES = b"\0", b"\1"  # at the end of the first piece: it is the whole message, or has the sizes of others
_EXIT_TIMEOUT = 2.0  # seconds that a worker has at the end, to print what it has to print and exit


class ProcessPool:
    """Worker processes. A context manager. how: they are started. Their number does not change a result."""

    def __init__(self, worker: Worker, count: int, how: Method) -> None:
        self._work = partial(_work, worker)
        self._lost = worker.lost
        self._count = count
        self._how: Method = how
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        try:
            for _ in range(self._count):
                self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                for worker in self._workers:
                    worker.send(None)
                left = {worker.process.pipe for worker in self._workers}
                while left and (ended := wait(list(left), _EXIT_TIMEOUT)):  # they are at the end
                    left -= set(cast("list[Connection]", ended))
        finally:
            self._end()

    def _start(self) -> _Worker:
        others = [each.process.pipe for each in self._workers]
        with deferred_sigint():
            worker = _Worker(Process(self._how, self._work, others))
            self._workers.append(worker)
        return worker

    def _end(self) -> None:
        for worker in self._workers:
            worker.process.end()
            worker.process.pipe.close()
        self._workers.clear()

    def run(self, task: Any, chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, Any]]:
        """Do the chunks of a round, and yield each with its results, in their order.

        Raises SimulationError if a worker cannot begin.
        """
        stream, source = PICKLES.dump(task), iter(chunks)
        begun = number = 0  # chunks that a worker was given, and that were yielded
        done: dict[int, tuple[Chunk, Any]] = {}
        while True:
            for worker in self._workers:
                is_idle = worker.chunk is None and begun < number + _AHEAD * self._count
                if is_idle and (chunk := next(source, None)) is not None:
                    worker.do(stream, begun, chunk)
                    begun += 1
            if number == begun:
                return
            if number not in done:
                done |= self._receive()
            while number in done:
                yield done.pop(number)
                number += 1

    def _receive(self) -> dict[int, tuple[Chunk, Any]]:
        """Wait for results. Return them and their chunks, by the number of the chunk."""
        busy = {worker.process.pipe: worker for worker in self._workers if worker.chunk is not None}
        found = {}
        for pipe in wait(list(busy)):
            worker = busy[cast("Connection", pipe)]
            assert worker.chunk is not None
            number, chunk = worker.chunk
            worker.chunk = None
            try:
                found[number] = chunk, worker.receive()
            except (EOFError, OSError):
                found[number] = chunk, self._replace(worker, chunk)
        return found

    def _replace(self, worker: _Worker, chunk: Chunk) -> Any:
        worker.process.end()
        worker.process.pipe.close()
        self._workers.remove(worker)
        log.warning("a worker process %s; its %d clients are lost", worker.process.fate, len(chunk.clients))
        self._start()
        return self._lost(chunk, f"its process {worker.process.fate}")


class _Worker:
    """A worker process, as this process sees it. chunk: that it does, with its number; None: it has nothing to do."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.chunk: tuple[int, Chunk] | None = None
        self._task: Stream | None = None  # the last one that it was sent

    def do(self, task: Stream, number: int, chunk: Chunk) -> None:
        self.chunk = number, chunk
        if self._task is not task:
            self._task = task
            self._send(task)
        self.send(chunk)

    def send(self, message: object) -> None:
        self._send(PICKLES.dump(message))

    def _send(self, stream: Stream) -> None:
        with contextlib.suppress(OSError):  # it has ended, which is seen at the end of its pipe
            _send(self.process.pipe, stream)

    def receive(self) -> Any:
        """Return the results of its chunk. Raises EOFError, OSError if it has ended, SimulationError if it cannot."""
        found = _receive(self.process.pipe)
        if isinstance(found, str):
            raise SimulationError(found)
        return found


def _work(worker: Worker, pipe: Connection) -> None:
    """Do what comes, until None comes. Runs in the worker process."""
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    output = None if sys.stdout is None else Lines(sys.stdout)
    if output is not None:
        sys.stdout = cast("TextIO", output)
    while (message := _receive(pipe)) is not None:
        if not isinstance(message, Chunk):
            worker.begin(message)
        else:
            results = worker.do(message)
            if output is not None:
                output.finish()  # the next line of a client may come from another process
            _send(pipe, PICKLES.dump(results))
    if sys.stderr is not None:
        sys.stderr.flush()


def _end_with_parent(pipe: Connection) -> None:
    """End this process when the parent has ended, whatever a client's function is doing."""
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLRDHUP)
    poller.poll()
    os._exit(1)


def _send(pipe: Connection, stream: Stream) -> None:
    """Send a message. Its large buffers are not copied here. A small one is one piece: each costs two system calls."""
    if stream.nbytes <= _SMALL:
        pipe.send_bytes(b"".join([*stream.buffers, _WHOLE]))
        return
    buffers = [buffer for buffer in stream.buffers if buffer.nbytes]
    pipe.send_bytes(pickle.dumps([buffer.nbytes for buffer in buffers]) + _SIZES)
    for buffer in buffers:
        pipe.send_bytes(buffer)


def _receive(pipe: Connection) -> Any:
    first = memoryview(pipe.recv_bytes())
    if first[-1:] == _WHOLE:
        return PICKLES.load(Stream.of(first[:-1]))
    if first[-1:] != _SIZES:  # of launch.run_unpickled: what the worker could not begin for
        return pickle.loads(first)
    buffers = [memoryview(bytearray(size)) for size in pickle.loads(first[:-1])]
    for buffer in buffers:
        pipe.recv_bytes_into(buffer)
    return PICKLES.load(Stream.of(*buffers))
