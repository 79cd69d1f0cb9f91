"""What an exchange sends to its clients besides publications: in order for each client, and bounded.

    send ──► queue.put(bounded=False) ──► (a thread of netq: delivered, or failed) ──► settle

Netq refuses nothing of this for want of room, so no message overtakes another one. Instead this counts what waits for
each client, and for all. Data beyond the bound of bytes is not sent (`why_full`); a client with too many messages is
ended, since it does not read. Jobs do not count: the exchange holds their data anyway (netq/exchange/jobs.py).

One thread uses it. Threads of netq only append to `_settled`.
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
from netq.exchange.envelope import Envelope, EnvelopeKind
from netq.log import log

_ALL = 4  # times what may wait for one client
_ALWAYS = 65536  # bytes that may wait for a client, whatever waits for others
_LANE = 1  # what has an answer, and answers, pass publications


class Unsent(NamedTuple):
    """A message that its client has not got."""

    client: uuid.UUID
    envelope: Envelope
    error: BaseException


@dataclass(eq=False, slots=True)
class _Waiting:
    """What waits for a client in its present session."""

    messages: int = 0
    size: int = 0  # bytes of their data
    is_ended: bool = False


class Outbox:
    """The messages that wait for the clients of an exchange.

    most:   messages that may wait for one client; one with more is ended. If _ALL times as many wait for all,
            the one with most is ended.
    size:   bytes of data that may wait for one client; one message may have any size, within `memory`.
    memory: bytes of data that may wait for all clients, besides _ALWAYS for each.
    """

    def __init__(self, queue: Communicator, most: int, size: int, memory: int) -> None:
        self._queue = queue
        self._messages = most
        self._size = size
        self._memory = memory
        self._all = _Waiting()  # what waits for all clients that were not ended
        self._waiting: dict[uuid.UUID, _Waiting] = {}
        self._settled: deque[tuple[_Waiting, uuid.UUID, Envelope, BaseException | None]] = deque()

    def why_full(self, client: uuid.UUID, size: int) -> str:
        """Return why `size` bytes of data are not to be sent to a client; "" if they may be."""
        waiting = self._waiting.get(client)
        has = 0 if waiting is None else waiting.size
        if has and has + size > self._size:
            return f"{has} of {self._size} bytes wait for {client} already (queue_bytes)"
        if self._all.size and self._all.size + size > self._memory and has + size > _ALWAYS:
            return (
                f"{self._all.size} of {self._memory} bytes of calls, messages and answers wait for all clients "
                f"(job_memory), {has} of them for {client}; ask again when they have read"
            )
        return ""

    def send(self, client: uuid.UUID, envelope: Envelope) -> Delivery:
        """Send a message to a client."""
        waiting = self._waiting.get(client) or self._waiting.setdefault(client, _Waiting())
        if envelope.kind is not EnvelopeKind.JOB:
            self._count(waiting, envelope, 1)
            if waiting.messages > self._messages:
                self._end(client, waiting)
            elif self._all.messages > _ALL * self._messages:
                self._end(*max(self._waiting.items(), key=lambda item: item[1].messages * (not item[1].is_ended)))
        delivery = self._queue.put(envelope, client, lane=_LANE, bounded=False)
        delivery.add_done_callback(functools.partial(self._done, waiting, client, envelope))
        return delivery

    def settle(self) -> Iterator[Unsent]:
        """Count what is delivered or has failed as waiting no more. Yield what has failed."""
        while self._settled:
            waiting, client, envelope, error = self._settled.popleft()
            if envelope.kind is not EnvelopeKind.JOB:
                self._count(waiting, envelope, -1)
            if not waiting.messages and self._waiting.get(client) is waiting:
                del self._waiting[client]
            if error is not None:
                yield Unsent(client, envelope, error)

    def forget(self, client: uuid.UUID) -> None:
        """Count anew for a client's next session."""
        self._waiting.pop(client, None)

    def _count(self, waiting: _Waiting, envelope: Envelope, times: int) -> None:
        for each in (waiting,) if waiting.is_ended else (waiting, self._all):
            each.messages += times
            each.size += times * size_of(envelope)

    def _end(self, client: uuid.UUID, waiting: _Waiting) -> None:
        """End a client that has too many messages. It has asked for all of them, and does not read."""
        if not waiting.is_ended:
            waiting.is_ended = True
            self._all.messages -= waiting.messages
            self._all.size -= waiting.size
            count = min(waiting.messages, self._messages)
            log.warning("%s: does not read: %d messages wait for it (answers); ended", client, count)
            self._queue.expel(client, f"it does not read, and {count} messages wait for it")

    def _done(self, waiting: _Waiting, client: uuid.UUID, envelope: Envelope, delivery: Future[None]) -> None:
        """Note what has become of a message. In a thread of netq."""
        if not delivery.cancelled():
            self._settled.append((waiting, client, envelope, delivery.exception()))


def size_of(envelope: Envelope) -> int:
    """Return the bytes of its data."""
    return 0 if envelope.data is None else envelope.data.nbytes
