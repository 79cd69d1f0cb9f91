"""The aggregator's side: rounds. One thread, the caller's, runs all of it; netq moves the bytes meanwhile.

wait for min_clients ──► select ──► send the model ──► fold each update as it arrives ──► finish
                                                         until enough have answered, or the deadline

An asynchronous strategy (Strategy.buffer) has the same loop without the barrier: whoever has answered is asked again.
"""

from __future__ import annotations

import copy
import logging
import os
import secrets
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Self

import netq
from fl.callbacks.base import Callback, Callbacks, ClientState
from fl.errors import CheckpointError, InvalidUpdate, TooFewUpdates
from fl.messages import MESSAGES, Job, Purpose, Task
from fl.report import ClientFailure, FailureKind, RoundReport, RoundState
from fl.server.checkpoint import Checkpoint, load
from fl.server.collector import UpdateCollector
from fl.server.dispatcher import TaskDispatcher
from fl.server.validation import check_config, check_settings, checked_callbacks
from fl.server.waiting import until_connected
from fl.strategies.base import Strategy
from fl.strategies.fedavg import FedAvg
from fl.tensors.model import check
from fl.tensors.spec import Model, nbytes, plain
from netq.validate import expect, is_whole

log = logging.getLogger("netq.fl")

_EXTRA = 10**6  # bytes that an update may have, beside four models' worth: SCAFFOLD's has two
_SPARE = 60 * 10**6  # bytes of updates that are admitted beside one; 40 MB are the interpreter's


class Server:
    """Runs rounds of federated learning over a netq server. A context manager.

    model:        dict of numpy arrays or torch tensors by name; what comes out has the same keys, shapes, dtypes.
                  Raises InvalidUpdate for one of which there is no mean.
    options:      the communicator's; their serialisation is replaced by that of the federation's messages.
    strategy:     who trains, and how updates become the next model; FedAvg.
    min_clients:  a round begins with at least so many, and counts only if so many updates are folded (all, where
                  the strategy selects fewer).
    deadline:     seconds; a round closes then, with what has come.
    grace:        seconds; a client that has been without a connection for so long is not waited for in this round.
    config:       what the clients are told in every round; the strategy's own config is added.
    evaluate:     whether the clients are asked, after each round, how well the new model does.
    memory_limit: bytes for the model, its successor, and the updates that are on their way: so many are admitted at
                  once (one at least), the others wait on their clients. None: three models and 100 MB.
    checkpoint:   a file that is written after each round that counts, for `resume`.
    callbacks:     who is told how rounds go, as they go.
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
        memory_limit: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        callbacks: Iterable[Callback] = (),
        protocol: netq.Protocol = netq.Protocol.TCP,
    ) -> None:
        check_settings(model, options, strategy, min_clients, deadline, grace, config, evaluate)
        size = nbytes(model)
        room = _room(size, memory_limit)
        self.model: Model = plain(model)
        self.number = 0  # of the last round
        self._strategy = strategy or FedAvg()
        self._strategy.begin(self.model)
        if self._strategy.least > min_clients:
            who, least = type(self._strategy).__name__, self._strategy.least
            log.warning("%s needs %d updates; with min_clients=%d a round may come to nothing", who, least, min_clients)
        self._min_clients = min_clients
        self._config = dict(config or {})
        self._evaluate = evaluate
        self._checkpoint = None if checkpoint is None else Checkpoint(checkpoint)
        self._callbacks = Callbacks(checked_callbacks(callbacks))
        self._closed = False
        self._changed = threading.Event()  # somebody has come or gone
        self._begun: set[uuid.UUID] = set()  # who has come, or come anew
        self._queue = self._listen(protocol, options or netq.CommunicatorOptions())
        self._exchange = TaskDispatcher(
            self._queue, secrets.randbits(63), grace, room, 4 * size + _EXTRA, self._begun, self._callbacks
        )
        self._training = UpdateCollector(self._exchange, self._strategy, min_clients, deadline, self._callbacks)

    @classmethod
    def resume(
        cls, path: str | os.PathLike[str], options: netq.CommunicatorOptions | None = None, **settings: Any
    ) -> Self:
        """Return a server that goes on after the last round that a checkpoint has; and writes the next ones there.

        `settings`: the other arguments of Server, with a strategy made as the first was; it gets its state back. Raises
        CheckpointError.
        """
        state = load(path)
        strategy = settings["strategy"] = settings.get("strategy") or FedAvg()
        server = cls(_restored(path, state, strategy), options, **{"checkpoint": path, **settings})
        server._exchange.run, server.number = state["run"], state["number"]
        return server

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
        self.number += 1
        self._callbacks.round_begins(self.number, clients)
        begin, before = time.monotonic(), self._queue.statistics()
        training = self._train(clients)
        evaluation = self._evaluated(training.weights) if self._evaluate else RoundState()
        received, sent = self._traffic(before)
        report = RoundReport(
            number=self.number,
            clients=tuple(training.weights),
            failures=training.failures,
            metrics=training.metrics,
            evaluation=evaluation.metrics,
            seconds=time.monotonic() - begin,
            bytes_in=received,
            bytes_out=sent,
            staleness=training.staleness,
        )
        self._callbacks.round_ends(report, self.model)
        return report

    def wait(self, count: int, timeout: float | None = None) -> tuple[uuid.UUID, ...]:
        """Wait until `count` clients are connected, and return all that are. Raises TimeoutError, Closed."""

        def connected() -> tuple[uuid.UUID, ...]:
            self._check_open()
            return self.clients

        return until_connected(count, "clients", connected, self._changed, timeout)

    def close(self, timeout: float | None = 10.0) -> None:
        """End the federation: the clients' run returns. Waits for them `timeout` seconds at most."""
        self._closed = True
        self._exchange.close()
        self._changed.set()
        self._queue.close(timeout)
        if self._checkpoint is not None:
            self._checkpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the federation; after an error, without a goodbye: the clients wait for the next server."""
        self.close(10.0 if error is None else 0.0)

    def _train(self, clients: Collection[uuid.UUID]) -> RoundState:
        """Make the next model of the clients' updates; or leave it as it is, if too few are good."""
        try:
            answers, needed = self._training.collect(self._task("train"), clients)
            count = len(answers.weights)
            why = f"{count} updates of {needed}" if count < needed else self._finish()
        except BaseException:
            self._exchange.break_off()
            self._strategy.abandon()
            raise
        if why:
            log.warning("round %d does not count: %s", self.number, why)
            self._strategy.abandon()
            answers.void(f"the round does not count: {why}")
        return answers

    def _finish(self) -> str:
        """Take the next model; or return why there is none."""
        try:
            model = self._strategy.finish(self.model, number=self.number)
        except (InvalidUpdate, TooFewUpdates) as error:
            return str(error)
        except OSError:  # a disk's
            raise
        except Exception as error:  # the user's code; the next round may do better
            log.exception("the strategy could not finish round %d", self.number)
            return f"the strategy could not finish it: {type(error).__name__}: {error}"
        try:
            model = plain(model)
            check(model, like=self.model)  # finite clients' numbers may come to more than a float holds
        except InvalidUpdate as error:
            self._strategy.reject()
            return f"what {type(self._strategy).__name__} came to is no model: {error}"
        self.model = model
        if self._checkpoint is not None:
            self._checkpoint.save(self._state())
        return ""

    def _state(self) -> dict[str, Any]:
        strategy = {"name": type(self._strategy).__name__, "state": self._strategy.state()}
        return {"run": self._exchange.run, "number": self.number, "model": dict(self.model), "strategy": strategy}

    def _evaluated(self, clients: Collection[uuid.UUID]) -> RoundState:
        """Ask those whose updates are in the new model how well it does."""
        try:
            return self._measure(clients)
        except BaseException:
            self._exchange.break_off()
            raise

    def _measure(self, clients: Collection[uuid.UUID]) -> RoundState:
        busy = self._exchange.busy
        answers = RoundState({peer: None for peer in clients if peer not in busy})
        self._exchange.ask(self._task("evaluate"), answers.pending)
        give_up = time.monotonic() + self._training.deadline
        while answers.pending and (answer := self._exchange.answer(give_up, "evaluate")) is not None:
            if not isinstance(answer.content, ClientFailure):
                answers.count(answer.peer, answer.content)
                self._callbacks.client_is(answer.peer, ClientState.DONE)
            elif answers.fail(answer.peer, answer.content):
                self._callbacks.client_is(answer.peer, ClientState.FAILED)
            self._exchange.free(answer.peer)
        for peer in tuple(answers.pending):
            answers.fail(
                peer, ClientFailure(FailureKind.LATE, f"no answer within {self._training.deadline:g} s (deadline)")
            )
            self._callbacks.client_is(peer, ClientState.FAILED)
            self._exchange.forget(peer)
        return answers

    def _task(self, purpose: Purpose) -> Task:
        strategy = self._strategy
        return Task(
            Job(self._exchange.run, self.number, purpose),
            self.model,
            self._told(),
            deltas=strategy.deltas,
            compression=asdict(strategy.compression),
        )

    def _told(self) -> Mapping[str, Any]:
        own = self._strategy.config(self.number)
        check_config(own, f"{type(self._strategy).__name__}.config")
        return {**self._config, **own}

    def _check_open(self) -> None:
        if self._closed:
            raise netq.Closed(self._queue.id, "this server is closed")

    def _traffic(self, before: Mapping[uuid.UUID, netq.Statistics]) -> tuple[int, int]:
        """Message bytes in and out since then."""
        received = sent = 0
        for peer, now in self._queue.statistics().items():
            same = peer in before and before[peer].bytes_in <= now.bytes_in and before[peer].bytes_out <= now.bytes_out
            received += now.bytes_in - (before[peer].bytes_in if same else 0)
            sent += now.bytes_out - (before[peer].bytes_out if same else 0)
        return received, sent

    def _listen(self, protocol: netq.Protocol, options: netq.CommunicatorOptions) -> netq.Communicator:
        try:
            return netq.new(protocol, netq.Purpose.SERVER, self._with_events(options))
        except BaseException:
            if self._checkpoint is not None:
                self._checkpoint.close()
            raise

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


def _restored(path: str | os.PathLike[str], state: Mapping[str, Any], strategy: Strategy) -> Model:
    """Give a strategy its state back, and return the model."""
    match state:
        case {"run": int(), "number": int(), "model": dict(model), "strategy": {"name": str(name), "state": dict(own)}}:
            if name != type(strategy).__name__:
                ours = type(strategy).__name__
                raise CheckpointError(f"{path}: is of the strategy {name}, and this is {ours}; give the one it is of")
            try:
                strategy.restore(copy.deepcopy(own))  # not in the memory that the model is in, which it outlives
            except KeyError as error:
                raise CheckpointError(
                    f"{path}: its strategy has no {error}; give the strategy as it was made"
                ) from error
            except CheckpointError as error:
                raise CheckpointError(f"{path}: {error}") from error
            return model
        case _:
            raise CheckpointError(f"{path}: is not of a server: it has {', '.join(map(repr, state))}")


def _room(model: int, limit: int | None) -> int:
    """Return the bytes of updates that may be on their way: what the model and its successor leave."""
    if limit is None:
        return model + _SPARE
    expect(is_whole(limit, 3 * model), "Server.memory_limit", limit, f"{3 * model} bytes, three models, at least")
    return limit - 2 * model
