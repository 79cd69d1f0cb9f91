"""The aggregator's side: rounds. One thread, the caller's, runs all of it; netq moves the bytes meanwhile.

wait for min_clients ──► select ──► send the model ──► fold each update as it arrives ──► finish
                                                         until all have answered, or the deadline
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import netq
from fl.aggregate import InvalidUpdate, Model
from fl.messages import MESSAGES, Failure, Purpose, Reply, Report, Task, Update
from fl.strategy import FedAvg, Strategy

log = logging.getLogger("netq.fl")

_LOOK = 1.0  # seconds between looks at who is still connected


@dataclass(frozen=True)
class RoundReport:
    """What came of a round. Bytes are those of messages to and from all clients during the round."""

    number: int
    clients: tuple[uuid.UUID, ...]  # whose updates are in the model; none: the round did not count
    failures: Mapping[uuid.UUID, str]  # who was asked and is not in it, and why
    metrics: Mapping[str, float]  # of training: means by number of examples
    evaluation: Mapping[str, float]  # of the new model, by the clients that were asked
    seconds: float
    bytes_in: int
    bytes_out: int

    def __str__(self) -> str:
        metrics = "".join(f", {name} {value:.4g}" for name, value in {**self.metrics, **self.evaluation}.items())
        return (
            f"round {self.number}: {len(self.clients)} clients, {len(self.failures)} failed{metrics}, "
            f"{self.seconds:.2f} s, {self.bytes_in / 1e6:.2f} MB in, {self.bytes_out / 1e6:.2f} MB out"
        )


class Server:
    """Runs rounds of federated learning over a netq server. A context manager.

    model:       dict of numpy arrays or torch tensors by name; what comes out has the same keys, shapes, dtypes.
    options:     the communicator's; their serialisation is replaced by that of the federation's messages.
    min_clients: a round begins with at least so many, and counts only if so many updates are folded.
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
        self.model = model
        self._strategy = strategy or FedAvg()
        self._min_clients = min_clients
        self._deadline = deadline
        self._grace = grace
        self._config = dict(config or {})
        self._evaluate = evaluate
        self._number = 0
        self._changed = threading.Event()  # somebody has come or gone
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
        """Run `count` rounds, and yield the report of each as it ends; `model` is then the new one."""
        for _ in range(count):
            yield self.round()

    def round(self) -> RoundReport:
        """Run one round."""
        clients = self.wait(self._min_clients)
        self._number += 1
        begin, traffic = time.monotonic(), self._traffic()
        selected = self._strategy.select(self._number, clients)
        training = self._ask("train", selected, self._fold)
        counts = len(training.weights) >= self._min_clients
        if counts:
            self.model = self._strategy.finish(self.model)
        else:
            self._strategy.abandon()
            log.warning(
                "round %d: %d updates of %d; it does not count", self._number, training.count, self._min_clients
            )
        evaluation = self._ask("evaluate", tuple(training.weights), _keep) if counts and self._evaluate else _Answers()
        received, sent = self._traffic(since=traffic)
        return RoundReport(
            number=self._number,
            clients=tuple(training.weights) if counts else (),
            failures=training.failures,
            metrics=training.means() if counts else {},
            evaluation=evaluation.means(),
            seconds=time.monotonic() - begin,
            bytes_in=received,
            bytes_out=sent,
        )

    def wait(self, count: int, timeout: float | None = None) -> tuple[uuid.UUID, ...]:
        """Wait until `count` clients are connected, and return all that are. Raises TimeoutError."""
        give_up = None if timeout is None else time.monotonic() + timeout
        said = -1
        while True:
            self._changed.clear()
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
        self._queue.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, purpose: Purpose, clients: Collection[uuid.UUID], take: Callable[[Any], None]) -> _Answers:
        """Send a task to the clients; take each reply as it comes; return who answered what."""
        config = {**self._config, **self._strategy.config(self._number)}
        delivery = self._queue.put(Task(self._number, purpose, self.model, config), *clients)
        answers = _Answers(dict.fromkeys(clients))
        give_up = time.monotonic() + self._deadline
        while answers.pending:
            left = give_up - time.monotonic()
            if left <= 0:
                answers.fail_rest(f"no answer within {self._deadline:g} s (deadline)")
                break
            self._take_one(purpose, answers, take, min(left, _LOOK))
            self._give_up_lost(answers)
        delivery.cancel()  # those who have not even got it need not get it now
        return answers

    def _take_one(self, purpose: Purpose, answers: _Answers, take: Callable[[Any], None], timeout: float) -> None:
        try:
            peer, reply = self._queue.get(timeout=timeout)
        except TimeoutError:
            return
        except netq.Unreadable as error:
            if error.peer is not None:
                answers.fail(error.peer, f"its message cannot be read: {error}")
            return
        if not isinstance(reply, Reply):
            answers.fail(peer, f"it sent a {type(reply).__name__}; expected a Reply")
        elif peer not in answers.pending or (reply.round, reply.purpose) != (self._number, purpose):
            log.warning("%s: its answer to round %d (%s) came too late", peer, reply.round, reply.purpose)
        else:
            answers.take(peer, reply.content, Update if purpose == "train" else Report, take)

    def _give_up_lost(self, answers: _Answers) -> None:
        known = self._queue.statistics()
        for peer in tuple(answers.pending):
            if peer not in known:
                answers.fail(peer, "it has gone")
            elif known[peer].absent > self._grace:
                answers.fail(peer, f"no connection for {known[peer].absent:.1f} s (grace {self._grace:g} s)")

    def _fold(self, update: Update) -> None:
        self._strategy.fold(self.model, update)

    def _traffic(self, since: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        """Message bytes in and out so far, less those of `since`."""
        figures = self._queue.statistics().values()
        received, sent = sum(each.bytes_in for each in figures), sum(each.bytes_out for each in figures)
        return max(0, received - since[0]), max(0, sent - since[1])

    def _with_events(self, options: netq.CommunicatorOptions) -> netq.CommunicatorOptions:
        def both(theirs: Callable[[uuid.UUID], object] | None) -> Callable[[uuid.UUID], object]:
            def event(peer: uuid.UUID) -> None:
                self._changed.set()
                if theirs is not None:
                    theirs(peer)

            return event

        events = netq.EventOptions(ini=both(options.events.ini), fin=both(options.events.fin))
        return replace(options, serialization=MESSAGES, events=events)


@dataclass
class _Answers:
    """Who was asked, and what came of it."""

    pending: dict[uuid.UUID, None] = field(default_factory=dict)
    failures: dict[uuid.UUID, str] = field(default_factory=dict)
    weights: dict[uuid.UUID, int] = field(default_factory=dict)  # num_examples of those that count
    sums: dict[str, float] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.weights)

    def take(self, peer: uuid.UUID, content: object, kind: type, take: Callable[[Any], None]) -> None:
        if isinstance(content, Failure):
            return self.fail(peer, content.reason)
        if not isinstance(content, kind):
            return self.fail(peer, f"it answered with {type(content).__name__}; expected {kind.__name__}")
        try:
            take(content)
        except InvalidUpdate as error:
            return self.fail(peer, str(error))
        return self._count(peer, content)

    def fail(self, peer: uuid.UUID, reason: str) -> None:
        if peer in self.pending:
            del self.pending[peer]
            self.failures[peer] = reason
            log.warning("%s: left out: %s", peer, reason)

    def fail_rest(self, reason: str) -> None:
        for peer in tuple(self.pending):
            self.fail(peer, reason)

    def means(self) -> dict[str, float]:
        return {name: total / self.totals[name] for name, total in self.sums.items()}

    def _count(self, peer: uuid.UUID, content: Any) -> None:
        del self.pending[peer]
        self.weights[peer] = content.num_examples
        for name, value in content.metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * content.num_examples
            self.totals[name] = self.totals.get(name, 0) + content.num_examples


def _keep(report: Report) -> None:
    """A report needs no folding: its metrics are counted."""
