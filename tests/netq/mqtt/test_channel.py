"""A port that is played by hand: what it publishes, and when it asks again. Its timers are kept, and rung in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import pytest

from netq.io.loop import Loop
from netq.mqtt import packet
from netq.mqtt.broker import Broker
from netq.mqtt.channel import Channel, Segment
from netq.mqtt.congestion import FIRST, CongestionControl
from netq.mqtt.link import Link
from netq.mqtt.multicast.group import Block
from netq.mqtt.multicast.groups import Groups
from netq.mqtt.multicast.reorder import Receiver
from netq.mqtt.multiplexer import Multiplexer
from netq.mqtt.packet import NUMBERED, Kind, Packet
from netq.mqtt.topic import LinkTopic, new_id
from netq.mqtt.window import MOST, Window
from netq.utils.stream import Stream

HEARTBEAT = 10.0


class Alarm:
    """A timer, which cancels itself as a loop's does."""

    def __init__(self, pause: float, ring: Callable[[], None]) -> None:
        self.pause = pause
        self.ring = ring
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Away:
    """A link that keeps what it is fed."""

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


class Desk:
    """A port's loop and exchange, its link, and a window that plays its peer's."""

    heartbeat = HEARTBEAT

    def __init__(self, share: int = MOST) -> None:
        self.loop = cast(Loop, self)
        self.broker = cast(Broker, self)
        self.alarms: list[Alarm] = []
        self.said: list[Packet] = []
        self.peer = Window(MOST)
        self.link = Away()
        self.port = Channel(
            cast(Multiplexer, self), LinkTopic("c", new_id(), new_id()), "topic", share, CongestionControl(256 * 1024)
        )
        self.port.link = cast(Link, self.link)
        self.port.arrived(self.from_peer())

    def from_peer(self, kind: Kind = Kind.ACK) -> Packet:
        return packet.decode(packet.header(kind, *self.peer.stamp()))

    def acknowledge(self) -> None:
        """Let the peer have and use up all that was sent."""
        for said in self.said:
            self.peer.arrived(said)
            if said.kind in NUMBERED:
                self.peer.used()
        self.said.clear()
        self.port.arrived(self.from_peer())

    def send(self, count: int, size: int) -> None:
        self.port.post([Segment([bytes(size)]) for _ in range(count)])
        while self.port.turn():
            pass

    def probes(self) -> int:
        return sum(said.kind is Kind.PROBE for said in self.said)

    def ring(self) -> float:
        """Let the next timer ring; return how long it ran."""
        alarm = next(alarm for alarm in self.alarms if not alarm.cancelled)
        self.alarms.remove(alarm)
        alarm.ring()
        return round(alarm.pause, 1)

    # As a loop, a broker, and an exchange.

    def at(self, when: float, function: Callable[..., None], *args: object) -> Alarm:
        self.alarms.append(Alarm(when - time.monotonic(), lambda: function(*args)))
        return self.alarms[-1]

    def publish(self, topic: str, payload: bytes) -> None:
        self.said.append(packet.decode(payload))

    def wants(self, port: Channel) -> None:
        pass

    def proved(self, size: int) -> None:
        pass

    def ended(self, port: Channel) -> None:
        pass


class Usher:
    """Groups, of which one takes all blocks: it has been told what is acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.lost_by: list[Channel] = []
        self._last = 0

    def place(self, member: Channel, block: Block) -> bytes:
        self._last += 1
        return packet.reference("0" * 16, self._last)

    def acked(self, member: Channel, number: int) -> int:
        self.acknowledged.append(number)
        return 0

    def lost(self, member: Channel) -> None:
        self.lost_by.append(member)


def test_a_reference_is_asked_about_until_it_is_passed_as_others_wait_for_it() -> None:
    desk, usher = Desk(), Usher()
    desk.port.groups = cast(Groups, usher)
    stream = Stream([bytes(4 * MOST)])
    desk.port.post([Segment([], Block(stream, start, (), [memoryview(bytes(1))])) for start in range(3)])
    assert desk.port.turn()
    first, desk.said = desk.said, []
    assert [said.kind for said in first] == [Kind.BLOCK, Kind.PROBE]
    while desk.port.turn():
        pass
    later, desk.said = desk.said, first
    assert [said.kind for said in later] == [Kind.BLOCK, Kind.BLOCK], "one question at a time"
    desk.acknowledge()
    assert usher.acknowledged == [1]
    assert desk.probes() == 1
    desk.said = later + desk.said
    desk.acknowledge()
    assert usher.acknowledged == [1, 3]
    assert desk.said == []


def test_how_long_a_block_of_a_group_takes_does_not_make_the_packets_of_a_link_smaller() -> None:
    desk = Desk()
    desk.port.groups = cast(Groups, Usher())
    size = desk.port.pace.size
    desk.port.post([Segment([], Block(Stream([bytes(size)]), 0, (), [memoryview(bytes(size))]))])
    assert desk.port.turn()
    late = time.monotonic() + 10.0
    assert desk.port.pace.acked(desk.port.window.sent, late) < size
    assert desk.port.pace.size == size


def test_the_end_of_a_link_is_told_to_its_groups() -> None:
    desk, usher = Desk(), Usher()
    desk.port.groups = cast(Groups, usher)
    desk.port.fail(TimeoutError("nothing heard"))
    desk.port.fail(TimeoutError("nothing heard"))
    assert usher.lost_by == [desk.port]


def test_a_link_that_acknowledges_nothing_for_seconds_is_no_member_of_the_next_group() -> None:
    desk = Desk()
    for _ in range(8):
        desk.send(1, desk.port.pace.size)
        desk.acknowledge()
    assert desk.port.answering
    desk.send(1, 10)
    assert (desk.ring(), desk.port.answering) == (1.0, True), "it began with packets that were acknowledged"
    assert (desk.ring(), desk.port.answering) == (1.0, True)
    assert (desk.ring(), desk.port.answering) == (2.0, False)
    desk.acknowledge()
    assert desk.port.answering


@pytest.mark.parametrize("comes", [True, False])
def test_what_arrives_behind_a_reference_waits_for_its_block_and_not_for_ever(comes: bool) -> None:
    desk, group = Desk(), "0" * 16
    desk.port.receiver = Receiver(lambda _: None, lambda _: None)
    desk.port.receiver.control(Kind.JOIN, group)
    desk.port.say(Kind.OPEN)  # it grants room
    desk.said.clear()
    for kind, body in ((Kind.BLOCK, packet.reference(group, 1) + b"a "), (Kind.DATA, b" more")):
        desk.peer.send()
        desk.port.arrived(packet.decode(packet.header(kind, *desk.peer.stamp()) + body))
    assert desk.link.fed == []
    if comes:
        desk.port.receiver.put(group, packet.block(1) + b"block")
        desk.port.use()
    assert desk.ring() == 2.0
    assert desk.link.fed == ([b"a block", b" more"] if comes else [])
    assert str(desk.link.error) == ("None" if comes else "a block of a group has not come")
    assert [said.kind for said in desk.said] == ([] if comes else [Kind.RESET])


@pytest.mark.parametrize("share", [1, 2, MOST])
def test_who_is_not_answered_asks_once_and_then_ever_more_seldom(share: int) -> None:
    desk = Desk(share)
    desk.send(share, FIRST)
    assert desk.probes() == 1
    assert [(desk.ring(), desk.probes()) for _ in range(6)] == [
        (1.0, 1),
        (2.0, 2),
        (4.0, 3),
        (8.0, 4),
        (HEARTBEAT, 5),
        (HEARTBEAT, 6),
    ]


def test_what_was_not_asked_for_is_asked_for_after_a_second() -> None:
    desk = Desk()
    desk.send(1, 10)
    desk.acknowledge()
    desk.send(1, 10)
    assert (desk.ring(), desk.probes()) == (1.0, 0), "it began with the first, of which has been told"
    assert (desk.ring(), desk.probes()) == (1.0, 1)


def test_an_answer_makes_the_next_question_a_matter_of_a_second_again() -> None:
    desk = Desk()
    desk.send(2, FIRST)
    for _ in range(4):
        desk.ring()
    desk.acknowledge()
    desk.send(1, 2 * FIRST)
    assert desk.probes() == 1
    assert [desk.ring(), desk.ring()] == [1.0, 2.0]
    assert desk.probes() == 2


def test_what_was_sent_after_a_question_is_asked_for_when_it_is_answered_and_the_way_is_shut() -> None:
    """The peer has granted more than our share: it would not tell of it."""
    desk = Desk(2)
    desk.send(1, FIRST // 2)
    question, desk.said = desk.said, []
    assert [said.kind for said in question] == [Kind.DATA, Kind.PROBE]
    desk.send(1, FIRST // 2)
    later, desk.said = desk.said, []
    assert [said.kind for said in later] == [Kind.DATA]
    desk.port.window.share = 1
    for said in question:
        desk.peer.arrived(said)
    desk.peer.used()
    desk.port.arrived(desk.from_peer())
    assert desk.probes() == 1
