"""The federation to which a client belongs, and the sessions in which it takes part until that is over.

Used by fl/client.py and fl/flower/node.py, in their caller's thread. docs/reference/fl.md, "The end of a federation",
has the rules for users. Knows no messages: its user reports tasks and ends.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

import netq

log = logging.getLogger("netq.fl")

_WAITING = 2**28  # bytes of answers that wait for the server, besides the first: these at most, and `memory` at most
_MESSAGES = 10_000  # that wait for the server at most: each costs 1.5 kB here, besides its bytes
# Seconds until the next session, when the last one has ended and the federation has not: twice as long after each short
# session, and as at first after one that took longer than `_STEADY`.
_PAUSE, _MAX_PAUSE, _STEADY = 1.0, 60.0, 60.0


class Membership:
    """The identity of a client's federation, which is the id of its server's communicator.

    That is the federation of the server to which the client connects first, and later of the server that has given it a
    task last.

    noun: what the federation is called in the log.
    ini:  the user's event, which is called too.
    """

    def __init__(self, noun: str, ini: Callable[[uuid.UUID], object] | None) -> None:
        self.over = False
        self._noun = noun
        self._ini = ini
        self._federation: uuid.UUID | None = None
        # A communicator has one session after the other: a server that is started again knows nothing of the last one.
        self._greeting = threading.Lock()  # of the next two
        self._is_connected = False
        self._greet: Callable[[], object] | None = None

    def connected(self, server: uuid.UUID) -> None:
        """Join the first server's federation. Runs in the communicator's loop, before any message of the server."""
        if self._federation is None:
            self._federation = server
        if self._ini is not None:
            self._ini(server)
        with self._greeting:
            self._is_connected = True
            greet = self._greet
        if greet is not None:
            greet()

    def begins(self) -> None:
        """Note that there is going to be a new communicator."""
        self._is_connected, self._greet = False, None

    def greet_with(self, greet: Callable[[], object]) -> None:
        """Call `greet` at the beginning of each session of this communicator: now, if one has begun already."""
        with self._greeting:
            self._greet = greet
            is_connected = self._is_connected
        if is_connected:
            greet()

    def asked(self, server: uuid.UUID) -> None:
        """Join the federation of a server that gives a task."""
        self._federation = server

    def ended(self, server: uuid.UUID) -> bool:
        """Note that a server has ended its federation. Return whether that is this client's."""
        self.over = server == self._federation
        if not self.over:
            text = "%s ends another %s than this client's; waiting for a server of %s"
            log.warning(text, server, self._noun, self._federation)
        return self.over

    def session_ended(self, error: netq.Closed) -> None:
        """Log that a session is over without the end of the federation."""
        log.warning("%s: the session is over, the %s is not; connecting again", error, self._noun)


def take_part(
    options: netq.CommunicatorOptions,
    protocol: netq.Protocol,
    noun: str,
    serve: Callable[[netq.Communicator, Membership], None],
    begin: Callable[[], None] = lambda: None,
    attempt: Callable[[Callable[[], None]], object] = lambda session: session(),
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Connect to the server, and call `serve`; again, until the client's federation is over.

    serve: does the tasks of a session, and returns when `Membership.over` is set or the session is to end.
    begin: called before each session; may wait.
    attempt: calls each session. It may call it again after an error: each has a new communicator, which reads the files
             of its options again.
    sleep:   as time.sleep: pauses between two sessions.
    """
    membership = Membership(noun, options.events.ini)
    connection = options.connection.with_queue_bytes(min(_WAITING, options.connection.memory))
    connection = replace(connection, queue_size=min(_MESSAGES, connection.queue_size))
    options = replace(options, connection=connection, events=replace(options.events, ini=membership.connected))

    def session() -> None:
        begin()
        membership.begins()
        with netq.new(protocol, netq.Purpose.CLIENT, options) as queue:
            serve(queue, membership)

    pause = 0.0
    while True:
        since = time.monotonic()
        attempt(session)
        if membership.over:
            return
        pause = _PAUSE if time.monotonic() - since > _STEADY else min(2 * pause, _MAX_PAUSE) or _PAUSE
        sleep(pause)
