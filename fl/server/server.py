"""The server: runs rounds in the caller's thread, while netq moves the bytes in its own.

wait for min_clients ──► select ──► send the model ──► fold each update as it arrives ──► finish
                                                         until enough have answered, or the deadline

`Server.round` is this line as code. With an asynchronous strategy (Strategy.buffer) a round does not wait for all: a
client that has answered is asked again, and the round ends after a number of updates.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self, TypeAlias, cast

import netq
from fl.callbacks.base import Callback
from fl.column_statistics import Column, Query, StatisticsReport
from fl.envelope import PURPOSES, Job
from fl.errors import CheckpointError, InvalidUpdate
from fl.homomorphic.codec import CIPHERTEXTS, HEADER
from fl.homomorphic.options import Homomorphic
from fl.messages import Description, Masked, Task, Update
from fl.privacy.options import DifferentialPrivacy
from fl.privacy.privacy import Privacy
from fl.properties import ClientInfo, title
from fl.report import MaskedSum, RoundReport
from fl.secure.certified import certified
from fl.secure.layout import Summed, vector_bytes
from fl.secure.options import SecureAggregation
from fl.server.aggregation import SUM
from fl.server.answers import Answers
from fl.server.checkpoint import restored
from fl.server.encrypted import EncryptedSum
from fl.server.federation import Federation, Void
from fl.server.limits import limits
from fl.server.masked import MaskedRound, Masks, SummedRound
from fl.server.member import Member
from fl.server.members import Members
from fl.server.patience import Patience
from fl.server.round import Round
from fl.server.rule import RoundRule
from fl.server.standing import Standing
from fl.server.statistics import Survey
from fl.server.validation import check_homomorphic, check_relays, check_secure, not_through_relays
from fl.server.waiting import SETTLE, until_connected
from fl.status import ClientStatus, Refusal
from fl.strategies.base import Strategy
from fl.strategies.fedavg import FedAvg
from fl.subtotal import Subtotal
from fl.tensors.spec import Model, nbytes, specs_of
from netq.text import describe
from netq.validate import expect, whole

log = logging.getLogger("netq.fl")

_Figures: TypeAlias = Mapping[uuid.UUID, netq.Statistics]
_SECURE = 'an object, as in fl.SecureAggregation() or fl.Homomorphic("server.context")'
_CHECK = 1.0  # seconds between checks for new clients, in case an event was missed
_NAMED = 3  # clients that a line of the log names
_DISPUTED = 16  # rounds in which a client takes no part that was in the sums of two relays, or gave wrong shares


class Server:
    """Runs rounds of federated learning over a netq server. A context manager.

    model:        dict of numpy arrays or torch tensors by name. Later models have the same names, shapes and dtypes.
                  Raises InvalidUpdate for a model without a mean.
    options:      the communicator's; their serialisation is replaced by that of the federation's messages.
    strategy:     selects the clients, and makes the next model of their updates. None: FedAvg.
    min_clients:  clients that must be connected for a round to begin, and updates that it needs to count (all, where
                  the strategy selects fewer).
    wait:         clients that must be connected for the first round of the federation to begin. None: min_clients.
    patience:     how long it waits for answers, for lost clients, and for a round that counts (fl.Patience).
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
    relays:       which clients may be relays (fl.Relay), and answer for others: a list of their names, or of their ids
                  as texts. The name of a certificate is proof, one that a client gives itself is not. True: any client.
                  Whoever may be one decides how much its clients weigh.
    secure:       secure aggregation (fl.SecureAggregation): the server learns the sum of the clients' updates, and no
                  update; or homomorphic encryption (fl.Homomorphic): it reads its first model, and of later ones and
                  of updates what the key leaves plain. None: none.
    privacy:      differential privacy: the models say little of any one client, and the reports how little. None: none.
    callbacks:    objects that are called as rounds go on.
    """

    _carries_masks = False  # it is the server of a relay, whose clients may answer under masks

    def __init__(
        self,
        model: Model,
        options: netq.CommunicatorOptions | None = None,
        *,
        strategy: Strategy | None = None,
        min_clients: int = 2,
        wait: int | None = None,
        patience: Patience | None = None,
        roles: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | Callable[[ClientInfo], Mapping[str, Any]] | None = None,
        evaluate: bool | Mapping[str, Any] = False,
        memory_limit: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        relays: bool | Collection[str] = False,
        secure: SecureAggregation | Homomorphic | None = None,
        privacy: DifferentialPrivacy | None = None,
        callbacks: Iterable[Callback] = (),
        protocol: netq.Protocol = netq.Protocol.TCP,
    ) -> None:
        known = isinstance(options, netq.CommunicatorOptions | None)
        form = "a netq.CommunicatorOptions, as in CommunicatorOptions(netloc=(host, port))"
        expect(known, "Server.options", options, form)
        check_relays(relays)
        expect(isinstance(secure, SecureAggregation | Homomorphic | None), "Server.secure", secure, _SECURE)
        homomorphic = secure if isinstance(secure, Homomorphic) else None
        masks = secure if isinstance(secure, SecureAggregation) else None
        self._federation = federation = Federation(
            model,
            strategy=strategy,
            min_clients=min_clients,
            wait=wait,
            patience=patience,
            roles=roles,
            config=config,
            evaluate=evaluate,
            checkpoint=checkpoint,
            callbacks=callbacks,
            privacy=None if privacy is None else Privacy(privacy, at_clients=masks is not None),
            homomorphic=homomorphic,
        )
        self._wait = min_clients if wait is None else wait
        first = federation.patience.deadline_of(1)
        self._standings = {each: Standing(federation.patience.suspend_after, first, each) for each in PURPOSES}
        self._closed = threading.Event()
        self._disputed: dict[uuid.UUID, int] = {}  # clients that relays leave out, and until which round
        self._surveys = 0  # questions for statistics
        try:
            if relays and not federation.aggregation.merges:
                why = not_through_relays(federation.strategy, privacy=privacy is not None)
                if homomorphic is not None:
                    why = "a relay adds no ciphertexts: connect the clients to the server itself"
                raise netq.InvalidOption(f"Server.relays: {why}")
            if federation.privacy is not None:
                federation.privacy.check_population(min_clients, "Server.min_clients")
            check_secure(
                *(masks, federation.strategy, federation.model, federation.roles, config),
                with_noise=privacy is not None,
            )
            check_homomorphic(
                *(homomorphic, federation.strategy, federation.model),
                relays=bool(relays),
                with_noise=privacy is not None,
            )
            vector = 0 if masks is None else vector_bytes(federation.model, federation.roles, masks.metrics)
            self._encrypted = encrypted = (
                federation.aggregation if isinstance(federation.aggregation, EncryptedSum) else None
            )
            bounds = limits(
                federation.model,
                memory_limit,
                relays=bool(relays),
                vector=vector,
                encrypted=0 if encrypted is None else encrypted.nbytes,
                carries_masks=self._carries_masks,
            )
            self._members = Members(
                bounds.applied_to(options or netq.CommunicatorOptions()),
                protocol,
                run=secrets.randbits(63),
                grace=federation.patience.grace,
                bounds=bounds,
                callbacks=federation.callbacks,
                describe=self._description,
                relays=relays,
                config_of=federation.config_of,
            )
            prove = None if masks is None else certified(options or netq.CommunicatorOptions())[1]
            self._masks = None if masks is None else Masks(masks, self._members, prove)
        except BaseException:
            federation.close()
            raise
        if privacy is not None and checkpoint is None:
            log.warning("privacy without a checkpoint: a server that is started again does not know what was spent")
        if relays and relays is not True and not _knows_names(options or netq.CommunicatorOptions()):
            log.warning("relays are known by names that no certificate proves: any client may give itself one of them")
        federation.callbacks.listens(self)

    @classmethod
    def resume(
        cls, path: str | os.PathLike[str], options: netq.CommunicatorOptions | None = None, **settings: Any
    ) -> Self:
        """Return a server that goes on after the last round of a checkpoint, and writes the next ones to the same file.

        `settings`: the other arguments of Server. The strategy is made as the first was, and gets its state back.

        Raises CheckpointError.
        """
        strategy = settings["strategy"] = settings.get("strategy") or FedAvg()
        saved = restored(path, strategy)
        options = replace(options or netq.CommunicatorOptions(), id=saved.federation)
        try:
            server = cls(saved.model, options, **{"checkpoint": path, **settings})
        except InvalidUpdate as error:
            raise CheckpointError(f"{path}: {error}; give the strategy as it was made") from error
        try:
            for purpose, standing in server._standings.items():
                standing.restore(saved.standings[purpose], server._members.of)
        except (KeyError, TypeError, ValueError) as error:
            server.close(0.0)
            raise CheckpointError(f"{path}: its clients' standings cannot be restored: {describe(error)}") from error
        try:
            server._federation.restore_privacy(saved.privacy, is_older=saved.is_older)
        except CheckpointError as error:
            server.close(0.0)
            raise CheckpointError(f"{path}: {error}") from error
        server._federation.is_over = saved.is_over
        server._federation.number = saved.number  # its `run` is another: answers to tasks of the dead one do not count
        return server

    @property
    def model(self) -> Model:
        """The model of the last round that counted, without its local tensors."""
        return self._federation.model

    @property
    def number(self) -> int:
        """The last round that counted."""
        return self._federation.number

    @property
    def is_over(self) -> bool:
        """Whether a callback has ended the rounds, or no other one fits into max_epsilon. A resumed server knows it."""
        return self._federation.is_over or self._federation.is_spent

    @property
    def netloc(self) -> netq.NetworkLocation:
        """Where the server listens."""
        return self._members.queue.netloc

    @property
    def clients(self) -> tuple[uuid.UUID, ...]:
        """The clients that are connected now, and take part."""
        absences = self._members.queue.absences()
        return tuple(id for id, absent in absences.items() if not absent and self._members.takes_part(id))

    def members(self) -> Sequence[ClientStatus]:
        """Return where each client stands. Any thread may call this; a callback gets it by `listens`."""
        return self._members.status()

    @property
    def refusals(self) -> Sequence[Refusal]:
        """The last 100 connections that were turned away, the oldest first. Any thread may read this."""
        return self._members.refusals

    def statistics(self) -> dict[uuid.UUID, netq.Statistics]:
        """Return figures of the clients' sessions, and how each link is protected (`security`)."""
        return self._members.queue.statistics()

    def statistics_of(self, columns: Mapping[str, Column], min_count: int = 10) -> StatisticsReport:
        """Return what the data of the clients are like: counts, means, variances and histograms of columns, by name.

        Waits for as many clients as a round would, and asks all that are connected and do no task. A client answers by
        its `columns`; how few values it gives, it decides itself. Under secure aggregation this server learns the sums
        only.

        min_count: a column with fewer values in all clients is not shown; numbers of fewer values in it are 0.

        Raises InvalidOption, and Closed.
        """
        query = Query(columns, "Server.statistics_of: columns")
        whole("Server.statistics_of: min_count", min_count, 1)
        if self._encrypted is not None:
            raise netq.InvalidOption(
                "Server.secure: clients would give statistics in plain; expected a server without homomorphic "
                "encryption for them, as one with SecureAggregation"
            )
        federation = self._federation
        self._wait_for_clients()
        self._members.update()
        self._surveys += 1
        task = Task(Job(self._members.run, self._surveys, "statistics"), {}, query.config)
        survey = Survey(self._members, self._masks, query, task, federation.min_clients)
        try:
            clients = [self._members.of(peer) for peer in self.clients]
            return survey.ask(clients, federation.patience.deadline_of(self.number + 1), min_count)
        except BaseException:  # else clients would stay busy
            self._members.forget_all()
            raise

    def rounds(self, count: int) -> Iterator[RoundReport]:
        """Run rounds until `count` have counted, or a callback stops. Yield each report when `model` is the new one.

        A round that does not count is reported too, without clients, and run again after a pause. Raises
        FederationStalled after `void_rounds` such attempts in a row, InvalidOption, and Closed.
        """
        yield from self._federation.rounds(count, self.round, self._pause, self._save)

    def round(self) -> RoundReport:
        """Run one attempt of a round. If it does not count, the report has no clients, and the number stays.

        Source: McMahan et al., 2017, "Communication-efficient learning of deep networks from decentralized data",
        algorithm 1. Strategies differ in how they fold and finish, rounds in their rule (fl/server/rule.py).
        """
        federation, (number, attempt, clients) = self._federation, self._begin()
        begin, before = time.monotonic(), self.statistics()
        try:
            training = self._select(self._task(number), clients)
            self._take(training)
            self._finish(number, training)
            evaluation = Answers()
            if federation.evaluates(number):
                task = federation.task(self._members.run, number, "evaluate")
                evaluation = self._evaluate(task, training.answers.counted)
        except BaseException:  # else clients would stay busy, and their answers would count in the next round
            self._members.forget_all()
            if federation.number < number:  # else the updates are in the model, and an evaluation has failed
                federation.aggregation.abandon()
            raise
        report = self._report(number, attempt, training.answers, evaluation, begin, before)
        self._end(report, training.answers, clients)
        return report

    def _task(self, number: int) -> Task:
        task = self._federation.task(self._members.run, number, "train")
        self._disputed = {client: until for client, until in self._disputed.items() if until >= number}
        return replace(task, excluded=[str(client) for client in self._disputed])

    def _take(self, training: Round[Update | Subtotal]) -> None:
        """Ask the clients of a round, and fold each update as it arrives."""
        federation = self._federation
        for update in training:
            with training.counting(update):
                if isinstance(training, SummedRound):
                    training.add(update.client, cast(Masked | Subtotal, update.content))
                else:
                    federation.aggregation.take(federation.model, update.content, update.client, update.staleness)

    def _fold_sum(self, number: int, training: Round[Any]) -> None:
        """Fold the mean of the updates, of which the sum of their vectors says. Raises Void."""
        federation, privacy = self._federation, self._federation.privacy
        assert self._masks is not None
        try:
            if privacy is not None:
                privacy.charge()
            summed = training.answers.summed = self._open(training)
            if privacy is not None:
                privacy.within = summed.within
            self._masks.warn_if_clipped(f"round {number}", summed)
            federation.aggregation.fold(federation.model, Update(summed.model, summed.examples), SUM, 0)
        except InvalidUpdate as error:
            raise federation.void(number, str(error)) from error

    def _open(self, masked: Round[Any]) -> Summed:
        """Return what the sum of the vectors of a round says. Raises InvalidUpdate."""
        assert self._masks is not None
        assert isinstance(masked, MaskedRound)
        return masked.open(self.model)

    def wait(self, count: int, timeout: float | None = None) -> tuple[uuid.UUID, ...]:
        """Wait until `count` clients are connected, and return all that are. Raises TimeoutError, Closed."""

        def connected() -> tuple[uuid.UUID, ...]:
            if self._closed.is_set():
                raise netq.Closed(self._members.queue.id, "this server is closed")
            return self.clients

        members = self._members
        changed, read, is_new = members.sessions_changed, members.read, members.has_new
        return until_connected(count, "clients", connected, changed, timeout, read=read, is_new=is_new)

    def linger(self, seconds: float) -> None:
        """Tell the clients that connect within `seconds` that the federation is over: their run returns."""
        until = time.monotonic() + seconds
        with suppress(netq.Closed):  # by another thread
            while not self._closed.is_set() and (left := until - time.monotonic()) > 0:
                self._tell_end()
                self._members.sessions_changed.wait(min(left, SETTLE if self._members.has_new() else _CHECK))

    def close(self, timeout: float | None = 10.0) -> None:
        """End the federation: the clients' run returns. Waits for them `timeout` seconds at most.

        With a timeout of 0 only drop the links: the clients wait for the next server.
        """
        self._closed.set()
        self._members.end()
        self._members.sessions_changed.set()
        if timeout != 0:
            self._members.announce_end(self.number, self._last_model(), wait_for_new=False)
        self._members.queue.close(timeout)
        self._federation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """End the federation. After an error, only drop the links: the clients then wait for the next server."""
        timeout = 0.0
        try:
            if kind is None:
                self._hand_out()
                timeout = 10.0
        finally:  # also after a Ctrl-C of somebody who does not want to wait for a slow client
            self.close(timeout)

    def _hand_out(self) -> None:
        """End the federation. Wait until all clients that want the model have it: each has as long as for an answer.

        A client that connects meanwhile is told, too: it may have been started again while it received the model.
        """
        until = time.monotonic() + self._standings["train"].deadline
        with suppress(netq.Closed):  # by another thread
            while not self._closed.is_set() and time.monotonic() < until:
                left = [each for each in self._tell_end() if not each.done()]
                if left:
                    wait(left, _CHECK)
                elif self._members.has_new():
                    time.sleep(SETTLE)
                else:
                    return

    def _last_model(self) -> Model | None:
        """Return what clients get at the end."""
        return self.model

    def _tell_end(self) -> list[Future[None]]:
        """Tell the clients that do not know it that the federation is over. Return the deliveries of the model."""
        self._members.sessions_changed.clear()
        self._members.read()
        return self._members.announce_end(self.number, self._last_model())

    def _pause(self, report: RoundReport) -> None:
        """Wait before the next attempt of a round. Raises FederationStalled if there were too many."""
        until = time.monotonic() + self._federation.attempts.pause(report, is_first=self.number == 0)
        while not self._closed.is_set() and (left := until - time.monotonic()) > 0:
            self._members.sessions_changed.clear()
            self._members.read()  # who asks what tasks are like, may do so just because rounds do not count
            self._members.sessions_changed.wait(min(left, _CHECK))

    def _begin(self) -> tuple[int, int, tuple[uuid.UUID, ...]]:
        """Wait until there are clients for a round. Return its number, that of the attempt, and the clients."""
        federation = self._federation
        self._wait_for_clients()
        clients = self._present()
        self._warn_of_absent(self.number + 1, clients)
        for standing in self._standings.values():
            standing.deadline = federation.patience.deadline_of(self.number + 1)
        number = federation.begin(clients, self.about)
        self._members.trim(nbytes(self.model))
        self._members.update()
        return number, federation.attempts.void + 1, clients

    def _wait_for_clients(self) -> None:
        federation = self._federation
        self.wait(self._wait if self.number == 0 and not federation.attempts.void else federation.min_clients)

    def _select(self, task: Task, clients: Collection[uuid.UUID]) -> Round[Update | Subtotal]:
        """Return a round in which the clients train that the strategy selects, and suspended ones now and then.

        A round folds until enough of its clients have answered, and until there are as many updates as needed. Late
        updates of earlier rounds count towards those needed, but not towards enough. With an asynchronous strategy
        clients stay at work from one round to the next.
        """
        federation, number = self._federation, task.job.round
        members = [self._members.of(peer) for peer in clients if str(peer) not in task.excluded]
        strategy = federation.strategy
        buffer = strategy.buffer
        idle = members if buffer is not None else [each for each in members if each.task is None]
        regular, retried = self._standings["train"].candidates(
            idle, federation.min_clients, again=federation.is_repeated and buffer is None
        )
        pool = idle if federation.draws else regular  # a draw is of all, and suspended ones come back by it only
        chosen = federation.select(number, [each.id for each in pool], self._members.properties)
        found = [self._members.of(peer) for peer in chosen]
        if federation.draws:
            retried = [each for each in found if each not in regular]
        selected = [each for each in found if each not in retried and (buffer is not None or each.task is None)]
        if buffer is not None:
            return self._round(task, RoundRule(needed=1, buffer=buffer), [*selected, *retried])
        rule = RoundRule(
            enough=min(strategy.enough(len(regular)), len(selected)),
            needed=max(1, min(federation.min_clients, len(selected) + len(members) - len(idle))),
            close_early=federation.patience.close_early,
        )
        if federation.draws:
            rule = replace(rule, needed=1)
        # Under masks it waits for all: a client that is asked, and sends nothing, costs a part of the sum.
        if self._masks is not None:
            rule = replace(rule, enough=len(selected), close_early=rule.close_early and self._masks.options.recovers)
            retried = retried[: max(1, len(selected) // 10)] if self._masks.options.recovers else []
        return self._round(task, rule, [*selected, *retried], selected)

    def _evaluate(self, task: Task, clients: Iterable[uuid.UUID]) -> Answers:
        """Let a fraction of these clients evaluate the model, of those that have no task. The seed chooses them."""
        idle = [member for member in map(self._members.of, clients) if member.task is None]
        regular, retried = self._standings["evaluate"].candidates(idle, 0)
        regular = [*self._federation.evaluators(task.job.round, sorted(regular, key=lambda each: each.id))]
        needed = min(self._federation.min_clients, len(regular))
        rule = RoundRule(len(regular), needed, needs_own=True, close_early=self._federation.patience.close_early)
        evaluation = self._round(task, rule, [*regular, *retried], regular)
        for report in evaluation:
            with evaluation.counting(report):
                if isinstance(evaluation, MaskedRound):
                    evaluation.add(report.client, report.content)
        if self._masks is not None and evaluation.answers.clients:
            try:
                evaluation.answers.summed = self._open(evaluation)
            except InvalidUpdate as error:
                log.warning("the evaluation of round %d does not count: %s", task.job.round, error)
                evaluation.answers.void(str(error))
        return evaluation.answers  # without masks its numbers are in the round's report

    def _round(
        self, task: Task, rule: RoundRule, clients: list[Member], regular: Collection[Member] = ()
    ) -> Round[Any]:
        standing = self._standings[task.job.purpose]
        ours = self._federation
        of_server = self._members, standing, ours.strategy, ours.aggregation, ours.callbacks
        if self._encrypted is not None:
            task = replace(task, secure=self._encrypted.terms(len(clients)))
        of_round = task, rule, clients, regular
        if self._masks is None:
            return Round(*of_server, *of_round)
        clipping = None if ours.privacy is None else ours.privacy.clipping
        return MaskedRound(self._masks, clipping, *of_server, *of_round)

    def _finish(self, number: int, training: Round[Update | Subtotal]) -> None:
        """Make the next model of the updates. Leave the model unchanged if there are too few, and count none."""
        answers, federation, charged = training.answers, self._federation, self._federation.charged
        try:
            if self._masks is not None and answers.clients >= training.rule.needed:
                self._fold_sum(number, training)
            federation.finish(number, answers.clients, training.rule.needed, len(answers.skipped), self._save)
        except Void as void:
            answers.void(str(void))
            if federation.charged > charged:
                self._save()

    def _report(
        self, number: int, attempt: int, training: Answers, evaluation: Answers, begin: float, before: _Figures
    ) -> RoundReport:
        """Return what has come of a round that began at `begin`, by time.monotonic(), with these figures `before`."""
        received, sent = self._traffic(begin, before)
        metrics, evaluated, summed = training.merged(), evaluation.merged(), training.summed
        return RoundReport(
            number=number,
            attempt=attempt,
            clients=tuple(training.num_examples),
            failures=training.failures,
            evaluation_failures=evaluation.failures,
            skipped=training.skipped,
            evaluation_skipped=evaluation.skipped,
            not_finite=metrics.not_finite,
            evaluation_not_finite=evaluated.not_finite,
            left_out=metrics.left_out,
            evaluation_left_out=evaluated.left_out,
            num_examples=training.num_examples,
            evaluation_examples=evaluation.num_examples,
            metrics=metrics.values,
            evaluation=evaluated.values,
            seconds=time.monotonic() - begin,
            bytes_in=received,
            bytes_out=sent,
            staleness=training.staleness,
            client_metrics=training.metrics,
            client_evaluation=evaluation.metrics,
            shares=training.shares(),
            suspended=tuple(self._standings["train"].suspended(self._members)),
            names={**training.names, **{each.id: each.name for each in self._members if each.name}},
            masked=None if summed is None else MaskedSum(summed.examples, summed.clipped),
            privacy=self._federation.spent,
        )

    def _end(self, report: RoundReport, training: Answers, clients: Collection[uuid.UUID]) -> None:
        """Note which clients the round had, log those that dominate it, and tell the callbacks."""
        had_visitor = any(self._members.of(peer).session.is_visitor for peer in clients)  # which began it, and left it
        if not report.clients and not had_visitor:
            self._federation.attempts.void += 1
        for client in training.disputed:
            text = "%s: has answered through two relays, and takes no part in %d rounds: give each device its own id"
            log.warning(text, title(client, report.names.get(client, "")), _DISPUTED)
            self._disputed[client] = report.number + _DISPUTED
        if self._masks is not None:
            for name, why in self._masks.liars.items():
                member = self._members.of(uuid.UUID(name))
                log.warning("%s: takes no part in %d rounds: %s", member, _DISPUTED, why)
                self._disputed[member.id] = report.number + _DISPUTED
            self._masks.liars.clear()
            if report.clients:
                self._masks.warn_if_unknown({*report.metrics, *report.evaluation})
        for member in self._members:
            if report.clients:
                member.is_counted = training.of(member.id).updates > 0
            share = report.shares.get(member.id)
            if share is not None and not (member.is_dominant or report.privacy):  # nor logged in the round before
                text = "%s: claims %.0f %% of the examples of the round; the strategy's max_examples bounds that"
                log.warning(text, member, 100 * share)
            member.is_dominant = share is not None
        self._federation.callbacks.round_ends(report, self.model)

    def _save(self) -> None:
        """Write the checkpoint, if there is one."""
        standings = {purpose: each.state(self._members) for purpose, each in self._standings.items()}
        self._federation.save({"federation": self._members.queue.id.bytes, "standings": standings})

    def _present(self) -> tuple[uuid.UUID, ...]:
        """Return the connected clients, and those of the last round that are not lost yet: links are away for moments.

        Others that were connected lately may be strangers, who would cost each round its grace.
        """

        def is_present(id: uuid.UUID, absent: float) -> bool:
            was_there = self._members.of(id).is_counted and absent <= self._federation.patience.grace
            return (not absent or was_there) and self._members.takes_part(id)

        return tuple(id for id, absent in self._members.queue.absences().items() if is_present(id, absent))

    def _warn_of_absent(self, number: int, clients: Collection[uuid.UUID]) -> None:
        """Log which clients of the last round are not there to be asked: no report has them."""
        counted = [each for each in self._members if each.is_counted]
        gone = sorted({each.id for each in counted}.difference(clients))
        if gone:
            named = [str(self._members.of(id)) for id in gone[:_NAMED]]
            ids = ", ".join(named) + (", …" if len(gone) > _NAMED else "")
            text = "round %d begins without %d of the %d clients of the last one: %s; no connection"
            log.warning(text, number, len(gone), len(counted), ids)
        for id in gone:
            self._members.of(id).is_counted = False

    def _description(self, client: ClientInfo) -> Description:
        task = self._federation.task(self._members.run, self.number + 1, "train")
        specs = {name: (spec.shape, spec.dtype, spec.device is not None) for name, spec in specs_of(task.model).items()}
        if self._encrypted is not None:
            hidden = (CIPHERTEXTS, HEADER)
            specs = {name: spec for name, spec in specs.items() if name not in hidden} | {**self._encrypted.described}
        own = self._federation.config_of
        config = {**({} if own is None else own(client, task.job.round)), **task.config}
        return Description(
            *(task.job.round, specs, config, task.deltas, task.compression, task.roles, time.time(), task.folding)
        )

    @property
    def about(self) -> dict[str, Any]:
        """What this server is, as plain values: federation, strategy, rounds_done, min_clients."""
        return {"federation": str(self._members.queue.id), **self._federation.about}

    def _traffic(self, begin: float, before: _Figures) -> tuple[int, int]:
        """Return the message bytes received and sent since `begin`, when the figures were `before`."""
        self._members.update()
        received = sent = 0
        for peer, now in self.statistics().items():
            same = peer in before and self._members.of(peer).since < begin  # counters begin at 0 with each session
            received += now.bytes_in - (before[peer].bytes_in if same else 0)
            sent += now.bytes_out - (before[peer].bytes_out if same else 0)
        return received, sent


def _knows_names(options: netq.CommunicatorOptions) -> bool:
    """Return whether clients prove who they are."""
    security = options.security
    return options.seal is not None or (security is not None and security.authority is not None)
