"""The federation to which a client belongs, and the sessions in which it takes part until that is over.

Used by fl/client.py and fl/flower/node.py, in their caller's thread. docs/reference/fl.md, "The end of a federation",
has the rules for users. Knows no messages: its user reports tasks and ends.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import netq
from netq.text import format_netloc
from netq.validate import expect, is_whole

log = logging.getLogger("netq.fl")

_WAITING = 2**28  # bytes of answers that wait for the server, besides the first: these at most, and `memory` at most
_MESSAGES = 10_000  # that wait for the server at most: each costs 1.5 kB here, besides its bytes
# Seconds until the next session, when the last one has ended and the federation has not: twice as long after each short
# session, and as at first after one that took longer than `_STEADY`.
_PAUSE, _MAX_PAUSE, _STEADY = 1.0, 60.0, 60.0
_MOVE = 10.0  # seconds without a connection, after which a client with several addresses goes on to the next


class Membership:
    """The identity of a client's federation, which is the id of its server's communicator.

    That is the federation of the server to which the client connects first, and later of the server that has given it a
    task last.

    noun:      what the federation is called in the log.
    ini:       the user's event, which is called too.
    addresses: where its servers are, the first one first.
    """

    def __init__(
        self, noun: str, ini: Callable[[uuid.UUID], object] | None, addresses: Sequence[netq.NetworkLocation]
    ) -> None:
        self.over = False
        self.moves = False  # the session ends for one at the next address
        self.addresses = deque(addresses)  # the first is the present one
        self._since = math.inf  # when the session began
        self._noun = noun
        self._ini = ini
        self._federation: uuid.UUID | None = None
        self._has_work = self._joins_next = False  # it has had a task; only a question for statistics
        # A communicator has one session after the other: a server that is started again knows nothing of the last one.
        self._greeting = threading.Lock()  # of the next two
        self._is_connected = False
        self._greet: Callable[[], object] | None = None

    def connected(self, server: uuid.UUID) -> None:
        """Join the first server's federation. Runs in the communicator's loop, before any message of the server."""
        if self._federation is None or self._joins_next:
            self._federation, self._joins_next = server, False
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
        self.moves, self._since = False, time.monotonic()

    def until_look(self, queue: netq.Communicator) -> float | None:
        """Return in how many seconds to look again whether the server is lost. 0: it is. None: never."""
        if len(self.addresses) == 1:
            return None
        absent = max(queue.absences().values(), default=time.monotonic() - self._since)
        return max(0.0, _MOVE - absent)

    def move(self, why: str = "") -> None:
        """Go on to the next address: the session ends, and the next one begins there. why: default: no connection."""
        before = format_netloc(*self.addresses[0])
        self.addresses.rotate(-1)
        self.moves = True
        why = why or f"no connection for {_MOVE:g} s"
        log.warning("%s: %s; going on to %s", before, why, format_netloc(*self.addresses[0]))

    def greet_with(self, greet: Callable[[], object]) -> None:
        """Call `greet` at the beginning of each session of this communicator: now, if one has begun already."""
        with self._greeting:
            self._greet = greet
            is_connected = self._is_connected
        if is_connected:
            greet()

    def asked(self, server: uuid.UUID) -> None:
        """Join the federation of a server that gives a task."""
        self._federation, self._has_work, self._joins_next = server, True, False

    def surveyed(self) -> None:
        """Note a question for statistics: a client without a task joins the next server, which may be another one."""
        self._joins_next = not self._has_work

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


def checked_addresses(fallback: object, whose: str) -> list[netq.NetworkLocation]:
    """Return addresses. Raises InvalidOption."""
    form = 'a list of hosts and ports, as in [("relay2.farm", 51966)]'
    right = isinstance(fallback, list | tuple) and all(map(_is_address, fallback))
    expect(right, f"{whose}: fallback", fallback, form)
    return [netq.NetworkLocation(*each) for each in fallback]  # type: ignore[attr-defined]  # checked


def _is_address(each: object) -> bool:
    if not isinstance(each, tuple) or len(each) != 2:
        return False
    return isinstance(each[0], str) and each[0] != "" and is_whole(each[1], 1, 65535)


def take_part(
    options: netq.CommunicatorOptions,
    protocol: netq.Protocol,
    noun: str,
    serve: Callable[[netq.Communicator, Membership], None],
    begin: Callable[[], None] = lambda: None,
    attempt: Callable[[Callable[[], None]], object] = lambda session: session(),
    sleep: Callable[[float], object] = time.sleep,
    *,
    fallback: Sequence[netq.NetworkLocation] = (),
) -> None:
    """Connect to the server, and call `serve`; again, until the client's federation is over.

    serve: does the tasks of a session, and returns when `Membership.over` is set or the session is to end.
    begin: called before each session; may wait.
    attempt: calls each session. It may call it again after an error: each has a new communicator, which reads the files
             of its options again.
    sleep:   as time.sleep: pauses between two sessions.
    fallback: further addresses. A server that has no connection for 10 seconds is given up for the next one; after the
             last comes the first again. What was not delivered then is lost.
    """
    membership = Membership(noun, options.events.ini, [options.netloc, *fallback])
    connection = options.connection.with_queue_bytes(min(_WAITING, options.connection.memory))
    connection = replace(connection, queue_size=min(_MESSAGES, connection.queue_size))
    options = replace(options, connection=connection, events=replace(options.events, ini=membership.connected))

    def session() -> None:
        begin()
        membership.begins()
        here = replace(options, netloc=membership.addresses[0])
        with netq.new(protocol, netq.Purpose.CLIENT, here) as queue:
            serve(queue, membership)
            if membership.moves:
                queue.close(0.0)

    pause = 0.0
    while True:
        since = time.monotonic()
        attempt(session)
        if membership.over:
            return
        if membership.moves:
            continue
        pause = _PAUSE if time.monotonic() - since > _STEADY else min(2 * pause, _MAX_PAUSE) or _PAUSE
        sleep(pause)
