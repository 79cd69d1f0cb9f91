"""What a Connection tells: values, in the order in which they happened. Pure; made by netq/connection.py alone.

Whoever drives a link hands them to the communicator as they come (netq/link.py, Owner.deliver).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from netq.errors import NetqError
from netq.lane import Outgoing, Receiver
from netq.session import Session
from netq.utils.stream import Stream
from netq.wire import Code, Greeting


@dataclass(frozen=True)
class Hello:
    """A client has said who it is; answer with `accept` or `refuse`."""

    greeting: Greeting


@dataclass(frozen=True)
class Opened:
    """Both have said INI. `resumed`: the session goes on; if not, the peer begins it."""

    session: Session
    resumed: bool


class Received(NamedTuple):
    """A message came whole. `Session.taken` wants its receiver back when the user has taken it."""

    session: Session
    receiver: Receiver
    stream: Stream


class Acked(NamedTuple):
    """The peer holds the message."""

    message: Outgoing


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


Event = Hello | Opened | Received | Acked | Failed | Finished | Lost
