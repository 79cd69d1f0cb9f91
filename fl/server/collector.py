"""Collects the answers of a round: asks the clients, and folds each update as it arrives.

Called by fl/server/server.py, in its thread. With a strategy that accepts late updates, clients stay at work from one
round to the next. fl/server/standing.py decides for which clients a round waits.
"""

from __future__ import annotations

import logging
import math
import random
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fl.callbacks.base import Callbacks, ClientState
from fl.errors import InvalidUpdate
from fl.messages import Content, Skip, Task, Update
from fl.outline import PURPOSES, Purpose
from fl.report import ClientFailure, FailureKind, RoundState
from fl.server.aggregation import Aggregation
from fl.server.client_tasks import ClientTasks, Key
from fl.server.standing import Standing
from fl.strategies.base import Strategy
from fl.tensors.spec import Model, nbytes
from netq.text import describe

log = logging.getLogger("netq.fl")

_OF_THE_SERVER = (FailureKind.ERROR, FailureKind.VOID)  # failures that are not the client's


class UpdateCollector:
    """Collects the answers of one round after the other.

    min_clients:   updates that a round needs to count (all, where fewer clients are asked).
    deadline:      seconds; a client that has not answered by then is late, and the round closes.
    suspend_after: tasks without a good answer, after which a client is suspended (fl/server/standing.py).
    close_early:   whether a round with enough answers closes when those that are missing are overdue, or have never
                   answered (Standing.expected).
    """

    def __init__(
        self,
        tasks: ClientTasks,
        strategy: Strategy,
        aggregation: Aggregation,
        callbacks: Callbacks,
        *,
        min_clients: int,
        deadline: float,
        suspend_after: int,
        close_early: bool,
    ) -> None:
        self._tasks = tasks
        self._strategy = strategy
        self._aggregation = aggregation
        self._min_clients = min_clients
        self._deadline = deadline
        self._close_early = close_early
        self._callbacks = callbacks
        self._standings: dict[Purpose, Standing] = {each: Standing(suspend_after, deadline, each) for each in PURPOSES}
        self._last_round = 0
        self._recommended = deadline  # seconds; the longest deadline of which the log has said that it would be enough
        self._logged_errors: set[type[Exception]] = set()  # errors of the strategy with a traceback in this round's log

    @property
    def deadline(self) -> float:
        """Seconds after which a client is late."""
        return self._deadline

    @deadline.setter
    def deadline(self, seconds: float) -> None:
        self._deadline = seconds
        for standing in self._standings.values():
            standing.deadline = seconds

    def train(self, task: Task, clients: Collection[uuid.UUID]) -> tuple[RoundState, int]:
        """Ask clients to train, and fold their updates. Return the round's state, and how many updates it needs."""
        self._logged_errors.clear()
        self._tasks.trim(nbytes(task.model))
        self._update_standings()
        if self._strategy.buffer is None:
            return self._train_round(task, clients)
        return self._train_async(task, clients, self._strategy.buffer), 1

    def evaluate(self, task: Task, clients: Collection[uuid.UUID], fraction: float = 1.0) -> RoundState:
        """Ask a random fraction of the clients that have no task to evaluate a model. The seed chooses them."""
        state, busy = RoundState(), self._tasks.busy
        idle = [peer for peer in clients if peer not in busy]
        regular, retried = self._standings["evaluate"].candidates(idle, 0)
        if fraction < 1 and regular:
            chance = random.Random(f"{self._strategy.seed} {task.job.round} evaluate")
            regular = chance.sample(sorted(regular), max(1, round(fraction * len(regular))))
        needed, asked = min(self._min_clients, len(regular)), time.monotonic()

        def overdue() -> float:
            return asked + self._patience("evaluate", state.pending.keys() & set(regular))

        def is_complete() -> bool:
            waiting = not state.pending.keys().isdisjoint(regular)
            return not waiting or (len(state.weights) >= needed and time.monotonic() >= overdue())

        self._ask(task, state, [*regular, *retried])
        self._collect(task, state, is_complete, overdue=overdue)
        self._close(task, state)
        return state

    def suspended(self) -> Sequence[uuid.UUID]:
        """Return the clients for whose updates no round waits."""
        return self._standings["train"].suspended()

    def state(self) -> dict[str, Any]:
        """Return what is known of clients that have missed tasks, as plain values, for `restore`."""
        return {purpose: standing.state() for purpose, standing in self._standings.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of a server before this one. Raises KeyError, TypeError, ValueError."""
        for purpose, standing in self._standings.items():
            standing.restore(state[purpose])

    def _train_round(self, task: Task, clients: Collection[uuid.UUID]) -> tuple[RoundState, int]:
        """Fold until enough clients of this round have answered, and until there are as many updates as needed.

        Late updates of earlier rounds count towards those needed, but not towards enough.
        """
        state, busy, standing = RoundState(), self._tasks.busy, self._standings["train"]
        idle = [peer for peer in clients if peer not in busy]
        is_repeated, self._last_round = task.job.round == self._last_round, task.job.round
        regular, retried = standing.candidates(idle, self._min_clients, again=is_repeated)
        selected = dict.fromkeys(self._strategy.select(task.job.round, regular))
        enough = min(self._strategy.enough(len(regular)), len(selected))
        needed = max(1, min(self._min_clients, len(selected) + len(busy.keys() & set(clients))))

        asked = time.monotonic()

        def overdue() -> float:
            return asked + self._patience("train", state.pending.keys() & selected.keys())

        def has_enough() -> bool:
            return len((state.weights.keys() - state.staleness.keys()) & selected.keys()) >= enough

        def is_complete() -> bool:
            waiting, has_needed = state.pending.keys() & selected.keys(), len(state.weights) >= needed
            if has_needed and time.monotonic() >= overdue():
                return True
            if waiting and not has_enough():
                return False
            return has_needed or not self._tasks.busy

        self._ask(task, state, [*selected, *retried])
        self._collect(task, state, is_complete, overdue=overdue)
        self._close(task, state, spared=selected if has_enough() else ())
        return state, needed

    def _patience(self, purpose: Purpose, waiting: Collection[uuid.UUID]) -> float:
        """Return how many seconds to wait for these clients, if there are enough answers without them."""
        if not self._close_early:
            return math.inf
        return max(map(self._standings[purpose].expected, waiting), default=0.0)

    def _close(self, task: Task, state: RoundState, spared: Collection[uuid.UUID] = ()) -> None:
        """Wait no longer for the clients that have not answered. For those in `spared` it is no missed task."""
        for peer in tuple(state.pending):
            self._fail(task, state, peer, ClientFailure(FailureKind.LATE, "enough others had answered"), peer in spared)
            if task.job.purpose == "evaluate" or self._strategy.staleness is None:
                self._tasks.forget(peer)

    def _train_async(self, task: Task, clients: Collection[uuid.UUID], count: int) -> RoundState:
        """Fold `count` updates of any rounds. Meanwhile as many clients are at work as the strategy selects."""
        state = RoundState()
        regular, retried = self._standings["train"].candidates(clients, self._min_clients)
        selected = [*self._strategy.select(task.job.round, regular), *retried]

        def keep_busy() -> None:
            """Replace the clients that have answered or are late; first by those without an update in this round.

            A client that has failed or skipped gets its next task in the next round: it would answer so at once.
            """
            if state.folded >= count:  # the next task has the next model
                return
            busy = self._tasks.busy
            idle = [
                peer for peer in selected if not any(peer in each for each in (busy, state.failures, state.skipped))
            ]
            missing = len(selected) - (len(busy) - len(self._tasks.late))
            chosen = sorted(idle, key=lambda peer: peer in state.weights)[: max(0, missing)]
            for counted in sorted({state.counts[peer] for peer in chosen}):
                again = replace(task, counted=counted)
                self._ask(again, state, [peer for peer in chosen if state.counts[peer] == counted])

        keep_busy()
        self._collect(task, state, lambda: state.folded >= count, keep_busy)
        return state

    def _ask(self, task: Task, state: RoundState, clients: Collection[uuid.UUID]) -> None:
        state.pending.update(dict.fromkeys(clients))
        keep_late = task.job.purpose == "train" and self._strategy.staleness is not None
        for peer, failure in self._tasks.ask(task, clients, self.deadline, keep_late=keep_late).items():
            self._fail(task, state, peer, failure)

    def _collect(
        self,
        task: Task,
        state: RoundState,
        is_complete: Callable[[], bool],
        ask_more: Callable[[], None] = lambda: None,
        overdue: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Take answers until the round is complete, no client has a task any more, or the deadline has passed.

        overdue: returns the time at which the round may be complete without another answer.

        The deadline begins here, after the clients were asked. So all that do not answer are late before it passes.
        """
        until = time.monotonic() + self.deadline
        while not is_complete():
            check = overdue() if overdue() > time.monotonic() else until
            answer = self._tasks.answer(task.job.purpose, min(check, until))
            if answer is None:
                if check <= time.monotonic() < until:
                    continue
                return
            key, content = answer
            self._take(task, state, key, content)
            # Drop the update before its place is given to another client, which may send at once.
            del answer, content
            self._tasks.free(key.peer)
            ask_more()

    def _take(self, task: Task, state: RoundState, key: Key, content: Content | ClientFailure) -> None:
        """Fold an update, count an evaluation, or record a failure or a skip."""
        staleness, size = task.job.round - key.job.round, 0
        if isinstance(content, Skip):  # neither a good answer nor a missed task
            log.info("%s: skips round %d (%s): %s", key.peer, key.job.round, key.job.purpose, content)
            state.skip(key.peer, content.reason)
            self._callbacks.client_is(key.peer, ClientState.DONE)
            return
        if not isinstance(content, ClientFailure):
            content = content.with_examples(self._strategy.examples(content.num_examples))
        if isinstance(content, Update):
            size = nbytes(content.model)
            content = self._fold(task.model, content, key.peer, staleness) or content
        if isinstance(content, ClientFailure):
            self._fail(task, state, key.peer, content)
            return
        self._recommend(key.peer)
        state.count(key.peer, content, staleness)
        self._standings[key.job.purpose].answered(key.peer, self._tasks.seconds(key.peer))
        self._callbacks.client_is(key.peer, ClientState.DONE, size)

    def _fail(
        self, task: Task, state: RoundState, peer: uuid.UUID, failure: ClientFailure, is_spared: bool = False
    ) -> None:
        standing = self._standings[task.job.purpose]
        if failure.why is FailureKind.STALE:
            standing.answered_late(peer, self._tasks.seconds(peer))
            self._recommend(peer)
        if not state.fail(peer, failure):
            return
        if failure.why is not FailureKind.STALE:  # which the log has
            of = " of the evaluation" if task.job.purpose == "evaluate" else ""
            log.warning("%s: left out%s: %s", peer, of, failure)
        self._callbacks.client_is(peer, ClientState.FAILED)
        if failure.why is FailureKind.STALE or failure.why in _OF_THE_SERVER or is_spared:
            return
        if standing.missed(peer):
            self._callbacks.client_is(peer, ClientState.SUSPENDED)

    def _recommend(self, peer: uuid.UUID) -> None:
        """Log the deadline that would be enough for a client whose answer came too late."""
        seconds = self._tasks.seconds(peer)
        if self._recommended < seconds < math.inf:
            self._recommended = 2.0 * math.ceil(seconds)
            text = "%s: its answer took %.1f s, and the deadline is %g s; rounds would wait for it with one of %g s"
            log.warning(text, peer, seconds, self.deadline, self._recommended)

    def _update_standings(self) -> None:
        """Forget clients that have gone, and give suspended ones with a new session a task."""
        begun, known = self._tasks.new_sessions(), self._tasks.queue.statistics()
        for standing in self._standings.values():
            standing.keep(known)
            for peer in begun:
                standing.renew(peer)

    def _fold(self, model: Model, update: Update, client: uuid.UUID, staleness: int) -> ClientFailure | None:
        """Fold an update. Return why it was not folded, None if it was."""
        if staleness and self._strategy.staleness is None:
            reason = f"it is {staleness} rounds late, and the strategy wants no late ones"
            return ClientFailure(FailureKind.STALE, reason)
        try:
            self._aggregation.fold(model, update, client, staleness)
        except InvalidUpdate as error:
            return ClientFailure(FailureKind.INVALID, str(error))
        except OSError:  # the server's disk is at fault: leaving out the clients that come last would bias the model
            raise
        except Exception as error:  # a bug of the strategy; the other updates are good
            if type(error) not in self._logged_errors:
                self._logged_errors.add(type(error))
                log.exception("the strategy could not fold an update")
            return ClientFailure(FailureKind.ERROR, f"the strategy could not fold it: {describe(error)}")
        return None
