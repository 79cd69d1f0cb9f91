"""Groups with fake members, which record their commands, and ticks as plain calls."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from netq.mqtt import packet
from netq.mqtt.congestion import INITIAL_SIZE, CongestionControl
from netq.mqtt.multicast.group import TICKS, UNICAST, WINDOW, Block
from netq.mqtt.multicast.groups import _MAX_PUTS, MAX_GROUPS, MIN_SIZE_TO_WAIT, STALL_AFTER, Groups
from netq.mqtt.packet import Kind
from netq.mqtt.window import Window
from netq.utils.stream import Stream

SIZE = 100
MOST = 256 * 1024
FULL, SLOW = CongestionControl(INITIAL_SIZE), CongestionControl(MOST)
SLOW.growing = False


class Listener:
    """A member that records its commands."""

    def __init__(self) -> None:
        self.id = uuid.uuid4()
        self.window = Window(8)
        self.commands: list[tuple[Kind, str]] = []
        self.woken = 0
        self.congestion = FULL

    def send_control(self, kind: Kind, group: str) -> None:
        self.commands.append((kind, group))

    def wake(self) -> None:
        self.woken += 1

    @property
    def kinds(self) -> list[Kind]:
        return [kind for kind, _ in self.commands]


class Put:
    """A message for some members."""

    def __init__(self, hall: Hall, members: list[Listener], stream: Stream | None = None) -> None:
        self.hall = hall
        self.members = members
        self.stream = stream or Stream([bytes(100 * SIZE)])
        self.audience = tuple(member.id for member in members)

    def refer(self, member: Listener, number: int) -> int | None:
        """Return the number that a block goes by: 0 is UNICAST, None that it waits."""
        block = Block(self.stream, number * SIZE, self.audience, [memoryview(b"block")])
        reference = self.hall.groups.refer(member, block)
        if not reference:
            return None if reference is None else 0
        member.window.send()
        group, found, _ = packet.read_reference(
            packet.decode(packet.header(Kind.BLOCK, member.window.sent, 0, 0) + reference)
        )
        assert (Kind.JOIN, group) in member.commands
        return found

    def start(self) -> None:
        """Let the first come with a block, and all join."""
        assert self.refer(self.members[0], 0) is None
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
            kind, group = member.commands[-1]
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
        hall.put.refer(hall.members[0], number)
    return hall


def test_block_is_published_once() -> None:
    hall = Hall(3)
    hall.put.start()
    assert hall.members[0].woken == 1
    assert [hall.put.refer(member, 0) for member in hall.members] == [1, 1, 1]
    hall.acknowledge(*hall.members)
    assert hall.put.refer(hall.members[2], 1) == 2
    group = hall.members[0].commands[0][1]
    assert hall.published == [(group, packet.block(number) + b"block") for number in (1, 2)]


def test_ack_returns_the_largest_covered_block() -> None:
    hall = Hall(2)
    hall.put.start()
    one, other = hall.members
    for number in range(2):
        hall.put.refer(one, number)
    assert hall.groups.acked(one, 0) == 0
    assert hall.groups.acked(one, 2) == len(hall.published[0][1])
    assert hall.groups.acked(one, 2) == 0
    assert hall.groups.acked(other, 5) == 0, "no packet of it refers to a block"


def test_members_stay_within_the_window() -> None:
    hall = Hall(2)
    hall.put.start()
    fast, slow = hall.members
    assert [hall.put.refer(fast, number) for number in range(WINDOW)] == list(range(1, WINDOW + 1))
    assert hall.put.refer(fast, WINDOW) is None
    hall.acknowledge(fast)
    assert hall.put.refer(fast, WINDOW) is None
    assert hall.put.refer(slow, 0) == 1
    woken = fast.woken
    hall.acknowledge(slow)
    assert fast.woken == woken + 1
    assert hall.put.refer(fast, WINDOW) == WINDOW + 1
    assert hall.put.refer(fast, WINDOW + 1) is None


@pytest.mark.parametrize("comes", [True, False], ids=["silent", "absent"])
def test_stalled_member_continues_by_unicast(comes: bool) -> None:
    hall = Hall(3)
    hall.put.start()
    slow, *others = hall.members
    if comes:
        hall.put.refer(slow, 0)
    for number in range(WINDOW):
        for member in others:
            hall.put.refer(member, number)
    hall.acknowledge(*others)
    assert hall.put.refer(others[0], WINDOW) is None
    hall.tick(TICKS)
    assert all(member.kinds == [Kind.JOIN] for member in hall.members)
    hall.tick()
    assert all(member.kinds == [Kind.JOIN, Kind.LEAVE] for member in hall.members)
    assert hall.put.refer(slow, 1) == 0
    assert hall.put.refer(others[0], WINDOW) is None
    hall.join(others)
    assert [hall.put.refer(member, WINDOW) for member in others] == [1, 1]
    assert slow.kinds == [Kind.JOIN, Kind.LEAVE]
    assert hall.new_put().refer(slow, 0) is None, "it may try again with the next message"
    assert slow.kinds[-1] is Kind.JOIN


def test_progress_of_one_member_prevents_stalls() -> None:
    hall = Hall(4)
    hall.put.start()
    for number in range(WINDOW):
        for member in hall.members:
            hall.put.refer(member, number)
    assert hall.put.refer(hall.members[0], WINDOW) is None
    for member in hall.members[:3]:
        hall.tick(TICKS)
        hall.acknowledge(member)
    hall.tick(TICKS)
    assert all(member.kinds == [Kind.JOIN] for member in hall.members)
    hall.tick()
    assert hall.put.refer(hall.members[3], WINDOW) == 0
    assert hall.put.refer(hall.members[2], WINDOW) is None


def test_no_stall_while_no_member_waits() -> None:
    hall = Hall(3)
    hall.put.start()
    for member in hall.members[:2]:
        hall.put.refer(member, 0)
    hall.acknowledge(hall.members[0])
    hall.tick()
    assert hall.timers == [], "there is nothing to watch"
    hall.stall()
    assert hall.put.refer(hall.members[2], 0) == 1
    assert all(member.kinds == [Kind.JOIN] for member in hall.members)


def test_pause_between_messages_is_no_stall() -> None:
    hall = one_ahead()
    one, other = hall.members
    hall.put.refer(one, WINDOW)
    hall.tick(TICKS)
    assert hall.put.refer(other, 0) == 1
    hall.acknowledge(other)
    hall.put.refer(one, WINDOW)
    hall.put.refer(one, WINDOW + 1)
    hall.tick(TICKS)
    assert other.kinds == [Kind.JOIN]


@pytest.mark.parametrize(("silence", "pause"), [(10.0, STALL_AFTER / TICKS), (0.4, 0.4 / TICKS)])
def test_tick_interval_follows_the_silence_limit(silence: float, pause: float) -> None:
    hall = Hall(3, silence)
    hall.put.refer(hall.members[0], 0)
    assert [timer for timer, _ in hall.timers] == [pause]
    hall.put.refer(hall.members[1], 0)
    assert len(hall.timers) == 1


def test_late_joiners_continue_by_unicast() -> None:
    hall = Hall(3)
    assert hall.put.refer(hall.members[0], 0) is None
    group = hall.members[0].commands[0][1]
    for member in hall.members[:2]:
        hall.tick(TICKS)  # as long as others join, it may yet
        hall.groups.joined(member, group)
    hall.stall()
    assert hall.put.refer(hall.members[2], 0) == 0
    assert hall.put.refer(hall.members[0], 0) is None
    hall.join(hall.members[:2])
    assert [hall.put.refer(member, 0) for member in hall.members] == [1, 1, 0]


def test_all_continue_by_unicast_if_none_joins() -> None:
    hall = Hall(3)
    assert [hall.put.refer(member, 0) for member in hall.members] == [None] * 3
    hall.stall()
    assert all(member.woken == 1 for member in hall.members)
    assert [hall.put.refer(member, 0) for member in hall.members] == [0] * 3


def test_lost_link_replaces_the_group() -> None:
    hall = Hall(3)
    hall.put.start()
    lost = hall.members.pop()
    hall.groups.lost(lost)
    assert [member.kinds for member in hall.members] == [[Kind.JOIN, Kind.LEAVE]] * 2
    assert hall.put.refer(hall.members[0], 0) is None
    hall.join(hall.members)
    assert [hall.put.refer(member, 0) for member in hall.members] == [1, 1]


def test_next_link_of_a_client_continues_by_unicast() -> None:
    hall = Hall(3)
    hall.put.start()
    lost = hall.members[2]
    hall.members[2] = back = Listener()
    back.id = lost.id
    hall.groups.lost(lost)
    assert hall.put.refer(back, 1) == 0
    assert back.commands == []
    assert hall.new_put().refer(back, 0) is None


def test_last_member_continues_by_unicast() -> None:
    hall = Hall(2)
    hall.put.start()
    hall.groups.lost(hall.members[1])
    assert hall.put.refer(hall.members[0], 0) == 0


def test_references_never_go_back() -> None:
    hall = Hall(2)
    hall.put.start()
    one, two = hall.members
    other = hall.new_put()
    assert hall.put.refer(one, 0) == 1
    assert other.refer(one, 0) == 2
    assert other.refer(two, 0) == 2
    assert hall.put.refer(two, 0) == 0
    hall.acknowledge(two)
    assert hall.put.refer(two, 0) == 0, "nor after it has passed the later one"


def test_reference_covers_earlier_blocks() -> None:
    hall = one_ahead()
    one, two = hall.members
    hall.acknowledge(one)
    assert hall.put.refer(one, WINDOW) is None
    assert hall.put.refer(two, 5) == 6
    hall.acknowledge(two)
    assert [hall.put.refer(one, WINDOW + more) for more in range(7)] == [9, 10, 11, 12, 13, 14, None]


def test_single_member_has_no_group() -> None:
    hall = Hall(1)
    assert hall.put.refer(hall.members[0], 0) == 0
    assert hall.members[0].commands == []


def pairs(hall: Hall) -> list[Put]:
    """Puts to the first member and each of the others."""
    return [Put(hall, [hall.members[0], other]) for other in hall.members[1:]]


def test_recently_used_groups_are_kept() -> None:
    hall = Hall(MAX_GROUPS + 2)
    for put in pairs(hall):
        put.start()
    assert hall.members[1].kinds == [Kind.JOIN, Kind.LEAVE]
    assert all(member.kinds == [Kind.JOIN] for member in hall.members[2:])
    Put(hall, hall.members[:3:2]).refer(hall.members[0], 0)
    assert hall.members[2].kinds == [Kind.JOIN], "the next put to the same clients has the same group"


def test_message_of_an_evicted_group_continues_by_unicast() -> None:
    hall = Hall(MAX_GROUPS + 2)
    first, *others = pairs(hall)
    for put in (first, *others):
        put.start()
    assert [first.refer(member, 1) for member in first.members] == [0, 0]
    assert all(put.members[1].kinds == [Kind.JOIN] for put in others)
    assert Put(hall, first.members).refer(hall.members[0], 0) is None


def test_growing_links_join_and_slow_ones_do_not() -> None:
    hall = Hall(4)
    fast, other, new, slow = hall.members
    new.congestion, slow.congestion = CongestionControl(MOST), SLOW
    put = hall.new_put(Stream([bytes(MIN_SIZE_TO_WAIT)]))
    assert put.refer(fast, 2) is None
    assert slow.commands == []
    hall.join([fast, other, new])
    assert put.refer(fast, 2) is None
    assert put.refer(slow, 2) == 0
    assert put.refer(new, 2) == 1
    assert fast.woken == 1
    assert put.refer(fast, 2) == 1


def test_link_that_does_not_grow_continues_by_unicast() -> None:
    hall = Hall(3)
    *others, new = hall.members
    new.congestion = CongestionControl(MOST)
    put = hall.new_put(Stream([bytes(MIN_SIZE_TO_WAIT)]))
    assert put.refer(others[0], 2) is None
    hall.join(hall.members)
    hall.stall()
    assert put.refer(others[0], 2) is None
    assert [member.kinds[-1] for member in hall.members] == [Kind.JOIN, Kind.JOIN, Kind.LEAVE]


def test_small_message_does_not_wait_for_growing_links() -> None:
    hall = Hall(2)
    fast, new = hall.members
    new.congestion = CongestionControl(MOST)
    assert hall.put.refer(fast, 0) == 0


def test_late_member_catches_up_by_unicast() -> None:
    hall = Hall(2)
    hall.put.start()
    first, second = hall.members
    assert [hall.put.refer(first, number) for number in (3, 4)] == [1, 2]
    assert [hall.put.refer(second, number) for number in (1, 2)] == [0, 0]
    assert hall.put.refer(second, 3) == 1


def test_reused_stream_is_a_new_message() -> None:
    hall = Hall(3)
    slow, *others = hall.members
    slow.congestion = SLOW
    assert hall.put.refer(others[0], 0) is None
    hall.join(others)
    assert [hall.put.refer(member, 0) for member in others] == [1, 1]
    slow.congestion = FULL
    assert hall.put.refer(slow, 1) == 0, "the message has its members"
    again = hall.new_put(hall.put.stream)
    assert again.refer(slow, 0) is None
    assert [member.commands[-1] for member in others] == [slow.commands[0]] * 2


def test_remembered_puts_are_bounded() -> None:
    hall = Hall(2)
    hall.put.start()
    puts = [hall.new_put() for _ in range(10 * _MAX_PUTS)]
    for put in puts:
        put.refer(hall.members[0], 0)
        hall.groups.lost(hall.members[0])
    assert len(hall.groups._puts) == _MAX_PUTS
    assert hall.put.refer(hall.members[0], 0) is None, "a message that was forgotten begins again"


def test_unicast_differs_from_references() -> None:
    assert packet.reference("0" * 16, 0) != UNICAST
