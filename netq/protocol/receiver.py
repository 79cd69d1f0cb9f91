"""The receiving half of a lane: reassembly, and the limit that the sender must observe. Pure; owned by the session.

The limit is a position (netq/protocol/sender.py). The shared budget (netq/protocol/flow_control.py) decides how far it
may move:

    limit = end of the messages that the user has taken + credit + what the budget has lent
            or the end of the message that has begun, if that is higher and the budget has granted its claim

State of the memory that a message holds, as its link comes and goes:

    connected ──pause──► paused ──reclaim──► evictable ──evict──► discarded: the peer sends the message again
        ▲                  │                     │
        └──────resume──────┴─────────────────────┘
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeAlias

from netq.errors import ProtocolError
from netq.protocol.destination import Destination
from netq.protocol.flow_control import CREDIT, PART, Claim
from netq.protocol.memory import Memory
from netq.protocol.wire import OVERHEAD, POSITIONS, Cursor, Frame
from netq.utils.stream import Stream

_SIZES = 2**62  # bytes: every message has fewer


class Receiver:
    """Assembles messages in the memory in which the user gets them, and grants the sender its limit.

    Positions of a lane, while no untaken message has a cancelled one behind it:

        _freed_room            start               start + partial         limit
        ─────┴───────────────────┴────────────────────────┴──────────────────┴─────
             │  whole, not taken │  part that is here     │  peer may send   │

    `on_wait` is called when a message that has begun has to wait for the budget, and `on_grant` when the budget has
    granted its claim. `request_release` is called by `request_release()`.

    The user's thread that takes a message sets `taken_room`, and may call `release_due` and `request_release`, one
    thread at a time. All else belongs to the owner of the session.

    It has more attributes than others: the limit depends on all that was received, taken, lent and claimed.
    """

    def __init__(
        self,
        lane: int,
        window: int,
        memory: Memory,
        *,
        merge: bool,
        on_wait: Callable[[], object] = lambda: None,
        on_grant: Callable[[Receiver], object] = lambda receiver: None,
        request_release: Callable[[Receiver], object] = lambda receiver: None,
    ) -> None:
        # The owner's wiring: fixed from the start.
        self.lane = lane
        self._memory = memory
        self._merge = merge
        self._on_wait = on_wait
        self._on_grant = on_grant
        self._request_release = request_release
        # What has been received: the message that comes next is number held + 1.
        self.held = 0  # number of the last whole message
        self.start = 0  # position at which message held + 1 starts
        # The message that has begun: number held + 1, of which some bytes are here. 0 and empty if there is none.
        self.size = 0  # bytes that it has in all
        self.partial = 0  # bytes of it received: `partial` of the Cursor
        self.parts: list[memoryview] = []  # memory of its bytes; one view if merged
        self._filled = 0  # bytes received into the last part
        self.direct: Destination | None = None  # where a user has lent memory for it
        # What the user has taken.
        self.taken_room = 0  # positions: used by all messages taken so far; the *mark* of the last one (see `item`)
        self.cancelled = 0  # positions: used by all messages cancelled so far, wherever they lie
        # The limit, as a position, and the shares that make it up, in bytes.
        self._window = window  # the most that the lane gets beyond the taken messages, without a claim
        self._credit = min(window, CREDIT)  # the part of the window that needs no loan
        self.limit = self.announced = self._credit  # positions: granted; sent to the peer
        self._lent = self.claimed = 0  # from the budget: for a wider window; for messages beyond it
        self._claim: Claim | None = None  # not granted yet: for the rest of message held + 1
        self.is_held = False  # the user wants no message beyond the window now
        self._unlimited = False  # after `lift_limit`
        # After the end of the session: untaken messages still count against the budget.
        self.retired = False
        self._orphaned = 0  # bytes of `claimed` since then

    @property
    def cursor(self) -> Cursor:
        """Where the peer must continue. The limit in it counts as announced."""
        return Cursor(self.lane, self.held, self.partial, self.announce_limit())

    def announce_limit(self) -> int:
        """Return the limit; it counts as announced."""
        end = self.taken_room + self.cancelled + self._credit + self._lent
        if end > self.limit and not (self._unlimited or self.retired):
            self.limit = end
        self.announced = self.limit
        return self.limit

    @property
    def waits(self) -> bool:
        """Whether a message that has begun waits for the budget. In any thread."""
        return self._claim is not None

    @property
    def untaken(self) -> int:
        """Bytes of whole messages that the user has not taken, with what each counts besides its own."""
        return self.start - self._freed_room

    @property
    def grant_due(self) -> bool:
        """Whether to announce the limit: it has moved by a quarter of the window, or a message that has begun waits."""
        freed_room = self.taken_room + self.cancelled
        window = self._credit + self._lent
        limit = self.limit if self._unlimited or self.retired else max(self.limit, freed_room + window)
        grown = limit - self.announced
        return grown > 0 and (grown >= (limit - freed_room) // 4 or self.start + self.size > self.announced)

    def item(self, peer: uuid.UUID, data: Stream | bytes) -> Item:
        """Return the inbox entry of the message that has just become whole.

        Its *mark* is the end position of the message, less the positions of cancelled messages before it. Who takes the
        message sets `taken_room` to it, in any thread, in the order of the messages; `cancelled` changes in the loop.
        """
        return peer, data, self, self.start - self.cancelled

    @property
    def release_due(self) -> bool:
        """Whether enough has been taken for an ACK, or memory can be freed: then call `request_release`."""
        if self.claimed or self.retired or self.start + self.size > self.announced:
            return True
        window = self._credit + self._lent
        return self.taken_room + self.cancelled + window - self.announced >= window // 4

    def request_release(self) -> None:
        """Ask the loop to call `Session.release_room`. In any thread."""
        self._request_release(self)

    def place(self, frame: Frame, destination: Destination | None = None) -> memoryview:
        """Return the memory for the body of a MSG, or for the begin of it.

        A message that begins is received into the `destination`, if it fits. Raises ProtocolError unless the MSG
        continues the lane exactly, within the window.
        """
        if frame.number != self.held + 1 or self.partial + frame.length > frame.value:
            raise ProtocolError(
                f"lane {self.lane}: bytes {frame.length} of message {frame.number} of {frame.value} bytes; "
                f"expected message {self.held + 1} from byte {self.partial}"
            )
        if (frame.length == 0 and frame.value) or (self.parts and frame.value != self.size):
            raise ProtocolError(f"lane {self.lane}: message {frame.number} changes its size, or brings no bytes")
        if self.start >= self.limit or self.start + self.partial + frame.length > self.limit:
            raise ProtocolError(f"lane {self.lane}: message {frame.number} goes beyond the window")
        # The first bytes of a message claim room for all of it, so that each message that has begun can be completed.
        begins, self.size = not self.parts, frame.value
        if begins:
            self.direct = destination
            if self._credit + self._lent < self._window:
                self._widen()  # before `_room`, which asks whether the message has to wait
        body = self._room(frame.length)
        if begins and self.start + self.size > self.limit:
            self._claim_rest()
        return body

    def received(self, length: int) -> Stream | None:
        """Count a complete body; return the message if it is whole."""
        self.partial += length
        self._filled += length
        if self.partial < self.size:
            return None
        parts = self.parts
        self._finish_message(self.size)
        if self.direct is not None:
            direct, self.direct = self.direct, None
            return direct.whole(parts)
        return Stream.of(parts[0]) if len(parts) == 1 else Stream(parts)

    def interrupted(self, length: int) -> None:
        """Keep the first `length` bytes of a body whose link was lost: the peer continues behind them."""
        self.partial += length
        self._filled += length

    def move_out(self) -> None:
        """Move the part of the message that is here out of the memory that a user has lent. Raises MemoryError."""
        if self.parts:
            part = self._memory.take(self.size)
            Stream.of(*self.parts).readinto(part[: self.partial])
            self.parts, self._filled = [part], self.partial
        self.direct = None

    def dropped(self, frame: Frame) -> None:
        """Discard a cancelled message. It counts as received, and as taken."""
        if frame.number != self.held + 1 or (self.parts and frame.value != self.size):
            expected = f"{self.held + 1} of {self.size}" if self.parts else f"{self.held + 1}"
            raise ProtocolError(
                f"lane {self.lane}: message {frame.number} of {frame.value} bytes is cancelled, expected {expected}"
            )
        if frame.value >= _SIZES or self.start + frame.value + OVERHEAD >= POSITIONS:  # a DROP needs no bytes to say it
            raise ProtocolError(
                f"lane {self.lane}: a cancelled message of {frame.value} bytes, behind position {self.start}; "
                f"expected fewer than {_SIZES}, and to end before {POSITIONS}"
            )
        self._finish_message(frame.value)
        self.limit = max(self.limit, self.start)  # untaken messages before it keep their room
        self.cancelled += frame.value + OVERHEAD
        self.release_room()

    # The limit.

    def release_room(self) -> None:
        """Give the room of messages that the user has taken to the peer again."""
        self._widen()
        self._recharge()

    def go_beyond(self) -> None:
        """Let the message that waits be completed, though the budget has no room."""
        assert self._claim is not None
        self._memory.budget.grant_beyond(self._claim)

    def lift_limit(self) -> None:
        """Let the peer send all that it still has: the user has closed, and may never take another message."""
        self._give_back()
        self._unlimited = True
        self.limit = POSITIONS - 1
        self._recharge()

    def pause(self) -> None:
        """The link is lost, perhaps for a moment: keep what was granted to a message that has begun; claim no more."""
        self._withdraw_claim()
        if not self.partial:  # no byte of it is here, so the peer may cancel it without a DROP
            self.size = 0
            self.parts = []
            if not self._unlimited:
                self.limit = max(self._freed_room + self._credit + self._lent, self.start)
                self._recharge()

    def reclaim(self) -> None:
        """The link has been lost for a while: return unused grants, and let others evict a message that has begun."""
        self._give_back()
        if not self._unlimited:
            self.limit = max(self._freed_room + self._credit, self.start + self.partial)
            self._recharge()
        if self.parts:
            self._memory.budget.add_evictable(self, self.evict)

    def resume(self) -> None:
        """There is a link again: grant what a message that has begun needs, and the window, as before."""
        self._memory.budget.remove_evictable(self)
        self._claim_rest()

    def retire(self) -> None:
        """The session is over: receive nothing more. Untaken messages still count against the budget."""
        self._give_back()
        self.partial = self.size = 0
        self.parts = []
        self.retired = True
        self._unlimited = False
        self._credit = self._window = 0
        self.limit = self.start
        self._recharge()

    def _room(self, length: int) -> memoryview:
        """Return memory for the next bytes: behind the last ones, or in a new part. For fewer where a user's ends."""
        if self.direct is not None and self._has_piece(self.direct):
            return self.parts[-1][self._filled : self._filled + length]
        if not self.parts or self._filled + length > len(self.parts[-1]):
            least = self.size if self._merge else min(PART, self.size - self.partial)
            part = self._memory.take(max(length, least), fresh=self._will_wait)
            if self.parts:
                self.parts[-1] = self.parts[-1][: self._filled]
            self.parts.append(part)
            self._filled = 0
        return self.parts[-1][self._filled : self._filled + length]

    @property
    def _will_wait(self) -> bool:
        """Whether the message that begins has to wait for the budget."""
        rest = self.start + self.size - self.limit
        return rest > 0 and (self.is_held or self._memory.budget.is_full(rest))

    def _has_piece(self, direct: Destination) -> bool:
        """Return whether the next bytes have a place in the user's memory, in the last part or in a new one."""
        if not self.parts or self._filled == len(self.parts[-1]):
            piece = next(direct.pieces, None)
            if piece is None:
                self.move_out()
                return False
            self.parts.append(piece)
            self._filled = 0
        return True

    def _finish_message(self, size: int) -> None:
        if self._claim is not None:
            self._withdraw_claim()
        self.held += 1
        self.partial = self.size = 0
        self.parts = []
        self.start += size + OVERHEAD

    @property
    def _freed_room(self) -> int:
        """Positions used by messages that were taken or cancelled: the peer may use as many again."""
        return self.taken_room + self.cancelled

    def _claim_rest(self) -> None:
        """Widen the window, and claim the rest of a message that goes beyond it."""
        self._widen()
        rest = self.start + self.size - self.limit
        if rest > 0 and self._claim is None and not self.is_held:
            self._claim = Claim(rest, self._granted, lambda: self.claimed)
            self._memory.budget.claim(self._claim)
            if self.waits:
                self._on_wait()

    def _granted(self) -> None:
        """The budget has granted the claim: move the limit to the end of the message."""
        claim, self._claim = self._claim, None
        assert claim is not None
        self.claimed += claim.amount
        self.limit = max(self.limit, self.start + self.size)
        self._recharge()
        self._on_grant(self)

    def _widen(self) -> None:
        """Borrow up to a whole window from the budget, and move the limit."""
        if not self._unlimited:
            if self._credit + self._lent < self._window:
                self._lent += self._memory.budget.lend(self._window - self._credit - self._lent)
            if not self.retired:
                self.limit = max(self.limit, self._freed_room + self._credit + self._lent)

    def _recharge(self) -> None:
        """Return the part of `claimed` that is no longer needed to the budget.

        Taken messages move the window forward. What it now covers needs no claim.
        """
        needed = 0 if self._unlimited else max(0, self.limit - self._freed_room - self._credit - self._lent)
        freed, self.claimed = self.claimed - needed, needed
        if self.retired:
            self._memory.budget.orphaned += needed - self._orphaned
            self._orphaned = needed
        if freed:
            self._memory.budget.free(freed)

    def _withdraw_claim(self) -> None:
        if self._claim is not None:
            claim, self._claim = self._claim, None
            self._memory.budget.withdraw(claim)

    def _give_back(self) -> None:
        """Return what was lent, and withdraw a waiting claim."""
        self._withdraw_claim()
        self._memory.budget.remove_evictable(self)
        lent, self._lent = self._lent, 0
        self._memory.budget.give_back(lent)

    def evict(self) -> None:
        """Discard a message that has begun, because there is no room for it: its sender will begin it again."""
        self.partial = self.size = 0
        self.parts = []
        if not self._unlimited:
            self.limit = max(self._freed_room + self._credit, self.start)
            self._recharge()


Item: TypeAlias = "tuple[uuid.UUID, Stream | bytes, Receiver, int]"  # peer, message, whose `taken_room`, and its mark
