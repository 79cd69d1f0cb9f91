"""The training half of a round: who is asked, and how their answers are folded as they come.

Driven by fl/server/server.py, in its thread. Keeps, from round to round, who is still at work on an older one.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Sequence
from typing import NamedTuple

from fl.callbacks.base import Callbacks, ClientState
from fl.compression.packed import Unpacked
from fl.errors import InvalidUpdate
from fl.messages import Task, Update
from fl.report import ClientFailure, FailureKind, RoundState
from fl.server.dispatcher import Answer, TaskDispatcher
from fl.strategies.base import Strategy
from fl.tensors.spec import Model, nbytes

log = logging.getLogger("netq.fl")

_OLD = 10  # rounds after which a client that is still at work is asked again


class _Round(NamedTuple):
    """What a round gives to its clients, and what came of it."""

    task: Task
    give_up: float  # when it closes
    answers: RoundState


class UpdateCollector:
    """Collects the updates of one round after the other.

    min_clients: updates without which a round does not count (all, where fewer are asked).
    deadline:    seconds; then a round closes, with what has come.
    """

    def __init__(
        self, exchange: TaskDispatcher, strategy: Strategy, min_clients: int, deadline: float, callbacks: Callbacks
    ) -> None:
        self._exchange = exchange
        self._strategy = strategy
        self._min_clients = min_clients
        self.deadline = deadline
        self._callbacks = callbacks
        self._told: set[type[Exception]] = set()  # of whose tracebacks the log has been told, in this round

    def collect(self, task: Task, clients: Collection[uuid.UUID]) -> tuple[RoundState, int]:
        """Ask, and fold what comes; return who answered what, and how many updates there must be."""
        self._told.clear()
        self._forget_old(task.job.round)
        self._exchange.trim(nbytes(task.model))
        if self._strategy.buffer is not None:
            return self._collect_some(task, clients, self._strategy.buffer), 1
        busy = self._exchange.busy
        idle = [peer for peer in clients if peer not in busy]
        answers = RoundState(dict.fromkeys(self._strategy.select(task.job.round, idle)))
        round = _Round(task, time.monotonic() + self.deadline, answers)
        asked = len(answers.pending)
        self._exchange.ask(task, answers.pending)
        enough = min(self._strategy.enough(len(idle)), asked)
        needed = max(1, min(self._min_clients, asked + len(busy.keys() & set(clients))))
        self._fold_enough(round, enough, needed)
        return answers, needed

    def _forget_old(self, number: int) -> None:
        """Ask those again that have been at work for so long that nobody wants it any more."""
        for peer, job in self._exchange.busy.items():
            if number - job.round > _OLD:
                self._exchange.forget(peer)

    def _fold_enough(self, round: _Round, enough: int, needed: int) -> None:
        """Fold until enough have answered, or all of this round have, and with the late ones as many as are needed."""
        answers = round.answers
        while not self._is_enough(answers, enough, needed):
            answer = self._exchange.answer(round.give_up, "train")
            if answer is None:
                break
            peer = answer.peer
            self._take(round, answer)
            del answer  # first, for it is large: whoever may send now sends at once
            self._exchange.free(peer)
        others = ClientFailure(FailureKind.LATE, "enough others had answered")
        for peer in tuple(answers.pending):
            self._fail(answers, peer, others if answers.in_time >= enough else self._late)
            if self._strategy.staleness is None:
                self._exchange.forget(peer)

    @property
    def _late(self) -> ClientFailure:
        return ClientFailure(FailureKind.LATE, f"no answer within {self.deadline:g} s (deadline)")

    def _is_enough(self, answers: RoundState, enough: int, needed: int) -> bool:
        if answers.pending and answers.in_time < enough:
            return False
        return len(answers.weights) >= needed or not self._exchange.busy

    def _collect_some(self, task: Task, clients: Collection[uuid.UUID], count: int) -> RoundState:
        """Fold so many updates of whatever round; as many clients are at work meanwhile as the strategy selects."""
        chosen = self._strategy.select(task.job.round, list(clients))
        round = _Round(task, time.monotonic() + self.deadline, RoundState())
        self._keep_busy(round, chosen)
        while (answer := self._exchange.answer(round.give_up, "train")) is not None:
            peer = answer.peer
            self._take(round, answer)
            del answer  # first, for it is large: whoever may send now sends at once
            self._exchange.free(peer)
            if round.answers.folded >= count:
                return round.answers
            self._keep_busy(round, chosen)
        for peer in self._overdue():
            self._fail(round.answers, peer, self._late)
        return round.answers

    def _keep_busy(self, round: _Round, chosen: Sequence[uuid.UUID]) -> None:
        """Ask more of the chosen, so that as many are at work; first those who have not answered in this round.

        Who has been at work for a whole deadline does not count as one of them: it may never answer.
        """
        busy, answers = self._exchange.busy, round.answers
        idle = [peer for peer in chosen if peer not in busy and peer not in answers.failures]
        at_work = len(busy) - len(self._overdue())
        more = sorted(idle, key=lambda peer: peer in answers.weights)[: max(0, len(chosen) - at_work)]
        answers.pending.update(dict.fromkeys(more))
        self._exchange.ask(round.task, more)

    def _overdue(self) -> list[uuid.UUID]:
        """Return who has had a deadline's time: a little less, for even the first is asked after the round began."""
        return self._exchange.overdue(0.9 * self.deadline)

    def _take(self, round: _Round, answer: Answer) -> None:
        """Fold an answer if it is an update."""
        peer, job, content = answer
        staleness, size = round.task.job.round - job.round, 0
        if isinstance(content, Update):
            size = nbytes(content.model)
            content = self._fold(round.task.model, content, peer, staleness) or content
        if isinstance(content, ClientFailure):
            self._fail(round.answers, peer, content)
            return
        round.answers.count(peer, content, staleness)
        self._callbacks.client_is(peer, ClientState.DONE, size)

    def _fail(self, answers: RoundState, peer: uuid.UUID, refusal: ClientFailure) -> None:
        if answers.fail(peer, refusal):
            self._callbacks.client_is(peer, ClientState.FAILED)

    def _fold(self, model: Model, update: Update, client: uuid.UUID, staleness: int) -> ClientFailure | None:
        """Fold an update; or return why not."""
        if staleness and self._strategy.staleness is None:
            return ClientFailure(
                FailureKind.STALE, f"it is {staleness} rounds late, and the strategy wants no late ones"
            )
        try:
            whole = Unpacked(update.model, model, deltas=self._strategy.deltas)
            self._strategy.fold(model, update.with_model(whole), client=client, staleness=staleness)
        except InvalidUpdate as error:
            return ClientFailure(FailureKind.INVALID, str(error))
        except OSError:  # a disk's, not the client's: to go on without those who come last would bend the model
            raise
        except Exception as error:  # the user's code; the others' updates are good all the same
            if type(error) not in self._told:
                self._told.add(type(error))
                log.exception("the strategy could not fold an update")
            return ClientFailure(FailureKind.ERROR, f"the strategy could not fold it: {type(error).__name__}: {error}")
        return None
