"""Events that a Connection returns, in the order in which they happened. Pure; made by netq/protocol/connection.py.

Messages and acknowledgements are no events: see `Session.arrived` and `Outgoing.acked`. A link passes the events to the
communicator (netq/runtime/link.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from netq.errors import NetqError
from netq.protocol.codec import Outgoing
from netq.protocol.session import Session
from netq.protocol.wire import Code, Greeting


@dataclass(frozen=True)
class Hello:
    """A client has sent its INI. Answer with `accept` or `refuse`."""

    greeting: Greeting


@dataclass(frozen=True)
class Opened:
    """Both INIs have been exchanged. `resumed`: an earlier session goes on; otherwise a new one begins."""

    session: Session
    resumed: bool


@dataclass(frozen=True)
class Failed:
    """The message will not be delivered, or it is unknown whether it was. `error` is None if its session was lost."""

    message: Outgoing
    error: NetqError | None


@dataclass(frozen=True)
class Finished:
    """FIN has come: the peer sends no more messages. `over`: our FIN was sent before, so the session is over."""

    session: Session
    over: bool


@dataclass(frozen=True)
class Lost:
    """The link must be dropped: a protocol error, a timeout, or a refusal by the peer."""

    error: Exception
    code: Code = Code.DONE


Event = Hello | Opened | Failed | Finished | Lost
