"""Asks some clients one question, and reads their answers: no round waits for it, and no client is suspended by it.

Used by fl/server/masked.py for the steps of secure aggregation, and by fl/server/statistics.py. In the server's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fl.errors import InvalidUpdate
from fl.messages import Skip, Task
from fl.report import ClientFailure, FailureKind
from fl.server.member import Member, MemberEvent
from fl.server.members import Members
from netq.text import describe

T = TypeVar("T")
_SOON = 0.5  # seconds that the others have, once enough have answered, and as long again as those took


def gather(
    members: Members,
    task: Task,
    clients: Mapping[str, Member],
    limit: float,
    what: str,
    read: Callable[[str, Any], T],
    *,
    own: Mapping[Member, Mapping[str, Any]],
    is_enough: Callable[[Mapping[str, T]], bool] | None = None,
) -> tuple[dict[str, T], dict[str, ClientFailure]]:
    """Give clients a task. Return what `read` makes of each answer, and why the others have given none.

    clients:   by id. None of them has a task.
    limit:     seconds.
    what:      the question, for errors.
    read:      gets a client's id and the content of its reply. What it raises is the failure of the client.
    own:       as of Members.ask.
    is_enough: whether the other answers are not needed; they have a short while to come.
    """
    begin = time.monotonic()
    members.ask(task, [*clients.values()], limit, keep_late=False, own=own)
    until, found, failed = begin + limit, dict[str, T](), dict[str, ClientFailure]()
    while (answer := members.answer(task.job.purpose, until)) is not None:
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
            why = describe(error) if not isinstance(error, InvalidUpdate) else str(error)
            failed[client] = ClientFailure(FailureKind.INVALID, f"its answer to {what} is not valid: {why}")
        members.settle(members.of(peer), MemberEvent.FAIL if client in failed else MemberEvent.COUNT)
        if is_enough is not None and is_enough(found):
            now = time.monotonic()
            until = min(until, now + (now - begin) + _SOON)
    for client in clients.keys() - found.keys() - failed.keys():
        members.forget(clients[client])
        failed[client] = ClientFailure(FailureKind.LATE, f"no answer to {what} in time")
    return found, failed
