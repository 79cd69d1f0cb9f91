"""What a worker of a simulation does: some virtual clients train or evaluate, and their updates are folded.

A virtual client is a train function, or an fl.Client, and the number of its partition. It is nothing between two tasks
but what it keeps, as bytes, at the process that runs the rounds (fl/simulation/rounds.py): so any worker can do any
chunk, and one that dies costs its chunk. The same code runs in a process (fl/simulation/pool.py) and in Ray's actors.
"""

from __future__ import annotations

import copy
import logging
import math
import threading
import traceback
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from fl.client import Client
from fl.errors import SimulationError
from fl.messages import Content, Skip, Task, Update, with_fields
from fl.report import MEASURED, ClientFailure, FailureKind
from fl.server.aggregation import Aggregation
from fl.simulation.calls import Calls, with_own_arrays
from fl.strategies.base import Strategy
from fl.tensors import serialization
from fl.tensors.model import copied
from fl.tensors.roles import Roles
from fl.trainer import Train, Trainer
from netq.text import describe
from netq.utils.stream import PickleSerializer

_CHUNKS = 16  # at least, of a round with as many clients: so workers have as much to do

_NO_METRICS: Mapping[str, Any] = {}  # one object for all that have none

log = logging.getLogger("netq.fl")

PICKLES = PickleSerializer(dump=serialization.dump, load=serialization.load)


class Chunk(NamedTuple):
    """Clients that one worker does in turn.

    calls:   how often each has had a task of this purpose, with this one.
    kept:    what they keep from task to task, of those that do.
    configs: of clients with values of their own; or why there is none, and the client does nothing.
    """

    clients: Sequence[int]
    calls: Sequence[int]
    kept: Mapping[int, bytes]
    configs: Mapping[int, Mapping[str, Any] | ClientFailure]


class Worker(Protocol):
    """What an engine has in each of its workers."""

    def begin(self, task: Any) -> None:
        """Take a task, before the first of its chunks."""

    def do(self, chunk: Chunk) -> Any:
        """Have a chunk's clients do the task. Return what has come of it."""

    def lost(self, chunk: Chunk, why: str) -> Any:
        """Return what has come of a chunk whose worker has ended. Called in the process that has the engine."""


class Engine(Protocol):
    """Has workers do chunks."""

    def run(self, task: Any, chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, Any]]:
        """Do chunks with one task, and yield each with what has come of it, in their order."""


def chunk_size(clients: int) -> int:
    """Return how many clients a chunk has. It depends on their number only: so does the rounding of sums."""
    return max(1, min(math.isqrt(clients), clients // _CHUNKS))


@dataclass
class Results:
    """What has come of a chunk.

    good:    the clients whose answers are good, each with its number of examples and its metrics.
    kept:    what clients keep from now on; empty: nothing.
    folded:  the updates of the good ones, as Aggregation.partial returns them; empty if they were not folded.
    updates: of the good ones, in their order, if they were not folded.
    size:    bytes of their tensors.
    error:   of a user's function, with its traceback: it ends the simulation.
    """

    good: list[tuple[int, int, Mapping[str, Any]]] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)
    failed: dict[int, ClientFailure] = field(default_factory=dict)
    kept: dict[int, bytes] = field(default_factory=dict)
    folded: dict[str, Any] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)
    size: int = 0
    error: str = ""


class ChunkWorker:
    """Does chunks. One thread uses it, `begin` before the first chunk of each task.

    folds: whether it folds updates; False: it returns them.
    """

    def __init__(
        self, clients: Sequence[Train | Client], strategy: Strategy, roles: Roles, calls: Calls, *, folds: bool
    ) -> None:
        self._clients = clients
        self._strategy = strategy
        self._roles = roles
        self._calls = calls
        self._folds = folds
        self._trainers: dict[int, Trainer] = {}  # by the id of a train function, which many clients have
        self._aggregation: Aggregation | None = None

    def begin(self, task: Task) -> None:
        """Take the task of a round, with its model."""
        self._task = task
        if self._aggregation is None:
            self._aggregation = Aggregation(self._strategy, task.model, self._roles)
            self._aggregation.abandon()  # a fork may have begun in the middle of a round

    def do(self, chunk: Chunk) -> Results:
        """Do a chunk."""
        assert self._aggregation is not None, "begin comes first"
        purpose, results, errors = self._task.job.purpose, Results(), _Errors()
        for client, count in zip(chunk.clients, chunk.calls, strict=True):
            config = chunk.configs.get(client, {})
            if isinstance(config, ClientFailure):
                results.failed[client] = config
                continue
            threading.current_thread().name = f"client {client}"  # which prints and logs
            try:
                with errors:
                    content = self._do(client, count, config, chunk.kept.get(client), results)
            except SimulationError as error:
                results.error = f"client {client}: {error}"
            except BaseException as error:  # SystemExit of the user's function, too
                results.error = f"client {client}: {''.join(traceback.format_exception(error))}"
            results.error = errors.first or results.error
            if results.error:
                return results
            self._take(client, content, results)
        if purpose == "train" and self._folds and results.good:
            results.folded = self._aggregation.partial()
        return results

    def lost(self, chunk: Chunk, why: str) -> Results:
        """See Worker."""
        return Results(failed=dict.fromkeys(chunk.clients, ClientFailure(FailureKind.LOST, why)))

    def _do(
        self, client: int, count: int, config: Mapping[str, Any], kept: bytes | None, results: Results
    ) -> Content | str:
        purpose = self._task.job.purpose
        trainer = self._trainer(client)
        seed = self._calls.rounding_seed(client, count, trainer.seed) if trainer.packs(self._task) else None
        trainer.begin_anew(PICKLES.load(kept) if kept else {}, seed)
        own = copy.deepcopy({**config, **self._task.config})  # it may change it
        own |= {"partition": client, "partitions": len(self._clients)}
        task = with_fields(self._task, model=copied(self._task.model), config=own)
        with self._calls.alone(client, purpose, count):
            content = trainer.do(task)
        if purpose == "train" and ((keeps := trainer.save()) or kept):
            results.kept[client] = _bytes_of(keeps)
        return content

    def _trainer(self, client: int) -> Trainer:
        each = self._clients[client]
        if isinstance(each, Client):
            return each.trainer
        if id(each) not in self._trainers:  # an object may have no hash, or be equal to another one
            self._trainers[id(each)] = Trainer(each)
        return self._trainers[id(each)]

    def _take(self, client: int, content: Content | str, results: Results) -> None:
        """Fold an update, or note what else has come of a client's task."""
        assert self._aggregation is not None
        if isinstance(content, str):
            results.failed[client] = ClientFailure(FailureKind.FAILED, content)
            return
        if isinstance(content, Skip):
            results.skipped[client] = content.reason
            return
        examples = self._strategy.examples(content.num_examples)
        if isinstance(content, Update):
            content = with_fields(content, num_examples=examples)
            results.size += content.nbytes
            failure = None
            if self._folds:
                failure = self._aggregation.fold_if_valid(self._task.model, content, uuid.UUID(int=client))
            else:
                results.updates.append(with_own_arrays(content))
            if failure is not None:
                results.failed[client] = failure
                return
        metrics = {name: value for name, value in content.metrics.items() if not name.startswith(MEASURED)}
        results.good.append((client, examples, metrics or _NO_METRICS))


class _Errors(logging.Handler):
    """Remembers the first error that is logged in its `with` blocks: of a user's function, or of what it returned."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Note an error, with the client's name, which is the thread's name."""
        self.first = self.first or f"{record.threadName}: {self.format(record)}"

    def __enter__(self) -> None:
        log.addHandler(self)

    def __exit__(self, *error: object) -> None:
        log.removeHandler(self)


def _bytes_of(kept: Mapping[str, Any]) -> bytes:
    """Return what a client keeps as bytes; none if it keeps nothing."""
    try:
        return bytes(PICKLES.dump(kept)) if kept else b""
    except Exception as error:
        raise SimulationError(
            f"what it keeps in config['state'] cannot be pickled: {describe(error)}; expected plain values, arrays and "
            "tensors, or engine='network', whose clients stay in their processes"
        ) from error
