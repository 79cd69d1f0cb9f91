"""A server's and its clients' parts in secure aggregation in one thread, without a network, and places for lies."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from fl.envelope import Job
from fl.errors import InvalidUpdate
from fl.messages import Answered, Masked, Task, Update
from fl.privacy.bounded import Clipping
from fl.report import ClientFailure, FailureKind
from fl.secure import layout
from fl.secure.layout import Summed
from fl.secure.options import SecureAggregation
from fl.secure.participant import Participant
from fl.secure.summing import Summing
from fl.secure.words import Words
from fl.server.masked import Masks
from fl.server.member import Member
from netq.errors import NetqError

Asked = Mapping[str, Any]


def model() -> dict[str, Any]:
    random = np.random.default_rng(5)
    return {
        "w": random.normal(size=(40, 25)).astype(np.float32),
        "bn.running_mean": random.normal(size=25),
        "bn.num_batches_tracked": np.array(7, np.int64),
    }


def trained(number: int, start: Mapping[str, Any]) -> dict[str, Any]:
    random = np.random.default_rng(number)
    floats = {name: start[name] + random.normal(size=start[name].shape) for name in ("w", "bn.running_mean")}
    floats["w"] = floats["w"].astype(np.float32)
    return {**floats, "bn.num_batches_tracked": start["bn.num_batches_tracked"] + number}


@contextmanager
def nearest() -> Iterator[None]:
    """Round to the nearest number, so that two vectors of an update are equal."""
    before, layout.rounded = layout.rounded, lambda values: np.rint(values)
    try:
        yield
    finally:
        layout.rounded = before


class Circle:
    """So many clients.

    lost:   clients that answer nothing any more.
    asks:   changes what the server asks a client; may raise NetqError: the client has failed.
    answers: changes what a client answers.
    """

    def __init__(self, clients: int, options: SecureAggregation | None = None, least: int = 3) -> None:
        self.ids = [str(uuid.UUID(int=number + 1)) for number in range(clients)]
        plain = lambda entry, session: entry  # noqa: E731
        self.people = {each: Participant(each, plain, None, least) for each in self.ids}
        self.model = model()
        self.lost: set[str] = set()
        self.asks: Callable[[str, Asked], Asked] = lambda client, asked: asked
        self.answers: Callable[[str, str, dict[str, Any]], dict[str, Any]] = lambda client, step, told: told
        self._members = _Members(self)
        members: Any = self._members
        self.masks = Masks(options or SecureAggregation(), members)
        self.clipping: Clipping | None = None
        self._round = 0

    def begin(self, most: int = 1, needed: int = 3, **fields: Any) -> tuple[Task, Summing, Mapping[str, str]]:
        """Return the task of the next round, the sum to be, and why clients take no part."""
        self._round += 1
        task = Task(Job(1, self._round, "train"), self.model, {}, **fields)
        members = [self._members.of(uuid.UUID(each)) for each in self.ids]
        task, summing, failures = self.masks.begin(task, members, needed, most, self.clipping)
        return task, summing, {client: str(failure) for client, failure in failures.items()}

    def update(self, client: str, task: Task) -> Masked:
        """Return what a client sends."""
        update = Update(trained(self.ids.index(client), task.model), 1)
        with nearest():
            masked = self.people[client].begin(task).mask(update)
        assert isinstance(masked, Masked)
        return masked

    def report(self, task: Task, summing: Summing, without: Collection[str] = ()) -> None:
        """Have all clients of a round send their vectors but some."""
        for client in summing.terms.clients:
            if client not in without and client not in self.lost:
                summing.add(client, self.update(client, task))

    def open(self, summing: Summing) -> Summed:
        found: Summed = self.masks.open(summing, self.model)
        return found

    def plain(self, summing: Summing) -> Words:
        """Return the sum of the same vectors without masks, in Python's and numpy's own integers of 64 bits."""
        form: Any = summing._layout
        small, large = np.zeros(form.small, np.int64), np.zeros(form.large, np.int64)
        for client in summing.present:
            with nearest():
                words = form.encode(self.model, trained(self.ids.index(client), self.model), 1, {})
            small += words.small.view(np.int32)
            large += words.large.view(np.int64)
        found = Words.zeros(form.small, form.large)
        found.small[:] = small.astype(np.int32).view(np.uint32)
        found.large[:] = large.view(np.uint64)
        return found


class _Members:
    """In place of fl.server.members.Members: asks the participants at once."""

    run = 1

    def __init__(self, circle: Circle) -> None:
        self._circle = circle
        self._known: dict[uuid.UUID, Member] = {}
        self._answers: list[Any] = []

    def of(self, peer: uuid.UUID) -> Member:
        return self._known.setdefault(peer, Member(peer))

    def is_present(self, member: Member) -> bool:
        return str(member.id) not in self._circle.lost

    def ask(self, task: Task, members: Collection[Member], limit: float, *, keep_late: bool, own: Any) -> None:
        for member in members:
            if (content := self._content(str(member.id), own[member]["secure"])) is not None:
                self._answers.append(((member.id, task.job), content))

    def _content(self, client: str, asked: Asked) -> Any:
        circle = self._circle
        if client in circle.lost:
            return None
        try:
            told = circle.people[client].step(circle.asks(client, asked))
            return None if client in circle.lost else Answered(circle.answers(client, asked["step"], told))
        except NetqError as error:
            return ClientFailure(FailureKind.FAILED, str(error))

    def answer(self, purpose: str, until: float) -> Any:
        return self._answers.pop(0) if self._answers else None

    def settle(self, member: Member, event: object) -> None: ...

    def forget(self, member: Member) -> None: ...


def fails_at(circle: Circle, step: str, clients: Collection[str]) -> None:
    """Have some clients fail at a step, and be lost from then on."""

    def asks(client: str, asked: Asked) -> Asked:
        if client in clients and asked["step"] == step:
            circle.lost.add(client)
            raise InvalidUpdate("it is lost")
        return asked

    circle.asks = asks
