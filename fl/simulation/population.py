"""The virtual clients of a simulation, and what has come of those that had a task.

Used by fl/simulation/rounds.py and fl/simulation/timed.py, in their caller's thread. An engine (fl/simulation/pool.py)
is asked for the results of chunks, and yields them in order: so a result is the same to the last bit, however many
workers there are.
"""

from __future__ import annotations

import itertools
import time
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fl.callbacks.base import Callback, ClientState
from fl.client import Client
from fl.envelope import PURPOSES
from fl.errors import SimulationError
from fl.messages import Task
from fl.metrics import Merged, merged
from fl.properties import ClientInfo
from fl.report import ClientFailure, FailureKind, RoundReport
from fl.server.answers import large_shares
from fl.server.federation import Federation, config_or_failure
from fl.simulation.chunks import Chunk, Engine, Results, chunk_size
from fl.simulation.columns import ByClient, Ids, Metrics
from fl.simulation.kept import Kept
from fl.status import ClientStatus, Stage
from fl.trainer import Train

_SHOWN = 1000  # clients of which `status` says where they stand
_STAGES = {ClientState.TRAINING: Stage.TRAINING, ClientState.DONE: Stage.DONE, ClientState.FAILED: Stage.FAILED}


class Population:
    """The clients, by their number. `ids`: of all."""

    def __init__(self, clients: Sequence[Train | Client], engine: Engine, kept: Kept, federation: Federation) -> None:
        self.ids = tuple(uuid.UUID(int=number) for number in range(len(clients)))
        described = ((id, each) for id, each in zip(self.ids, clients, strict=True) if isinstance(each, Client))
        self.properties = {id: each.properties for id, each in described if each.properties}
        self._engine = engine
        self._kept = kept
        self._config_of = federation.config_of
        self._callbacks = federation.callbacks
        self._is_observed = federation.callbacks.wants(Callback.client_is)
        self._calls = {purpose: np.zeros(len(clients), np.int64) for purpose in PURPOSES}  # tasks that each has had
        self._stages: dict[uuid.UUID, tuple[ClientState, float]] = {}

    def do(self, task: Task, clients: Sequence[int]) -> Iterator[tuple[Chunk, Results]]:
        """Have clients do a task. Yield chunks of them with their results, in their order. Raises SimulationError."""
        for chunk, results in self._engine.run(task, self._chunks(task, clients)):
            if results.error:
                raise SimulationError(results.error)
            if results.kept:
                self._kept.update(results.kept)
            yield chunk, results

    def _chunks(self, task: Task, clients: Sequence[int]) -> Iterator[Chunk]:
        size, calls = chunk_size(len(clients)), self._calls[task.job.purpose]
        for start in range(0, len(clients), size):
            part = clients[start : start + size]
            calls[part] += 1
            yield Chunk(part, calls[part].tolist(), self._kept.of(part), self._configs(task, part))

    def _configs(self, task: Task, clients: Sequence[int]) -> dict[int, Mapping[str, Any] | ClientFailure]:
        if self._config_of is None:
            return {}
        infos = [ClientInfo(self.ids[client], self.properties.get(self.ids[client], {})) for client in clients]
        return {info.id.int: config_or_failure(self._config_of, info, task.job.round) for info in infos}

    def join(self) -> None:
        """Tell the callbacks that all clients are there."""
        for id in self.ids if self._callbacks.wants(Callback.client_joins) else ():
            self._callbacks.client_joins(id, "")

    def forget_stages(self) -> None:
        """Begin a round."""
        self._stages.clear()

    def note(self, clients: Iterable[int], state: ClientState, size: int = 0) -> None:
        """Note what clients are doing, and tell those callbacks that want to know."""
        for id in map(self.ids.__getitem__, clients if self._is_observed else itertools.islice(clients, _SHOWN)):
            if len(self._stages) < _SHOWN or id in self._stages:
                self._stages[id] = state, time.time()
            if self._is_observed:
                self._callbacks.client_is(id, state, size)

    def status(self) -> Sequence[ClientStatus]:
        """Return where the clients stand that have had a task in this round: some of them, if there are many."""
        return [ClientStatus(id, "", _STAGES[state], since=since) for id, (state, since) in [*self._stages.items()]]


class Tally:
    """What has come of a round's clients, in the order in which their answers were folded.

    good:      number of examples and metrics, of clients whose answer counts; of the last one, if there are several.
    staleness: of late ones.
    sent:      bytes of tensors to the clients; `received`: from them.
    """

    def __init__(self) -> None:
        self.good: dict[int, tuple[int, Mapping[str, Any]]] = {}
        self.failed: dict[int, ClientFailure] = {}
        self.skipped: dict[int, str] = {}
        self.staleness: dict[int, int] = {}
        self.sent = self.received = 0

    def those_there(self, chosen: Sequence[uuid.UUID], clients: Sequence[uuid.UUID]) -> list[int]:
        """Return those of the chosen clients that are there. A strategy may choose others, which it remembers."""
        there = set(clients)
        self.failed |= {id.int: ClientFailure(FailureKind.LOST, "it has gone") for id in chosen if id not in there}
        return [id.int for id in chosen if id in there]

    def add(self, results: Results) -> None:
        """Add the clients of a chunk."""
        self.good |= {client: (examples, metrics) for client, examples, metrics in results.good}
        self.failed |= results.failed
        self.skipped |= results.skipped
        self.received += results.size

    def void(self, reason: str) -> None:
        """Turn all answers that count into failures."""
        self.failed |= dict.fromkeys(self.good, ClientFailure(FailureKind.VOID, reason))
        self.good = {}

    @property
    def examples(self) -> dict[int, int]:
        """Of the clients whose answers count."""
        return {client: examples for client, (examples, _) in self.good.items()}

    def merged(self, examples: Mapping[int, int]) -> Merged:
        """Return the means of the metrics by number of examples."""
        metrics = {client: metrics for client, (_, metrics) in self.good.items() if metrics}
        return merged(metrics, examples, {}, len(self.good))


def report(
    number: int, attempt: int, training: Tally, evaluation: Tally, seconds: float, suspended: Sequence[int] = ()
) -> RoundReport:
    """Return the report of a round. What it has of each client takes some bytes."""
    examples, evaluated_examples = training.examples, evaluation.examples
    metrics, evaluated = training.merged(examples), evaluation.merged(evaluated_examples)
    ids, evaluators = Ids(training.good), Ids(evaluation.good)
    return RoundReport(
        number=number,
        attempt=attempt,
        clients=ids,
        failures=_by_id(training.failed),
        evaluation_failures=_by_id(evaluation.failed),
        skipped=_by_id(training.skipped),
        evaluation_skipped=_by_id(evaluation.skipped),
        not_finite=metrics.not_finite,
        evaluation_not_finite=evaluated.not_finite,
        left_out=metrics.left_out,
        evaluation_left_out=evaluated.left_out,
        num_examples=ByClient(ids, array("q", examples.values())),
        evaluation_examples=ByClient(evaluators, array("q", evaluated_examples.values())),
        metrics=metrics.values,
        evaluation=evaluated.values,
        seconds=seconds,
        bytes_in=training.received,
        bytes_out=training.sent + evaluation.sent,
        staleness=_by_id(training.staleness),
        client_metrics=ByClient(ids, Metrics([metrics for _, metrics in training.good.values()])),
        client_evaluation=ByClient(evaluators, Metrics([metrics for _, metrics in evaluation.good.values()])),
        shares=_by_id(large_shares(examples)),
        suspended=tuple(uuid.UUID(int=client) for client in suspended),
    )


def _by_id(values: Mapping[int, Any]) -> dict[uuid.UUID, Any]:
    return {uuid.UUID(int=client): value for client, value in values.items()}
