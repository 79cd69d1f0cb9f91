"""The messages of an exchange to its clients, besides publications: in order for each client, and bounded.

    send ──► queue.put(bounded=False) ──► a thread of netq: delivered, or failed ──► settle

The messages are put unbounded: if the queue refused one, a later one would overtake it. Instead the outbox counts what
waits for each client, and for all. `check_room` rejects data beyond the bound of bytes. A client for which too many
messages wait does not read, and is expelled. Jobs do not count, because the exchange holds their data anyway
(netq/exchange/jobs.py).

One thread uses the outbox. Threads of netq only append to `_settled`.
"""

from __future__ import annotations

import functools
import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from netq import Communicator, Delivery
from netq.exchange.envelope import Envelope, EnvelopeKind, Refusal, Rejected
from netq.log import log

_ALL = 4  # times what may wait for one client
_ALWAYS = 65536  # bytes that may wait for a client, whatever waits for others
_LANE = 1  # these messages pass publications, which are on lane 0


class Unsent(NamedTuple):
    """A message that was not delivered."""

    client: uuid.UUID
    envelope: Envelope
    error: BaseException


@dataclass(eq=False, slots=True)
class _Waiting:
    """The messages that wait for a client in its present session."""

    messages: int = 0
    size: int = 0  # bytes of their data
    is_expelled: bool = False


class Outbox:
    """The messages that wait for the clients of an exchange.

    most:   messages that may wait for one client; a client with more is expelled. If _ALL times as many wait for all,
            the client with most is expelled.
    size:   bytes of data that may wait for one client; one message may have any size, within `memory`.
    memory: bytes of data that may wait for all clients, besides _ALWAYS for each.
    """

    def __init__(self, queue: Communicator, most: int, size: int, memory: int) -> None:
        self._queue = queue
        self._messages = most
        self._size = size
        self._memory = memory
        self._all = _Waiting()  # for all clients that were not expelled
        self._waiting: dict[uuid.UUID, _Waiting] = {}
        self._settled: deque[tuple[_Waiting, uuid.UUID, Envelope, BaseException | None]] = deque()

    def check_room(self, client: uuid.UUID, size: int) -> None:
        """Raise Rejected if `size` more bytes of data may not wait for a client."""
        waiting = self._waiting.get(client)
        has = 0 if waiting is None else waiting.size
        if has and has + size > self._size:
            raise Rejected(Refusal.FULL, f"{has} of {self._size} bytes wait for {client} already (queue_bytes)")
        if self._all.size and self._all.size + size > self._memory and has + size > _ALWAYS:
            raise Rejected(
                Refusal.FULL,
                f"{self._all.size} of {self._memory} bytes of calls, messages and answers wait for all clients "
                f"(job_memory), {has} of them for {client}; ask again when they have read",
            )

    def send(self, client: uuid.UUID, envelope: Envelope) -> Delivery:
        """Send a message to a client."""
        waiting = self._waiting.get(client) or self._waiting.setdefault(client, _Waiting())
        if envelope.kind is not EnvelopeKind.JOB:
            self._count(waiting, envelope, 1)
            if waiting.messages > self._messages:
                self._expel(client, waiting)
            elif self._all.messages > _ALL * self._messages:
                self._expel(*max(self._waiting.items(), key=lambda item: item[1].messages * (not item[1].is_expelled)))
        delivery = self._queue.put(envelope, client, lane=_LANE, bounded=False)
        delivery.add_done_callback(functools.partial(self._done, waiting, client, envelope))
        return delivery

    def settle(self) -> Iterator[Unsent]:
        """Count messages that were delivered, or have failed, as waiting no more. Yield those that have failed."""
        while self._settled:
            waiting, client, envelope, error = self._settled.popleft()
            if envelope.kind is not EnvelopeKind.JOB:
                self._count(waiting, envelope, -1)
            if not waiting.messages and self._waiting.get(client) is waiting:
                del self._waiting[client]
            if error is not None:
                yield Unsent(client, envelope, error)

    def forget(self, client: uuid.UUID) -> None:
        """Forget the messages of a session that is over."""
        self._waiting.pop(client, None)

    def _count(self, waiting: _Waiting, envelope: Envelope, times: int) -> None:
        for each in (waiting,) if waiting.is_expelled else (waiting, self._all):
            each.messages += times
            each.size += times * size_of(envelope)

    def _expel(self, client: uuid.UUID, waiting: _Waiting) -> None:
        """Expel a client for which too many messages wait: it has asked for all of them, and does not read."""
        if not waiting.is_expelled:
            waiting.is_expelled = True
            self._all.messages -= waiting.messages
            self._all.size -= waiting.size
            count = min(waiting.messages, self._messages)
            log.warning("%s: does not read: %d messages wait for it (answers); ended", client, count)
            self._queue.expel(client, f"it does not read, and {count} messages wait for it")

    def _done(self, waiting: _Waiting, client: uuid.UUID, envelope: Envelope, delivery: Future[None]) -> None:
        """Note whether a message was delivered. In a thread of netq."""
        if not delivery.cancelled():
            self._settled.append((waiting, client, envelope, delivery.exception()))


def size_of(envelope: Envelope) -> int:
    """Return the bytes of its data."""
    return 0 if envelope.data is None else envelope.data.nbytes
