"""What the clients of an exchange may do. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from netq.exchange.envelope import Refusal, Rejected
from netq.exchange.topics import check_name, covers
from netq.validate import expect

ANY_CLIENT = "*"


@dataclass(frozen=True)
class Permission:
    """Allows clients to use names; each is a list of filters, as in "plant/#" (netq/exchange/topics.py).

    clients: ids; "*": any client.
    send:    ids of the clients to which they may send messages; "*": any client.

    Raises InvalidOption.
    """

    clients: Sequence[str | uuid.UUID]
    publish: Sequence[str] = ()
    subscribe: Sequence[str] = ()
    push: Sequence[str] = ()
    work: Sequence[str] = ()
    call: Sequence[str] = ()
    serve: Sequence[str] = ()
    send: Sequence[str | uuid.UUID] = ()

    def __post_init__(self) -> None:
        for each in fields(self):
            name, values = f"Permission.{each.name}", getattr(self, each.name)
            expect(isinstance(values, (list, tuple)), name, values, "a list of texts")
            expect(bool(values) or each.name != "clients", name, values, f'ids of clients, or "{ANY_CLIENT}"')
            if each.name in ("clients", "send"):
                object.__setattr__(self, each.name, tuple([_id(name, value) for value in values]))
            else:
                for value in values:
                    _check_filter(name, value)

    def allows(self, client: uuid.UUID, action: str, name: str) -> bool:
        """Return whether a client may do this with a name: for "subscribe", a filter; for "send", an id as text."""
        if client not in self.clients and ANY_CLIENT not in self.clients:
            return False
        if action == "send":
            return ANY_CLIENT in self.send or uuid.UUID(name) in self.send
        return any(covers(filter, name) for filter in getattr(self, action))


class Permissions:
    """The permissions of an exchange. None: any client may do anything. Raises InvalidOption."""

    def __init__(self, permissions: Iterable[Permission] | None) -> None:
        self._permissions = None if permissions is None else tuple(permissions)
        for each in self._permissions or ():
            expect(isinstance(each, Permission), "Exchange.permissions", each, "a list of netq.exchange.Permission")

    def check(self, client: uuid.UUID, action: str, name: str) -> None:
        """Raise Rejected unless one of them allows it."""
        if self._permissions is not None and not any(each.allows(client, action, name) for each in self._permissions):
            raise Rejected(Refusal.NOT_PERMITTED, f"not permitted to {client}")


def _check_filter(name: str, value: str) -> None:
    try:
        check_name(value, is_filter=True)
    except Rejected:
        expect(False, name, value, 'a filter, as in "plant/+/temperature"')


def _id(name: str, value: object) -> str | uuid.UUID:
    if isinstance(value, uuid.UUID) or value == ANY_CLIENT:
        return value
    try:
        return uuid.UUID(value)  # type: ignore[arg-type]
    except (ValueError, AttributeError, TypeError):
        expect(False, name, value, f'an id, as in "{uuid.UUID(int=2**127)}", or "{ANY_CLIENT}"')
        raise
