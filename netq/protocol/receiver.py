"""The receiving half of a lane. Pure; owned by the session.

Grants the sender a limit on the positions of its bytes (netq/protocol/sender.py); how far the limit may move,
netq/protocol/flow_control.py decides.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeAlias

from netq.errors import ProtocolError
from netq.protocol.flow_control import CREDIT, PART, Claim
from netq.protocol.memory import Memory
from netq.protocol.wire import OVERHEAD, POSITIONS, Cursor, Frame
from netq.utils.stream import Stream

_SIZES = 2**62  # a message has fewer bytes


class Receiver:
    """The receiving half: puts messages together in the memory that they stay in.

    The limit that it grants is the end of what the user has taken, the credit, and what the budget has lent; and beyond
    that the end of a message that has begun, once the budget has granted it. `on_grant` is called when it has.

    `consume` is for the threads of users, one at a time; all else belongs to who owns the session.
    """

    def __init__(
        self,
        lane: int,
        window: int,
        memory: Memory,
        *,
        merge: bool,
        on_grant: Callable[[Receiver], object] = lambda receiver: None,
        request_release: Callable[[Receiver], object] = lambda receiver: None,
    ) -> None:
        self.lane = lane
        self.held = 0  # number of the last whole message
        self.partial = 0  # bytes held of the next
        self._window = window
        self._credit = min(window, CREDIT)
        self.limit = self.announced = self._credit  # how far the peer may send; what it has been told
        self._memory = memory
        self._merge = merge
        self._on_grant = on_grant
        self._request_release = request_release
        self._lent = self.claimed = 0  # of the budget: to widen the window, and for messages that go beyond it
        self._claim: Claim | None = None  # waits, for the rest of message held + 1
        self._unlimited = False
        self.retired = False
        self._orphaned = 0
        self.start = 0  # position of message held + 1
        self.cancelled = 0  # positions of cancelled messages: they count as taken
        self._consumed = 0  # positions of the others that the user has taken
        self.last = (0, 0)  # number and mark of what came last: `repair` sets `held` and `start` by them
        self._given = 0  # number of the message that the user was given last
        self._size = 0
        self.parts: list[memoryview] = []  # memory of message held + 1; if merged, in one
        self._filled = 0  # bytes held in the last of them

    @property
    def cursor(self) -> Cursor:
        """Where the peer should go on; it counts as told."""
        return Cursor(self.lane, self.held, self.partial, self.announce_limit())

    def announce_limit(self) -> int:
        """Return the limit; it counts as told."""
        end = self._consumed + self.cancelled + self._credit + self._lent
        if end > self.limit and not (self._unlimited or self.retired):
            self.limit = end
        self.announced = self.limit
        return self.limit

    @property
    def grant_due(self) -> bool:
        """Whether the peer should know the limit: it has moved far, or a begun message waits for it."""
        taken = self._consumed + self.cancelled
        window = self._credit + self._lent
        limit = self.limit if self._unlimited or self.retired else max(self.limit, taken + window)
        grown = limit - self.announced
        return grown > 0 and (grown >= (limit - taken) // 4 or self.start + self._size > self.announced)

    def item(self, peer: uuid.UUID, data: Stream | bytes) -> Item:
        """Return what the user is given of the message that has just come whole."""
        self.last = number, mark = self.held, self.start - self.cancelled
        return peer, data, self, number, mark

    def repair(self) -> None:
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
    def release_due(self) -> bool:
        """Whether who owns the session should hear now of what the user has taken: then call `request_release`."""
        if self.claimed or self.retired or self.start + self._size > self.announced:
            return True
        window = self._credit + self._lent
        return self._consumed + self.cancelled + window - self.announced >= window // 4

    def request_release(self) -> None:
        """Let who owns the session hear of it. In any thread."""
        self._request_release(self)

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
        self.release_room()

    # The limit.

    def release_room(self) -> None:
        """Give the room of messages that the user has taken back to the peer."""
        self._widen()
        self._recharge()

    def lift_limit(self) -> None:
        """Let the peer send all that it still has: the user has closed, and may read no more to make room."""
        self._give_back()
        self._unlimited = True
        self.limit = POSITIONS - 1
        self._recharge()

    def pause(self) -> None:
        """The link is lost, perhaps for a moment: what has begun keeps what it was granted, and asks for no more."""
        self._withdraw()
        if not self.partial:  # then the peer may cancel the message without a word
            self._size = 0
            self.parts = []
            if not self._unlimited:
                self.limit = max(self._taken + self._credit + self._lent, self.start)
                self._recharge()

    def reclaim(self) -> None:
        """The link has been lost for a while: allow no more than what is here, and that only while there is room."""
        self._give_back()
        if not self._unlimited:
            self.limit = max(self._taken + self._credit, self.start + self.partial)
            self._recharge()
        if self.parts:
            self._memory.budget.add_evictable(self, self._forget)

    def resume(self) -> None:
        """There is a link again: let a message that has begun be completed, and others come, as before."""
        self._memory.budget.remove_evictable(self)
        self._ask()

    def retire(self) -> None:
        """The session is over: nothing comes any more, and what is here and not taken still counts."""
        self._give_back()
        self.partial = self._size = 0
        self.parts = []
        self.retired = True
        self._unlimited = False
        self._credit = self._window = 0
        self.limit = self.start
        self._recharge()

    def _room(self, length: int, memory: Memory) -> memoryview:
        """Return memory for the next bytes: behind the last, or in a new part."""
        if not self.parts or self._filled + length > len(self.parts[-1]):
            least = self._size if self._merge else min(PART, self._size - self.partial)
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
        self._on_grant(self)

    def _widen(self) -> None:
        if not self._unlimited:
            if self._credit + self._lent < self._window:
                self._lent += self._memory.budget.lend(self._window - self._credit - self._lent)
            if not self.retired:
                self.limit = max(self.limit, self._taken + self._credit + self._lent)

    def _recharge(self) -> None:
        """Free what was claimed and is not needed any more."""
        needed = 0 if self._unlimited else max(0, self.limit - self._taken - self._credit - self._lent)
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
        self._memory.budget.remove_evictable(self)
        lent, self._lent = self._lent, 0
        self._memory.budget.give_back(lent)

    def _forget(self) -> None:
        """Let the peer begin its message again: somebody else needs the room."""
        self.partial = self._size = 0
        self.parts = []
        if not self._unlimited:
            self.limit = max(self._taken + self._credit, self.start)
            self._recharge()


Item: TypeAlias = "tuple[uuid.UUID, Stream | bytes, Receiver, int, int]"  # peer, message, and for Receiver.consume
