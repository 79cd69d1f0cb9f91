"""The clients of a relay: a server whose rounds are the tasks of its parent, and whose updates become one sum.

Used by fl/relay/relay.py, in its thread.
"""

from __future__ import annotations

import importlib
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

import netq
from fl.envelope import PURPOSES
from fl.errors import InvalidUpdate, RelayError
from fl.messages import Answered, Description, Task
from fl.metrics import sent
from fl.properties import ClientInfo
from fl.relay.carried import Carried
from fl.report import ClientFailure
from fl.secure.summing import Summing
from fl.server.answers import Answers
from fl.server.federation import Void
from fl.server.leaves import Leaves, listed
from fl.server.masked import SummedRound
from fl.server.member import Member
from fl.server.round import Round
from fl.server.rule import RoundRule, RoundState
from fl.server.server import Server
from fl.server.standing import Standing
from fl.server.waiting import until_connected
from fl.subtotal import MAX_CLIENTS, Subtotal
from fl.tensors import serialization
from fl.tensors.dtypes import TORCH_ONLY
from fl.tensors.roles import Roles, State
from fl.tensors.spec import DTYPES, Model, specs_of
from fl.tensors.storage import Passed
from netq.text import printable

_SHARE = 0.8  # of the parent's deadline: what a relay gives its clients
_WAITS = 0.5  # of that: how long it waits for clients that are not connected
_REASON = 40  # characters of a failure's reason at least …
_REASONS = 2_000_000  # … and of all of them at most, where these are fewer
_LOOK = 0.5  # seconds between looks at whether the parent has gone on
_OVER = "the parent has gone on: it waits for this round no longer"


@dataclass(frozen=True)
class _WhileWanted(RoundRule):
    """A rule whose round ends, too, when the parent waits for it no longer."""

    is_over: Callable[[], bool] = lambda: False

    def is_complete(self, progress: RoundState, now: float) -> bool:
        return self.is_over() or super().is_complete(progress, now)

    def next_look(self, progress: RoundState, deadline: float, now: float) -> float:
        return min(super().next_look(progress, deadline, now), now + _LOOK)


class Below(Server):
    """The server of a relay.

    description: what the parent says of its tasks.
    """

    _carries_masks = True

    def __init__(self, description: Description, options: netq.CommunicatorOptions, **settings: Any) -> None:
        self._described = description
        roles: Roles = {**dict.fromkeys(description.tensors, "trained"), **description.roles}
        zeros = {name: _zeros(shape, dtype) for name, (shape, dtype, _) in description.tensors.items()}
        self._specs, self._roles = specs_of(zeros), description.roles
        self._final: Mapping[str, Any] | None = None
        self._is_over: Callable[[], bool] = lambda: False
        super().__init__(State(zeros, roles), options, **settings)
        self._leaves = Leaves(self._members, lambda: self._is_over())
        self._carried = Carried(self._leaves)
        self._summing: Summing | None = None  # of a task under masks

    def has_parent(self, description: Description | None) -> None:
        """Note what the parent says of its tasks, with the relays above the clients as its path. None: it is lost."""
        self._described = description or self._described
        self._members.root(is_rooted=description is not None)

    def check(self, tensors: Mapping[str, tuple[tuple[int, ...], str, bool]], roles: Roles) -> None:
        """Raise RelayError for a model of other tensors, or other roles, than those that this relay began with."""
        ours = {name: (spec.shape, spec.dtype) for name, spec in self._specs.items()}
        if ours != {name: (shape, dtype) for name, (shape, dtype, _) in tensors.items()} or roles != self._roles:
            raise RelayError("the server's model has other tensors than when this relay began; start the relay again")

    def read(self) -> None:
        """Handle what clients send between two tasks: introductions, questions."""
        self._members.sessions_changed.clear()
        self._members.read()
        self._members.update()

    def do(self, task: Task, begin: float, is_over: Callable[[], bool]) -> Subtotal | Answered:
        """Have the clients do a task of the parent, whose tensors are `Passed`. Raises Void, RelayError, Unreadable.

        The parent's deadline shrinks on the way down, so that the sum arrives in time.

        begin:   when the task came, by time.monotonic().
        is_over: whether the parent waits for it no longer.
        """
        self._is_over = is_over
        until = begin + _SHARE * task.deadline
        if task.job.purpose != "secure":
            until = min(until, begin + self._federation.patience.deadline_of(task.job.round))
        try:
            found = self._carry(task, until) if task.job.purpose == "secure" else self._sum(task, until)
            self._check_wanted()
            return found
        except BaseException:
            self._members.forget_all()
            self._federation.aggregation.abandon()
            raise

    def _sum(self, task: Task, until: float) -> Subtotal:
        """Have the clients do a task, and return the sum of what they send."""
        federation, purpose, model = self._federation, task.job.purpose, loaded(task.model)
        if purpose in PURPOSES:
            self.check(tensors_of(model), task.roles)
            federation.model, federation.number = model, task.job.round - 1
        self._summing = None
        if task.secure:  # its clients have the hash of this very task
            self._summing = self._carried.begin(replace(task, model=model))
        else:  # of this process: a client that has answered a relay before this one is to answer this one, too
            task = replace(task, job=replace(task.job, run=self._members.run))
            self._wait_for(federation.min_clients if purpose == "train" else 1, _WAITS * (until - time.monotonic()))
        for standing in self._standings.values():
            standing.deadline = max(0.0, until - time.monotonic())
        found = self._train(task) if purpose == "train" else self._report_on(task)
        if purpose in PURPOSES:
            federation.number = task.job.round
        return found

    def _carry(self, task: Task, until: float) -> Answered:
        """Have the clients answer a step of secure aggregation."""
        if task.secure["step"] != "clients":
            here = set(self.clients)
            connected = [client for client, leaf in self._leaves.found.items() if leaf.member.id in here]
            return self._carried.step(task.secure, connected, until - time.monotonic())
        purpose = str(task.secure.get("purpose"))
        standing = self._standing(purpose)
        self._wait_for(self._federation.min_clients, _WAITS * (until - time.monotonic()))
        self._members.update()
        members = [self._members.of(peer) for peer in self.clients]
        regular, retried = standing.candidates(members, self._federation.min_clients)
        self._leaves.find([*regular, *retried], purpose, until - time.monotonic())
        return Answered(listed(self._leaves.found, time.monotonic()))

    def end(self, last: int, model: Mapping[str, Any] | None, linger: float) -> None:
        """End the federation: give the clients the last model, if there is one, and close. linger: seconds before."""
        self._federation.number, self._final = last, model
        self.linger(linger)
        self.__exit__(None)

    def _check_wanted(self) -> None:
        if self._is_over():
            raise Void(_OVER)

    def _wait_for(self, count: int, timeout: float) -> None:
        members = self._members

        def read() -> None:
            members.read()
            self._check_wanted()

        changed, is_new = members.sessions_changed, members.has_new
        try:
            until_connected(count, "clients", lambda: self.clients, changed, timeout, read=read, is_new=is_new)
        except TimeoutError as error:
            raise Void(f"the relay needs {count} clients: {error}") from None

    def _round(
        self, task: Task, rule: RoundRule, clients: list[Member], regular: Collection[Member] = ()
    ) -> Round[Any]:
        wanted = _WhileWanted(**vars(rule), is_over=self._is_over)
        if self._summing is None:
            return super()._round(task, wanted, clients, regular)
        ours, standing = self._federation, self._standing(task.job.purpose)
        of_server = self._members, standing, ours.strategy, ours.aggregation, ours.callbacks
        return SummedRound(self._leaves, self._summing, *of_server, task, wanted, clients, regular)

    def _select(self, task: Task, clients: Collection[uuid.UUID]) -> Round[Any]:
        """Return a round of clients. Under masks of those that the server asks: they are in its terms."""
        if self._summing is None:
            return super()._select(task, clients)
        summing = self._summing
        asked = self._leaves.carriers(each for each in summing.terms.clients if each in self._leaves.found)
        suspended = set(self._standing(task.job.purpose).suspended(asked))
        regular = [each for each in asked if each.id not in suspended]
        early = self._federation.patience.close_early and summing.terms.recovers
        needed = max(1, min(self._federation.min_clients, len(asked)))
        rule = RoundRule(len(regular), needed, close_early=early)
        return self._round(task, rule, asked, regular)

    def _standing(self, purpose: object) -> Standing:
        """Return which clients a task waits for. Statistics wait as an evaluation does."""
        return self._standings["train" if purpose == "train" else "evaluate"]

    def _train(self, task: Task) -> Subtotal:
        federation, begin, before = self._federation, time.monotonic(), self.statistics()
        clients = self._present()
        federation.begin(clients, self.about)
        self._members.update()
        training = self._select(task, clients)
        self._take(training)
        self._check_wanted()
        answers, folded = training.answers, dict[str, Any]()
        if answers.clients >= training.rule.needed:
            folded = federation.aggregation.partial() if self._summing is None else self._summing.partial()
        else:
            federation.aggregation.abandon()
            answers.void(f"the relay has {answers.clients} updates of the {training.rule.needed} that it needs")
        report = self._report(task.job.round, 1, answers, Answers(), begin, before)
        self._end(report, answers, clients)
        return self._subtotal(answers, folded)

    def _report_on(self, task: Task) -> Subtotal:
        if self._summing is None:
            return self._subtotal(self._evaluate(task, self.clients), {})
        reports = self._select(task, ())
        self._take(reports)
        return self._subtotal(reports.answers, self._summing.partial() if reports.answers.clients else {})

    def _subtotal(self, answers: Answers, folded: dict[str, Any]) -> Subtotal:
        merged, clients = answers.merged(), answers.num_examples
        if len(clients) > MAX_CLIENTS:
            raise InvalidUpdate(f"{len(clients)} clients have answered; expected {MAX_CLIENTS} at most in one sum")
        relays = {peer for peer in answers.failures if answers.of(peer).relayed is not None}
        failures: dict[uuid.UUID, ClientFailure] = {
            peer: each for peer, each in answers.failures.items() if peer not in relays
        }
        names = {**answers.names, **{each.id: each.name for each in self._members if each.name}}
        known = {*clients, *failures, *answers.skipped}
        longest = max(_REASON, _REASONS // max(1, len(failures) + len(answers.skipped)))
        reasons = {peer: ClientFailure(each.why, _cut(each.reason, longest)) for peer, each in failures.items()}
        return Subtotal(
            folded=folded,
            clients=clients,
            metrics=sent(merged.for_others()),
            weights=merged.weights,
            not_finite=merged.not_finite,
            left_out=merged.left_out,
            failures=dict(islice(reasons.items(), MAX_CLIENTS)),
            skipped={peer: _cut(why, longest) for peer, why in islice(answers.skipped.items(), MAX_CLIENTS)},
            names=dict(islice(((peer, name) for peer, name in names.items() if peer in known), MAX_CLIENTS)),
        )

    def _last_model(self) -> Mapping[str, Any] | None:
        return self._final

    def _description(self, client: ClientInfo) -> Description:
        return replace(self._described, time=time.time())


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def tensors_of(model: Model) -> dict[str, tuple[tuple[int, ...], str, bool]]:
    """Return the tensors as a Description has them."""
    return {name: (spec.shape, spec.dtype, spec.device is not None) for name, spec in specs_of(model).items()}


def loaded(model: Model) -> dict[str, Any]:
    """Return the arrays of a model whose tensors are `Passed`: views of the same memory."""
    return {name: _loaded(tensor) for name, tensor in model.items()}


def _loaded(tensor: Any) -> Any:
    return serialization.load(tensor.identifier) if isinstance(tensor, Passed) else tensor


def _zeros(shape: tuple[int, ...], dtype: str) -> Any:
    if dtype not in DTYPES:
        raise RelayError(f"the model has a tensor of {printable(dtype, 40)}; expected one of {', '.join(DTYPES)}")
    if dtype not in TORCH_ONLY:
        return np.zeros(shape, dtype)
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise RelayError(f"the model has tensors of {dtype}, which need torch here: pip install torch") from None
    return torch.zeros(shape, dtype=getattr(torch, dtype))
