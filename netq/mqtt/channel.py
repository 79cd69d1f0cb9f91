"""The packets of one link: numbers them, queues them until their turn, and processes those that arrive.

A Channel always runs in the first loop, where the broker's connection is; its Link (netq/mqtt/link.py) may move to
another loop. The multiplexer (netq/mqtt/multiplexer.py) owns it, and gives it the turns in which it may publish.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from netq.buffers import Buffer
from netq.errors import ProtocolError
from netq.io.loop import Loop
from netq.io.timers import Timer
from netq.mqtt import packet
from netq.mqtt.broker import Broker
from netq.mqtt.congestion import CongestionControl
from netq.mqtt.multicast.group import UNICAST, Block
from netq.mqtt.multicast.groups import Groups
from netq.mqtt.multicast.reorder import Receiver
from netq.mqtt.packet import NUMBERED, Packet, PacketKind
from netq.mqtt.topic import LinkTopic
from netq.mqtt.window import Window
from netq.protocol.connection import Connection

_PROBE_AFTER = 1.0  # seconds without an acknowledgement before a PROBE; doubled for each further one
_CLOSE_TIMEOUT = 1.0  # seconds in which queued packets may be sent after `close`
_BLOCK_TIMEOUT = 2.0  # seconds that a block may arrive after its reference


class Segment(NamedTuple):
    """Bytes of the session, optionally followed by a block."""

    buffers: list[Buffer]
    block: Block | None = None

    @property
    def whole(self) -> list[Buffer]:
        """All bytes, including the block."""
        return [*self.buffers, *(self.block.buffers if self.block else ())]

    def copy(self) -> Segment:
        """Return a copy in its own memory."""
        block = self.block
        if block is not None and block.sealed is None:  # a sealed block is in memory of its own already
            block = block._replace(buffers=[memoryview(b"".join(block.buffers))])
        return Segment([b"".join(self.buffers)], block)


class ChannelLink(Protocol):
    """The other end of a channel: netq/mqtt/link.py. `feed`, `published` and `lost` run by `call`, in its loop."""

    connection: Connection

    def call(self, function: Callable[..., None], *args: object) -> None:
        """Run a function in the loop of the link."""

    def feed(self, data: memoryview) -> None:
        """Process bytes of the session."""

    def published(self) -> None:
        """Take the next segment."""

    def lost(self, error: Exception) -> None:
        """Report the loss of the link."""

    def broadcast_peer(self, size: int) -> uuid.UUID | None:
        """Return the peer, if it accepts blocks of this size."""


class ChannelOwner(Protocol):
    """What a channel uses of the multiplexer (netq/mqtt/multiplexer.py)."""

    loop: Loop
    broker: Broker
    heartbeat: float

    def request_turn(self, channel: Channel) -> None:
        """Call `take_turn` of the channel, soon."""

    def record_arrival(self, size: int) -> None:
        """Record that a packet of `size` bytes has arrived."""

    def remove(self, channel: Channel) -> None:
        """Remove a channel that has ended."""


class Channel:
    """Packets to and from one peer. A server's has `groups`, a client's has a `receiver` (netq/mqtt/multicast)."""

    groups: Groups | None = None
    receiver: Receiver | None = None

    def __init__(
        self, owner: ChannelOwner, link_topic: LinkTopic, topic: str, share: int, congestion: CongestionControl
    ) -> None:
        # The link above, the topics below, and whether the channel is still in use.
        self._owner = owner
        self.link_topic = link_topic  # of the incoming direction
        self._send_topic = topic
        self.link: ChannelLink | None = None  # None at a client until WELCOME
        self.created = time.monotonic()
        self.closed = False
        self._closing = False
        # How many packets may be in flight, and when the peer is asked for progress.
        self.window = Window(share)
        self.congestion = congestion
        self._probe_pause = _PROBE_AFTER  # seconds to wait for progress before the next PROBE
        self._progress_timer: Timer | None = None
        # Packets that wait: to be sent, then those that arrived.
        self._controls: deque[tuple[PacketKind, list[Buffer]]] = deque()
        self._segments: deque[Segment] = deque()
        self._last_reference = 0  # number of the last packet that refers to a block
        self._held: deque[Packet] = deque()  # packets that arrived; the first waits for its block

    @property
    def has_open_reference(self) -> bool:
        """Whether a reference to a block is not acknowledged yet."""
        return self._last_reference > self.window.acked

    @property
    def responsive(self) -> bool:
        """Whether the peer has acknowledged something in the last three seconds, or nothing is in flight."""
        return self._probe_pause <= 2 * _PROBE_AFTER

    # For the link.

    def enqueue(self, segments: list[Segment]) -> None:
        """Queue segments for sending."""
        self._segments += segments
        self._owner.request_turn(self)

    def keep(self) -> None:
        """Replace the queued segments by copies."""
        self._segments = deque(segment.copy() for segment in self._segments)

    def consumed(self) -> None:
        """Record that the link has processed a packet."""
        self.window.consumed()
        if self.window.ack_due:
            self._owner.request_turn(self)

    def close(self) -> None:
        """Send the queued segments, then CLOSE."""
        self._closing = True
        self._owner.loop.at(time.monotonic() + _CLOSE_TIMEOUT, self._send_close)
        self._owner.request_turn(self)

    # For the multiplexer.

    def take_turn(self) -> bool:
        """Send one packet, if there is one and credit for it; return whether more may follow."""
        if self._can_send and (found := self._next()) is not None:
            self._send(*found)
            return True
        if self._closing and not self._segments and not self._controls:
            self._send_close()
        elif self.window.ack_due:
            self.publish(PacketKind.ACK)
        return False

    def receive(self, incoming: Packet) -> None:
        """Process a packet from the peer. Raises ProtocolError if one is missing or invalid."""
        # The header counts at once, as it acknowledges our packets and grants credit. The body may have to wait for its
        # block; then the later ones wait behind it, because they continue the same stream of bytes.
        acked = self.window.acked
        self.window.receive(incoming)
        if self.window.acked > acked:
            self._on_progress()
        if incoming.kind in NUMBERED:
            self._held.append(incoming)
            self.process_held()
        elif incoming.kind is PacketKind.CLOSE:
            self.fail(ConnectionResetError("the peer hung up"), notify_peer=False)
        self._owner.request_turn(self)

    def process_held(self) -> None:
        """Process held packets until one waits for its block. Raises ProtocolError if a block is lost."""
        while self._held and self._process(self._held[0]):
            if self._held:  # empty if that packet ended the link
                self._held.popleft()

    def fail(self, error: Exception, *, notify_peer: bool = True) -> None:
        """End the link as lost. RESET tells the peer the reason, unless `notify_peer` is False."""
        if self.closed:
            return
        if notify_peer:
            self.publish(PacketKind.RESET, str(error).encode()[: packet.REASON])
        self._end()
        if self.link is not None:
            self.link.call(self.link.lost, error)

    def publish(self, kind: PacketKind, *body: Buffer) -> int:
        """Publish a packet now, copying its body once. Return the bytes of the body."""
        payload = b"".join([packet.header(kind, *self.window.stamp()), *body])
        self._owner.broker.publish(self._send_topic, payload)
        return len(payload) - packet.HEADER_SIZE

    # For the groups (netq/mqtt/multicast/group.py).

    def send_control(self, kind: PacketKind, group: str) -> None:
        """Send JOIN, JOINED or LEAVE."""
        self._controls.append((kind, [bytes.fromhex(group)]))
        self._owner.request_turn(self)

    def wake(self) -> None:
        """Try to send again."""
        self._owner.request_turn(self)

    # Sending.

    @property
    def _can_send(self) -> bool:
        return self.window.open and self.congestion.open

    def _next(self) -> tuple[PacketKind, list[Buffer]] | None:
        """Return the next packet to send; None if there is none, or it must wait for its group."""
        if self._controls:
            return self._controls.popleft()
        # The first segment stays in the queue until its block may be referred to. The others wait behind it: they
        # follow in the same stream of bytes.
        if not self._segments:
            return None
        segment = self._segments[0]
        reference = self.groups.refer(self, segment.block) if self.groups and segment.block else UNICAST
        if reference is None:
            return None
        self._segments.popleft()
        if reference == UNICAST:
            return PacketKind.DATA, segment.whole
        self._last_reference = self.window.sent + 1
        return PacketKind.BLOCK, [reference, *segment.buffers]

    def _send(self, kind: PacketKind, body: list[Buffer]) -> None:
        self.window.send()
        size = self.publish(kind, *body)
        self.congestion.sent(self.window.sent, size)
        self._probe_if_due()
        self._watch_progress()
        if kind in (PacketKind.DATA, PacketKind.BLOCK):
            assert self.link is not None
            self.link.call(self.link.published)

    def _probe_if_due(self) -> None:
        """Send a PROBE if one is due: to measure, or because sending has stopped.

        Our share may be smaller than the credit that the peer has granted. Then the peer would not acknowledge yet,
        and only a PROBE lets us continue. Other members of a group may also wait for the acknowledgement.
        """
        if self.congestion.should_probe(time.monotonic(), stopped=not self.window.open or self.has_open_reference):
            self.publish(PacketKind.PROBE)

    def _watch_progress(self) -> None:
        """Start the timer that sends a PROBE without progress: the last packet, a PROBE or its answer may be lost."""
        if self._progress_timer is None:
            self._progress_timer = self._owner.loop.at(
                time.monotonic() + self._probe_pause, self._check_progress, self.window.acked
            )

    def _check_progress(self, acked: int) -> None:
        # QoS 0 may lose the last packet in silence: with none behind it, there is no gap for the peer to find. The
        # answer to a PROBE shows what has arrived. PROBE is repeated, as it may be lost too, ever more slowly: a peer
        # that is only slow must not get many.
        self._progress_timer = None
        if self.closed or self.window.acked == self.window.sent:
            return
        if self.window.acked == acked:
            if self.congestion.should_probe(time.monotonic(), stopped=True) or self._probe_pause > _PROBE_AFTER:
                self.publish(PacketKind.PROBE)
            self._probe_pause = min(2 * self._probe_pause, max(2 * _PROBE_AFTER, self._owner.heartbeat))
        self._watch_progress()

    def _send_close(self) -> None:
        if not self.closed:
            self.publish(PacketKind.CLOSE)
            self._end()

    # Receiving.

    def _process(self, incoming: Packet) -> bool:
        """Process a packet; return False if its block has not arrived."""
        if incoming.kind in (PacketKind.DATA, PacketKind.BLOCK):
            data = (
                self.receiver.take(incoming) if self.receiver and incoming.kind is PacketKind.BLOCK else incoming.body
            )
            if data is None:
                self._owner.loop.at(time.monotonic() + _BLOCK_TIMEOUT, self._on_block_timeout, incoming.number)
                return False
            assert self.link is not None
            self.link.call(self.link.feed, data)
            return True
        group = packet.read_group(incoming)
        if self.receiver is not None:
            self.receiver.control(incoming.kind, group)
        elif self.groups is not None:
            self.groups.joined(self, group)
        self.consumed()
        return True

    def _on_block_timeout(self, number: int) -> None:
        if self._held and self._held[0].number == number:
            self.fail(ProtocolError("a block of a group has not come"))

    def _on_progress(self) -> None:
        self._owner.record_arrival(self.congestion.acked(self.window.acked, time.monotonic()))
        if self._progress_timer is not None and self._probe_pause > _PROBE_AFTER:
            self._progress_timer.cancel()
            self._progress_timer, self._probe_pause = None, _PROBE_AFTER
            self._watch_progress()
        if self.groups is not None:
            self._owner.record_arrival(self.groups.acked(self, self.window.acked))
        if self.has_open_reference or not self._can_send:  # no pending probe covers the packets sent since the last one
            self._probe_if_due()

    # The end.

    def _end(self) -> None:
        self.closed = True
        self._segments.clear()
        self._held.clear()
        self._owner.remove(self)
        if self.receiver is not None:
            self.receiver.close()
        if self.groups is not None:
            self.groups.lost(self)
