"""The aggregator's side: rounds. One thread, the caller's, runs all of it; netq moves the bytes meanwhile.

wait for min_clients ──► select ──► send the model ──► fold each update as it arrives ──► finish
                                                         until all have answered, or the deadline
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import netq
from fl.aggregate import Model, check
from fl.messages import MESSAGES, Purpose, Reply, Report, Task, Update
from fl.round import Answers, RoundReport
from fl.strategy import FedAvg, Strategy

log = logging.getLogger("netq.fl")

_LOOK = 1.0  # seconds between looks at who is still connected


class Server:
    """Runs rounds of federated learning over a netq server. A context manager.

    model:       dict of numpy arrays or torch tensors by name; what comes out has the same keys, shapes, dtypes.
                 Raises InvalidUpdate for one of which there is no mean.
    options:     the communicator's; their serialisation is replaced by that of the federation's messages.
    min_clients: a round begins with at least so many, and counts only if so many updates are folded (all, where
                 the strategy selects fewer).
    deadline:    seconds; a round closes then, with what has come.
    grace:       seconds; a client that has been without a connection for so long is not waited for in this round.
    config:      what the clients are told in every round; the strategy's own config is added.
    evaluate:    whether the clients are asked, after each round, how well the new model does.
    """

    def __init__(
        self,
        model: Model,
        options: netq.CommunicatorOptions | None = None,
        *,
        strategy: Strategy | None = None,
        min_clients: int = 2,
        deadline: float = 600.0,
        grace: float = 10.0,
        config: Mapping[str, Any] | None = None,
        evaluate: bool = False,
        protocol: netq.Protocol = netq.Protocol.TCP,
    ) -> None:
        if min_clients < 1:
            raise netq.InvalidOption(f"Server.min_clients: {min_clients!r}; expected 1 or more")
        if not (deadline > 0 and grace >= 0):
            raise netq.InvalidOption(f"Server.deadline {deadline!r}, grace {grace!r}; expected seconds")
        check(model, like=model)
        self.model: Model = dict(model)
        self._strategy = strategy or FedAvg()
        self._min_clients = min_clients
        self._deadline = deadline
        self._grace = grace
        self._config = dict(config or {})
        self._evaluate = evaluate
        self._run = secrets.randbits(63)  # an answer to an earlier server is no answer to this one
        self._number = 0
        self._closed = False
        self._changed = threading.Event()  # somebody has come or gone
        self._begun: set[uuid.UUID] = set()  # whose session has begun since the last task
        self._queue = netq.new(protocol, netq.Purpose.SERVER, self._with_events(options or netq.CommunicatorOptions()))

    @property
    def netloc(self) -> netq.NetworkLocation:
        """Where the server listens."""
        return self._queue.netloc

    @property
    def clients(self) -> tuple[uuid.UUID, ...]:
        """The clients that are connected now."""
        return tuple(id for id, each in self._queue.statistics().items() if each.connected)

    def rounds(self, count: int) -> Iterator[RoundReport]:
        """Run `count` rounds, and yield the report of each as it ends; `model` is then the new one.

        A round that did not count is one of them: its report has no clients.
        """
        for _ in range(count):
            yield self.round()

    def round(self) -> RoundReport:
        """Run one round."""
        clients = self.wait(self._min_clients)
        self._number += 1
        begin, before = time.monotonic(), self._queue.statistics()
        training = self._train(dict.fromkeys(self._strategy.select(self._number, clients)))
        evaluation = self._ask("evaluate", training.weights, _keep) if self._evaluate else Answers()
        received, sent = self._traffic(before)
        return RoundReport(
            number=self._number,
            clients=tuple(training.weights),
            failures=training.failures,
            metrics=training.metrics,
            evaluation=evaluation.metrics,
            seconds=time.monotonic() - begin,
            bytes_in=received,
            bytes_out=sent,
        )

    def wait(self, count: int, timeout: float | None = None) -> tuple[uuid.UUID, ...]:
        """Wait until `count` clients are connected, and return all that are. Raises TimeoutError, Closed."""
        give_up = None if timeout is None else time.monotonic() + timeout
        said = -1
        while True:
            self._changed.clear()
            self._check_open()
            clients = self.clients
            if len(clients) >= count:
                return clients
            if len(clients) != said:
                log.warning("waiting for clients: %d of %d are connected", len(clients), count)
                said = len(clients)
            left = _LOOK if give_up is None else min(_LOOK, give_up - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"{len(clients)} of {count} clients are connected after {timeout:g} s")
            self._changed.wait(left)

    def close(self, timeout: float | None = 10.0) -> None:
        """End the federation: the clients' run returns. Waits for them `timeout` seconds at most."""
        self._closed = True
        self._changed.set()
        self._queue.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the federation; after an error, without a goodbye: the clients wait for the next server."""
        self.close(10.0 if error is None else 0.0)

    def _train(self, clients: Collection[uuid.UUID]) -> Answers:
        """Make the next model of the clients' updates; or leave it as it is, if too few are good."""
        needed = max(1, min(self._min_clients, len(clients)))
        try:
            answers = self._ask("train", clients, self._fold)
            counts = len(answers.weights) >= needed
            if counts:
                self.model = self._strategy.finish(self.model)
        except BaseException:
            self._strategy.abandon()
            raise
        if not counts:
            log.warning("round %d: %d updates of %d; it does not count", self._number, len(answers.weights), needed)
            self._strategy.abandon()
            answers.void(f"the round does not count: {len(answers.weights)} updates of {needed}")
        return answers

    def _ask(self, purpose: Purpose, clients: Collection[uuid.UUID], take: Callable[[Any], None]) -> Answers:
        """Send a task to the clients; take each reply as it comes; return who answered what."""
        answers = Answers(dict.fromkeys(clients))
        if not clients:
            return answers
        self._begun.clear()
        delivery = self._queue.put(Task(self._run, self._number, purpose, self.model, self._told()), *clients)
        give_up, look = time.monotonic() + self._deadline, 0.0
        try:
            while answers.pending and (now := time.monotonic()) < give_up:
                if not self._take_one(purpose, answers, take, max(0.0, min(look, give_up) - now)):
                    known = self._queue.statistics()
                    while time.monotonic() < give_up and self._take_one(purpose, answers, take, 0.0):
                        pass  # whoever is not known any more has said all before: their last word counts
                    self._give_up_lost(answers, delivery, known)
                    look = time.monotonic() + _LOOK
        finally:
            delivery.cancel()  # those who have not even got it need not get it now
        answers.fail_rest(f"no answer within {self._deadline:g} s (deadline)")
        return answers

    def _told(self) -> Mapping[str, Any]:
        config = {**self._config, **self._strategy.config(self._number)}
        MESSAGES.load(MESSAGES.dump(config))  # raises here, and at once, what no client could read
        return config

    def _take_one(self, purpose: Purpose, answers: Answers, take: Callable[[Any], None], timeout: float) -> bool:
        """Take a message; False if none comes."""
        try:
            peer, reply = self._queue.get(timeout=timeout)
        except TimeoutError:
            return False
        except netq.Unreadable as error:
            if error.peer is not None:
                answers.fail(error.peer, f"its message cannot be read: {error}")
            return True
        asked = self._run, self._number, purpose
        if not isinstance(reply, Reply):
            answers.fail(peer, f"it sent a {type(reply).__name__}; expected a Reply")
        elif reply.run == self._run and reply.round > self._number:
            answers.fail(peer, f"it answered round {reply.round} in round {self._number}")
        elif peer not in answers.pending or (reply.run, reply.round, reply.purpose) != asked:
            log.warning(
                "%s: its answer to round %d (%s) is not waited for (any more)", peer, reply.round, reply.purpose
            )
        else:
            answers.take(peer, reply.content, Update if purpose == "train" else Report, take)
        return True

    def _give_up_lost(
        self, answers: Answers, delivery: netq.Delivery, known: Mapping[uuid.UUID, netq.Statistics]
    ) -> None:
        """Wait no more for those who cannot answer."""
        self._check_open()  # if not, they go because we do
        for peer in tuple(answers.pending):
            if peer not in known:
                answers.fail(peer, "it has gone")
            elif peer in self._begun:
                answers.fail(peer, "it was started again, and knows nothing of the task")
            elif known[peer].absent > self._grace:
                answers.fail(peer, f"no connection for {known[peer].absent:.1f} s (grace {self._grace:g} s)")
        for part in delivery.futures:
            if part.done() and (error := part.exception()) is not None and part.peer is not None:
                answers.fail(part.peer, f"the task cannot be sent to it: {error}")

    def _check_open(self) -> None:
        if self._closed:
            raise netq.Closed(self._queue.id, "this server is closed")

    def _fold(self, update: Update) -> None:
        self._strategy.fold(self.model, update)

    def _traffic(self, before: Mapping[uuid.UUID, netq.Statistics]) -> tuple[int, int]:
        """Message bytes in and out since then."""
        received = sent = 0
        for peer, now in self._queue.statistics().items():
            same = peer in before and before[peer].bytes_in <= now.bytes_in and before[peer].bytes_out <= now.bytes_out
            received += now.bytes_in - (before[peer].bytes_in if same else 0)
            sent += now.bytes_out - (before[peer].bytes_out if same else 0)
        return received, sent

    def _with_events(self, options: netq.CommunicatorOptions) -> netq.CommunicatorOptions:
        theirs = options.events

        def ini(peer: uuid.UUID) -> None:
            self._begun.add(peer)
            self._changed.set()
            if theirs.ini is not None:
                theirs.ini(peer)

        def fin(peer: uuid.UUID) -> None:
            self._changed.set()
            if theirs.fin is not None:
                theirs.fin(peer)

        events = netq.EventOptions(ini, fin)
        return replace(options, serialization=MESSAGES, events=events)


def _keep(report: Report) -> None:
    """A report needs no folding: its metrics are counted."""
