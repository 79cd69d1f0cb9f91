"""Training by a virtual clock: each client's device needs its time, and rounds end as they would with such devices.

Made by fl/simulation/simulate.py, and used by fl/simulation/rounds.py. The arithmetic is real, the clock is not: so a
result is the same each time, on any machine. The rules are those of fl.Server: what it selects, when a round is
complete (fl/server/rule.py), who is suspended (fl/server/standing.py), what becomes of late updates.

    a client gets its task ──► its worker trains ──► its update arrives, at the time of its device ──► it is folded

Events are handled in the order of their virtual times. A client is trained when its update may be the next to arrive:
then all that are not trained yet are, in chunks. An update is kept in memory until it arrives.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import random
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import netq
from fl.callbacks.base import ClientState
from fl.messages import Task, Update, with_fields
from fl.report import ClientFailure, FailureKind
from fl.server.federation import Federation
from fl.server.member import Member
from fl.server.rule import RoundRule, RoundState
from fl.server.standing import Standing
from fl.simulation.devices import Device
from fl.simulation.population import Population, Tally
from fl.tensors.spec import nbytes

log = logging.getLogger("netq.fl")


class Good(NamedTuple):
    """An update that arrives, with the number of examples by which it counts, and its metrics."""

    update: Update
    examples: int
    metrics: Mapping[str, Any]


@dataclass(eq=False)
class Errand:
    """A task of a client, from `asked` on. A device that is at work begins with it later. Times are the clock's.

    outcome: None: it is not trained yet. A text: why it is skipped.
    is_over: whether the round does not wait for it any more, and it does not count.
    """

    client: int
    task: Task
    asked: float
    begin: float
    outcome: Good | ClientFailure | str | None = None
    is_over: bool = False


class Clock:
    """The virtual time, and the tasks that are under way.

    now:   in seconds since midnight of the first day.
    grace: seconds after which a device that has gone is lost.
    """

    def __init__(
        self, population: Population, devices: Sequence[Device], begin: float, grace: float, seed: int
    ) -> None:
        self.now = begin
        self._population = population
        self._devices = devices
        self._are_always_there = all(device.hours is None for device in devices)
        self._grace = grace
        self._seed = seed
        self._numbers = itertools.count()  # of equal times the first one comes first
        self._coming: list[tuple[float, int, Errand]] = []  # a heap
        self._untrained: dict[int, Errand] = {}  # by client
        self._free: dict[int, float] = {}  # when each device is done with its last task
        self._counts: dict[int, int] = {}  # tasks of each

    def ask(self, client: int, task: Task) -> Errand:
        """Give a client a task."""
        if client in self._untrained:
            self._train()  # its last one, which does not count any more
        errand = Errand(client, task, self.now, max(self.now, self._free.get(client, 0.0)))
        count = self._counts[client] = self._counts.get(client, 0) + 1
        chance = random.Random(f"{self._seed} failure {client} {count}")
        if chance.random() < self._devices[client].failures:
            until = self._earliest(errand) if math.isfinite(self._earliest(errand)) else errand.begin
            self._lose(errand, errand.begin + chance.random() * (until - errand.begin), "its device has failed")
        else:
            self._untrained[client] = errand
        return errand

    def next(self, until: float) -> Errand | None:
        """Go on to the next arrival, and return it; or to the time `until`, and return None.

        The time stands still, and this returns None, if no task is under way.
        """
        while self._coming or self._untrained:
            first = self._coming[0][0] if self._coming else math.inf
            if self._untrained and min(map(self._earliest, self._untrained.values())) <= min(first, until):
                self._train()
            elif first > until:
                self.now = max(self.now, until)
                return None
            else:
                time, _, errand = heapq.heappop(self._coming)
                self.now = max(self.now, time)  # between two rounds it may have arrived earlier
                return errand
        return None

    def there(self) -> Sequence[int]:
        """Return the clients whose devices are there now."""
        if self._are_always_there:
            return range(len(self._devices))
        return [client for client, device in enumerate(self._devices) if device.is_there(self.now)]

    def is_there(self, client: int) -> bool:
        """Return whether a client's device is there now."""
        return self._devices[client].is_there(self.now)

    def wait_for(self, count: int) -> Sequence[int]:
        """Go on to the time when so many devices are there, and return them. Raises InvalidOption if there is none."""
        if len(there := self.there()) >= count:
            return there
        for time in sorted({self.now, *(device.comes(self.now) for device in self._devices)}):
            before, self.now = self.now, time
            if len(there := self.there()) >= count:
                return there
            self.now = before
        most = f"{count} clients are needed (min_clients), and so many are never there at once"
        raise netq.InvalidOption(f"Devices.hours: {most}; give them hours that overlap, or a smaller min_clients")

    def _earliest(self, errand: Errand) -> float:
        """Return when an update arrives at the earliest."""
        return errand.begin + self._devices[errand.client].duration(nbytes(errand.task.model), 0, 0)

    def _train(self) -> None:
        """Train all clients that are not trained yet: those of each task in chunks."""
        by_task: dict[int, list[Errand]] = {}
        for errand in self._untrained.values():
            by_task.setdefault(id(errand.task), []).append(errand)
        self._untrained.clear()
        for errands in by_task.values():
            found = self._outcomes(errands[0].task, [each.client for each in errands])
            for errand in errands:
                self._schedule(errand, found[errand.client])

    def _outcomes(self, task: Task, clients: Sequence[int]) -> dict[int, Good | ClientFailure | str]:
        found: dict[int, Good | ClientFailure | str] = {}
        for _, results in self._population.do(task, clients):
            for (client, examples, metrics), update in zip(results.good, results.updates, strict=True):
                found[client] = Good(update, examples, metrics)
            found |= {**results.failed, **results.skipped}
        return found

    def _schedule(self, errand: Errand, outcome: Good | ClientFailure | str) -> None:
        device, model, is_good = self._devices[errand.client], nbytes(errand.task.model), isinstance(outcome, Good)
        sent, examples = (outcome.update.nbytes, outcome.examples) if isinstance(outcome, Good) else (0, 0)
        time, leaves = errand.begin + device.duration(model, sent, examples), device.leaves(errand.begin)
        if time > leaves and is_good:
            self._lose(errand, leaves, "its hours have ended")
        else:
            errand.outcome = outcome
            self._arrive(errand, time)
        errand.task = with_fields(errand.task, model={})  # its memory: the next models are others

    def _lose(self, errand: Errand, time: float, why: str) -> None:
        """Have a device go at a time. The server knows it after the grace."""
        errand.outcome = ClientFailure(FailureKind.LOST, why)
        self._arrive(errand, time + self._grace)

    def _arrive(self, errand: Errand, time: float) -> None:
        self._free[errand.client] = time
        heapq.heappush(self._coming, (time, next(self._numbers), errand))


class ByClock:
    """Training by a virtual clock."""

    def __init__(self, federation: Federation, population: Population, clock: Clock) -> None:
        patience = federation.patience
        self._federation = federation
        self._population = population
        self._clock = clock
        self._standing = Standing(patience.suspend_after, patience.deadline_of(1))
        self._members: dict[int, Member] = {}  # of clients that have had a task
        self._at_work: dict[int, Errand] = {}
        self._begin = self._end = clock.now  # of the round

    @property
    def seconds(self) -> float:
        """By the clock, since the round before ended."""
        return self._clock.now - self._begin

    @property
    def suspended(self) -> Sequence[int]:
        """Clients for which rounds do not wait."""
        return [id.int for id in self._standing.suspended(self._members.values())]

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt of a round."""
        self._clock.now += seconds

    def begin(self) -> Sequence[uuid.UUID]:
        """Begin a round, when there are clients."""
        self._begin = self._end
        self._standing.deadline = self._federation.patience.deadline_of(self._federation.number + 1)
        return [self._population.ids[client] for client in self._clock.wait_for(self._federation.min_clients)]

    def train(self, task: Task, clients: Sequence[uuid.UUID]) -> tuple[Tally, int]:
        """Train, and fold the updates in the order in which they arrive, until the round is complete."""
        tally, federation = Tally(), self._federation
        regular, selected, retried = self._select(task.job.round, clients, tally)
        buffer = federation.strategy.buffer
        rule = RoundRule(needed=1, buffer=buffer)
        if buffer is None:
            busy = len(self._at_work)
            rule = RoundRule(
                enough=min(federation.strategy.enough(regular), len(selected)),
                needed=1 if federation.draws else max(1, min(federation.min_clients, len(selected) + busy)),
                close_early=federation.patience.close_early,
            )
        work = _Work(task, rule, tally, selected if buffer is None else ())
        if buffer is None:
            for client in [*selected, *retried]:
                self._ask(work, client)
        else:
            work.fresh.extend([*selected, *retried])
            work.count = len(work.fresh)
            self._ask_more(work)
        self._run(work)
        if buffer is None:
            self._close(work)
        self._end = self._clock.now
        return work.tally, rule.needed

    def _select(self, number: int, clients: Sequence[uuid.UUID], tally: Tally) -> tuple[int, list[int], list[int]]:
        """Return how many clients are regular, those that the strategy selects, and suspended ones that get a task."""
        federation, is_buffered = self._federation, self._federation.strategy.buffer is not None
        idle = [id for id in clients if is_buffered or id.int not in self._at_work]
        missed = [each for id in idle if (each := self._members.get(id.int)) is not None and each.has_missed]
        again = federation.is_repeated and not is_buffered
        least = federation.min_clients - (len(idle) - len(missed))
        found = self._standing.candidates(missed, least, again=again)
        left_out = {each.id for each in missed} - {each.id for each in found.regular}
        regular = [id for id in idle if id not in left_out]
        pool = idle if federation.draws else regular  # a draw is of all, and suspended ones come back by it only
        selected = tally.those_there(federation.select(number, pool, self._population.properties), pool)
        retried = [each.id.int for each in found.retried]
        if federation.draws:
            suspended = {id.int for id in left_out}
            retried, selected = (
                [each for each in selected if each in suspended],
                [each for each in selected if each not in suspended],
            )
        return len(regular), selected, retried

    def _run(self, work: _Work) -> None:
        """Take what arrives until the round is complete, no task is under way, or the deadline has passed."""
        begin = self._clock.now
        until = begin + self._standing.deadline
        while not work.rule.is_complete(progress := self._progress(work, begin), self._clock.now):
            look = work.rule.next_look(progress, until, self._clock.now)
            errand = self._clock.next(look)
            if errand is not None:
                self._take(work, errand)
                if work.rule.buffer is not None:
                    self._ask_more(work)
            elif not look <= self._clock.now < until:
                return

    def _progress(self, work: _Work, begin: float) -> RoundState:
        overdue, last = math.inf, work.overdue
        if work.rule.close_early:
            while last and last[0][1] not in work.waiting:
                heapq.heappop(last)
            overdue = begin + (-last[0][0] if last else 0.0)
        return RoundState(len(work.waiting), work.in_time, len(work.tally.good), work.updates, overdue)

    def _ask(self, work: _Work, client: int) -> None:
        self._at_work[client] = self._clock.ask(client, work.task)
        work.asked[client] = self._at_work[client]
        if client in work.regular:
            work.waiting.add(client)
            heapq.heappush(work.overdue, (-self._standing.expected(self._member(client)), client))
        work.tally.sent += nbytes(work.task.model) + nbytes(work.task.config)
        self._population.note([client], ClientState.TRAINING)

    def _ask_more(self, work: _Work) -> None:
        """Have as many clients at work as the strategy has selected; first those without an update in this round."""
        if work.updates >= (work.rule.buffer or 0):  # the next task has the next model
            return
        while len(self._at_work) < work.count and (work.fresh or work.again):
            client = (work.fresh or work.again).popleft()
            if client not in self._at_work and self._clock.is_there(client):
                self._ask(work, client)

    def _take(self, work: _Work, errand: Errand) -> None:
        """Fold an update that has arrived, or note what else has come of a task."""
        client, outcome, tally = errand.client, errand.outcome, work.tally
        errand.outcome = None  # its memory
        if errand.is_over:
            if isinstance(outcome, Good):
                self._standing.answered_late(self._member(client), self._clock.now - errand.asked)
            return
        del self._at_work[client]
        staleness = work.task.job.round - errand.task.job.round
        if isinstance(outcome, str):
            tally.skipped[client] = outcome
            self._population.note([client], ClientState.DONE)
        elif isinstance(outcome, Good):
            tally.received += outcome.update.nbytes
            id, aggregation = self._population.ids[client], self._federation.aggregation
            failure = aggregation.fold_if_valid(self._federation.model, outcome.update, id, staleness)
            if failure is not None:
                self._fail(work, client, failure)
            else:
                self._count(work, errand, outcome, staleness)
        elif outcome is not None:
            self._fail(work, client, outcome)
        work.waiting.discard(client)

    def _count(self, work: _Work, errand: Errand, good: Good, staleness: int) -> None:
        client, tally = errand.client, work.tally
        self._standing.answered(self._member(client), self._clock.now - errand.asked)
        tally.good[client] = good.examples, good.metrics
        tally.failed.pop(client, None)
        tally.staleness.pop(client, None)
        if staleness:
            tally.staleness[client] = staleness
        work.updates += 1
        work.in_time += client in work.waiting and not staleness
        work.again.append(client)
        self._population.note([client], ClientState.DONE, good.update.nbytes)

    def _fail(self, work: _Work, client: int, failure: ClientFailure, *, is_spared: bool = False) -> None:
        """Note a failure. For a client that is spared it is no missed task."""
        if client not in work.tally.good:
            work.tally.failed[client] = failure
        log.info("client %d: left out: %s", client, failure)
        self._population.note([client], ClientState.FAILED)
        if not is_spared:
            self._standing.missed(self._member(client))

    def _close(self, work: _Work) -> None:
        """Wait no longer for the clients that have not answered. If enough others have, it is no missed task."""
        has_enough = work.rule.has_enough(work.in_time)
        why = (
            "enough others had answered" if has_enough else f"no answer within {self._standing.deadline:g} s (deadline)"
        )
        for client, errand in work.asked.items():
            if self._at_work.get(client) is not errand:
                continue
            late = ClientFailure(FailureKind.LATE, why)
            self._fail(work, client, late, is_spared=has_enough and client in work.waiting)
            if self._federation.strategy.staleness is None:
                errand.is_over = True
                del self._at_work[client]

    def _member(self, client: int) -> Member:
        return self._members.get(client) or self._members.setdefault(client, Member(self._population.ids[client]))


class _Work:
    """One round under way. regular: the clients that it waits for; `waiting`: of them, those without an answer."""

    def __init__(self, task: Task, rule: RoundRule, tally: Tally, regular: Sequence[int]) -> None:
        self.task = task
        self.rule = rule
        self.regular = frozenset(regular)
        self.tally = tally
        self.waiting: set[int] = set()
        self.overdue: list[tuple[float, int]] = []  # a heap of those waited for: the first is overdue last
        self.asked: dict[int, Errand] = {}
        self.in_time = self.updates = 0
        self.count = 0  # clients at work at any time; of an asynchronous strategy, as the next two
        self.fresh: deque[int] = deque()  # that may be asked, and have no update in this round
        self.again: deque[int] = deque()  # … and have one
