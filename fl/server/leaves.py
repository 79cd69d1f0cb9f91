"""The clients of secure aggregation, each connected itself or behind a relay: asks them, and reads what they answer.

    server ──a question for each of its clients──► relay ──its question──► client
    server ◄──the answers, and who gave none────── relay ◄──its answer──── client

Used by fl/server/masked.py, and by fl/relay/below.py for a relay's own clients, in the server's thread. What a relay
says of its clients is its word: their keys are proven by their certificates (fl/secure/certified.py), not by it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from fl.checks import expect
from fl.envelope import Job
from fl.errors import InvalidUpdate
from fl.messages import Answered, Masked, Task
from fl.properties import checked_name
from fl.report import ClientFailure, FailureKind
from fl.secure.summing import Summing
from fl.secure.terms import MAX_CLIENTS
from fl.server.gather import Asked, failure_of, gather
from fl.server.member import Member
from fl.subtotal import Subtotal
from netq.validate import is_number

T = TypeVar("T")


class Leaf(NamedTuple):
    """One client."""

    member: Member  # the client, or the relay that carries what it says
    since: float  # when its session began, or up to a round trip later, by time.monotonic()
    name: str  # for people; empty: it has none


class Leaves:
    """The clients of one server, or of one relay.

    is_over: whether no answer is wanted any more. None: it does not happen.
    found:   by id, of the last `find`.
    """

    def __init__(self, members: Asked, is_over: Callable[[], bool] | None = None) -> None:
        self._members = members
        self._is_over = is_over
        self._steps = 0  # that were asked
        self.found: Mapping[str, Leaf] = {}

    def find(
        self, members: Iterable[Member], purpose: str, limit: float, excluded: Collection[str] = ()
    ) -> dict[str, ClientFailure]:
        """Find the clients among some members, and behind the relays among them. Return why others take no part, by id.

        Of an id that two relays have, nothing tells which is right: it takes no part. One that is connected here is.

        purpose: of the round. limit: seconds, for the relays to answer. excluded: ids to leave out.
        """
        relays, direct = dict[str, Member](), dict[str, Leaf]()
        for each in members:
            if each.session.is_relay:
                relays[str(each.id)] = each
            else:
                direct[str(each.id)] = Leaf(each, each.since, each.name)
        claims = dict[str, list[Leaf]]()
        own = {each: {"secure": {"step": "clients", "purpose": purpose}} for each in relays.values()}
        told, failures = self._gather("clients", relays, own, lambda relay, told: _clients(relays[relay], told), limit)
        for said in told.values():
            for client, leaf in said.items():
                if client not in direct and client not in relays and client not in excluded:
                    claims.setdefault(client, []).append(leaf)
        self.found = direct | {client: its[0] for client, its in claims.items() if len(its) == 1}
        for client, its in claims.items():
            if len(its) > 1:
                why = f"{its[0].member} and {its[1].member} both say that it is their client: give each its own id"
                failures[client] = ClientFailure(FailureKind.INVALID, why)
        return failures

    def carriers(self, clients: Iterable[str]) -> list[Member]:
        """Return the members that are these clients, or carry for them; each once."""
        return list(dict.fromkeys(self.found[each].member for each in clients))

    def add(self, summing: Summing, member: str, content: Masked | Subtotal) -> None:
        """Add the vector of a member, or the sum of those behind a relay. Raises InvalidUpdate."""
        self.check(member, content)
        if isinstance(content, Masked):
            summing.add(member, content)
        elif content.clients:
            summing.merge(content.folded, [str(each) for each in content.clients])
        else:
            raise InvalidUpdate(content.failure)

    def check(self, member: str, content: object) -> None:
        """Raise InvalidUpdate for the sum of a relay that has clients which are not behind it in this round."""
        for client in map(str, content.clients if isinstance(content, Subtotal) else ()):
            if client not in self.found or str(self.found[client].member.id) != member:
                raise InvalidUpdate(f"its sum has client {client}, which is not behind it in this round")

    def ask(
        self,
        step: str,
        session: str,
        asked: Mapping[str, Mapping[str, Any]],
        read: Callable[[str, Mapping[str, Any]], T],
        limit: float,
        is_enough: Callable[[Mapping[str, T]], bool] | None = None,
    ) -> tuple[dict[str, T], dict[str, ClientFailure]]:
        """Ask clients a step. Return what `read` makes of each answer, and which clients have given none.

        asked:     the question of each, by id. What is one object in all of them goes to a relay once.
        limit:     seconds.
        is_enough: whether the other answers are not needed; they have a short while to come.
        """
        by_member = dict[Member, dict[str, Mapping[str, Any]]]()
        for client, question in asked.items():
            by_member.setdefault(self.found[client].member, {})[client] = question
        members = {str(each.id): each for each in by_member}
        about = {"step": step, "session": session}
        own = {
            each: {"secure": {**about, **(its[str(each.id)] if str(each.id) in its else _joined(its))}}
            for each, its in by_member.items()
        }
        found, failed = dict[str, T](), dict[str, ClientFailure]()

        def take(member: str, told: Mapping[str, Any]) -> None:
            if member in asked:
                found[member] = read(member, told)
                return
            answers, failures = told["answers"], told["failures"]
            for client in by_member[members[member]]:
                try:
                    if client not in answers:
                        why, reason = failures.get(client, ("FAILED", "no answer"))
                        failed[client] = _through(members[member], ClientFailure(FailureKind[why], str(reason)))
                    else:
                        found[client] = read(client, answers[client])
                except Exception as error:  # a client may send anything
                    failed[client] = _through(members[member], failure_of(error, f"the step {step!r}"))

        enough = None if is_enough is None else lambda _: is_enough(found)
        _, lost = self._gather(step, members, own, take, limit, enough)
        for member, failure in lost.items():
            if member in asked:
                failed[member] = failure
            else:
                failed |= dict.fromkeys(by_member[members[member]], _through(members[member], failure))
        return found, failed

    def _gather(
        self,
        step: str,
        members: Mapping[str, Member],
        own: Mapping[Member, Mapping[str, Any]],
        read: Callable[[str, Mapping[str, Any]], T],
        limit: float,
        is_enough: Callable[[Any], bool] | None = None,
    ) -> tuple[dict[str, T], dict[str, ClientFailure]]:
        if not members:
            return {}, {}
        self._steps += 1
        task = Task(Job(self._members.run, self._steps, "secure"), {}, {}, secure={"step": step})

        def values(member: str, content: Any) -> T:
            if not isinstance(content, Answered):
                raise InvalidUpdate(f"a {type(content).__name__}; expected an Answered")
            return read(member, content.values)

        what, is_over = f"the step {step!r}", self._is_over
        return gather(self._members, task, members, limit, what, values, own=own, is_enough=is_enough, is_over=is_over)


def _joined(asked: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return questions of several clients as one: what is the same object in all of them once, and the rest by id."""
    first = next(iter(asked.values()))
    common = {
        name: value for name, value in first.items() if all(each.get(name, asked) is value for each in asked.values())
    }
    each = {
        client: {name: value for name, value in question.items() if name not in common}
        for client, question in asked.items()
    }
    return {**common, "each": each}


def parted(asked: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the question of each client of those that `Leaves.ask` has joined for a relay. Raises InvalidUpdate."""
    each = asked.get("each")
    right = isinstance(each, dict) and all(isinstance(question, dict) for question in each.values())
    if not right or not isinstance(each, dict):
        raise InvalidUpdate("the step is for a client, and this is a relay, which carries the steps of its clients")
    common = {name: value for name, value in asked.items() if name not in ("step", "session", "each")}
    return {client: {**common, **question} for client, question in each.items()}


def listed(found: Mapping[str, Leaf], now: float) -> dict[str, Any]:
    """Return what a relay tells of its clients: by id, for how many seconds each has been there, and its name."""
    return {"clients": {client: [max(0.0, now - leaf.since), leaf.name] for client, leaf in found.items()}}


def _clients(relay: Member, told: Mapping[str, Any]) -> dict[str, Leaf]:
    """Return the clients of a relay, by id. Raises anything for values of another kind."""
    now, clients = time.monotonic(), told["clients"]
    right = isinstance(clients, dict) and len(clients) <= MAX_CLIENTS
    expect(right, "clients", clients, f"{MAX_CLIENTS} clients at most")
    found = dict[str, Leaf]()
    for client, (seconds, name) in clients.items():
        expect(is_number(seconds, 0), "seconds", seconds, "a number")
        found[str(uuid.UUID(client))] = Leaf(relay, now - seconds, checked_name(name, "a name"))
    return found


def _through(relay: Member, failure: ClientFailure) -> ClientFailure:
    return ClientFailure(failure.why, f"behind {relay}: {failure.reason}")
