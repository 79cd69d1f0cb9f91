"""The services of an exchange, and the calls that they have not answered. Pure.

A message to a client is a call, too: the client answers when it has the message. Its service is "".
"""

from __future__ import annotations

import itertools
import secrets
import uuid
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from netq.exchange.envelope import Refusal, Rejected
from netq.exchange.quota import Quota

_ALL = 100  # times `most`: calls that may be open in all, services included


@dataclass(eq=False, slots=True)
class Call:
    """An open call. `is_awaited`: whether its caller is still here."""

    number: int
    service: str
    caller: uuid.UUID
    request: int  # the caller's number
    server: uuid.UUID
    is_awaited: bool = True


class Calls:
    """All services of an exchange, and the open calls.

    most: messages to one client that may be open. In all, _ALL times as many calls and messages may be open.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers = itertools.count(secrets.randbits(62))  # answers to an earlier exchange must not fit
        self._services: dict[str, OrderedDict[uuid.UUID, int]] = {}  # by name: how many calls each client takes at once
        self._offers: dict[uuid.UUID, dict[str, str]] = {}  # the services of each client; calls share these strings
        self.offers = 0  # services of all clients; one that several offer counts for each
        self._open = Quota[Call](_ALL * most, 1, "open calls", (f"{_ALL} × calls", ""))
        self._at: dict[uuid.UUID, set[int]] = {}  # open calls by the client that is to answer
        self._load: dict[tuple[str, uuid.UUID], int] = {}  # open calls by service and client
        self._away: set[uuid.UUID] = set()  # clients that may come back, and get no calls until then

    def serve(self, service: str, client: uuid.UUID, most: int) -> None:
        """Let a client answer calls of a service, `most` at once; with 0, no more."""
        clients = self._services.setdefault(service, OrderedDict())
        offers = self._offers.setdefault(client, {})
        if most:
            clients[client] = most
            self.offers += service not in offers
            offers.setdefault(service, service)
        else:
            clients.pop(client, None)
            self.offers -= offers.pop(service, None) is not None
        if not clients:
            del self._services[service]
        if not offers:
            del self._offers[client]

    def call(self, service: str, caller: uuid.UUID, request: int) -> Call:
        """Open a call at the client whose turn it is. First, `make_room`. Raises Rejected."""
        clients = self._services.get(service, OrderedDict())
        present = [client for client in clients if client not in self._away]
        if not present:
            raise Rejected(Refusal.ABSENT, "no client offers this service")
        for client in present:
            if self._load.get((service, client), 0) < clients[client]:
                clients.move_to_end(client)
                return self._begin(self._offers[client][service], caller, request, client)
        raise _too_many()

    def make_room(self, caller: uuid.UUID) -> list[Call]:
        """Make room for a call. Return the calls that were closed for it. Raises Rejected."""
        return [self._close(call) for call in self._open.make_room(caller, 0)]

    def send(self, client: uuid.UUID, caller: uuid.UUID, request: int) -> Call:
        """Open a call for a message to a client. First, `make_room`. Raises Rejected."""
        if self._load.get(("", client), 0) >= self._most:
            raise _too_many()
        return self._begin("", caller, request, client)

    def finish(self, number: int, server: uuid.UUID) -> Call | None:
        """Close a call that a client has answered. Return it; None if it is no open call of this client."""
        call = self._open.get(number)
        return self._close(call) if call is not None and call.server == server else None

    def leave(self, client: uuid.UUID, *, returns: bool) -> list[Call]:
        """Close the calls that a client cannot answer any more, and return them.

        returns: whether it may come back. Then its services stay, but get no calls until `come_back`.
        """
        calls = [self._close(call) for number in sorted(self._at.get(client, ())) if (call := self._open.get(number))]
        if returns:
            self._away.add(client)
        else:
            self._away.discard(client)
            for service in list(self.services_of(client)):
                self.serve(service, client, 0)
        return calls

    def caller_leaves(self, client: uuid.UUID, now: float) -> None:
        """Note that a caller has gone, and gets no answers. Its calls stay open, because services work on them."""
        for call in self._open.leave(client, now):
            call.is_awaited = False

    def expire(self, before: float) -> None:
        """Close the calls of callers that have gone before a time."""
        for call in self._open.expired(before):
            self._close(call)

    def come_back(self, client: uuid.UUID) -> None:
        """Note that a client has come back, and gets calls again."""
        self._away.discard(client)

    def services(self) -> dict[str, int]:
        """Return how many clients offer each service."""
        return {name: len(clients) for name, clients in self._services.items()}

    def services_of(self, client: uuid.UUID) -> Collection[str]:
        """Return the services that a client offers."""
        return self._offers.get(client, {})

    def _begin(self, service: str, caller: uuid.UUID, request: int, server: uuid.UUID) -> Call:
        call = Call(next(self._numbers), service, caller, request, server)
        self._open.add(call.number, caller, 0, call)
        self._at.setdefault(server, set()).add(call.number)
        self._load[service, server] = self._load.get((service, server), 0) + 1
        return call

    def _close(self, call: Call) -> Call:
        self._open.remove(call.number)
        numbers, key = self._at[call.server], (call.service, call.server)
        numbers.remove(call.number)
        if not numbers:
            del self._at[call.server]
        self._load[key] -= 1
        if not self._load[key]:
            del self._load[key]
        return call


def _too_many() -> Rejected:
    return Rejected(Refusal.FULL, "too many calls are open there")
