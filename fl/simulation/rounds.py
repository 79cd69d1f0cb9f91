"""Rounds with virtual clients: a federation as fl.Server runs it, without connections.

Called by fl/simulation/simulate.py, in its caller's thread.

    select ──► chunks of some clients ──► a worker trains them, and folds their updates
                                          the sums are merged in the order of the chunks ──► finish ──► report
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fl.callbacks.base import ClientState
from fl.envelope import PURPOSES
from fl.errors import InvalidUpdate
from fl.messages import Task
from fl.report import ClientFailure, RoundReport
from fl.server.federation import Federation, Void
from fl.simulation.chunks import Results
from fl.simulation.population import Population, Tally, report
from fl.status import ClientStatus, Refusal
from fl.tensors.spec import Model, nbytes

log = logging.getLogger("netq.fl")


class Training(Protocol):
    """How the clients of a round are trained."""

    @property
    def seconds(self) -> float:
        """That the round has taken until now."""

    @property
    def suspended(self) -> Sequence[int]:
        """Clients for which rounds do not wait."""

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt of a round."""

    def begin(self) -> Sequence[uuid.UUID]:
        """Begin a round. Return the clients that are there."""

    def train(self, task: Task, clients: Sequence[uuid.UUID]) -> tuple[Tally, int]:
        """Train, and fold the updates. Return what has come of it, and how many clients must count."""


class VirtualServer:
    """Runs the rounds of a federation of virtual clients."""

    def __init__(self, federation: Federation, population: Population, training: Training) -> None:
        self._federation = federation
        self._population = population
        self._training = training
        self._run, self._id = secrets.randbits(63), uuid.uuid4()
        federation.callbacks.listens(self)
        population.join()

    @property
    def model(self) -> Model:
        """The model of the last round that counted."""
        return self._federation.model

    @property
    def number(self) -> int:
        """The last round that counted."""
        return self._federation.number

    @property
    def about(self) -> Mapping[str, Any]:
        """What it is, as plain values."""
        return {"federation": str(self._id), **self._federation.about}

    @property
    def refusals(self) -> Sequence[Refusal]:
        """None."""
        return ()

    def members(self) -> Sequence[ClientStatus]:
        """Return where the clients stand that have had a task in this round: some of them, if there are many."""
        return self._population.status()

    def rounds(self, count: int) -> Iterator[RoundReport]:
        """Run rounds until `count` have counted, or a callback stops, as fl.Server.rounds does, without a pause."""
        yield from self._federation.rounds(count, self.round, self._pause, self._save)

    def round(self) -> RoundReport:
        """Run one attempt of a round."""
        federation, attempt = self._federation, self._federation.attempts.void + 1
        clients = self._training.begin()
        number = federation.begin(clients, self.about)
        self._population.forget_stages()
        training, needed = self._training.train(federation.task(self._run, number, "train"), clients)
        evaluation, charged = Tally(), federation.charged
        try:
            federation.finish(number, len(training.good), needed, len(training.skipped), self._save)
        except Void as void:
            training.void(str(void))
            federation.attempts.void += 1
            if federation.charged > charged:
                self._save()
        else:
            if federation.evaluates(number):
                evaluation = self._evaluate(number, training)
        found = report(number, attempt, training, evaluation, self._training.seconds, self._training.suspended)
        found = replace(found, privacy=federation.spent)
        federation.callbacks.round_ends(found, self.model)
        return found

    def _evaluate(self, number: int, training: Tally) -> Tally:
        task, evaluation = self._federation.task(self._run, number, "evaluate"), Tally()
        clients = self._federation.evaluators(number, sorted(training.good))
        evaluation.sent = len(clients) * nbytes(task.model)
        for _, results in self._population.do(task, clients):
            evaluation.add(results)
        return evaluation

    def _pause(self, report: RoundReport) -> None:
        self._training.pause(self._federation.attempts.pause(report, is_first=self.number == 0))

    def _save(self) -> None:
        none = {purpose: {"turn": 0, "records": {}} for purpose in PURPOSES}
        self._federation.save({"federation": self._id.bytes, "standings": none})


class AtOnce:
    """Training without a clock: all clients are there, and none is late."""

    suspended: Sequence[int] = ()

    def __init__(self, federation: Federation, population: Population) -> None:
        self._federation = federation
        self._population = population
        self._since = 0.0

    @property
    def seconds(self) -> float:
        """Since the round began."""
        return time.monotonic() - self._since

    def pause(self, seconds: float) -> None:
        """Do nothing: without a clock there is nothing to wait for."""

    def begin(self) -> Sequence[uuid.UUID]:
        """Begin a round."""
        self._since = time.monotonic()
        return self._population.ids

    def train(self, task: Task, clients: Sequence[uuid.UUID]) -> tuple[Tally, int]:
        """Train the clients that the strategy selects, until enough have an update that counts."""
        strategy, tally, begun = self._federation.strategy, Tally(), 0
        chosen = self._federation.select(task.job.round, clients, self._population.properties)
        selected = tally.those_there(chosen, clients)
        enough = min(strategy.enough(len(clients)), len(selected))
        while begun < len(selected) and len(tally.good) < enough:
            asked = selected[begun : begun + enough - len(tally.good)]  # the others are there for those that fail
            begun += len(asked)
            tally.sent += len(asked) * (nbytes(task.model) + nbytes(task.config))
            self._population.note(asked, ClientState.TRAINING)
            for chunk, results in self._population.do(task, asked):
                self._fold(task.model, results)
                tally.add(results)
                _log_failures(results.failed)
                done = [client for client in chunk.clients if client not in results.failed]
                self._population.note(done, ClientState.DONE, results.size // max(1, len(results.good)))
                self._population.note(results.failed, ClientState.FAILED)
        return tally, 1 if self._federation.draws else max(1, min(self._federation.min_clients, len(selected)))

    def _fold(self, model: Model, results: Results) -> None:
        """Fold what a worker has folded, or the updates that it has not: some of them may be refused."""
        aggregation = self._federation.aggregation
        if results.folded:
            try:
                aggregation.merge(model, results.folded)
            except InvalidUpdate as error:  # of finite updates, whose sum is not
                results.failed |= {client: aggregation.failure_of(error) for client, _, _ in results.good}
                results.good = []
        if results.updates:
            good, results.good = results.good, []
            for each, update in zip(good, results.updates, strict=True):
                failure = aggregation.fold_if_valid(model, update, self._population.ids[each[0]])
                if failure is None:
                    results.good.append(each)
                else:
                    results.failed[each[0]] = failure


def _log_failures(failed: Mapping[int, ClientFailure]) -> None:
    """Log a line for each reason: a chunk that is lost has one for all its clients."""
    clients: dict[str, list[int]] = {}
    for client, failure in failed.items():
        clients.setdefault(str(failure), []).append(client)
    for reason, those in clients.items():
        more = f" and {len(those) - 1} others" if len(those) > 1 else ""
        log.warning("client %d%s: left out: %s", those[0], more, reason)
