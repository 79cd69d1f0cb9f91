"""A federation apart from its clients: the model, what makes the next one of a round's updates, and the settings.

Owned by what runs rounds: fl/server/server.py with clients that are connected, and fl/simulation/rounds.py with
virtual ones. Used in its thread. Knows no client, and waits for nothing.
"""

from __future__ import annotations

import logging
import os
import random
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import netq
from fl.callbacks.base import Callback, Callbacks
from fl.envelope import Job, Purpose
from fl.errors import CheckpointError, InvalidUpdate, TooFewUpdates
from fl.homomorphic.options import Homomorphic
from fl.messages import Task
from fl.privacy.privacy import Privacy
from fl.properties import ClientInfo, Properties
from fl.report import ClientFailure, FailureKind, PrivacySpent, RoundReport
from fl.schedules import resolved
from fl.server import details
from fl.server.aggregation import Aggregation
from fl.server.checkpoint import Checkpoint, spent_in
from fl.server.encrypted import EncryptedSum
from fl.server.patience import Attempts, Patience
from fl.server.validation import check_config, check_privacy, check_settings, checked_callbacks, checked_evaluation
from fl.strategies.base import Strategy
from fl.strategies.fedavg import FedAvg
from fl.tensors.model import separate
from fl.tensors.roles import IN_MODEL, assign, check_values, of_role, summary
from fl.tensors.spec import Model, plain
from netq.text import describe
from netq.validate import expect, is_whole

log = logging.getLogger("netq.fl")

Client = TypeVar("Client")


class Void(Exception):
    """A round does not count. The text says why."""


class Federation:
    """The model, and how it becomes the next one. The arguments are those of fl.Server. Raises CheckpointError.

    number:      of the last round that counted.
    is_over:     whether a callback has ended the rounds; a resumed federation knows it, too.
    is_repeated: whether the last attempt was one of the same round as that before it.
    """

    def __init__(
        self,
        model: Model,
        *,
        strategy: Strategy | None,
        min_clients: int,
        wait: int | None,
        patience: Patience | None,
        roles: Mapping[str, str] | None,
        config: Mapping[str, Any] | Callable[[ClientInfo], Mapping[str, Any]] | None,
        evaluate: bool | Mapping[str, Any],
        checkpoint: str | os.PathLike[str] | None,
        callbacks: Iterable[Callback],
        privacy: Privacy | None = None,
        homomorphic: Homomorphic | None = None,
    ) -> None:
        check_settings(model, strategy, min_clients, wait, patience, config)
        self.roles = assign(model, roles)
        check_values(model, self.roles)
        if set(self.roles.values()) != {"trained"}:
            log.info("tensors of the model: %s", summary(self.roles))
        self.model: Model = separate(plain(of_role(model, self.roles, *IN_MODEL)))
        self.number = 0
        self.is_over = self.is_repeated = False
        self._last = 0  # the round of the last attempt
        self._end: int | None = None  # the last round that `rounds` wants
        self.callbacks = Callbacks(checked_callbacks(callbacks))
        self.callbacks.check(self.model)
        self.strategy = strategy or FedAvg()
        self.privacy = privacy
        if privacy is not None:
            check_privacy(privacy, self.strategy, self.model, self.roles, min_clients)
            is_new = not getattr(model, "is_restored", False)
            if checkpoint is not None and is_new and (found := spent_in(checkpoint)):
                raise CheckpointError(
                    f"{checkpoint}: has the ledger of {found} rounds with noise, and a new federation would write over "
                    "it; fl.Server.resume goes on from it, or move it away"
                )
        sees_updates = privacy is None or not privacy.at_clients
        self.aggregation = (
            Aggregation(self.strategy, self.model, self.roles, privacy if sees_updates else None)
            if homomorphic is None
            else EncryptedSum(homomorphic, self.strategy, self.model, self.roles)
        )
        if self.strategy.least > min_clients:
            who, least = type(self.strategy).__name__, self.strategy.least
            log.warning("%s needs %d updates; with min_clients=%d a round may come to nothing", who, least, min_clients)
        self.min_clients = min_clients
        self.patience = patience or Patience()
        self.attempts = Attempts(self.patience)
        self._config: Mapping[str, Any] = {} if callable(config) else dict(config or {})
        self._config_by_client = config if callable(config) else None
        self.evaluation = checked_evaluation(evaluate)
        self.checkpoint = None if checkpoint is None else Checkpoint(checkpoint)

    def close(self) -> None:
        """Give the checkpoint's file back."""
        if self.checkpoint is not None:
            self.checkpoint.close()

    def rounds(
        self,
        count: int,
        attempt: Callable[[], RoundReport],
        pause: Callable[[RoundReport], object],
        save: Callable[[], object],
    ) -> Iterator[RoundReport]:
        """Run rounds until `count` have counted, or a callback stops. Yield each report when `model` is the new one.

        attempt: runs one attempt of a round. pause: called after one that does not count. save: writes the checkpoint.
        """
        expect(is_whole(count), "Server.rounds: count", count, "a whole number")
        self._end = end = self.number + count
        if self.privacy is not None:
            self.privacy.warn_if_short(count)
        while self.number < end:
            if self.is_spent:
                log.warning("the rounds end after round %d: one more would exceed max_epsilon", self.number)
                return
            report = attempt()
            yield report
            if self.callbacks.stop:
                log.info("a callback ends the rounds after round %d", self.number)
                self.is_over = True
                save()
                return
            if not report.clients:
                pause(report)

    def evaluates(self, number: int) -> bool:
        """Return whether the clients of a round evaluate its model."""
        return bool(self.evaluation.every) and number % self.evaluation.every == 0

    def select(
        self, number: int, clients: Sequence[uuid.UUID], properties: Mapping[uuid.UUID, Properties]
    ) -> list[uuid.UUID]:
        """Return those of the clients that the strategy selects, each once. properties: what they say of themselves.

        Raises PrivacyBudgetSpent.
        """
        self.strategy.properties = properties
        chosen = self.strategy.select(number, clients)
        if not isinstance(chosen, Collection) or not all(isinstance(peer, uuid.UUID) for peer in chosen):
            wrong = f"{type(self.strategy).__name__}.select: returned {chosen!r}"
            raise netq.InvalidOption(f"{wrong}; expected a list of some of the ids that it was given")
        found = list(dict.fromkeys(chosen))
        return found if self.privacy is None else self.privacy.drawn(found)

    def evaluators(self, number: int, clients: Sequence[Client]) -> Sequence[Client]:
        """Return those of the clients that evaluate the model of a round: a fraction, at random by the strategy's seed.

        clients: in an order that is the same each time, such as that of their ids.
        """
        if self.evaluation.fraction == 1 or not clients:
            return clients
        count = max(1, round(self.evaluation.fraction * len(clients)))
        return random.Random(f"{self.strategy.seed} {number} evaluate").sample(clients, count)

    def begin(self, clients: Sequence[uuid.UUID], about: Mapping[str, Any]) -> int:
        """Begin an attempt of a round: tell the callbacks. Return the round's number.

        clients: that are there. about: further details for the callbacks of the first attempt.
        """
        number = self.number + 1
        if not self._last:
            self.callbacks.federation_begins({**about, **self._details()})
        self.is_repeated, self._last = number == self._last, number
        self.callbacks.round_begins(number, clients)
        return number

    def finish(self, number: int, clients: int, needed: int, skipped: int, save: Callable[[], object]) -> None:
        """Make the next model of the updates that were folded. Raises Void, and the model stays, if it cannot be.

        clients: whose updates were folded. needed: how many there must be. skipped: clients that had nothing.
        save:    writes the checkpoint. If it raises an error, the model stays, too.
        """
        try:
            if clients < needed:
                raise TooFewUpdates(f"{clients} updates of {needed}" + (f", {skipped} skipped" if skipped else ""))
            if self.privacy is not None and not self.privacy.at_clients:
                self.privacy.charge()
            model = separate(self.aggregation.finish(self.model, number))
        except OSError:  # the server's disk is at fault, and the next round would fail too
            raise
        except (InvalidUpdate, TooFewUpdates) as error:
            raise self.void(number, str(error)) from error
        except Exception as error:  # a bug of the strategy; the next round may succeed
            log.exception("the strategy could not finish round %d", number)
            raise self.void(number, f"the strategy could not finish it: {describe(error)}") from error
        if self.privacy is not None:
            self.privacy.follow()
        before = self.model, self.number
        try:
            self.model, self.number = model, number
            save()
        except BaseException:
            if self.privacy is not None:  # no model leaves that the ledger on the disk does not know of
                self.model, self.number = before
            raise
        self.attempts.void = 0

    def restore_privacy(self, state: Mapping[str, Any], *, is_older: bool) -> None:
        """Restore what the models have said. Raises CheckpointError."""
        if self.privacy is None and state:
            raise CheckpointError("its rounds had noise, and the next ones would have none; give `privacy` as it was")
        if self.privacy is not None:
            if not state:
                raise CheckpointError("its rounds had no noise, so no epsilon holds; begin anew, or without `privacy`")
            self.privacy.restore(state, is_older=is_older)

    @property
    def is_spent(self) -> bool:
        """Whether one more round would exceed the largest epsilon."""
        return self.privacy is not None and self.privacy.is_spent

    @property
    def charged(self) -> int:
        """Attempts of rounds that say something of the clients, under differential privacy."""
        return 0 if self.privacy is None else self.privacy.charged

    @property
    def draws(self) -> bool:
        """Whether clients are drawn at random: a round asks only those, and any number of them counts."""
        return self.privacy is not None and self.privacy.is_drawn

    @property
    def spent(self) -> PrivacySpent | None:
        """What the models have said until now, for a report."""
        return None if self.privacy is None else self.privacy.spent

    def void(self, number: int, reason: str) -> Void:
        """Discard the updates of a round, and say so in the log. Return what to raise."""
        log.warning("round %d does not count: %s", number, reason)
        self.aggregation.abandon()
        return Void(f"the round does not count: {reason}")

    def save(self, state: Mapping[str, Any]) -> None:
        """Write the checkpoint, if there is one. A disk that is full now may have room after the next round.

        Under differential privacy the model must not leave before it is written: raises OSError.

        state: further values for the file, by name.
        """
        if self.checkpoint is None:
            return
        state = {
            **state,
            "number": self.number,
            "is_over": self.is_over,
            "model": dict(self.model),
            "roles": {name: role for name, role in self.roles.items() if name in self.model or role == "local"},
            "strategy": {"name": type(self.strategy).__name__, "state": self.strategy.state()},
            "privacy": {} if self.privacy is None else self.privacy.state(),
        }
        try:
            self.checkpoint.save(state)
        except OSError as error:
            if self.privacy is not None:
                raise
            text = "round %d has no checkpoint: %s; a server that is started now goes on from the one before"
            log.error(text, self.number, error)

    def task(self, run: int, number: int, purpose: Purpose) -> Task:
        """Return the task of a round."""
        strategy = self.strategy
        return Task(
            Job(run, number, purpose),
            self.model,
            self.config(number),
            deltas=strategy.deltas,
            compression=asdict(strategy.compression),
            roles={name: role for name, role in self.roles.items() if role != "trained"},
            folding=strategy.folding,
        )

    @property
    def config_of(self) -> Callable[[ClientInfo, int], Mapping[str, Any]] | None:
        """What returns the config of one client in a round; None if all have the same."""
        return None if self._config_by_client is None else self._config_of

    def _config_of(self, client: ClientInfo, number: int) -> Mapping[str, Any]:
        """Return what the user's function gives a client. Raises InvalidOption, and what the function raises."""
        assert self._config_by_client is not None
        config = self._config_by_client(client)
        expect(isinstance(config, Mapping), "Server.config", config, "a dict of plain values by name")
        found = resolved(config, number)
        check_config(found, "Server.config")
        return found

    def config(self, number: int) -> Mapping[str, Any]:
        """Return the config that all clients get in a round."""
        own = resolved(self.strategy.config(number), number)
        check_config(own, f"{type(self.strategy).__name__}.config")
        return {**resolved(self._config, number), **own}

    @property
    def about(self) -> dict[str, Any]:
        """What it is, as plain values: strategy, rounds_done, min_clients."""
        return {
            "strategy": type(self.strategy).__name__,
            "rounds_done": self.number,
            "min_clients": self.min_clients,
        }

    def _details(self) -> dict[str, Any]:
        """Return what is needed to repeat the run, as plain values."""
        return {
            "rounds": self._end,
            "seed": self.strategy.seed,
            "evaluate": self.evaluation._asdict() if self.evaluation.every else False,
            "config": details.plain(self.config(self.number + 1)),
            "versions": details.versions(),
        }


def config_or_failure(
    config_of: Callable[[ClientInfo, int], Mapping[str, Any]], client: ClientInfo, number: int
) -> Mapping[str, Any] | ClientFailure:
    """Return the config of a client in a round, or why there is none: it may say of itself what it likes."""
    try:
        return config_of(client, number)
    except Exception as error:  # of the user's function
        log.debug("%s says of itself %s; where it happened", client.id, client.properties, exc_info=error)
        why = f"there is no config for it: {describe(error)}; expected a dict for any properties, also for none"
        return ClientFailure(FailureKind.INVALID, why)
