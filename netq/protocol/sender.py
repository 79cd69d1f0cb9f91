"""The sending half of a lane: numbers, positions, chunks, and the window of the peer. Pure; owned by the session.

Messages of a lane are numbered from 1. Each lies at a *position*: message n starts where message n - 1 ends, and takes
its bytes plus OVERHEAD. The receiver grants a *limit*: byte k of a message that starts at s may be sent if s + k <
limit, and a message without bytes if s < limit. Message number and offset together say where to resume after a lost
link, in the middle of a message too.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol, cast

from netq.buffers import Buffer
from netq.errors import ProtocolError
from netq.protocol import codec
from netq.protocol.codec import Outgoing
from netq.protocol.wire import HEADER_SIZE, OVERHEAD, Cursor, Frame, FrameKind, message_header
from netq.utils.stream import Stream

SMALL = 65 * 1024  # bytes: messages up to here, 64 KiB of data and its head, are sent and received whole, in one step
_SWEEP = 64  # cancelled messages among the waiting: more are removed, or a peer without a link would keep them all


class Sealed(Protocol):
    """The ciphertext of a Part. All peers of a put get the same object, as long as it is in use."""

    buffers: list[memoryview]


class Part(NamedTuple):
    """Some bytes of a message, in the user's own memory; and the message's audience."""

    stream: Stream
    start: int
    stop: int
    audience: tuple[uuid.UUID, ...]
    sealed: Sealed | None = None  # what is sent instead of the bytes (netq/security/shared.py)

    @property
    def size(self) -> int:
        """The number of bytes of the message."""
        return self.stop - self.start

    def buffers(self) -> list[memoryview]:
        """Return what is to be sent as views, without a copy."""
        return self.stream.slices(self.start, self.stop) if self.sealed is None else self.sealed.buffers


class Sender:
    """Keeps each message until the peer acknowledges it.

    A message gets its number and position when its first byte leaves. Until then it can be removed without a trace.
    """

    def __init__(self, lane: int, limit: int) -> None:
        self.lane = lane
        self.limit = limit
        self.waiting: deque[Outgoing] = deque()  # no byte has left
        self.sent: deque[Outgoing] = deque()  # a byte has left, and not acknowledged; consecutive numbers
        self.next, self._position = 1, 0  # number and position of the next message that begins
        self.number, self._offset = 1, 0  # the next byte to send: its message, and its offset in it
        # The first byte that was never sent. A late INI moves `number` back, and the peer's cursor may lie beyond it.
        self._reached = (1, 0)
        self._withdrawn = 0  # how many of the waiting messages are cancelled
        self.waiting_bytes = 0  # of the waiting messages that are not cancelled

    def __len__(self) -> int:
        return len(self.waiting) + len(self.sent) - self._withdrawn

    def __iter__(self) -> Iterator[Outgoing]:
        return iter((*self.sent, *self.waiting))

    @property
    def waiting_count(self) -> int:
        """How many messages wait of which no byte has left; cancelled ones do not count."""
        return len(self.waiting) - self._withdrawn

    @property
    def bytes_behind(self) -> int:
        """Bytes of the messages that wait behind the first that waits."""
        self._skip_cancelled()
        return self.waiting_bytes - self.waiting[0].size if self.waiting else 0

    def delay(self, size: int) -> tuple[int, int]:
        """Return what a further message would wait for: to compare lanes with one another.

        First, the positions by which the peer has to move the limit for it. Then those that are not acknowledged.
        """
        waiting = self.waiting_bytes + OVERHEAD * self.waiting_count
        sent = self.sent[-1].stop - self.sent[0].start if self.sent else 0
        return max(0, self._position + waiting + size - self.limit), sent + waiting

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send."""
        return not self.waiting and self.number >= self.next

    def put(self, message: Outgoing) -> None:
        """Queue a message."""
        message.waits = True
        self.waiting.append(message)
        self.waiting_bytes += message.size

    def remove(self, message: Outgoing) -> None:
        """Count a cancelled message no longer, unless a byte of it has left; sweep if many of them wait."""
        if not message.waits:
            return
        message.waits = False
        self._withdrawn += 1
        self.waiting_bytes -= message.size
        if self._withdrawn >= _SWEEP and 2 * self._withdrawn > len(self.waiting):
            kept: deque[Outgoing] = deque()
            for other in self.waiting:
                if other.withdrawn:
                    other.waits = False
                else:
                    kept.append(other)
            self.waiting, self._withdrawn = kept, 0

    def remove_larger(self, most: int) -> list[Outgoing]:
        """Remove the waiting messages of more than `most` bytes; return those that are not cancelled."""
        removed = [message for message in self.waiting if message.size > most and not message.withdrawn]
        for message in removed:
            self.waiting.remove(message)
            self.waiting_bytes -= message.size
            message.waits = False
        return removed

    def oldest(self) -> Outgoing | None:
        """Return the first waiting message, None if there is none."""
        self._skip_cancelled()
        return self.waiting[0] if self.waiting else None

    def drop_oldest(self) -> None:
        """Remove the message that `oldest` returns."""
        message = self.waiting[0]
        message.waits = False
        self.waiting.popleft()
        self.waiting_bytes -= message.size

    @property
    def ready(self) -> bool:
        """Whether a frame can be sent now."""
        if self.number < self.next:
            message = self.sent[self.number - self.sent[0].number]
            return message.withdrawn or message.start + self._offset < self.limit
        self._skip_cancelled()
        return bool(self.waiting) and self._position < self.limit

    @property
    def blocked(self) -> bool:
        """Whether there is something to send, and the limit does not allow it."""
        return not self.ready and not self.idle

    def batch(self, out: list[Buffer | Part], small: int, limit: int) -> int:
        """Append whole messages of at most `small` bytes, up to `limit` bytes; return how many bytes.

        Stops before a message that is larger, that has begun, or that the window does not allow.
        """
        if self.number < self.next:
            return 0
        first = self.next
        size = codec.batch(self, out, small, limit, self.waiting)
        self.waiting_bytes -= size - HEADER_SIZE * (self.next - first)
        return size

    def chunk(self, size: int, grid: int = 0) -> tuple[bytes, Part | None]:
        """Return header and body of the next frame; call it only if `ready`. The body has at most `size` bytes.

        With a `grid`, the chunks of a message to several peers end at its multiples. All senders then cut the message
        at the same offsets, and a transport can send one packet to all.
        """
        message = self.sent[self.number - self.sent[0].number] if self.number < self.next else self._begin()
        start = self._offset
        if message.withdrawn:
            self.number, self._offset = message.number + 1, 0
            return Frame(FrameKind.DROP, lane=self.lane, number=message.number, value=message.size).header(), None
        if grid and message.audience:
            size = grid - start % grid
        stop = min(start + size, message.size, self.limit - message.start)
        if stop < message.size:
            self.number, self._offset = message.number, stop
        else:
            message.left = True
            self.number, self._offset = message.number + 1, 0
        header = message_header(self.lane, stop - start, message.number, message.size)
        if type(message.data) is bytes:
            message.data = Stream([message.data])
        return header, Part(cast(Stream, message.data), start, stop, message.audience)

    def acked(self, number: int) -> tuple[int, int]:
        """Settle and remove the messages up to `number`, which the peer holds. Return how many, and their bytes."""
        if number >= self.number:
            raise ProtocolError(
                f"lane {self.lane}: message {number} is acknowledged, {self.number - 1} was the last sent"
            )
        return codec.settle(self.sent, number)

    def check(self, cursor: Cursor) -> None:
        """Raise ProtocolError for a cursor that the peer cannot have reached."""
        sent, first = self._furthest, self._first
        size = self.sent[cursor.held + 1 - first].size if first <= cursor.held + 1 < self.next else 0
        # The cursor lies between the first byte that is not acknowledged and the first that was never sent. A message
        # of which all bytes are held counts in `held`, so `partial` is less than its size.
        possible = first <= cursor.held + 1 and (cursor.held + 1, cursor.partial) <= sent
        if not possible or (cursor.partial and cursor.partial >= size):
            raise ProtocolError(
                f"lane {self.lane}: the peer stands at message {cursor.held + 1}, byte {cursor.partial}; "
                f"it has been sent all before message {sent[0]}, byte {sent[1]}, and has acknowledged {first - 1}"
            )

    def resume(self, cursor: Cursor) -> tuple[int, int]:
        """Continue from the peer's cursor, which `check` has accepted; return what `acked` returns."""
        self._reached = self._furthest
        self.number, self._offset = cursor.held + 1, cursor.partial
        self.limit = cursor.limit
        return self.acked(cursor.held)

    def rewind(self) -> None:
        """Send all that is not acknowledged again: the peer has received none of it."""
        self.number, self._offset = self._reached = self._first, 0

    def unsent(self) -> list[Outgoing]:
        """Return the messages that are not cancelled and of which, as far as is known, no byte has left."""
        first = self.number + (self._offset > 0)
        begun = [message for message in self.sent if message.number >= first]
        return [message for message in (*begun, *self.waiting) if not message.withdrawn]

    def _begin(self) -> Outgoing:
        """Give the first waiting message its number and position."""
        message = self.waiting[0]
        message.number, message.start = self.next, self._position
        self.sent.append(message)
        self.waiting.popleft()
        message.waits = False
        self.waiting_bytes -= message.size
        self.next += 1
        self._position = message.stop
        return message

    def _skip_cancelled(self) -> None:
        """Remove the cancelled messages at the head of the queue."""
        while self.waiting and self.waiting[0].withdrawn:
            message = self.waiting[0]
            if message.waits:
                self.waiting_bytes -= message.size
            else:
                self._withdrawn -= 1
            message.waits = False
            self.waiting.popleft()

    @property
    def _furthest(self) -> tuple[int, int]:
        """The first byte that was never sent, even if a late INI has moved `number` back."""
        return max(self._reached, (self.number, self._offset))

    @property
    def _first(self) -> int:
        """The number of the first message that is not acknowledged."""
        return self.sent[0].number if self.sent else self.next
