"""What an answer costs does not depend on how many clients a round has: operations are counted, not seconds."""

from __future__ import annotations

import uuid
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

import fl
from fl.callbacks.base import Callbacks
from fl.envelope import Job
from fl.messages import Task
from fl.server.member import Asked, Member, MemberEvent
from fl.server.members import Key
from fl.server.round import Round
from fl.server.rule import RoundRule
from fl.server.standing import Standing
from fl.subtotal import Subtotal

JOB = Job(1, 1, "train")


class Clients:
    """Stands for fl/server/members.py: each client answers at once, the first that was asked first."""

    def __init__(self, count: int) -> None:
        self.all = {id: Member(id) for id in (uuid.UUID(int=n + 1) for n in range(count))}
        self.answers: list[Member] = []

    def of(self, peer: uuid.UUID) -> Member:
        return self.all[peer]

    @property
    def at_work(self) -> int:
        return len(self.answers)

    def ask(self, task: Task, members: list[Member], limit: float, *, keep_late: bool) -> dict[Member, Any]:
        for member in members:
            member.on(MemberEvent.ASK)
            member.task = Asked(task.job, limit, False)
            self.answers.append(member)
        return {}

    def answer(self, purpose: str, until: float) -> tuple[Key, fl.Update]:
        member = self.answers.pop(0)
        member.on(MemberEvent.REPLY)
        return Key(member.id, JOB), fl.Update({}, 1)

    def settle(self, member: Member, event: MemberEvent) -> None:
        member.on(event)


def run(count: int, rule: RoundRule, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Run a round, and count what it looks at."""
    calls = Counter[str]()

    def counted(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*args: Any) -> Any:
            calls[name] += 1
            return function(*args)

        monkeypatch.setattr(owner, name, call)

    clients, strategy = Clients(count), SimpleNamespace(staleness=None, examples=lambda number: number)
    standing = Standing(3, 60.0)
    made: Round[fl.Update | Subtotal] = Round(
        clients,  # type: ignore[arg-type]
        standing,
        strategy,  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        Callbacks(()),
        Task(JOB, {}, {}),
        rule,
        [*clients.all.values()],
        [] if rule.buffer else clients.all.values(),
    )
    counted(standing, "expected")
    counted(made.answers, "of")
    for update in made:
        with made.counting(update):
            pass
    assert made.answers.updates == (rule.buffer or count)
    return calls


def test_asynchronous_rounds_do_not_look_at_all_clients_after_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(200, RoundRule(needed=1, buffer=1000), monkeypatch)["of"] < 10 * 1200


def test_rounds_that_close_early_do_not_look_at_all_clients_after_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = run(500, RoundRule(enough=500, needed=500, close_early=True), monkeypatch)
    assert calls["of"] + calls["expected"] < 10 * 500
