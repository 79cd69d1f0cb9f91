"""Groups, by plain calls: members are lists of what they were told, and a tick is a call."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from netq.mqtt import packet
from netq.mqtt.congestion import FIRST, CongestionControl
from netq.mqtt.multicast.group import TICKS, UNICAST, WINDOW, Block
from netq.mqtt.multicast.groups import _PUTS, KEPT, LARGE, STALL, Groups
from netq.mqtt.packet import Kind
from netq.mqtt.window import Window
from netq.utils.stream import Stream

SIZE = 100
MOST = 256 * 1024
FULL, SLOW = CongestionControl(FIRST), CongestionControl(MOST)
SLOW.growing = False


class Listener:
    """A member that keeps what it was told."""

    def __init__(self) -> None:
        self.id = uuid.uuid4()
        self.window = Window(8)
        self.told: list[tuple[Kind, str]] = []
        self.woken = 0
        self.pace = FULL

    def command(self, kind: Kind, group: str) -> None:
        self.told.append((kind, group))

    def wake(self) -> None:
        self.woken += 1

    @property
    def kinds(self) -> list[Kind]:
        return [kind for kind, _ in self.told]


class Put:
    """A message for some members."""

    def __init__(self, hall: Hall, members: list[Listener], stream: Stream | None = None) -> None:
        self.hall = hall
        self.members = members
        self.stream = stream or Stream([bytes(100 * SIZE)])
        self.audience = tuple(member.id for member in members)

    def place(self, member: Listener, number: int) -> int | None:
        """Return the number that a block goes by: 0 is UNICAST, None that it waits."""
        block = Block(self.stream, number * SIZE, self.audience, [memoryview(b"block")])
        reference = self.hall.groups.place(member, block)
        if not reference:
            return None if reference is None else 0
        member.window.send()
        group, found, _ = packet.read_reference(
            packet.decode(packet.header(Kind.BLOCK, member.window.sent, 0, 0) + reference)
        )
        assert (Kind.JOIN, group) in member.told
        return found

    def start(self) -> None:
        """Let the first come with a block, and all join."""
        assert self.place(self.members[0], 0) is None
        self.hall.join(self.members)


class Hall:
    """Members, their groups, and a message for all of them."""

    def __init__(self, count: int, silence: float = 10.0) -> None:
        self.members = [Listener() for _ in range(count)]
        self.published: list[tuple[str, bytes]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.groups = Groups(
            lambda audience: [member for member in self.members if member.id in audience],
            lambda group, payload: self.published.append((group, payload)),
            lambda pause, function: self.timers.append((pause, function)),
            silence,
        )
        self.put = self.new_put()

    def new_put(self, stream: Stream | None = None) -> Put:
        return Put(self, list(self.members), stream)

    def join(self, members: list[Listener]) -> None:
        for member in members:
            kind, group = member.told[-1]
            assert kind is Kind.JOIN
            self.groups.joined(member, group)

    def acknowledge(self, *members: Listener) -> None:
        for member in members:
            self.groups.acked(member, member.window.sent)

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            timers, self.timers = self.timers, []
            for _, function in timers:
                function()

    def stall(self) -> None:
        self.tick(TICKS + 1)


def one_ahead() -> Hall:
    """Two members, the first of which has been referred to all the blocks that may be outstanding."""
    hall = Hall(2)
    hall.put.start()
    for number in range(WINDOW):
        hall.put.place(hall.members[0], number)
    return hall


def test_a_block_is_published_once_and_referred_to_by_all() -> None:
    hall = Hall(3)
    hall.put.start()
    assert hall.members[0].woken == 1
    assert [hall.put.place(member, 0) for member in hall.members] == [1, 1, 1]
    hall.acknowledge(*hall.members)
    assert hall.put.place(hall.members[2], 1) == 2
    group = hall.members[0].told[0][1]
    assert hall.published == [(group, packet.block(number) + b"block") for number in (1, 2)]


def test_an_acknowledgement_tells_the_largest_block_that_it_covers() -> None:
    hall = Hall(2)
    hall.put.start()
    one, other = hall.members
    for number in range(2):
        hall.put.place(one, number)
    assert hall.groups.acked(one, 0) == 0
    assert hall.groups.acked(one, 2) == len(hall.published[0][1])
    assert hall.groups.acked(one, 2) == 0
    assert hall.groups.acked(other, 5) == 0, "no packet of it refers to a block"


def test_no_member_is_ahead_of_the_slowest_by_more_than_the_window() -> None:
    hall = Hall(2)
    hall.put.start()
    fast, slow = hall.members
    assert [hall.put.place(fast, number) for number in range(WINDOW)] == list(range(1, WINDOW + 1))
    assert hall.put.place(fast, WINDOW) is None
    hall.acknowledge(fast)
    assert hall.put.place(fast, WINDOW) is None
    assert hall.put.place(slow, 0) == 1
    woken = fast.woken
    hall.acknowledge(slow)
    assert fast.woken == woken + 1
    assert hall.put.place(fast, WINDOW) == WINDOW + 1
    assert hall.put.place(fast, WINDOW + 1) is None


@pytest.mark.parametrize("comes", [True, False], ids=["silent", "absent"])
def test_a_member_that_stalls_goes_unicast_and_the_others_share_another_group(comes: bool) -> None:
    hall = Hall(3)
    hall.put.start()
    slow, *others = hall.members
    if comes:
        hall.put.place(slow, 0)
    for number in range(WINDOW):
        for member in others:
            hall.put.place(member, number)
    hall.acknowledge(*others)
    assert hall.put.place(others[0], WINDOW) is None
    hall.tick(TICKS)
    assert all(member.kinds == [Kind.JOIN] for member in hall.members)
    hall.tick()
    assert all(member.kinds == [Kind.JOIN, Kind.LEAVE] for member in hall.members)
    assert hall.put.place(slow, 1) == 0
    assert hall.put.place(others[0], WINDOW) is None
    hall.join(others)
    assert [hall.put.place(member, WINDOW) for member in others] == [1, 1]
    assert slow.kinds == [Kind.JOIN, Kind.LEAVE]
    assert hall.new_put().place(slow, 0) is None, "it may try again with the next message"
    assert slow.kinds[-1] is Kind.JOIN


def test_progress_of_one_member_is_enough_as_a_busy_machine_delays_all() -> None:
    hall = Hall(4)
    hall.put.start()
    for number in range(WINDOW):
        for member in hall.members:
            hall.put.place(member, number)
    assert hall.put.place(hall.members[0], WINDOW) is None
    for member in hall.members[:3]:
        hall.tick(TICKS)
        hall.acknowledge(member)
    hall.tick(TICKS)
    assert all(member.kinds == [Kind.JOIN] for member in hall.members)
    hall.tick()
    assert hall.put.place(hall.members[3], WINDOW) == 0
    assert hall.put.place(hall.members[2], WINDOW) is None


def test_no_member_stalls_while_no_other_waits() -> None:
    hall = Hall(3)
    hall.put.start()
    for member in hall.members[:2]:
        hall.put.place(member, 0)
    hall.acknowledge(hall.members[0])
    hall.tick()
    assert hall.timers == [], "there is nothing to watch"
    hall.stall()
    assert hall.put.place(hall.members[2], 0) == 1
    assert all(member.kinds == [Kind.JOIN] for member in hall.members)


def test_a_pause_between_two_messages_is_no_lack_of_progress() -> None:
    hall = one_ahead()
    one, other = hall.members
    hall.put.place(one, WINDOW)
    hall.tick(TICKS)
    assert hall.put.place(other, 0) == 1
    hall.acknowledge(other)
    hall.put.place(one, WINDOW)
    hall.put.place(one, WINDOW + 1)
    hall.tick(TICKS)
    assert other.kinds == [Kind.JOIN]


@pytest.mark.parametrize(("silence", "pause"), [(10.0, STALL / TICKS), (0.4, 0.4 / TICKS)])
def test_a_link_waits_no_longer_than_silence_is_borne(silence: float, pause: float) -> None:
    hall = Hall(3, silence)
    hall.put.place(hall.members[0], 0)
    assert [timer for timer, _ in hall.timers] == [pause]
    hall.put.place(hall.members[1], 0)
    assert len(hall.timers) == 1


def test_members_that_do_not_join_in_time_go_unicast() -> None:
    hall = Hall(3)
    assert hall.put.place(hall.members[0], 0) is None
    group = hall.members[0].told[0][1]
    for member in hall.members[:2]:
        hall.tick(TICKS)  # as long as others join, it may yet
        hall.groups.joined(member, group)
    hall.stall()
    assert hall.put.place(hall.members[2], 0) == 0
    assert hall.put.place(hall.members[0], 0) is None
    hall.join(hall.members[:2])
    assert [hall.put.place(member, 0) for member in hall.members] == [1, 1, 0]


def test_when_no_member_may_join_all_go_unicast() -> None:
    hall = Hall(3)
    assert [hall.put.place(member, 0) for member in hall.members] == [None] * 3
    hall.stall()
    assert all(member.woken == 1 for member in hall.members)
    assert [hall.put.place(member, 0) for member in hall.members] == [0] * 3


def test_a_lost_link_ends_the_group_and_the_others_have_another() -> None:
    hall = Hall(3)
    hall.put.start()
    lost = hall.members.pop()
    hall.groups.lost(lost)
    assert [member.kinds for member in hall.members] == [[Kind.JOIN, Kind.LEAVE]] * 2
    assert hall.put.place(hall.members[0], 0) is None
    hall.join(hall.members)
    assert [hall.put.place(member, 0) for member in hall.members] == [1, 1]


def test_the_next_link_of_a_client_gets_the_rest_by_unicast() -> None:
    hall = Hall(3)
    hall.put.start()
    lost = hall.members[2]
    hall.members[2] = back = Listener()
    back.id = lost.id
    hall.groups.lost(lost)
    assert hall.put.place(back, 1) == 0
    assert back.told == []
    assert hall.new_put().place(back, 0) is None


def test_when_one_member_is_left_it_goes_unicast() -> None:
    hall = Hall(2)
    hall.put.start()
    hall.groups.lost(hall.members[1])
    assert hall.put.place(hall.members[0], 0) == 0


def test_lanes_in_another_order_do_not_refer_back() -> None:
    hall = Hall(2)
    hall.put.start()
    one, two = hall.members
    other = hall.new_put()
    assert hall.put.place(one, 0) == 1
    assert other.place(one, 0) == 2
    assert other.place(two, 0) == 2
    assert hall.put.place(two, 0) == 0
    hall.acknowledge(two)
    assert hall.put.place(two, 0) == 0, "nor after it has passed the later one"


def test_a_reference_passes_the_blocks_before_it() -> None:
    hall = one_ahead()
    one, two = hall.members
    hall.acknowledge(one)
    assert hall.put.place(one, WINDOW) is None
    assert hall.put.place(two, 5) == 6
    hall.acknowledge(two)
    assert [hall.put.place(one, WINDOW + more) for more in range(7)] == [9, 10, 11, 12, 13, 14, None]


def test_one_alone_has_no_group() -> None:
    hall = Hall(1)
    assert hall.put.place(hall.members[0], 0) == 0
    assert hall.members[0].told == []


def pairs(hall: Hall) -> list[Put]:
    """Puts to the first member and each of the others."""
    return [Put(hall, [hall.members[0], other]) for other in hall.members[1:]]


def test_the_groups_used_last_are_kept() -> None:
    hall = Hall(KEPT + 2)
    for put in pairs(hall):
        put.start()
    assert hall.members[1].kinds == [Kind.JOIN, Kind.LEAVE]
    assert all(member.kinds == [Kind.JOIN] for member in hall.members[2:])
    Put(hall, hall.members[:3:2]).place(hall.members[0], 0)
    assert hall.members[2].kinds == [Kind.JOIN], "the next put to the same clients has the same group"


def test_a_message_whose_group_gave_way_goes_unicast_to_its_end() -> None:
    hall = Hall(KEPT + 2)
    first, *others = pairs(hall)
    for put in (first, *others):
        put.start()
    assert [first.place(member, 1) for member in first.members] == [0, 0]
    assert all(put.members[1].kinds == [Kind.JOIN] for put in others)
    assert Put(hall, first.members).place(hall.members[0], 0) is None


def test_links_that_grow_are_waited_for_and_slow_ones_are_not() -> None:
    hall = Hall(4)
    fast, other, new, slow = hall.members
    new.pace, slow.pace = CongestionControl(MOST), SLOW
    put = hall.new_put(Stream([bytes(LARGE)]))
    assert put.place(fast, 2) is None
    assert slow.told == []
    hall.join([fast, other, new])
    assert put.place(fast, 2) is None
    assert put.place(slow, 2) == 0
    assert put.place(new, 2) == 1
    assert fast.woken == 1
    assert put.place(fast, 2) == 1


def test_a_link_that_does_not_grow_in_time_goes_unicast() -> None:
    hall = Hall(3)
    *others, new = hall.members
    new.pace = CongestionControl(MOST)
    put = hall.new_put(Stream([bytes(LARGE)]))
    assert put.place(others[0], 2) is None
    hall.join(hall.members)
    hall.stall()
    assert put.place(others[0], 2) is None
    assert [member.kinds[-1] for member in hall.members] == [Kind.JOIN, Kind.JOIN, Kind.LEAVE]


def test_a_message_too_small_to_grow_with_goes_unicast_rather_than_wait() -> None:
    hall = Hall(2)
    fast, new = hall.members
    new.pace = CongestionControl(MOST)
    assert hall.put.place(fast, 0) == 0


def test_a_member_that_began_later_catches_up_by_unicast() -> None:
    hall = Hall(2)
    hall.put.start()
    first, second = hall.members
    assert [hall.put.place(first, number) for number in (3, 4)] == [1, 2]
    assert [hall.put.place(second, number) for number in (1, 2)] == [0, 0]
    assert hall.put.place(second, 3) == 1


def test_a_stream_that_the_user_keeps_is_a_new_message_each_time() -> None:
    hall = Hall(3)
    slow, *others = hall.members
    slow.pace = SLOW
    assert hall.put.place(others[0], 0) is None
    hall.join(others)
    assert [hall.put.place(member, 0) for member in others] == [1, 1]
    slow.pace = FULL
    assert hall.put.place(slow, 1) == 0, "the message has its members"
    again = hall.new_put(hall.put.stream)
    assert again.place(slow, 0) is None
    assert [member.told[-1] for member in others] == [slow.told[0]] * 2


def test_so_many_messages_are_remembered() -> None:
    hall = Hall(2)
    hall.put.start()
    puts = [hall.new_put() for _ in range(10 * _PUTS)]
    for put in puts:
        put.place(hall.members[0], 0)
        hall.groups.lost(hall.members[0])
    assert len(hall.groups._puts) == _PUTS
    assert hall.put.place(hall.members[0], 0) is None, "a message that was forgotten begins again"


def test_unicast_is_no_reference() -> None:
    assert packet.reference("0" * 16, 0) != UNICAST
