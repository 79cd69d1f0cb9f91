"""The server: runs rounds in the caller's thread, while netq moves the bytes in its own.

wait for min_clients ──► select ──► send the model ──► fold each update as it arrives ──► finish
                                                         until enough have answered, or the deadline

With an asynchronous strategy (Strategy.buffer) a round does not wait for all: a client that has answered is asked
again, and the round ends after a number of updates.
"""

from __future__ import annotations

import copy
import logging
import os
import reprlib
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple, Self

import netq
from fl.callbacks.base import Callback, Callbacks
from fl.errors import CheckpointError, FederationStalled, InvalidUpdate, TooFewUpdates
from fl.messages import Description, Job, Task
from fl.outline import Purpose
from fl.properties import ClientInfo
from fl.report import ClientFailure, FailureKind, RoundReport, RoundState
from fl.schedules import Schedule, resolved
from fl.server import details
from fl.server.aggregation import Aggregation
from fl.server.checkpoint import Checkpoint, load
from fl.server.client_tasks import ClientTasks
from fl.server.collector import UpdateCollector
from fl.server.limits import limits
from fl.server.validation import (
    check_config,
    check_limits,
    check_settings,
    checked_callbacks,
    checked_evaluation,
    deadline_of,
)
from fl.server.waiting import SETTLE, pause_after, until_connected
from fl.strategies.base import Strategy
from fl.strategies.fedavg import FedAvg
from fl.tensors.model import separate
from fl.tensors.roles import IN_MODEL, State, are_roles, assign, check_values, of_role, summary
from fl.tensors.spec import Model, plain, specs_of
from netq.text import describe, printable
from netq.validate import expect, is_whole

log = logging.getLogger("netq.fl")

_CHECK = 1.0  # seconds between checks for new clients, in case an event was missed
_NAMED = 3  # clients that an error or a line of the log names
_OF_PROGRAMS = (FailureKind.INVALID, FailureKind.FAILED, FailureKind.ERROR, FailureKind.VOID)  # and of no link
_ALIKE = 6  # attempts of the first round, if all fail alike: 31 s of pauses, in which further devices have connected


class Server:
    """Runs rounds of federated learning over a netq server. A context manager.

    model:        dict of numpy arrays or torch tensors by name. Later models have the same names, shapes and dtypes.
                  Raises InvalidUpdate for a model without a mean.
    options:      the communicator's; their serialisation is replaced by that of the federation's messages.
    strategy:     selects the clients, and makes the next model of their updates. None: FedAvg.
    min_clients:  clients that must be connected for a round to begin, and updates that it needs to count (all, where
                  the strategy selects fewer).
    wait:         clients that must be connected for the first round of the federation to begin. None: min_clients.
    deadline:     seconds; a client that has not answered by then is late, and the round closes. Or a function of the
                  number of the round (fl.schedules).
    close_early:  True: a round that has enough updates closes without clients that have never answered, and without
                  those that take a second longer than three times their last answer. The same for evaluations. A new
                  client counts from its second task on.
    suspend_after: tasks without a good answer, among a client's last eight times as many, after which it is suspended:
                  rounds do not wait for it until it has given some good answers.
    void_rounds:  attempts in a row that do not count, after which `rounds` raises FederationStalled. 6 at most for the
                  first round, if all clients fail for the same reason each time.
    void_pause:   seconds before the second attempt of a round; twice as many before each further one, 60 at most.
    grace:        seconds; a client without a connection for longer is lost, and the round does not wait for it.
    roles:        what tensors are, by name or by pattern, as in {"*.bn*": "local", "mask": "constant"}: "trained",
                  "averaged", "unit", "constant" or "local" (fl/tensors/roles.py). Others are what `fl.state` says of
                  them, or what names and values tell. A local tensor is in no model of the server.
    config:       values that the clients get in every round; the strategy's own config is added. A value may be a
                  function of the number of the round (fl.schedules). Or a function that returns such values for a
                  client (fl.ClientInfo).
    evaluate:     whether the clients of a round evaluate its model. {"every": 5, "fraction": 0.2}: after each fifth
                  round, by a random fifth of them (one at least), which the strategy's seed and the round choose.
    memory_limit: bytes for the model, its successor, and the updates that are on their way. It bounds how many updates
                  are admitted at once, and how large they are; the others wait at their clients. None: three models and
                  100 MB, and one update of four models.
    checkpoint:   a file that is written after each round that counts, for `resume`.
    callbacks:    objects that are called as rounds go on.
    """

    def __init__(
        self,
        model: Model,
        options: netq.CommunicatorOptions | None = None,
        *,
        strategy: Strategy | None = None,
        min_clients: int = 2,
        wait: int | None = None,
        deadline: float | Schedule = 600.0,
        close_early: bool = False,
        suspend_after: int = 3,
        void_rounds: int = 10,
        void_pause: float = 1.0,
        grace: float = 10.0,
        roles: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | Callable[[ClientInfo], Mapping[str, Any]] | None = None,
        evaluate: bool | Mapping[str, Any] = False,
        memory_limit: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        callbacks: Iterable[Callback] = (),
        protocol: netq.Protocol = netq.Protocol.TCP,
    ) -> None:
        check_settings(model, options, strategy, min_clients, grace, config)
        seconds, self._deadline = deadline_of(deadline, 1), deadline
        check_limits(min_clients, wait, close_early, suspend_after, void_rounds, void_pause)
        self._roles = assign(model, roles)
        check_values(model, self._roles)
        if set(self._roles.values()) != {"trained"}:
            log.info("tensors of the model: %s", summary(self._roles))
        self.model: Model = separate(plain(of_role(model, self._roles, *IN_MODEL)))
        bounds = limits(self.model, memory_limit)
        self.number = 0  # of the last round that counted
        self.is_over = False  # whether a callback has ended the rounds; a resumed server knows it, too
        self._callbacks = Callbacks(checked_callbacks(callbacks))
        self._callbacks.check(self.model)
        self._strategy = strategy or FedAvg()
        self._aggregation = Aggregation(self._strategy, self.model, self._roles)
        if self._strategy.least > min_clients:
            who, least = type(self._strategy).__name__, self._strategy.least
            log.warning("%s needs %d updates; with min_clients=%d a round may come to nothing", who, least, min_clients)
        self._min_clients = min_clients
        self._wait = min_clients if wait is None else wait
        self._void_rounds = void_rounds
        self._void_pause = void_pause
        self._grace = grace
        self._counted: set[uuid.UUID] = set()  # clients of the last round that counted, while they are there
        self._dominant: set[uuid.UUID] = set()  # clients with more than half of the examples of the last round
        self._has_begun = False  # the first round of this server
        self._voids = 0  # attempts since the last round that counted
        self._alike: set[ClientFailure] = set()  # the failure of all clients in each of them, if there is one
        self._config: Mapping[str, Any] = {} if callable(config) else dict(config or {})
        self._config_by_client = config if callable(config) else None
        self._evaluation = checked_evaluation(evaluate)
        self._checkpoint = None if checkpoint is None else Checkpoint(checkpoint)
        self._closed = threading.Event()
        self._has_said_end = False
        try:
            self._tasks = ClientTasks(
                bounds.applied_to(options or netq.CommunicatorOptions()),
                protocol,
                run=secrets.randbits(63),
                grace=grace,
                bounds=bounds,
                callbacks=self._callbacks,
                describe=self._description,
                config_of=self._config_of if callable(config) else None,
            )
        except BaseException:
            if self._checkpoint is not None:
                self._checkpoint.close()
            raise
        self._strategy.properties = self._tasks.properties
        self._collector = UpdateCollector(
            self._tasks,
            self._strategy,
            self._aggregation,
            self._callbacks,
            min_clients=min_clients,
            deadline=seconds,
            suspend_after=suspend_after,
            close_early=close_early,
        )

    @classmethod
    def resume(
        cls, path: str | os.PathLike[str], options: netq.CommunicatorOptions | None = None, **settings: Any
    ) -> Self:
        """Return a server that goes on after the last round of a checkpoint, and writes the next ones to the same file.

        `settings`: the other arguments of Server. The strategy is made as the first was, and gets its state back.

        Raises CheckpointError.
        """
        strategy = settings["strategy"] = settings.get("strategy") or FedAvg()
        saved = _restored(path, load(path), strategy)
        options = replace(options or netq.CommunicatorOptions(), id=saved.federation)
        try:
            server = cls(saved.model, options, **{"checkpoint": path, **settings})
        except InvalidUpdate as error:
            raise CheckpointError(f"{path}: {error}; give the strategy as it was made") from error
        try:
            server._collector.restore(saved.standings)
        except (KeyError, TypeError, ValueError) as error:
            server.close(0.0)
            raise CheckpointError(f"{path}: its clients' standings cannot be restored: {describe(error)}") from error
        server.is_over = saved.is_over
        server.number = saved.number  # and a `run` of its own: answers to tasks of the dead server do not count
        return server

    @property
    def netloc(self) -> netq.NetworkLocation:
        """Where the server listens."""
        return self._tasks.queue.netloc

    @property
    def clients(self) -> tuple[uuid.UUID, ...]:
        """The clients that are connected now, and take part."""
        return tuple(id for id, each in self.statistics().items() if each.connected and self._tasks.takes_part(id))

    def statistics(self) -> dict[uuid.UUID, netq.Statistics]:
        """Return figures of the clients' sessions, and how each link is protected (`security`)."""
        return self._tasks.queue.statistics()

    def rounds(self, count: int) -> Iterator[RoundReport]:
        """Run rounds until `count` have counted, or a callback stops. Yield each report when `model` is the new one.

        A round that does not count is reported too, without clients, and run again after a pause. Raises
        FederationStalled after `void_rounds` such attempts in a row, InvalidOption, and Closed.
        """
        expect(is_whole(count), "Server.rounds: count", count, "a whole number")
        end = self.number + count
        while self.number < end:
            report = self.round()
            yield report
            if self._callbacks.stop:
                log.info("a callback ends the rounds after round %d", self.number)
                self.is_over = True
                self._save()
                return
            if not report.clients:
                self._pause(report)

    def round(self) -> RoundReport:
        """Run one attempt of a round. If it does not count, the report has no clients, and the number stays."""
        self.wait(self._wait if self.number == 0 and not self._voids else self._min_clients)
        clients = self._present()
        number, attempt = self.number + 1, self._voids + 1
        self._warn_of_absent(number, clients)
        if callable(self._deadline):
            self._collector.deadline = deadline_of(self._deadline, number)
        if not self._has_begun:
            self._has_begun = True
            self._callbacks.federation_begins(self._details())
        self._callbacks.round_begins(number, clients)
        self._tasks.renewed.clear()
        begin, before = time.monotonic(), self.statistics()
        evaluation = RoundState()
        try:
            training = self._train(number, clients)
            if training.weights:
                self._voids = 0
            elif self._tasks.visitors.isdisjoint(clients):  # else the round has begun with one that wants no task
                self._voids = attempt
            if self._evaluation.every and number % self._evaluation.every == 0:
                task, fraction = self._task(number, "evaluate"), self._evaluation.fraction
                evaluation = self._collector.evaluate(task, training.weights, fraction)
        except BaseException:  # else clients would stay busy, and their answers would count in the next round
            self._tasks.forget_all()
            raise
        received, sent = self._traffic(before)
        metrics, evaluated = training.merged(), evaluation.merged()
        report = RoundReport(
            number=number,
            attempt=attempt,
            clients=tuple(training.weights),
            failures=training.failures,
            evaluation_failures=evaluation.failures,
            skipped=training.skipped,
            evaluation_skipped=evaluation.skipped,
            not_finite=metrics.not_finite,
            evaluation_not_finite=evaluated.not_finite,
            left_out=metrics.left_out,
            evaluation_left_out=evaluated.left_out,
            num_examples=training.weights,
            evaluation_examples=evaluation.weights,
            metrics=metrics.values,
            evaluation=evaluated.values,
            seconds=time.monotonic() - begin,
            bytes_in=received,
            bytes_out=sent,
            staleness=training.staleness,
            client_metrics=training.client_metrics,
            client_evaluation=evaluation.client_metrics,
            shares=training.shares(),
            suspended=tuple(self._collector.suspended()),
        )
        self._counted = set(report.clients) or self._counted
        self._warn_of(report.shares)
        self._callbacks.round_ends(report, self.model)
        return report

    def wait(self, count: int, timeout: float | None = None) -> tuple[uuid.UUID, ...]:
        """Wait until `count` clients are connected, and return all that are. Raises TimeoutError, Closed."""

        def connected() -> tuple[uuid.UUID, ...]:
            self._check_open()
            return self.clients

        changed, read = self._tasks.sessions_changed, self._tasks.read

        def is_new() -> bool:
            return any(map(self._tasks.is_new, self.statistics()))

        return until_connected(count, "clients", connected, changed, timeout, read=read, is_new=is_new)

    def linger(self, seconds: float) -> None:
        """Tell the clients that connect within `seconds` that the federation is over: their run returns."""
        until, fresh = time.monotonic() + seconds, set[uuid.UUID]()
        with suppress(netq.Closed):  # by another thread
            while not self._closed.is_set() and (left := until - time.monotonic()) > 0:
                self._tell_end(fresh)
                self._tasks.sessions_changed.wait(min(left, SETTLE if fresh else _CHECK))

    def close(self, timeout: float | None = 10.0) -> None:
        """End the federation: the clients' run returns. Waits for them `timeout` seconds at most.

        With a timeout of 0 only drop the links: the clients wait for the next server.
        """
        self._closed.set()
        self._tasks.end()
        self._tasks.sessions_changed.set()
        if timeout != 0 and not self._has_said_end:
            self._tasks.announce_end(self.number, self.model)
        self._tasks.queue.close(timeout)
        if self._checkpoint is not None:
            self._checkpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the federation. After an error, only drop the links: the clients then wait for the next server."""
        timeout = 0.0
        try:
            if error is None:
                self._hand_out()
                timeout = 10.0
        finally:  # also after a Ctrl-C of somebody who does not want to wait for a slow client
            self.close(timeout)

    def _hand_out(self) -> None:
        """End the federation. Wait until all clients that want the model have it: each has as long as for an answer.

        A client that connects meanwhile is told, too: it may have been started again while it received the model.
        """
        if self._closed.is_set():
            return
        self._has_said_end = True
        until, fresh = time.monotonic() + self._collector.deadline, set[uuid.UUID]()
        with suppress(netq.Closed):  # by another thread
            finals = self._tell_end(fresh, self._tasks.present())
            while not self._closed.is_set() and time.monotonic() < until:
                present = self._tasks.present()
                left = [each for peer, each in finals.items() if peer in present and not each.done()]
                if not left and present.isdisjoint(fresh):
                    return
                if left:
                    wait(left, _CHECK)
                else:
                    time.sleep(SETTLE)
                finals = self._tell_end(fresh)

    def _tell_end(self, fresh: set[uuid.UUID], others: Collection[uuid.UUID] = ()) -> Mapping[uuid.UUID, Future[None]]:
        """Tell the clients whose session has begun, and others, that the federation is over.

        A new client is told when it has said whether it wants the model, or has had the time to.

        fresh: clients that have not said it. Changed here.

        Returns the deliveries of the model. Raises Closed.
        """
        self._tasks.sessions_changed.clear()
        self._tasks.read()
        fresh |= self._tasks.new_sessions()
        told = {peer for peer in fresh.union(others) if not self._tasks.is_new(peer)}
        fresh -= told
        return self._tasks.announce_end(self.number, self.model, told)

    def _pause(self, report: RoundReport) -> None:
        """Wait before the next attempt of a round. Raises FederationStalled if there were too many."""
        self._check_stalled(report)
        seconds = pause_after(self._voids, self._void_pause)
        log.info("round %d is run again in %g s (attempt %d)", report.number, seconds, self._voids + 1)
        until = time.monotonic() + seconds
        while not self._closed.is_set() and (left := until - time.monotonic()) > 0:
            self._tasks.sessions_changed.clear()
            self._tasks.read()  # who asks what tasks are like, may do so just because rounds do not count
            self._tasks.sessions_changed.wait(min(left, _CHECK))

    def _check_stalled(self, report: RoundReport) -> None:
        """Raise FederationStalled after too many attempts. Log the failure of all clients, if they have the same."""
        alike = set(report.failures.values())
        if len(alike) != 1 or not all(failure.why in _OF_PROGRAMS for failure in alike):
            alike = set()
        elif self._voids <= 1:
            text = "round %d: all clients fail for one reason; if that is a mistake in a program, no pause mends it: %s"
            log.warning(text, report.number, *alike)
        self._alike = alike if self._voids <= 1 else self._alike & alike
        limit, why = self._void_rounds, "void_rounds"
        if self._alike and self.number == 0 and limit > _ALIKE:
            limit, why = _ALIKE, "each time for the same reason"
        if self._voids >= limit:
            each = {**report.failures, **report.skipped}
            reasons = "; ".join(f"{peer}: {reason}" for peer, reason in islice(each.items(), _NAMED))
            skipped = f" and {len(report.skipped)} skipped" if report.skipped else ""
            reasons = reasons or "the log says why, as of a strategy that selects no client"
            raise FederationStalled(
                f"round {report.number} did not count {self._voids} times in a row ({why}); in the last attempt "
                f"{len(report.failures)} clients failed{skipped}: {reasons}"
            )

    def _train(self, number: int, clients: Collection[uuid.UUID]) -> RoundState:
        """Make the next model of the clients' updates. Leave the model unchanged if there are too few good ones."""
        try:
            state, needed = self._collector.train(self._task(number, "train"), clients)
            count = len(state.weights)
            few = f"{count} updates of {needed}" + (f", {len(state.skipped)} skipped" if state.skipped else "")
            why = few if count < needed else self._finish(number)
        except BaseException:
            self._aggregation.abandon()
            raise
        if why:
            log.warning("round %d does not count: %s", number, why)
            self._aggregation.abandon()
            state.void(f"the round does not count: {why}")
        return state

    def _finish(self, number: int) -> str:
        """Set the next model. Return why there is none, "" if there is one."""
        try:
            self.model = separate(self._aggregation.finish(self.model, number))
        except (InvalidUpdate, TooFewUpdates) as error:
            return str(error)
        except OSError:  # the server's disk is at fault, and the next round would fail too
            raise
        except Exception as error:  # a bug of the strategy; the next round may succeed
            log.exception("the strategy could not finish round %d", number)
            return f"the strategy could not finish it: {describe(error)}"
        self.number = number
        self._save()
        return ""

    def _save(self) -> None:
        """Write the checkpoint, if there is one. A disk that is full now may have room after the next round."""
        if self._checkpoint is None:
            return
        state = {
            "federation": self._tasks.queue.id.bytes,
            "number": self.number,
            "is_over": self.is_over,
            "standings": self._collector.state(),
            "model": dict(self.model),
            "roles": dict(self._roles),
            "strategy": {"name": type(self._strategy).__name__, "state": self._strategy.state()},
        }
        try:
            self._checkpoint.save(state)
        except OSError as error:
            text = "round %d has no checkpoint: %s; a server that is started now goes on from the one before"
            log.error(text, self.number, error)

    def _present(self) -> tuple[uuid.UUID, ...]:
        """Return the connected clients, and those of the last round that are not lost yet: links are away for moments.

        Others that were connected lately may be strangers, who would cost each round its grace.
        """

        def is_present(id: uuid.UUID, figures: netq.Statistics) -> bool:
            return figures.connected or (id in self._counted and figures.absent <= self._grace)

        known = self.statistics().items()
        return tuple(id for id, each in known if is_present(id, each) and self._tasks.takes_part(id))

    def _warn_of_absent(self, number: int, clients: Collection[uuid.UUID]) -> None:
        """Log which clients of the last round are not there to be asked: no report has them."""
        gone = self._counted.difference(clients)
        if gone:
            ids = ", ".join(map(str, islice(sorted(gone), _NAMED))) + (", …" if len(gone) > _NAMED else "")
            text = "round %d begins without %d of the %d clients of the last one: %s; no connection"
            log.warning(text, number, len(gone), len(self._counted), ids)
            self._counted -= gone

    def _warn_of(self, shares: Mapping[uuid.UUID, float]) -> None:
        """Log the clients that have more than half of the examples, if they were not logged in the round before."""
        for peer in shares.keys() - self._dominant:
            text = "%s: claims %.0f %% of the examples of the round; the strategy's max_examples bounds that"
            log.warning(text, peer, 100 * shares[peer])
        self._dominant = set(shares)

    def _task(self, number: int, purpose: Purpose) -> Task:
        strategy = self._strategy
        return Task(
            Job(self._tasks.run, number, purpose),
            self.model,
            self._client_config(number),
            deltas=strategy.deltas,
            compression=asdict(strategy.compression),
            roles={name: role for name, role in self._roles.items() if role != "trained"},
        )

    def _config_of(self, client: ClientInfo, number: int) -> Mapping[str, Any]:
        """Return what the user's function gives a client. Raises InvalidOption, and what the function raises."""
        assert self._config_by_client is not None
        config = self._config_by_client(client)
        expect(isinstance(config, Mapping), "Server.config", config, "a dict of plain values by name")
        found = resolved(config, number)
        check_config(found, "Server.config")
        return found

    def _description(self, client: ClientInfo) -> Description:
        task = self._task(self.number + 1, "train")
        specs = {name: (spec.shape, spec.dtype, spec.device is not None) for name, spec in specs_of(task.model).items()}
        config = {} if self._config_by_client is None else self._config_of(client, task.job.round)
        config = {**config, **task.config}
        return Description(task.job.round, specs, config, task.deltas, task.compression, task.roles, time.time())

    def _client_config(self, number: int) -> Mapping[str, Any]:
        own = resolved(self._strategy.config(number), number)
        check_config(own, f"{type(self._strategy).__name__}.config")
        return {**resolved(self._config, number), **own}

    def _details(self) -> dict[str, Any]:
        """Return what is needed to repeat the run, as plain values."""
        return {
            "federation": str(self._tasks.queue.id),
            "rounds_done": self.number,
            "strategy": type(self._strategy).__name__,
            "seed": self._strategy.seed,
            "min_clients": self._min_clients,
            "evaluate": self._evaluation._asdict() if self._evaluation.every else False,
            "config": details.plain(self._client_config(self.number + 1)),
            "versions": details.versions(),
        }

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise netq.Closed(self._tasks.queue.id, "this server is closed")

    def _traffic(self, before: Mapping[uuid.UUID, netq.Statistics]) -> tuple[int, int]:
        """Return the message bytes received and sent since `before`."""
        received = sent = 0
        renewed = set(self._tasks.renewed.copy())
        for peer, now in self.statistics().items():
            same = peer in before and peer not in renewed  # counters begin at 0 with each session
            received += now.bytes_in - (before[peer].bytes_in if same else 0)
            sent += now.bytes_out - (before[peer].bytes_out if same else 0)
        return received, sent


class _Saved(NamedTuple):
    """What a checkpoint has besides the strategy's state."""

    federation: uuid.UUID
    number: int
    is_over: bool
    standings: Mapping[str, Any]  # of its clients
    model: State


def _restored(path: str | os.PathLike[str], state: Mapping[str, Any], strategy: Strategy) -> _Saved:
    """Restore a strategy from a checkpoint's state, and return the rest. Raises CheckpointError."""
    match state:
        case {
            "federation": bytes(federation),
            "number": int(number),
            "is_over": bool(is_over),
            "standings": dict(standings),
            "model": dict(model),
            "roles": dict(roles),
            "strategy": {"name": str(name), "state": dict(own)},
        } if len(federation) == 16 and is_whole(number, 1, 2**62) and model and are_roles(roles):
            ours = type(strategy).__name__
            if name != ours:
                raise CheckpointError(
                    f"{path}: is of the strategy {printable(name)}, and this is {ours}; give the one it is of"
                )
            try:
                strategy.restore(copy.deepcopy(own))  # a view would keep the memory of the whole file
            except KeyError as error:
                raise CheckpointError(
                    f"{path}: its strategy has no {error}; give the strategy as it was made"
                ) from error
            except CheckpointError as error:
                raise CheckpointError(f"{path}: {error}") from error
            except Exception as error:  # of the strategy, whose state may be anything
                raise CheckpointError(
                    f"{path}: {ours} cannot restore its state: {printable(describe(error))}"
                ) from error
            try:
                assign(found := State(model, roles), None)
            except (netq.InvalidOption, InvalidUpdate) as error:
                raise CheckpointError(f"{path}: {error}; expected a checkpoint of this version") from error
            return _Saved(uuid.UUID(bytes=federation), number, is_over, standings, found)
        case _:
            has = reprlib.repr(list(state))[1:-1]
            raise CheckpointError(
                f"{path}: is not of a server: it has {has}; expected federation, number, is_over, standings, "
                "model, roles and strategy"
            )
