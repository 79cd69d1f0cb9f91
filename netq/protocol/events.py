"""What a Connection tells beside messages: values, in the order in which they happened. Pure; made by
netq/protocol/connection.py alone.

Whoever drives a link hands them to the communicator as they come (netq/runtime/link.py, Owner.deliver).
"""

from __future__ import annotations

from dataclasses import dataclass

from netq.errors import NetqError
from netq.protocol.codec import Outgoing
from netq.protocol.session import Session
from netq.protocol.wire import Code, Greeting


@dataclass(frozen=True)
class Hello:
    """A client has said who it is; answer with `accept` or `refuse`."""

    greeting: Greeting


@dataclass(frozen=True)
class Opened:
    """Both have said INI. `resumed`: the session goes on; if not, the peer begins it."""

    session: Session
    resumed: bool


@dataclass(frozen=True)
class Failed:
    """The message will not be delivered, or nobody can know whether it was; error None: a lost session."""

    message: Outgoing
    error: NetqError | None


@dataclass(frozen=True)
class Finished:
    """The peer has said FIN: no message of its will come any more. `over`: and we had said it."""

    session: Session
    over: bool


@dataclass(frozen=True)
class Lost:
    """The link is to be dropped: the peer's fault, its silence, or its refusal."""

    error: Exception
    code: Code = Code.DONE


Event = Hello | Opened | Failed | Finished | Lost
