"""The contracts between the communicator and its transports (docs/how-to/transport.md), and the backoff of a client.

All of it runs in the thread of a loop, and never waits. If a link is `inline`, a user's thread that holds the baton may
also call its `flush` and `receive`. A link calls `attach`, `deliver` and `lost` of its listener, and nothing else: it
runs no user code, takes no lock and does not reconnect.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from netq.identity import Certificate, Protection
from netq.io.baton import Worker
from netq.io.interrupts import raised_by_handler
from netq.io.loop import Loop
from netq.options import CommunicatorOptions, ConnectionOptions, NetworkLocation
from netq.protocol.connection import Connection
from netq.protocol.events import Event


class Link(Protocol):
    """Moves the bytes of one Connection."""

    connection: Connection
    address: str  # of the peer, for log lines
    peer: Worker | None  # set by the listener, when it knows whose link this is
    inline: bool  # whether users' threads may call `flush` and `receive`

    @property
    def protection(self) -> Protection | None:
        """How the link is protected, and by which certificate; None if it is not, or its handshake is not over."""

    def flush(self) -> None:
        """Send what the connection has to send: now what can be sent without waiting, and the rest later."""

    def receive(self) -> None:
        """Receive what has come, and send nothing."""

    def keep(self) -> None:
        """Copy what was taken from the connection and not sent yet: the user gets its memory back."""

    def close(self) -> None:
        """Send what was taken from the connection, then end. `lost` is not called afterwards."""

    def move(self, loop: Loop) -> None:
        """Go on in another loop. Called in the thread of the one that it leaves."""


class LinkListener(Protocol):
    """What a transport and its links may call."""

    options: CommunicatorOptions

    def connect(self) -> Connection:
        """Return a connection for a new link."""

    def has_room(self) -> bool:
        """Return whether a server may make a link now; otherwise let its client wait, where the medium can."""

    def attach(self, link: Link) -> None:
        """Use a new link: it can send and receive."""

    def deliver(self, link: Link, events: Sequence[Event]) -> None:
        """Handle the events that the connection's `received` returned."""

    def lost(self, link: Link | None, error: Exception) -> None:
        """Note that a link has failed. None: a client's transport could not make one."""


class Transport(Protocol):
    """Makes links: a server's as clients come, a client's one each time it is opened."""

    netloc: NetworkLocation

    def open(self) -> None:
        """Begin. A server listens from now on, or raises AddressError; a client makes one attempt."""

    def close(self) -> None:
        """Stop making links."""


def certificates_of(link: Link) -> tuple[Certificate, ...]:
    """Return the certificates that the peer of a link has proved to have: by TLS, and by seals."""
    protections = link.protection, link.connection.protection
    return tuple(found.certificate for found in protections if found and found.certificate)


def fail(loop: Loop, lose: Callable[[Exception], object], error: Exception) -> None:
    """Run a link's `lose(error)` in its loop's thread: now if this is that thread, else soon.

    In a user's thread, the error may come from a signal handler of the user, which ran during a system call. It is not
    the link's then: raise it.
    """
    if loop.is_own:
        lose(error)
    elif raised_by_handler(error) is not None:
        raise error
    else:
        loop.call(lose, error)


_system = random.SystemRandom()  # after random.seed(0), or a fork, devices would all come back at the same moment


def backoff(attempt: int, options: ConnectionOptions) -> float:
    """Return the seconds to pause before attempt 0, 1, 2, …: "full jitter".

    Exponential Backoff And Jitter, M. Brooker, AWS Architecture Blog, 2015: of the schemes compared there, the
    one with the least work for a server that many clients come back to at once.
    """
    return _system.uniform(0.0, min(options.retry_max, options.retry_min * 2.0 ** min(attempt, 60)))
