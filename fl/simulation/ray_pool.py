"""The engine "ray": actors of Ray do the chunks of a round (fl/simulation/chunks.py), here or on a cluster.

Used by fl/simulation/rounds.py, in its thread, as fl/simulation/pool.py is. The task of a round, with its model, is put
into Ray's store once. A chunk is one call of an actor, and its result is one sum: a call costs more than a small client
does. An actor that dies loses its chunk, and another one takes its place.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from fl.errors import SimulationError
from fl.simulation.chunks import Chunk, Worker
from netq.errors import InvalidOption
from netq.text import describe
from netq.version import DISTRIBUTION

log = logging.getLogger("netq.fl")

_REACH = 10.0  # seconds to reach a cluster
_AHEAD = 4  # chunks for each actor that may be under way, or done and waiting for the ones before them
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of a setting of ours that is none
}


class RayPool:
    """Actors of Ray. A context manager. Uses the Ray that the program has begun; else begins one, and ends it.

    count:   of actors; None: as many as the cluster has room for.
    address: of a cluster, as for ray.init; None: a Ray of this machine.
    options: of each actor, as for Ray's `options`: {"num_gpus": 0.25}.

    Raises InvalidOption.
    """

    def __init__(self, worker: Worker, count: int | None, address: str | None, options: Mapping[str, Any]) -> None:
        self._worker = worker
        self._count = count
        self._address = address
        self._options = {"num_cpus": 1, **options}
        self._is_ours = False
        self._tasks = 0  # calls of `run`
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, int, Chunk]] = {}  # by the reference of the result
        self._ray = _ray()

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _begin(self) -> None:
        if not self._ray.is_initialized():
            for name, value in ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            local = {} if self._address else {"include_dashboard": False, "logging_level": logging.WARNING}
            self._is_ours = True
            _check_address(self._address)
            try:
                self._ray.init(address=self._address, **local)
            except (ConnectionError, ValueError, RuntimeError) as error:
                why = f"{describe(error)}; expected the address of a Ray cluster that runs"
                raise InvalidOption(f"simulate.address: {self._address!r}: {why}, as in 'auto'") from error
        try:
            self._actor = self._ray.remote(_Actor).options(**self._options)
            room = self._room()
        except (TypeError, ValueError) as error:
            if isinstance(error, InvalidOption):
                raise
            why = f"{describe(error)}; expected options of an actor of Ray"
            raise InvalidOption(f"simulate.actors: {self._options}: {why}, as {{'num_gpus': 0.25}}") from error
        if self._count is not None and self._count > room:
            wanted = f"{self._count} actors with {self._options}"
            raise InvalidOption(f"simulate.processes: {wanted}; expected {room} at most, for which Ray has room")
        try:
            self._reference = self._ray.put(self._ray.cloudpickle.dumps(self._worker))
        except (TypeError, pickle.PicklingError) as error:
            raise InvalidOption(f"simulate.clients: cannot be pickled: {error}") from error
        self._idle = [self._new() for _ in range(self._count or room)]

    def _new(self) -> Any:
        return self._actor.remote(self._reference, sys.path)  # with the folders that this program has added

    def _room(self) -> int:
        """Return for how many actors the cluster has room."""
        there = self._ray.cluster_resources()
        wanted = {
            "CPU": self._options.get("num_cpus"),
            "GPU": self._options.get("num_gpus"),
            **self._options.get("resources", {}),
        }
        rooms = [int(there.get(name, 0) // amount) for name, amount in wanted.items() if amount]
        if not all(rooms):
            raise InvalidOption(f"simulate.actors: {self._options}; expected no more than Ray has: {there}")
        return min(rooms, default=1)

    def _end(self) -> None:
        if self._ray.is_initialized():
            for actor in [*self._idle, *(actor for actor, _, _ in self._busy.values())]:
                self._ray.kill(actor)
        self._idle.clear()
        self._busy.clear()
        if self._is_ours:
            self._ray.shutdown()  # also what an interrupted ray.init has begun

    def run(self, task: Any, chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, Any]]:
        """Do chunks with one task, and yield each with its results, in their order. Raises SimulationError."""
        stored, source = self._ray.put(task), iter(chunks)
        self._tasks += 1
        size = len(self._idle)
        begun = number = 0  # chunks that an actor was given, and that were yielded
        done: dict[int, tuple[Chunk, Any]] = {}
        while True:
            while self._idle and begun < number + _AHEAD * size and (chunk := next(source, None)) is not None:
                actor = self._idle.pop()
                self._busy[actor.do.remote(self._tasks, stored, chunk)] = actor, begun, chunk
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
        errors = self._ray.exceptions
        (reference,), _ = self._ray.wait(list(self._busy))
        actor, number, chunk = self._busy.pop(reference)
        try:
            results = self._ray.get(reference)
        except errors.ActorDiedError as error:
            if error.error_msg and "__init__" in error.error_msg:
                raise SimulationError(_WITHOUT_US.format(error)) from error
            results = self._replace(actor, chunk, error)
        except errors.RayActorError as error:
            results = self._replace(actor, chunk, error)
        except errors.RayTaskError as error:
            raise SimulationError(f"an actor of Ray cannot do its clients: {error}") from error
        else:
            self._idle.append(actor)
        return {number: (chunk, results)}

    def _replace(self, actor: Any, chunk: Chunk, error: Exception) -> Any:
        self._ray.kill(actor)
        why = str(error).splitlines()[0]
        log.warning("an actor of Ray has died; its %d clients are lost: %s", len(chunk.clients), why)
        self._idle.append(self._new())
        return self._worker.lost(chunk, "its actor of Ray has died; Ray's log may say why")


_WITHOUT_US = (
    "an actor of Ray cannot begin: {}\nIf the cluster's nodes lack a module, install it there, or begin Ray yourself "
    "before: ray.init(address, runtime_env={{'py_modules': [netq, fl, …]}})"
)


class _Actor:
    """Does chunks, in a process of Ray."""

    def __init__(self, worker: bytes, path: Sequence[str]) -> None:
        sys.path += [each for each in path if each not in sys.path]
        self._worker: Worker = pickle.loads(worker)
        self._number = 0  # of the task that it has

    def do(self, number: int, task: Any, chunk: Chunk) -> Any:
        if self._number != number:
            self._number = number
            self._worker.begin(task)
        return self._worker.do(chunk)


def _check_address(address: str | None) -> None:
    """Raise InvalidOption if nothing listens there: Ray itself would try for minutes."""
    found = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address or "")
    try:
        if found:
            socket.create_connection((found[1], int(found[2])), _REACH).close()
    except OSError as error:
        why = f"nothing answers there ({describe(error)}); expected the address of a Ray cluster that runs"
        raise InvalidOption(f"simulate.address: {address!r}: {why}") from error


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InvalidOption(
            f"simulate.engine: 'ray' needs Ray ({error}): pip install '{DISTRIBUTION}[ray]', or engine='processes'"
        ) from None
    return ray
