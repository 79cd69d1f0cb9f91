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
from typing import NamedTuple, TypeAlias, cast

from netq import codec
from netq.budget import CREDIT, Claim
from netq.codec import Outgoing
from netq.errors import ProtocolError
from netq.memory import Buffer, Memory
from netq.utils.stream import Stream
from netq.wire import OVERHEAD, POSITIONS, Cursor, Frame, Kind, message_header

SMALL = 4096  # bytes of a message that is sent and received in one step, whole, by way of a copy
_PART = 16 * 1024  # bytes that a part of a message has at least: beside them it costs some 700, for a chunk of one byte
_SIZES = 2**62  # a message has fewer bytes
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
    trace. A user's thread that sends may be interrupted anywhere by an exception: `recount` puts right what that
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
    def stuck(self) -> bool:
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

    def recount(self) -> None:
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


class Receiver:
    """The receiving half: puts messages together in the memory that they stay in.

    The limit that it grants is the end of what the user has taken, the credit, and what the budget has lent; and beyond
    that the end of a message that has begun, once the budget has granted it. `grown` is called when it has.

    `consume` is for the threads of users, one at a time; all else belongs to who owns the session.
    """

    def __init__(
        self,
        lane: int,
        window: int,
        memory: Memory,
        *,
        merge: bool,
        grown: Callable[[Receiver], object] = lambda receiver: None,
        attend: Callable[[Receiver], object] = lambda receiver: None,
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
        self._attend = attend
        self._lent = self.claimed = 0  # of the budget: to widen the window, and for messages that go beyond it
        self._claim: Claim | None = None  # waits, for the rest of message held + 1
        self._drained = False
        self.retired = False
        self._orphaned = 0
        self.start = 0  # position of message held + 1
        self.cancelled = 0  # positions of cancelled messages: they count as taken
        self._consumed = 0  # positions of the others that the user has taken
        self.last = (0, 0)  # number and mark of what came last: `recount` sets `held` and `start` by them
        self._given = 0  # number of the message that the user was given last
        self._size = 0
        self.parts: list[memoryview] = []  # memory of message held + 1; if merged, in one
        self._filled = 0  # bytes held in the last of them

    @property
    def cursor(self) -> Cursor:
        """Where the peer should go on; it counts as told."""
        return Cursor(self.lane, self.held, self.partial, self.tell())

    def tell(self) -> int:
        """Return the limit; it counts as told."""
        end = self._consumed + self.cancelled + self._credit + self._lent
        if end > self.limit and not (self._drained or self.retired):
            self.limit = end
        self.told = self.limit
        return self.limit

    @property
    def grant_due(self) -> bool:
        """Whether the peer should know the limit: it has moved far, or a begun message waits for it."""
        taken = self._consumed + self.cancelled
        window = self._credit + self._lent
        limit = self.limit if self._drained or self.retired else max(self.limit, taken + window)
        grown = limit - self.told
        return grown > 0 and (grown >= (limit - taken) // 4 or self.start + self._size > self.told)

    def item(self, peer: uuid.UUID, data: Stream | bytes) -> Item:
        """Return what the user is given of the message that has just come whole."""
        self.last = number, mark = self.held, self.start - self.cancelled
        return peer, data, self, number, mark

    def recount(self) -> None:
        """Put right what a thread left that was interrupted in `Session.take_small`."""
        number, mark = self.last
        if number >= self.held:
            self.held, self.start = number, mark + self.cancelled

    def consume(self, number: int, mark: int) -> bool:
        """Count a message as taken by the user; return False if that was done before: it came twice."""
        if number <= self._given:
            return False
        self._given = number
        self._consumed = mark
        return True

    @property
    def attention(self) -> bool:
        """Whether who owns the session should hear now of what the user has taken: then call `attend`."""
        if self.claimed or self.retired or self.start + self._size > self.told:
            return True
        window = self._credit + self._lent
        return self._consumed + self.cancelled + window - self.told >= window // 4

    def attend(self) -> None:
        """Let who owns the session hear of it. In any thread."""
        self._attend(self)

    def place(self, frame: Frame, source: Memory | None = None) -> memoryview:
        """Return the memory of a MSG's body, from `source` if that is given; raises ProtocolError unless it is just
        the next.
        """
        if frame.number != self.held + 1 or self.partial + frame.length > frame.value:
            raise ProtocolError(
                f"lane {self.lane}: bytes {frame.length} of message {frame.number} of {frame.value} bytes; "
                f"expected message {self.held + 1} from byte {self.partial}"
            )
        if (frame.length == 0 and frame.value) or (self.parts and frame.value != self._size):
            raise ProtocolError(f"lane {self.lane}: message {frame.number} changes its size, or brings no bytes")
        if self.start >= self.limit or self.start + self.partial + frame.length > self.limit:
            raise ProtocolError(f"lane {self.lane}: message {frame.number} goes beyond the window")
        begins, self._size = not self.parts, frame.value
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
        parts = self.parts
        self._end(self._size)
        return Stream.of(parts[0]) if len(parts) == 1 else Stream(parts)

    def interrupted(self, length: int) -> None:
        """Keep the first `length` bytes of a body that will not be completed: the peer goes on behind them."""
        self.partial += length
        self._filled += length

    def dropped(self, frame: Frame) -> None:
        """Forget a cancelled message; it counts as received, and as taken."""
        if frame.number != self.held + 1 or (self.parts and frame.value != self._size):
            raise ProtocolError(f"lane {self.lane}: message {frame.number} is cancelled, expected {self.held + 1}")
        if frame.value >= _SIZES or self.start + frame.value + OVERHEAD >= POSITIONS:  # nobody had to send as much
            raise ProtocolError(
                f"lane {self.lane}: a cancelled message of {frame.value} bytes, behind position {self.start}; "
                f"expected fewer than {_SIZES}, and to end before {POSITIONS}"
            )
        self._end(frame.value)
        self.limit = max(self.limit, self.start)  # what lies before it untaken is here all the same
        self.cancelled += frame.value + OVERHEAD
        self.taken()

    # The limit.

    def taken(self) -> None:
        """Give the room of messages that the user has taken back to the peer."""
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
            self.parts = []
            if not self._drained:
                self.limit = max(self._taken + self._credit + self._lent, self.start)
                self._recharge()

    def leave(self) -> None:
        """The link has been lost for a while: allow no more than what is here, and that only while there is room."""
        self._give_back()
        if not self._drained:
            self.limit = max(self._taken + self._credit, self.start + self.partial)
            self._recharge()
        if self.parts:
            self._memory.budget.leave(self, self._forget)

    def resume(self) -> None:
        """There is a link again: let a message that has begun be completed, and others come, as before."""
        self._memory.budget.come_back(self)
        self._ask()

    def retire(self) -> None:
        """The session is over: nothing comes any more, and what is here and not taken still counts."""
        self._give_back()
        self.partial = self._size = 0
        self.parts = []
        self.retired = True
        self._drained = False
        self._credit = self._window = 0
        self.limit = self.start
        self._recharge()

    def _room(self, length: int, memory: Memory) -> memoryview:
        """Return memory for the next bytes: behind the last, or in a new part."""
        if not self.parts or self._filled + length > len(self.parts[-1]):
            least = self._size if self._merge else min(_PART, self._size - self.partial)
            part = memory.take(max(length, least))
            if self.parts:
                self.parts[-1] = self.parts[-1][: self._filled]
            self.parts.append(part)
            self._filled = 0
        return self.parts[-1][self._filled : self._filled + length]

    def _end(self, size: int) -> None:
        self._withdraw()
        self.held += 1
        self.partial = self._size = 0
        self.parts = []
        self.start += size + OVERHEAD

    @property
    def _taken(self) -> int:
        """Positions whose messages the user has taken, or that were cancelled."""
        return self._consumed + self.cancelled

    def _ask(self) -> None:
        """Ask for a window, and for the rest of a message that goes beyond it."""
        self._widen()
        rest = self.start + self._size - self.limit
        if rest > 0 and self._claim is None:
            self._claim = Claim(rest, self._granted, lambda: self.claimed)
            self._memory.budget.claim(self._claim)

    def _granted(self) -> None:
        claim, self._claim = self._claim, None
        assert claim is not None
        self.claimed += claim.amount
        self.limit = max(self.limit, self.start + self._size)
        self._recharge()
        self._grown(self)

    def _widen(self) -> None:
        if not self._drained:
            if self._credit + self._lent < self._window:
                self._lent += self._memory.budget.lend(self._window - self._credit - self._lent)
            if not self.retired:
                self.limit = max(self.limit, self._taken + self._credit + self._lent)

    def _recharge(self) -> None:
        """Free what was claimed and is not needed any more."""
        needed = 0 if self._drained else max(0, self.limit - self._taken - self._credit - self._lent)
        freed, self.claimed = self.claimed - needed, needed
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
        self.parts = []
        if not self._drained:
            self.limit = max(self._taken + self._credit, self.start)
            self._recharge()


Item: TypeAlias = "tuple[uuid.UUID, Stream | bytes, Receiver, int, int]"  # peer, message, and for Receiver.consume
