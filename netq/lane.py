"""One lane of a session: the half that sends and the half that receives. Pure; owned by the session.

Messages of a lane are numbered from 1, and each lies at a *position*: message n starts where n - 1 ended, and
is as long as its bytes plus OVERHEAD. The receiver grants a limit: the byte k of a message that starts at s
may be sent if s + k < limit (an empty message if s < limit). The same two numbers, message and offset, say
where to go on after a lost link, in the middle of a message too. How far the limit may move, netq/budget.py says.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from netq.budget import CREDIT, Claim
from netq.errors import ProtocolError
from netq.memory import Memory
from netq.utils.stream import Stream
from netq.wire import OVERHEAD, POSITIONS, Cursor, Frame, Kind, message_header

_EMPTY = Stream()
_PART = 16 * 1024  # bytes that a part of a message has at least: beside them it costs some 700, for a chunk of one byte
_SIZES = 2**62  # a message has fewer bytes
_SWEEP = 64  # messages that are taken out before the others move up, or a link that is away would keep them all


def _always() -> bool:
    return True


class Outgoing:
    """One message on its way to one peer.

    `claim` is asked once, before the last byte leaves: False if the message has been cancelled meanwhile.
    `owner` is whatever the one who puts it wants back with the acknowledgement. `audience`: the peers that the very
    same stream goes to; none if it goes to this one alone.
    """

    __slots__ = ("_claim", "audience", "cancelled", "lane", "number", "owner", "size", "start", "stream")

    def __init__(
        self,
        stream: Stream,
        lane: int = 0,
        owner: object = None,
        claim: Callable[[], bool] = _always,
        audience: tuple[uuid.UUID, ...] = (),
    ) -> None:
        self.stream = stream
        self.audience = audience
        self.size = stream.nbytes
        self.lane = lane
        self.owner = owner
        self.number = self.start = 0
        self.cancelled = False
        self._claim = claim

    @property
    def stop(self) -> int:
        """The position behind it."""
        return self.start + self.size + OVERHEAD

    def cancel(self) -> None:
        """Forget its bytes; what the peer has of it, it will be told to forget."""
        self.cancelled = True
        self.stream = _EMPTY

    def claim(self) -> bool:
        """Return whether its last byte may leave. From then on it can no longer be cancelled."""
        if self.cancelled or not self._claim():
            self.cancel()
            return False
        self._claim = _always
        return True


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
    """The sending half: keeps each message until it is acknowledged."""

    def __init__(self, lane: int, limit: int) -> None:
        self.lane = lane
        self.limit = limit
        self._unacked: deque[Outgoing] = deque()  # their numbers have no gap
        self._next = 1  # number of the next message put
        self._position = 0  # where it will start
        self._number, self._offset = 1, 0  # the next byte to send
        self._reached = (1, 0)  # the furthest that it has been: the peer may stand there, whatever an old link says
        self._removed = 0  # messages that are not to be sent, and still there
        self._kept = 0  # number of the first that `drop_oldest` may find: those before it are cancelled, or have left

    def __len__(self) -> int:
        return len(self._unacked) - self._removed

    def __iter__(self) -> Iterator[Outgoing]:
        return iter(tuple(self._unacked))

    def put(self, message: Outgoing) -> None:
        """Number a message and queue it."""
        message.number, message.start = self._next, self._position
        self._next += 1
        self._position = message.stop
        self._unacked.append(message)

    def remove(self, message: Outgoing) -> None:
        """Take out a cancelled message of which no byte has left; those behind it move up, when next one is sent."""
        index = message.number - self._first
        unsent = message.number >= self._untouched
        if unsent and 0 <= index < len(self._unacked) and self._unacked[index] is message:
            self._removed += 1
            if self._removed >= _SWEEP and 2 * self._removed > self._next - self._untouched:
                self._compact()

    def drop_oldest(self, size: int) -> Outgoing | None:
        """If `size` messages wait of which no byte has left, take out the first of them, and return it."""
        first = max(self._untouched, self._first)
        if self._next - first - self._removed < size:
            return None
        for number in range(max(first, self._kept), self._next):
            message = self._unacked[number - self._first]
            self._kept = number + 1
            if not message.cancelled and message.claim():
                message.cancel()
                self.remove(message)
                return message
        return None

    def _compact(self) -> None:
        """Number those that are to be sent anew: all at once, for somebody may cancel thousands."""
        unsent = [self._unacked.pop() for _ in range(self._next - max(self._untouched, self._first))]
        if unsent:
            self._next, self._position = unsent[-1].number, unsent[-1].start
        self._removed = self._kept = 0
        for message in reversed(unsent):
            if not message.cancelled:
                self.put(message)

    @property
    def ready(self) -> bool:
        """Whether something could be sent now."""
        if self._removed:
            self._compact()
        if self._number >= self._next:
            return False
        message = self._unacked[self._number - self._unacked[0].number]
        return message.cancelled or message.start + self._offset < self.limit

    @property
    def stuck(self) -> bool:
        """Whether there is something to send, and the limit does not let it."""
        return not self.ready and self._number < self._next

    def chunk(self, size: int, grid: int = 0) -> tuple[bytes, Part | None]:
        """Return the next frame, header and body; only if `ready`. The body has `size` bytes at most; that of a
        message for several ends at a multiple of `grid`, if there is one, so that the senders of all cut it alike.
        """
        message = self._unacked[self._number - self._unacked[0].number]
        start = self._offset
        if grid and message.audience:
            size = grid - start % grid
        stop = min(start + size, message.size, self.limit - message.start)
        if message.cancelled or (stop == message.size and not message.claim()):
            self._number, self._offset = message.number + 1, 0
            return Frame(Kind.DROP, lane=self.lane, number=message.number, value=message.size).header(), None
        self._number, self._offset = (message.number, stop) if stop < message.size else (message.number + 1, 0)
        header = message_header(self.lane, stop - start, message.number, message.size)
        return header, Part(message.stream, start, stop, message.audience)

    def acked(self, number: int) -> list[Outgoing]:
        """Return the messages up to `number`, which the peer holds: they leave."""
        if number >= self._number:
            raise ProtocolError(
                f"lane {self.lane}: message {number} is acknowledged, {self._number - 1} was the last sent"
            )
        gone = []
        while self._unacked and self._unacked[0].number <= number:
            message = self._unacked.popleft()
            message.stream = _EMPTY  # now: the next frame's message may come into the memory that this frees
            gone.append(message)
        return gone

    def check(self, cursor: Cursor) -> None:
        """Raise ProtocolError if the peer cannot stand where it says."""
        sent = self._sent
        first = self._next - len(self._unacked)
        size = self._unacked[cursor.held + 1 - first].size if first <= cursor.held + 1 < self._next else 0
        possible = first <= cursor.held + 1 and (cursor.held + 1, cursor.partial) <= sent
        if not possible or (cursor.partial and cursor.partial >= size):
            raise ProtocolError(
                f"lane {self.lane}: the peer stands at message {cursor.held + 1}, byte {cursor.partial}; "
                f"it has been sent all before message {sent[0]}, byte {sent[1]}, and has acknowledged {first - 1}"
            )

    def resume(self, cursor: Cursor) -> list[Outgoing]:
        """Go on from where the peer says it stands (see `check`); return the messages that it holds."""
        self._reached = self._sent
        self._number, self._offset = cursor.held + 1, cursor.partial
        self.limit = cursor.limit
        return self.acked(cursor.held)

    def rewind(self) -> None:
        """Count what is not acknowledged as not sent."""
        self._number, self._offset = self._reached = self._first, 0

    def unsent(self) -> list[Outgoing]:
        """The messages of which no byte has left, and that somebody still wants delivered."""
        first = self._number + (self._offset > 0)
        return [message for message in self._unacked if message.number >= first and not message.cancelled]

    @property
    def _sent(self) -> tuple[int, int]:
        """The next byte that was never sent. A link that came late may have said that the peer stands before it."""
        return max(self._reached, (self._number, self._offset))

    @property
    def _untouched(self) -> int:
        """The number of the first message of which no byte has ever left."""
        number, offset = self._sent
        return number + (offset > 0)

    @property
    def _first(self) -> int:
        """The number of the first that is not acknowledged."""
        return self._next - len(self._unacked)


class Receiver:
    """The receiving half: puts messages together in the memory that they stay in.

    The limit that it grants is the end of what the user has taken, the credit, and what the budget has lent; and beyond
    that the end of a message that has begun, once the budget has granted it. `grown` is called when it has.
    """

    def __init__(
        self,
        lane: int,
        window: int,
        memory: Memory,
        *,
        merge: bool,
        grown: Callable[[Receiver], object] = lambda receiver: None,
    ) -> None:
        self.lane = lane
        self.held = 0  # number of the last whole message
        self.partial = 0  # bytes held of the next
        self._window = window
        self._credit = min(window, CREDIT)
        self.limit = self.told = self._credit  # how far the peer may send; what it has been told
        self._memory = memory
        self._merge = merge
        self._grown = grown
        self._lent = self._claimed = 0  # of the budget: to widen the window, and for messages that go beyond it
        self._claim: Claim | None = None  # waits, for the rest of message held + 1
        self._drained = False
        self.retired = False
        self._orphaned = 0
        self._start = 0  # position of message held + 1
        self._taken = 0  # positions whose messages the user has taken
        self._size = 0
        self._parts: list[memoryview] = []  # memory of message held + 1; if merged, in one
        self._filled = 0  # bytes held in the last of them

    @property
    def cursor(self) -> Cursor:
        """Where the peer should go on; it counts as told."""
        self.told = self.limit
        return Cursor(self.lane, self.held, self.partial, self.limit)

    @property
    def grant_due(self) -> bool:
        """Whether the peer should know the limit: it has moved far, or a begun message waits for it."""
        grown = self.limit - self.told
        return grown > 0 and (grown >= (self.limit - self._taken) // 4 or self._start + self._size > self.told)

    def place(self, frame: Frame, source: Memory | None = None) -> memoryview:
        """Return the memory of a MSG's body, from `source` if that is given; raises ProtocolError unless it is just
        the next.
        """
        if frame.number != self.held + 1 or self.partial + frame.length > frame.value:
            raise ProtocolError(
                f"lane {self.lane}: bytes {frame.length} of message {frame.number} of {frame.value} bytes; "
                f"expected message {self.held + 1} from byte {self.partial}"
            )
        if (frame.length == 0 and frame.value) or (self._parts and frame.value != self._size):
            raise ProtocolError(f"lane {self.lane}: message {frame.number} changes its size, or brings no bytes")
        if self._start >= self.limit or self._start + self.partial + frame.length > self.limit:
            raise ProtocolError(f"lane {self.lane}: message {frame.number} goes beyond the window")
        begins, self._size = not self._parts, frame.value
        body = self._room(frame.length, source or self._memory)
        if begins:
            self._ask()
        return body

    def received(self, length: int) -> Stream | None:
        """Count a body that is there; return the message if it is whole."""
        self.partial += length
        self._filled += length
        if self.partial < self._size:
            return None
        parts = self._parts
        self._end(self._size)
        return Stream.of(parts[0]) if len(parts) == 1 else Stream(parts)

    def interrupted(self, length: int) -> None:
        """Keep the first `length` bytes of a body that will not be completed: the peer goes on behind them."""
        self.partial += length
        self._filled += length

    def dropped(self, frame: Frame) -> None:
        """Forget a cancelled message; it counts as received, and as taken."""
        if frame.number != self.held + 1 or (self._parts and frame.value != self._size):
            raise ProtocolError(f"lane {self.lane}: message {frame.number} is cancelled, expected {self.held + 1}")
        if frame.value >= _SIZES or self._start + frame.value + OVERHEAD >= POSITIONS:  # nobody had to send as much
            raise ProtocolError(
                f"lane {self.lane}: a cancelled message of {frame.value} bytes, behind position {self._start}; "
                f"expected fewer than {_SIZES}, and to end before {POSITIONS}"
            )
        self._end(frame.value)
        self.limit = max(self.limit, self._start)  # what lies before it untaken is here all the same
        self.taken(frame.value + OVERHEAD)

    # The limit.

    def taken(self, cost: int) -> None:
        """Give the room of messages that the user has taken, their sizes and OVERHEAD each, back to the peer."""
        self._taken += cost
        self._widen()
        self._recharge()

    def drain(self) -> None:
        """Let the peer send all that it still has: the user has closed, and may read no more to make room."""
        self._give_back()
        self._drained = True
        self.limit = POSITIONS - 1
        self._recharge()

    def pause(self) -> None:
        """The link is lost, perhaps for a moment: what has begun keeps what it was granted, and asks for no more."""
        self._withdraw()
        if not self.partial:  # then the peer may cancel the message without a word
            self._size = 0
            self._parts = []
            if not self._drained:
                self.limit = max(self._taken + self._credit + self._lent, self._start)
                self._recharge()

    def leave(self) -> None:
        """The link has been lost for a while: allow no more than what is here, and that only while there is room."""
        self._give_back()
        if not self._drained:
            self.limit = max(self._taken + self._credit, self._start + self.partial)
            self._recharge()
        if self._parts:
            self._memory.budget.leave(self, self._forget)

    def resume(self) -> None:
        """There is a link again: let a message that has begun be completed, and others come, as before."""
        self._memory.budget.come_back(self)
        self._ask()

    def retire(self) -> None:
        """The session is over: nothing comes any more, and what is here and not taken still counts."""
        self._give_back()
        self.partial = self._size = 0
        self._parts = []
        self.retired = True
        self._drained = False
        self._credit = self._window = 0
        self.limit = self._start
        self._recharge()

    def _room(self, length: int, memory: Memory) -> memoryview:
        """Return memory for the next bytes: behind the last, or in a new part."""
        if not self._parts or self._filled + length > len(self._parts[-1]):
            least = self._size if self._merge else min(_PART, self._size - self.partial)
            part = memory.take(max(length, least))
            if self._parts:
                self._parts[-1] = self._parts[-1][: self._filled]
            self._parts.append(part)
            self._filled = 0
        return self._parts[-1][self._filled : self._filled + length]

    def _end(self, size: int) -> None:
        self._withdraw()
        self.held += 1
        self.partial = self._size = 0
        self._parts = []
        self._start += size + OVERHEAD

    def _ask(self) -> None:
        """Ask for a window, unless there is all of it, and for the rest of a message that goes beyond it."""
        if self._credit + self._lent < self._window:
            self._widen()
        rest = self._start + self._size - self.limit
        if rest > 0 and self._claim is None:
            self._claim = Claim(rest, self._granted, lambda: self._claimed)
            self._memory.budget.claim(self._claim)

    def _granted(self) -> None:
        claim, self._claim = self._claim, None
        assert claim is not None
        self._claimed += claim.amount
        self.limit = max(self.limit, self._start + self._size)
        self._recharge()
        self._grown(self)

    def _widen(self) -> None:
        if not self._drained:
            self._lent += self._memory.budget.lend(self._window - self._credit - self._lent)
            self.limit = max(self.limit, self._taken + self._credit + self._lent)

    def _recharge(self) -> None:
        """Free what was claimed and is not needed any more."""
        needed = 0 if self._drained else max(0, self.limit - self._taken - self._credit - self._lent)
        freed, self._claimed = self._claimed - needed, needed
        if self.retired:
            self._memory.budget.orphaned += needed - self._orphaned
            self._orphaned = needed
        if freed:
            self._memory.budget.free(freed)

    def _withdraw(self) -> None:
        if self._claim is not None:
            claim, self._claim = self._claim, None
            self._memory.budget.withdraw(claim)

    def _give_back(self) -> None:
        self._withdraw()
        self._memory.budget.come_back(self)
        lent, self._lent = self._lent, 0
        self._memory.budget.give_back(lent)

    def _forget(self) -> None:
        """Let the peer begin its message again: somebody else needs the room."""
        self.partial = self._size = 0
        self._parts = []
        if not self._drained:
            self.limit = max(self._taken + self._credit, self._start)
            self._recharge()
