"""The sending half of a lane. Pure; owned by the session.

Messages of a lane are numbered from 1, and each lies at a *position*: message n starts where n - 1 ended, and
is as long as its bytes plus OVERHEAD. The receiver grants a limit: the byte k of a message that starts at s
may be sent if s + k < limit (an empty message if s < limit). The same two numbers, message and offset, say
where to go on after a lost link, in the middle of a message too.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, cast

from netq.buffers import Buffer
from netq.errors import ProtocolError
from netq.protocol import codec
from netq.protocol.codec import Outgoing
from netq.protocol.wire import Cursor, Frame, Kind, message_header
from netq.utils.stream import Stream

SMALL = 4096  # bytes of a message that is sent and received in one step, whole, by way of a copy


_SWEEP = 64  # cancelled messages that may lie among those that wait, or a link that is away would keep them all


class Part(NamedTuple):
    """Some bytes of a message, still in the memory of whoever put it; and the message's audience."""

    stream: Stream
    start: int
    stop: int
    audience: tuple[uuid.UUID, ...]

    @property
    def size(self) -> int:
        """How many bytes."""
        return self.stop - self.start

    def buffers(self) -> list[memoryview]:
        """Return them."""
        return self.stream.slices(self.start, self.stop)


class Sender:
    """The sending half: keeps each message until it is acknowledged.

    A message gets its number and its position when its first byte leaves; until then it can be taken out without a
    trace. A user's thread that sends may be interrupted anywhere by an exception: `repair` puts right what that
    leaves, and the link is lost. So a message is appended where it goes before it is taken from where it was.
    """

    def __init__(self, lane: int, limit: int) -> None:
        self.lane = lane
        self.limit = limit
        self.waiting: deque[Outgoing] = deque()  # of which no byte has left
        self.sent: deque[Outgoing] = deque()  # of which some have, and that are not acknowledged: no number is missing
        self.next, self._position = 1, 0  # of the next message that begins
        self.number, self._offset = 1, 0  # the next byte to send
        self._reached = (1, 0)  # the furthest that it has been: the peer may stand there, whatever an old link says
        self._withdrawn = 0  # of those that wait

    def __len__(self) -> int:
        return len(self.waiting) + len(self.sent) - self._withdrawn

    def __iter__(self) -> Iterator[Outgoing]:
        return iter((*self.sent, *self.waiting))

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send."""
        return not self.waiting and self.number >= self.next

    def ends_with(self, message: Outgoing) -> bool:
        """Whether it was put last."""
        last = self.waiting or self.sent
        return bool(last) and last[-1] is message

    def put(self, message: Outgoing) -> None:
        """Queue a message."""
        message.waits = True
        self.waiting.append(message)

    def remove(self, message: Outgoing) -> None:
        """Do not count a cancelled message of which no byte has left."""
        if not message.waits:
            return
        message.waits = False
        self._withdrawn += 1
        if self._withdrawn >= _SWEEP and 2 * self._withdrawn > len(self.waiting):
            kept: deque[Outgoing] = deque()
            for other in self.waiting:
                if other.withdrawn:
                    other.waits = False
                else:
                    kept.append(other)
            self.waiting, self._withdrawn = kept, 0

    def oldest(self, size: int) -> Outgoing | None:
        """If `size` messages wait of which no byte has left, return the first of them."""
        self._skip()
        return self.waiting[0] if self.waiting and len(self.waiting) - self._withdrawn >= size else None

    def drop_oldest(self, size: int) -> Outgoing | None:
        """Take out what `oldest` returns, and return it."""
        message = self.oldest(size)
        if message is not None:
            message.waits = False
            self.waiting.popleft()
        return message

    @property
    def ready(self) -> bool:
        """Whether something could be sent now."""
        if self.number < self.next:
            message = self.sent[self.number - self.sent[0].number]
            return message.withdrawn or message.start + self._offset < self.limit
        self._skip()
        return bool(self.waiting) and self._position < self.limit

    @property
    def blocked(self) -> bool:
        """Whether there is something to send, and the limit does not let it."""
        return not self.ready and not self.idle

    def batch(self, out: list[Buffer | Part], small: int, limit: int) -> int:
        """Append the frames of messages that have not begun and have `small` bytes at most, each whole, until there are
        `limit` bytes; return how many. Stops before any other message, and where the window ends.
        """
        if self.number < self.next:
            return 0
        return codec.batch(self, out, small, limit, self.waiting)

    def chunk(self, size: int, grid: int = 0) -> tuple[bytes, Part | None]:
        """Return the next frame, header and body; only if `ready`. The body has `size` bytes at most; that of a
        message for several ends at a multiple of `grid`, if there is one, so that the senders of all cut it alike.
        """
        message = self.sent[self.number - self.sent[0].number] if self.number < self.next else self._begin()
        start = self._offset
        if message.withdrawn:
            self.number, self._offset = message.number + 1, 0
            return Frame(Kind.DROP, lane=self.lane, number=message.number, value=message.size).header(), None
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
        """Settle the messages up to `number`, which the peer holds: they leave. Return how many, and their bytes."""
        if number >= self.number:
            raise ProtocolError(
                f"lane {self.lane}: message {number} is acknowledged, {self.number - 1} was the last sent"
            )
        return codec.settle(self.sent, number)

    def check(self, cursor: Cursor) -> None:
        """Raise ProtocolError if the peer cannot stand where it says."""
        sent, first = self._furthest, self._first
        size = self.sent[cursor.held + 1 - first].size if first <= cursor.held + 1 < self.next else 0
        possible = first <= cursor.held + 1 and (cursor.held + 1, cursor.partial) <= sent
        if not possible or (cursor.partial and cursor.partial >= size):
            raise ProtocolError(
                f"lane {self.lane}: the peer stands at message {cursor.held + 1}, byte {cursor.partial}; "
                f"it has been sent all before message {sent[0]}, byte {sent[1]}, and has acknowledged {first - 1}"
            )

    def resume(self, cursor: Cursor) -> tuple[int, int]:
        """Go on from where the peer says it stands (see `check`); return what `acked` does."""
        self._reached = self._furthest
        self.number, self._offset = cursor.held + 1, cursor.partial
        self.limit = cursor.limit
        return self.acked(cursor.held)

    def rewind(self) -> None:
        """Count what is not acknowledged as not sent."""
        self.number, self._offset = self._reached = self._first, 0

    def repair(self) -> None:
        """Put right what a thread left that was interrupted anywhere in `batch`, `chunk` or `acked`."""
        sent, waiting = self.sent, self.waiting
        if sent:
            last = sent[-1]
            self.next, self._position = last.number + 1, last.stop
            last.waits = False
            if waiting and waiting[0] is last:
                waiting.popleft()
        if waiting:
            waiting[0].number = 0
            waiting[0].left = False
        self._withdrawn = 0
        for message in waiting:
            if message.withdrawn:
                message.waits = False
                self._withdrawn += 1
        self.number, self._offset = self.next, 0  # the most that can have left: the peer will say how much has

    def unsent(self) -> list[Outgoing]:
        """The messages of which no byte has left, as far as is known, and that somebody still wants delivered."""
        first = self.number + (self._offset > 0)
        begun = [message for message in self.sent if message.number >= first]
        return [message for message in (*begun, *self.waiting) if not message.withdrawn]

    def _begin(self) -> Outgoing:
        """Give the first of those that wait its number and its position."""
        message = self.waiting[0]
        message.number, message.start = self.next, self._position
        self.sent.append(message)
        self.waiting.popleft()
        message.waits = False
        self.next += 1
        self._position = message.stop
        return message

    def _skip(self) -> None:
        """Let those go that were cancelled while they waited."""
        while self.waiting and self.waiting[0].withdrawn:
            message = self.waiting[0]
            if not message.waits:
                self._withdrawn -= 1
            message.waits = False
            self.waiting.popleft()

    @property
    def _furthest(self) -> tuple[int, int]:
        """The next byte that was never sent. A link that came late may have said that the peer stands before it."""
        return max(self._reached, (self.number, self._offset))

    @property
    def _first(self) -> int:
        """The number of the first that is not acknowledged."""
        return self.sent[0].number if self.sent else self.next
