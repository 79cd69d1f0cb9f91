"""The broker's end of one link: its packets, numbered, waiting for their turn. Lives in the first loop, whatever loop
its Link (netq/mqtt/link.py) moves to.

Owned by a transport; publishes only when it is given a turn (netq/mqtt/multiplexer.py).
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from netq.buffers import Buffer
from netq.errors import ProtocolError
from netq.io.timers import Timer
from netq.mqtt import packet
from netq.mqtt.congestion import CongestionControl
from netq.mqtt.multicast.group import UNICAST, Block
from netq.mqtt.multicast.groups import Groups
from netq.mqtt.multicast.reorder import Receiver
from netq.mqtt.packet import NUMBERED, Kind, Packet
from netq.mqtt.topic import LinkTopic
from netq.mqtt.window import Window

if TYPE_CHECKING:
    from netq.mqtt.link import Link
    from netq.mqtt.multiplexer import Multiplexer

_PROBE = 1.0  # seconds after which to ask whether what was sent has arrived; then twice as long, and so on
_PARTING = 1.0  # seconds in which the rest may be sent after `close`
_LATE = 2.0  # seconds that a block may come after the reference to it


class Segment(NamedTuple):
    """Bytes of the session, and a block that follows them, if one does."""

    buffers: list[Buffer]
    block: Block | None = None

    @property
    def whole(self) -> list[Buffer]:
        """All bytes, those of the block too."""
        return [*self.buffers, *(self.block.buffers if self.block else ())]

    def copy(self) -> Segment:
        """The same, in memory of its own."""
        block = self.block
        own = block and block._replace(buffers=[memoryview(b"".join(block.buffers))])
        return Segment([b"".join(self.buffers)], own)


class Channel:
    """Packets to and from one peer. A server's port has `groups`, a client's a `receiver` (netq/mqtt/multicast)."""

    groups: Groups | None = None
    receiver: Receiver | None = None

    def __init__(self, exchange: Multiplexer, way: LinkTopic, topic: str, share: int, pace: CongestionControl) -> None:
        self.way = way  # that leads here
        self.window = Window(share)
        self.pace = pace
        self.born = time.monotonic()
        self.gone = False
        self.link: Link | None = None  # a client's has none until it is answered
        self._exchange = exchange
        self._topic = topic
        self._commands: deque[tuple[Kind, list[Buffer]]] = deque()
        self._segments: deque[Segment] = deque()
        self._referred = 0  # the last packet that refers to a block
        self._held: deque[Packet] = deque()  # that arrived; the first waits for its block
        self._closing = False
        self._patience = _PROBE  # seconds for which to wait for progress
        self._reminder: Timer | None = None

    @property
    def referring(self) -> bool:
        """Whether a reference to a block is not known to be used up."""
        return self._referred > self.window.acked

    @property
    def answering(self) -> bool:
        """Whether something was acknowledged in the last three seconds, if anything was under way."""
        return self._patience <= 2 * _PROBE

    # For the link.

    def post(self, segments: list[Segment]) -> None:
        """Send them, when it is their turn."""
        self._segments += segments
        self._exchange.wants(self)

    def keep(self) -> None:
        """Go on with copies."""
        self._segments = deque(segment.copy() for segment in self._segments)

    def used(self) -> None:
        """The link has taken what it was fed."""
        self.window.used()
        if self.window.ack_due:
            self._exchange.wants(self)

    def close(self) -> None:
        """Send the rest, then say that it was all."""
        self._closing = True
        self._exchange.loop.at(time.monotonic() + _PARTING, self._part)
        self._exchange.wants(self)

    # For the exchange.

    def turn(self) -> bool:
        """Send one packet, if there is something and room for it; return whether there may be more."""
        if self._may_send and (found := self._next()) is not None:
            self._send(*found)
            return True
        if self._closing and not self._segments and not self._commands:
            self._part()
        elif self.window.ack_due:
            self.say(Kind.ACK)
        return False

    def arrived(self, came: Packet) -> None:
        """Take a packet from the peer; raises ProtocolError when one is missing, or makes no sense."""
        acked = self.window.acked
        self.window.arrived(came)
        if self.window.acked > acked:
            self._progressed()
        if came.kind in NUMBERED:
            self._held.append(came)
            self.use()
        elif came.kind is Kind.CLOSE:
            self.fail(ConnectionResetError("the peer hung up"), tell=False)
        self._exchange.wants(self)

    def use(self) -> None:
        """Use up what has arrived, as far as its blocks have come; raises ProtocolError if one is lost."""
        while self._held and self._use_one(self._held[0]):
            if self._held:  # not if that was its end
                self._held.popleft()

    def fail(self, error: Exception, *, tell: bool = True) -> None:
        """The link is lost; the peer should know why."""
        if self.gone:
            return
        if tell:
            self.say(Kind.RESET, str(error).encode()[: packet.REASON])
        self._forget()
        if self.link is not None:
            self.link.call(self.link.lost, error)

    def say(self, kind: Kind, *body: Buffer) -> int:
        """Publish a packet now. Return the bytes of the body, which is copied once."""
        payload = b"".join([packet.header(kind, *self.window.stamp()), *body])
        self._exchange.broker.publish(self._topic, payload)
        return len(payload) - packet.HEADER_SIZE

    # As a member of a group (netq/mqtt/multicast/group.py), or with an answer to one.

    def command(self, kind: Kind, group: str) -> None:
        """Send JOIN, JOINED or LEAVE."""
        self._commands.append((kind, [bytes.fromhex(group)]))
        self._exchange.wants(self)

    def wake(self) -> None:
        """Try again to send."""
        self._exchange.wants(self)

    # Out.

    @property
    def _may_send(self) -> bool:
        return self.window.open and self.pace.open

    def _next(self) -> tuple[Kind, list[Buffer]] | None:
        """Take what is to be sent next; None if there is nothing, or it waits for its group."""
        if self._commands:
            return self._commands.popleft()
        if not self._segments:
            return None
        segment = self._segments[0]
        reference = self.groups.place(self, segment.block) if self.groups and segment.block else UNICAST
        if reference is None:
            return None
        self._segments.popleft()
        if reference == UNICAST:
            return Kind.DATA, segment.whole
        self._referred = self.window.sent + 1
        return Kind.BLOCK, [reference, *segment.buffers]

    def _send(self, kind: Kind, body: list[Buffer]) -> None:
        self.window.send()
        size = self.say(kind, *body)
        self.pace.sent(self.window.sent, size)
        self._ask()
        self._watch_progress()
        if kind in (Kind.DATA, Kind.BLOCK):
            assert self.link is not None
            self.link.call(self.link.published)

    def _ask(self) -> None:
        """Ask for an acknowledgement, if it is time to: our share may be less than what the peer has granted, which
        would not give one yet; and the others of a group wait for it.
        """
        if self.pace.asks(time.monotonic(), stopped=not self.window.open or self.referring):
            self.say(Kind.PROBE)

    def _watch_progress(self) -> None:
        """Ask, if nothing is heard of what was sent: the last of it may be lost, or the question, or the answer."""
        if self._reminder is None:
            self._reminder = self._exchange.loop.at(time.monotonic() + self._patience, self._remind, self.window.acked)

    def _remind(self, acked: int) -> None:
        self._reminder = None
        if self.gone or self.window.acked == self.window.sent:
            return
        if self.window.acked == acked:
            if self.pace.asks(time.monotonic(), stopped=True) or self._patience > _PROBE:
                self.say(Kind.PROBE)
            self._patience = min(2 * self._patience, max(2 * _PROBE, self._exchange.heartbeat))
        self._watch_progress()

    def _part(self) -> None:
        if not self.gone:
            self.say(Kind.CLOSE)
            self._forget()

    # In.

    def _use_one(self, came: Packet) -> bool:
        """Do what a packet says; False if its block has yet to come."""
        if came.kind in (Kind.DATA, Kind.BLOCK):
            data = self.receiver.take(came) if self.receiver and came.kind is Kind.BLOCK else came.body
            if data is None:
                self._exchange.loop.at(time.monotonic() + _LATE, self._block_is_late, came.number)
                return False
            assert self.link is not None
            self.link.call(self.link.feed, data)
            return True
        group = packet.read_group(came)
        if self.receiver is not None:
            self.receiver.control(came.kind, group)
        elif self.groups is not None:
            self.groups.joined(self, group)
        self.used()
        return True

    def _block_is_late(self, number: int) -> None:
        if self._held and self._held[0].number == number:
            self.fail(ProtocolError("a block of a group has not come"))

    def _progressed(self) -> None:
        self._exchange.proved(self.pace.acked(self.window.acked, time.monotonic()))
        if self._reminder is not None and self._patience > _PROBE:
            self._reminder.cancel()
            self._reminder, self._patience = None, _PROBE
            self._watch_progress()
        if self.groups is not None:
            self._exchange.proved(self.groups.acked(self, self.window.acked))
        if self.referring or not self._may_send:  # of what has left since the question, nobody would tell
            self._ask()

    # The end.

    def _forget(self) -> None:
        self.gone = True
        self._segments.clear()
        self._held.clear()
        self._exchange.ended(self)
        if self.receiver is not None:
            self.receiver.close()
        if self.groups is not None:
            self.groups.lost(self)
