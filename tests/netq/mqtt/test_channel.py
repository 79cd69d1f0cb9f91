"""A channel with a fake loop, link and peer: the packets that it publishes, and its probe timer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import pytest

from netq.io.loop import Loop
from netq.mqtt import packet
from netq.mqtt.broker import Broker
from netq.mqtt.channel import Channel, ChannelLink, ChannelOwner, Segment
from netq.mqtt.congestion import INITIAL_SIZE, CongestionControl
from netq.mqtt.multicast.group import Block
from netq.mqtt.multicast.groups import Groups
from netq.mqtt.multicast.reorder import Receiver
from netq.mqtt.packet import NUMBERED, Packet, PacketKind
from netq.mqtt.topic import LinkTopic, new_id
from netq.mqtt.window import MAX_PACKETS, Window
from netq.utils.stream import Stream

HEARTBEAT = 10.0


class FakeTimer:
    """A timer with the interface of the loop's timers."""

    def __init__(self, pause: float, fire: Callable[[], None]) -> None:
        self.pause = pause
        self.fire = fire
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLink:
    """A link that records what it is fed."""

    def __init__(self) -> None:
        self.fed: list[bytes] = []
        self.error: Exception | None = None

    def call(self, function: Callable[..., None], *args: object) -> None:
        function(*args)

    def feed(self, data: memoryview) -> None:
        self.fed.append(bytes(data))

    def published(self) -> None:
        pass

    def lost(self, error: Exception) -> None:
        self.error = error


class Harness:
    """A channel with a fake loop and multiplexer, a fake link, and the window of its peer."""

    heartbeat = HEARTBEAT

    def __init__(self, share: int = MAX_PACKETS) -> None:
        self.loop = cast(Loop, self)
        self.broker = cast(Broker, self)
        self.timers: list[FakeTimer] = []
        self.published_packets: list[Packet] = []
        self.peer = Window(MAX_PACKETS)
        self.link = FakeLink()
        self.channel = Channel(
            cast(ChannelOwner, self), LinkTopic("c", new_id(), new_id()), "topic", share, CongestionControl(256 * 1024)
        )
        self.channel.link = cast(ChannelLink, self.link)
        self.channel.receive(self.from_peer())

    def from_peer(self, kind: PacketKind = PacketKind.ACK) -> Packet:
        return packet.decode(packet.header(kind, *self.peer.stamp()))

    def acknowledge(self) -> None:
        """Let the peer receive and process everything that was sent."""
        for sent in self.published_packets:
            self.peer.receive(sent)
            if sent.kind in NUMBERED:
                self.peer.consumed()
        self.published_packets.clear()
        self.channel.receive(self.from_peer())

    def send(self, count: int, size: int) -> None:
        self.channel.enqueue([Segment([bytes(size)]) for _ in range(count)])
        while self.channel.take_turn():
            pass

    def probes(self) -> int:
        return sum(sent.kind is PacketKind.PROBE for sent in self.published_packets)

    def fire_timer(self) -> float:
        """Fire the next timer; return its pause."""
        timer = next(timer for timer in self.timers if not timer.cancelled)
        self.timers.remove(timer)
        timer.fire()
        return round(timer.pause, 1)

    # As a loop, a broker, and an multiplexer.

    def at(self, when: float, function: Callable[..., None], *args: object) -> FakeTimer:
        self.timers.append(FakeTimer(when - time.monotonic(), lambda: function(*args)))
        return self.timers[-1]

    def publish(self, topic: str, payload: bytes) -> None:
        self.published_packets.append(packet.decode(payload))

    def request_turn(self, channel: Channel) -> None:
        pass

    def record_arrival(self, size: int) -> None:
        pass

    def remove(self, channel: Channel) -> None:
        pass


class FakeGroups:
    """Groups that accept all blocks, and record acknowledgements and losses."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.lost_by: list[Channel] = []
        self._last = 0

    def refer(self, member: Channel, block: Block) -> bytes:
        self._last += 1
        return packet.reference("0" * 16, self._last)

    def acked(self, member: Channel, number: int) -> int:
        self.acknowledged.append(number)
        return 0

    def lost(self, member: Channel) -> None:
        self.lost_by.append(member)


def test_references_are_probed_until_acknowledged() -> None:
    harness, groups = Harness(), FakeGroups()
    harness.channel.groups = cast(Groups, groups)
    stream = Stream([bytes(4 * MAX_PACKETS)])
    harness.channel.enqueue([Segment([], Block(stream, start, (), [memoryview(bytes(1))])) for start in range(3)])
    assert harness.channel.take_turn()
    first, harness.published_packets = harness.published_packets, []
    assert [sent.kind for sent in first] == [PacketKind.BLOCK, PacketKind.PROBE]
    while harness.channel.take_turn():
        pass
    later, harness.published_packets = harness.published_packets, first
    assert [sent.kind for sent in later] == [PacketKind.BLOCK, PacketKind.BLOCK], "one question at a time"
    harness.acknowledge()
    assert groups.acknowledged == [1]
    assert harness.probes() == 1
    harness.published_packets = later + harness.published_packets
    harness.acknowledge()
    assert groups.acknowledged == [1, 3]
    assert harness.published_packets == []


def test_group_blocks_do_not_shrink_packets() -> None:
    harness = Harness()
    harness.channel.groups = cast(Groups, FakeGroups())
    size = harness.channel.congestion.size
    harness.channel.enqueue([Segment([], Block(Stream([bytes(size)]), 0, (), [memoryview(bytes(size))]))])
    assert harness.channel.take_turn()
    late = time.monotonic() + 10.0
    assert harness.channel.congestion.acked(harness.channel.window.sent, late) < size
    assert harness.channel.congestion.size == size


def test_failed_channel_leaves_its_groups() -> None:
    harness, groups = Harness(), FakeGroups()
    harness.channel.groups = cast(Groups, groups)
    harness.channel.fail(TimeoutError("nothing heard"))
    harness.channel.fail(TimeoutError("nothing heard"))
    assert groups.lost_by == [harness.channel]


def test_channel_without_acks_is_not_responsive() -> None:
    harness = Harness()
    for _ in range(8):
        harness.send(1, harness.channel.congestion.size)
        harness.acknowledge()
    assert harness.channel.responsive
    harness.send(1, 10)
    assert (harness.fire_timer(), harness.channel.responsive) == (1.0, True), (
        "it began with packets that were acknowledged"
    )
    assert (harness.fire_timer(), harness.channel.responsive) == (1.0, True)
    assert (harness.fire_timer(), harness.channel.responsive) == (2.0, False)
    harness.acknowledge()
    assert harness.channel.responsive


@pytest.mark.parametrize("comes", [True, False])
def test_packets_behind_a_reference_wait_for_its_block(comes: bool) -> None:
    harness, group = Harness(), "0" * 16
    harness.channel.receiver = Receiver(lambda _: None, lambda _: None)
    harness.channel.receiver.control(PacketKind.JOIN, group)
    harness.channel.publish(PacketKind.OPEN)  # it grants room
    harness.published_packets.clear()
    for kind, body in ((PacketKind.BLOCK, packet.reference(group, 1) + b"a "), (PacketKind.DATA, b" more")):
        harness.peer.send()
        harness.channel.receive(packet.decode(packet.header(kind, *harness.peer.stamp()) + body))
    assert harness.link.fed == []
    if comes:
        harness.channel.receiver.put(group, packet.block(1) + b"block")
        harness.channel.process_held()
    assert harness.fire_timer() == 2.0
    assert harness.link.fed == ([b"a block", b" more"] if comes else [])
    assert str(harness.link.error) == ("None" if comes else "a block of a group has not come")
    assert [sent.kind for sent in harness.published_packets] == ([] if comes else [PacketKind.RESET])


@pytest.mark.parametrize("share", [1, 2, MAX_PACKETS])
def test_unanswered_probes_back_off(share: int) -> None:
    harness = Harness(share)
    harness.send(share, INITIAL_SIZE)
    assert harness.probes() == 1
    assert [(harness.fire_timer(), harness.probes()) for _ in range(6)] == [
        (1.0, 1),
        (2.0, 2),
        (4.0, 3),
        (8.0, 4),
        (HEARTBEAT, 5),
        (HEARTBEAT, 6),
    ]


def test_probe_follows_after_a_second_without_progress() -> None:
    harness = Harness()
    harness.send(1, 10)
    harness.acknowledge()
    harness.send(1, 10)
    assert (harness.fire_timer(), harness.probes()) == (1.0, 0), (
        "the timer began with the first packet, which is acknowledged"
    )
    assert (harness.fire_timer(), harness.probes()) == (1.0, 1)


def test_progress_resets_the_probe_interval() -> None:
    harness = Harness()
    harness.send(2, INITIAL_SIZE)
    for _ in range(4):
        harness.fire_timer()
    harness.acknowledge()
    harness.send(1, 2 * INITIAL_SIZE)
    assert harness.probes() == 1
    assert [harness.fire_timer(), harness.fire_timer()] == [1.0, 2.0]
    assert harness.probes() == 2


def test_full_window_is_probed_again_after_an_answer() -> None:
    """The peer has granted more than our share, so it would not acknowledge by itself."""
    harness = Harness(2)
    harness.send(1, INITIAL_SIZE // 2)
    question, harness.published_packets = harness.published_packets, []
    assert [sent.kind for sent in question] == [PacketKind.DATA, PacketKind.PROBE]
    harness.send(1, INITIAL_SIZE // 2)
    later, harness.published_packets = harness.published_packets, []
    assert [sent.kind for sent in later] == [PacketKind.DATA]
    harness.channel.window.share = 1
    for sent in question:
        harness.peer.receive(sent)
    harness.peer.consumed()
    harness.channel.receive(harness.from_peer())
    assert harness.probes() == 1
