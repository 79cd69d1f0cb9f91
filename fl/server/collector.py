"""Collects the answers of a round: asks the clients, and folds each update as it arrives.

Called by fl/server/server.py, in its thread. With a strategy that accepts late updates, clients stay at work from one
round to the next.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection

from fl.callbacks.base import Callbacks, ClientState
from fl.compression.packed import Unpacked
from fl.errors import InvalidUpdate, describe
from fl.messages import Report, Task, Update
from fl.report import ClientFailure, FailureKind, RoundState
from fl.server.client_tasks import ClientTasks, Key
from fl.strategies.base import Strategy
from fl.tensors.spec import Model, nbytes

log = logging.getLogger("netq.fl")


class UpdateCollector:
    """Collects the answers of one round after the other.

    min_clients: updates that a round needs to count (all, where fewer clients are asked).
    deadline:    seconds; a client that has not answered by then is late, and the round closes.
    """

    def __init__(
        self, tasks: ClientTasks, strategy: Strategy, min_clients: int, deadline: float, callbacks: Callbacks
    ) -> None:
        self._tasks = tasks
        self._strategy = strategy
        self._min_clients = min_clients
        self.deadline = deadline
        self._callbacks = callbacks
        self._logged_errors: set[type[Exception]] = set()  # errors of the strategy with a traceback in this round's log

    def train(self, task: Task, clients: Collection[uuid.UUID]) -> tuple[RoundState, int]:
        """Ask clients to train, and fold their updates. Return the round's state, and how many updates it needs."""
        self._logged_errors.clear()
        self._tasks.trim(nbytes(task.model))
        if self._strategy.buffer is None:
            return self._train_round(task, clients)
        return self._train_async(task, clients, self._strategy.buffer), 1

    def evaluate(self, task: Task, clients: Collection[uuid.UUID]) -> RoundState:
        """Ask those of the clients that have no task to evaluate a model."""
        state, busy = RoundState(), self._tasks.busy
        self._ask(task, state, [peer for peer in clients if peer not in busy])
        self._collect(task, state, lambda: not state.pending)
        return state

    def _train_round(self, task: Task, clients: Collection[uuid.UUID]) -> tuple[RoundState, int]:
        """Fold until enough clients of this round have answered, and until there are as many updates as needed.

        Late updates of earlier rounds count towards those needed, but not towards enough.
        """
        state, busy = RoundState(), self._tasks.busy
        idle = [peer for peer in clients if peer not in busy]
        selected = dict.fromkeys(self._strategy.select(task.job.round, idle))
        enough = min(self._strategy.enough(len(idle)), len(selected))
        needed = max(1, min(self._min_clients, len(selected) + len(busy.keys() & set(clients))))

        def is_complete() -> bool:
            if state.pending and state.in_time < enough:
                return False
            return len(state.weights) >= needed or not self._tasks.busy

        self._ask(task, state, selected)
        self._collect(task, state, is_complete)
        for peer in tuple(state.pending):
            self._fail(state, peer, ClientFailure(FailureKind.LATE, "enough others had answered"))
            if self._strategy.staleness is None:
                self._tasks.forget(peer)
        return state, needed

    def _train_async(self, task: Task, clients: Collection[uuid.UUID], count: int) -> RoundState:
        """Fold `count` updates of any rounds. Meanwhile as many clients are at work as the strategy selects."""
        state = RoundState()
        selected = self._strategy.select(task.job.round, list(clients))

        def keep_busy() -> None:
            """Replace the clients that have answered or are late; first by those without an update in this round."""
            if state.folded >= count:  # the next task has the next model
                return
            busy = self._tasks.busy
            idle = [peer for peer in selected if peer not in busy and peer not in state.failures]
            missing = len(selected) - (len(busy) - len(self._tasks.late))
            self._ask(task, state, sorted(idle, key=lambda peer: peer in state.weights)[: max(0, missing)])

        keep_busy()
        self._collect(task, state, lambda: state.folded >= count, keep_busy)
        return state

    def _ask(self, task: Task, state: RoundState, clients: Collection[uuid.UUID]) -> None:
        state.pending.update(dict.fromkeys(clients))
        keep_late = task.job.purpose == "train" and self._strategy.staleness is not None
        self._tasks.ask(task, clients, self.deadline, keep_late=keep_late)

    def _collect(
        self,
        task: Task,
        state: RoundState,
        is_complete: Callable[[], bool],
        ask_more: Callable[[], None] = lambda: None,
    ) -> None:
        """Take answers until the round is complete, no client has a task any more, or the deadline has passed.

        The deadline begins here, after the clients were asked. So all that do not answer are late before it passes.
        """
        until = time.monotonic() + self.deadline
        while not is_complete():
            answer = self._tasks.answer(task.job.purpose, until)
            if answer is None:
                return
            key, content = answer
            self._take(task, state, key, content)
            # Drop the update before its place is given to another client, which may send at once.
            del answer, content
            self._tasks.free(key.peer)
            ask_more()

    def _take(self, task: Task, state: RoundState, key: Key, content: Update | Report | ClientFailure) -> None:
        """Fold an update, count an evaluation, or record a failure."""
        staleness, size = task.job.round - key.job.round, 0
        if isinstance(content, Update):
            size = nbytes(content.model)
            content = self._fold(task.model, content, key.peer, staleness) or content
        if isinstance(content, ClientFailure):
            self._fail(state, key.peer, content)
            return
        state.count(key.peer, content, staleness)
        self._callbacks.client_is(key.peer, ClientState.DONE, size)

    def _fail(self, state: RoundState, peer: uuid.UUID, failure: ClientFailure) -> None:
        if state.fail(peer, failure):
            self._callbacks.client_is(peer, ClientState.FAILED)

    def _fold(self, model: Model, update: Update, client: uuid.UUID, staleness: int) -> ClientFailure | None:
        """Give an update to the strategy. Return why it was not folded, None if it was."""
        if staleness and self._strategy.staleness is None:
            reason = f"it is {staleness} rounds late, and the strategy wants no late ones"
            return ClientFailure(FailureKind.STALE, reason)
        try:
            whole = Unpacked(update.model, model, deltas=self._strategy.deltas)
            self._strategy.fold(model, update.with_model(whole), client=client, staleness=staleness)
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
