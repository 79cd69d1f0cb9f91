"""The broker's end of one link: its packets, numbered, waiting for their turn. Lives in the first loop, whatever loop
its Link (netq/mqtt/link.py) moves to.

Owned by a transport; publishes only when it is given a turn (netq/mqtt/exchange.py).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from netq.errors import ProtocolError
from netq.loop import Loop, Timer
from netq.memory import Buffer
from netq.mqtt import packet
from netq.mqtt.group import ALONE_NOW, WAIT, Block
from netq.mqtt.groups import Groups
from netq.mqtt.pace import Pace
from netq.mqtt.packet import NUMBERED, Kind, Packet
from netq.mqtt.segment import Far, Segment
from netq.mqtt.shelf import Shelf
from netq.mqtt.topic import Way
from netq.mqtt.window import Window

_PROBE = 1.0  # seconds after which to ask whether what was sent has arrived; then twice as long, and so on
_PARTING = 1.0  # seconds in which the rest may be sent after `close`
_SHELVES = 8  # groups that a client is a member of
_BLOCK_WAIT = 2.0  # seconds for which a block may be later than what refers to it


class Carrier(Protocol):
    """What a link's end may ask of the connection to the broker that it shares."""

    loop: Loop
    groups: Groups | None  # a server's
    heartbeat: float

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish now; only in a turn."""

    def publish_block(self, group: str, payload: bytes) -> None:
        """The same, on a group's topic."""

    def wants(self, port: Port) -> None:
        """Give it a turn, as soon as the broker takes something."""

    def join(self, group: str, shelf: Shelf, port: Port) -> None:
        """Subscribe to a group's topic; tell the port."""

    def leave(self, group: str) -> None:
        """Subscribe no more."""

    def proved(self, size: int) -> None:
        """A packet of so many bytes has arrived."""

    def ended(self, port: Port) -> None:
        """Forget it."""


class _Reference(NamedTuple):
    """To a block of a group. The group tells how fast it passes, not the pace of this link (netq/mqtt/pace.py)."""

    packet: int  # that has it
    group: str
    number: int
    size: int  # bytes of the block


class Port:
    """Packets to and from one peer."""

    def __init__(self, carrier: Carrier, way: Way, topic: str, share: int, pace: Pace) -> None:
        self.way = way  # that leads here
        self.client = way.client
        self.window = Window(share)
        self.pace = pace
        self.born = time.monotonic()
        self.gone = False
        self.call: Callable[..., None] = _nobody  # runs something in the link's loop; at once if that is this one
        self.far: Far | None = None
        self._carrier = carrier
        self._topic = topic
        self._commands: deque[tuple[Kind, bytes]] = deque()
        self._segments: deque[Segment] = deque()
        self._references: deque[_Reference] = deque()
        self._shelves: dict[str, Shelf] = {}
        self._held: deque[Packet] = deque()  # from the reference on whose block has yet to come
        self._closing = False
        self._patience = _PROBE  # seconds for which to wait for progress
        self._reminder: Timer | None = None
        self._timers: list[Timer] = []

    @property
    def referring(self) -> bool:
        """Whether a reference to a block is not known to be used up."""
        return bool(self._references)

    # For the link.

    def post(self, segments: list[Segment]) -> None:
        """Send them, when it is their turn."""
        self._segments += segments
        self._carrier.wants(self)

    def keep(self) -> None:
        """Go on with copies."""
        self._segments = deque(segment.copy() for segment in self._segments)

    def used(self) -> None:
        """The link has taken what it was fed."""
        self.window.used()
        if self.window.ack_due and not self.gone:
            self._carrier.wants(self)

    def close(self) -> None:
        """Send the rest, then say that it was all."""
        if not self.gone and not self._closing:
            self._closing = True
            self._timers.append(self._carrier.loop.at(time.monotonic() + _PARTING, self._part))
            self._carrier.wants(self)

    # For the carrier.

    def turn(self) -> bool:
        """Send one packet, if there is something and room for it; return whether there may be more."""
        if self.gone:
            return False
        if self._may_send and (self._command() or self._segment()):
            self._watch_progress()
            return True
        if self._closing and not self._segments and not self._commands:
            self._part()
        elif self.window.ack_due:
            self._publish(Kind.ACK)
        return False

    def arrived(self, came: Packet) -> None:
        """Take a packet from the peer; raises ProtocolError when one is missing, or makes no sense."""
        acked = self.window.acked
        self.window.arrived(came)
        if self.window.acked > acked:
            self._progressed()
        if came.kind in NUMBERED:
            self._held.append(came)
            self._use()
        elif came.kind is Kind.CLOSE:
            return self._end(ConnectionResetError("the peer hung up"))
        return self._carrier.wants(self)

    def block_came(self) -> None:
        """A shelf has something new; raises ProtocolError if what is waited for is lost."""
        self._use()

    def fail(self, error: Exception, *, tell: bool = True) -> None:
        """The link is lost; the peer should know why."""
        if tell and not self.gone:
            self._publish(Kind.RESET, str(error).encode()[: packet.REASON])
        self._end(error)

    def knock(self, body: bytes) -> None:
        """Say OPEN."""
        self._publish(Kind.OPEN, body)

    def welcome(self, body: bytes) -> None:
        """Say WELCOME."""
        self._publish(Kind.WELCOME, body)

    # As a member of a group (netq/mqtt/group.py), or with an answer to one.

    def command(self, kind: Kind, group: str) -> None:
        """Send JOIN, JOINED or LEAVE."""
        self._commands.append((kind, bytes.fromhex(group)))
        self._carrier.wants(self)

    def wake(self) -> None:
        """Try again to send."""
        self._carrier.wants(self)

    @property
    def full(self) -> bool:
        """Whether its packets are as large as those of others can be."""
        return self.pace.full

    def undecided(self, now: float) -> bool:
        """Whether it is not known yet that the way is fast."""
        return self.pace.undecided(now)

    # Out.

    @property
    def _may_send(self) -> bool:
        return self.window.open and self.pace.open

    def _command(self) -> bool:
        if not self._commands:
            return False
        kind, group = self._commands.popleft()
        self._number(kind, [group])
        return True

    def _segment(self) -> bool:
        if not self._segments:
            return False
        if self._segments[0].block is None or self._carrier.groups is None:
            sent = self._plain(self._segments[0])
        else:
            sent = self._grouped(self._segments[0], self._segments[0].block, self._carrier.groups)
        if sent:
            self._segments.popleft()
            self.call(self._published)
        return sent

    def _plain(self, segment: Segment) -> bool:
        self._number(Kind.DATA, [*segment.buffers, *(segment.block.buffers if segment.block else ())])
        return True

    def _grouped(self, segment: Segment, block: Block, groups: Groups) -> bool:
        how = groups.place(self, block, time.monotonic())
        if how == WAIT:
            return False
        if how == ALONE_NOW:
            return self._plain(segment)
        if how.new:
            self._carrier.publish_block(how.group, b"".join([packet.block(how.number), *block.buffers]))
        size = sum([len(buffer) for buffer in block.buffers])
        self._references.append(_Reference(self.window.sent + 1, how.group, how.number, size))
        self._number(Kind.BLOCK, [packet.reference(how.group, how.number), *segment.buffers])
        return True

    def _number(self, kind: Kind, body: Sequence[Buffer]) -> None:
        self.window.send()
        size = self._publish(kind, *body)
        self.pace.sent(self.window.sent, size, time.monotonic())
        self._ask()

    def _ask(self) -> None:
        """Ask for an acknowledgement, if it is time to: our share may be less than what the peer has granted, which
        would not give one yet; and the others of a group wait for it.
        """
        if self.pace.asks(time.monotonic(), stopped=not self.window.open or self.referring):
            self._publish(Kind.PROBE)

    def _publish(self, kind: Kind, *body: Buffer) -> int:
        """Return the bytes of the body, which is copied once."""
        payload = b"".join([packet.header(kind, *self.window.stamp()), *body])
        self._carrier.publish(self._topic, payload)
        return len(payload) - packet.HEADER_SIZE

    def _watch_progress(self) -> None:
        """Ask, if nothing is heard of what was sent: the last of it may be lost, or the question, or the answer."""
        if self._reminder is None:
            self._reminder = self._carrier.loop.at(time.monotonic() + self._patience, self._remind, self.window.acked)

    def _remind(self, acked: int) -> None:
        self._reminder = None
        if self.gone or not self.window.waiting:
            return
        if self.window.acked == acked:
            if self.pace.asks(time.monotonic(), stopped=True) or self._patience > _PROBE:
                self._publish(Kind.PROBE)
            self._patience = min(2 * self._patience, max(2 * _PROBE, self._carrier.heartbeat))
        self._watch_progress()

    def _part(self) -> None:
        if not self.gone:
            self._publish(Kind.CLOSE)
            self._forget()

    # In.

    def _use(self) -> None:
        while self._held and not self.gone:
            if not self._use_one(self._held[0]):
                return
            if self._held:  # not if that was its end
                self._held.popleft()

    def _use_one(self, came: Packet) -> bool:
        """Do what a packet says; False if its block has yet to come."""
        if came.kind is Kind.DATA:
            self._feed(came.body)
            return True
        if came.kind is Kind.BLOCK:
            return self._use_reference(came)
        self._use_command(came.kind, packet.read_group(came))
        self.used()
        return True

    def _use_reference(self, came: Packet) -> bool:
        group, number, before = packet.read_reference(came)
        if group not in self._shelves:
            raise ProtocolError(f"BLOCK of a group {group} that was not joined")
        block = self._shelves[group].take(number)
        if block is None:
            late = self._carrier.loop.at(time.monotonic() + _BLOCK_WAIT, self._block_is_late, came.number)
            self._timers = [late, *self._timers[:1]]
            return False
        self._feed(memoryview(b"".join([before, block])) if before else block)
        return True

    def _block_is_late(self, number: int) -> None:
        if self._held and self._held[0].number == number:
            self.fail(ProtocolError("a block of a group has not come"))

    def _feed(self, data: memoryview) -> None:
        assert self.far is not None
        self.call(self.far.feed, data)

    def _use_command(self, kind: Kind, group: str) -> None:
        if kind is Kind.JOINED and self._carrier.groups is not None:
            self._carrier.groups.joined(self, group, time.monotonic())
        elif kind is Kind.JOIN:
            if len(self._shelves) >= _SHELVES or group in self._shelves:
                raise ProtocolError(f"JOIN of {group}: one group too many")
            self._shelves[group] = Shelf()
            self._carrier.join(group, self._shelves[group], self)
        elif self._shelves.pop(group, None) is not None:
            self._carrier.leave(group)

    def _progressed(self) -> None:
        self._carrier.proved(self.pace.acked(self.window.acked, time.monotonic()))
        if self._reminder is not None and self._patience > _PROBE:
            self._reminder.cancel()
            self._reminder, self._patience = None, _PROBE
            self._watch_progress()
        groups = self._carrier.groups
        while groups is not None and self._references and self._references[0].packet <= self.window.acked:
            _, group, number, size = self._references.popleft()
            self._carrier.proved(size)
            groups.passed(self, group, number, time.monotonic())
        if self.referring or not self._may_send:  # of what has left since the question, nobody would tell
            self._ask()

    # The end.

    def _published(self) -> None:
        if self.far is not None:
            self.far.published()

    def _end(self, error: Exception) -> None:
        if not self.gone:
            far = self.far
            self._forget()
            if far is not None:
                self.call(far.lost, error)

    def _forget(self) -> None:
        self.gone = True
        self._segments.clear()
        self._held.clear()
        for timer in (*self._timers, *([self._reminder] if self._reminder else ())):
            timer.cancel()
        for group in self._shelves:
            self._carrier.leave(group)
        self._carrier.ended(self)


def _nobody(*_: object) -> None:
    """There is no link yet."""
