"""Asks some clients one question, and reads their answers: no round waits for it, and no client is suspended by it.

Used by fl/server/leaves.py for the steps of secure aggregation, and by fl/server/statistics.py. In the server's thread.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, TypeVar

from fl.envelope import Job, Purpose
from fl.errors import InvalidUpdate
from fl.messages import Skip, Task
from fl.report import ClientFailure, FailureKind
from fl.server.member import Member, MemberEvent
from netq.text import describe

T = TypeVar("T")
_SOON = 0.5  # seconds that the others have, once enough have answered, and as long again as those took
_LOOK = 0.5  # seconds between looks at whether answers are still wanted


class Asked(Protocol):
    """Clients that can be asked: fl.server.members.Members, or the nodes of a grid (fl/flower/masked_rounds.py)."""

    @property
    def run(self) -> int:
        """The server's number."""

    def of(self, peer: uuid.UUID) -> Member:
        """Return a client."""

    def is_present(self, member: Member) -> bool:
        """Return whether a client is connected, or has not been away for long."""

    def ask(
        self,
        task: Task,
        members: Collection[Member],
        limit: float,
        *,
        keep_late: bool,
        own: Mapping[Member, Mapping[str, Any]],
    ) -> object:
        """Give clients a task, with values of each one's own in it. limit: seconds."""

    def answer(self, purpose: Purpose, until: float) -> tuple[tuple[uuid.UUID, Job], Any] | None:
        """Wait for the next answer; None at the time `until`, or if no client has such a task."""

    def settle(self, member: Member, event: MemberEvent) -> None:
        """Note what has come of a client's answer."""

    def forget(self, member: Member) -> None:
        """Stop waiting for a client."""


def gather(
    members: Asked,
    task: Task,
    clients: Mapping[str, Member],
    limit: float,
    what: str,
    read: Callable[[str, Any], T],
    *,
    own: Mapping[Member, Mapping[str, Any]],
    is_enough: Callable[[Mapping[str, T]], bool] | None = None,
    is_over: Callable[[], bool] | None = None,
) -> tuple[dict[str, T], dict[str, ClientFailure]]:
    """Give clients a task. Return what `read` makes of each answer, and why the others have given none.

    clients:   by id. None of them has a task.
    limit:     seconds.
    what:      the question, for errors.
    read:      gets a client's id and the content of its reply. What it raises is the failure of the client.
    own:       as of Members.ask.
    is_enough: whether the other answers are not needed; they have a short while to come.
    is_over:   whether no answer is wanted any more. None: it does not happen.
    """
    begin = time.monotonic()
    members.ask(task, [*clients.values()], limit, keep_late=False, own=own)
    until, found, failed = begin + limit, dict[str, T](), dict[str, ClientFailure]()
    while True:
        look = until if is_over is None else min(until, time.monotonic() + _LOOK)
        answer = members.answer(task.job.purpose, look)
        if answer is None:
            now = time.monotonic()
            if now < look or now >= until or (is_over is not None and is_over()):  # before `look`: none is asked now
                break
            continue
        (peer, job), content = answer
        client = str(peer)
        if job != task.job or client in found:  # one that answers twice has answered
            continue
        if isinstance(content, ClientFailure):
            failed[client] = content
            continue
        try:
            if isinstance(content, Skip):
                failed[client] = ClientFailure(FailureKind.FAILED, f"it skips: {content.reason}")
            else:
                found[client] = read(client, content)
        except Exception as error:  # a client may send anything
            failed[client] = failure_of(error, what)
        members.settle(members.of(peer), MemberEvent.FAIL if client in failed else MemberEvent.COUNT)
        if is_enough is not None and is_enough(found):
            now = time.monotonic()
            until = min(until, now + (now - begin) + _SOON)
    for client in clients.keys() - found.keys() - failed.keys():
        members.forget(clients[client])
        failed[client] = ClientFailure(FailureKind.LATE, f"no answer to {what} in time")
    return found, failed


def failure_of(error: Exception, what: str) -> ClientFailure:
    """Return the failure of a client whose answer raises this when it is read."""
    why = describe(error) if not isinstance(error, InvalidUpdate) else str(error)
    return ClientFailure(FailureKind.INVALID, f"its answer to {what} is not valid: {why}")
