"""Groups and shelves, by plain calls: the time is a number, and members are lists of what they were told."""

from __future__ import annotations

import uuid

import pytest

from netq import ProtocolError
from netq.mqtt.group import ALONE_NOW, JOIN, LEAD, PATIENCE, SPREAD, STALL, WAIT, Block, Member, Publication
from netq.mqtt.groups import ALONE, ALONE_MOST, KEPT, LARGE, Groups
from netq.mqtt.pace import LATE
from netq.mqtt.packet import Kind
from netq.mqtt.shelf import ROOM, Shelf
from netq.utils.stream import Stream

SIZE = 100


class Listener:
    def __init__(self) -> None:
        self.id = uuid.uuid4()
        self.client = self.id.hex[:16]
        self.told: list[tuple[Kind, str]] = []
        self.woken = 0
        self.full = True
        self.growing = False

    def command(self, kind: Kind, group: str) -> None:
        self.told.append((kind, group))

    def wake(self) -> None:
        self.woken += 1

    def undecided(self, now: float) -> bool:
        return self.growing


class Hall:
    """Members, their groups, and a message for all of them."""

    def __init__(self, count: int) -> None:
        self.members = [Listener() for _ in range(count)]
        self.groups = Groups(self.find)
        self.stream = Stream([bytes(100 * SIZE)])
        self.now = 0.0

    def find(self, audience: tuple[uuid.UUID, ...]) -> list[Member]:
        return [member for member in self.members if member.id in audience]

    def place(self, member: Listener, number: int, stream: Stream | None = None) -> Publication:
        audience = tuple(member.id for member in self.members)
        return self.groups.place(member, Block(stream or self.stream, number * SIZE, audience, []), self.now)

    def joined(self) -> str:
        """Let the first come with a block, and all join; return the group."""
        assert self.place(self.members[0], 0) == WAIT
        for member in self.members:
            kind, group = member.told[-1]
            assert kind is Kind.JOIN
            self.groups.joined(member, group, self.now)
        return group

    def fast(self) -> str:
        """Let all join, and pass blocks of another message until LEAD may be under way; return the group."""
        group = self.joined()
        other = Stream([bytes(100 * SIZE)])
        for number in range(LEAD.bit_length() - 1):
            self.all_pass(group, number, other)
        return group

    def all_pass(self, group: str, number: int, stream: Stream | None = None, seconds: float = 0.0) -> None:
        """Place a block of everybody's, and let all pass it after so many seconds."""
        placed = [self.place(member, number, stream).number for member in self.members]
        self.now += seconds
        for member, block in zip(self.members, placed, strict=True):
            self.groups.passed(member, group, block, self.now)

    def lead(self, member: Listener, first: int = 0) -> int:
        """Return how many blocks a member may publish before it has to wait for the others."""
        return next(count for count in range(LEAD + 1) if self.place(member, first + count) == WAIT)


def test_a_block_is_published_once_and_referred_to_by_all() -> None:
    hall = Hall(3)
    group = hall.joined()
    assert hall.members[0].woken == 1
    assert [hall.place(member, 0) for member in hall.members] == [
        Publication(group, 1, new=True),
        Publication(group, 1, new=False),
        Publication(group, 1, new=False),
    ]
    for member in hall.members:
        hall.groups.passed(member, group, 1, hall.now)
    assert hall.place(hall.members[2], 1) == Publication(group, 2, new=True)


def test_nobody_is_ahead_of_the_slowest_by_more_than_the_lead() -> None:
    hall = Hall(2)
    group = hall.fast()
    fast, slow = hall.members
    published = [hall.place(fast, number) for number in range(LEAD)]
    assert all(publication.new for publication in published)
    assert hall.place(fast, LEAD) == WAIT
    hall.groups.passed(fast, group, published[-1].number, hall.now)
    assert hall.place(fast, LEAD) == WAIT
    first = published[0].number
    assert hall.place(slow, 0) == Publication(group, first, new=False)
    woken = fast.woken
    hall.groups.passed(slow, group, first, hall.now)
    assert fast.woken == woken + 1
    assert hall.place(fast, LEAD) == Publication(group, first + LEAD, new=True)


def test_a_new_group_has_one_block_under_way_and_twice_as_many_each_time_that_is_soon() -> None:
    hall = Hall(3)
    group = hall.joined()
    leads = [hall.lead(hall.members[0], first=50)]
    for number in range(LEAD.bit_length()):
        hall = Hall(3)
        group = hall.joined()
        other = Stream([bytes(100 * SIZE)])
        for before in range(number + 1):
            hall.all_pass(group, before, other, seconds=LATE / 2 - 0.01)
        leads.append(hall.lead(hall.members[0]))
    assert leads == [1, 2, 4, 8, LEAD]


def test_what_all_pass_late_is_not_one_members_fault_and_less_is_under_way() -> None:
    hall = Hall(4)
    group = hall.fast()
    other = Stream([bytes(100 * SIZE)])
    hall.all_pass(group, 0, other, seconds=2 * LATE)
    hall.groups.tick(hall.now)
    assert all(member.told[-1] == (Kind.JOIN, group) for member in hall.members)
    assert hall.lead(hall.members[0]) == LEAD // 2


def test_on_a_slow_way_one_block_is_under_way_and_nobody_is_left_behind() -> None:
    hall = Hall(4)
    group = hall.joined()
    for number in range(5):
        hall.all_pass(group, number, seconds=PATIENCE - 0.1)
        hall.groups.tick(hall.now)
    assert hall.members[0].told == [(Kind.JOIN, group)]
    assert hall.lead(hall.members[0], first=50) == 1


def test_the_rest_may_need_longer_than_half_of_the_members_needed() -> None:
    hall = Hall(4)
    group = hall.joined()
    *half, third, slow = hall.members
    for member in hall.members:
        hall.place(member, 0)
    assert hall.place(half[0], 1) == WAIT
    hall.now = 3 * STALL
    hall.groups.tick(hall.now)
    for member in half:
        hall.groups.passed(member, group, 1, hall.now)
    hall.now = 3 * STALL * (1 + SPREAD) - 0.01
    hall.groups.passed(third, group, 1, hall.now)
    hall.groups.tick(hall.now)
    assert slow.told[-1] == (Kind.JOIN, group)
    hall.now += 0.02
    hall.groups.tick(hall.now)
    assert slow.told[-1] == (Kind.LEAVE, group)
    assert hall.place(slow, 1) == ALONE_NOW
    assert hall.place(third, 1) == WAIT  # for another group, that it is in


def test_one_who_does_not_come_for_a_block_is_not_waited_for_as_the_slow_are() -> None:
    """Its user does not read; and nothing of those who wait passes, not even a heartbeat."""
    hall = Hall(4)
    group = hall.joined()
    reader, *others = hall.members
    assert hall.place(reader, 0).new
    hall.groups.passed(reader, group, 1, hall.now)
    assert hall.place(reader, 1) == WAIT
    hall.now = STALL - 0.01
    hall.groups.tick(hall.now)
    assert others[0].told[-1] == (Kind.JOIN, group)
    hall.now = STALL
    hall.groups.tick(hall.now)
    assert all(hall.place(other, 0) == ALONE_NOW for other in others)
    assert hall.place(reader, 1) == ALONE_NOW


def test_nobody_waits_for_longer_than_silence_is_borne() -> None:
    hall = Hall(4)
    hall.groups = Groups(hall.find, silence=0.3)
    assert hall.place(hall.members[0], 0) == WAIT
    group = hall.members[0].told[-1][1]
    hall.groups.tick(0.29)
    assert hall.members[3].told == [(Kind.JOIN, group)]
    hall.groups.tick(0.3)  # nobody has joined
    assert hall.members[3].told[-1] == (Kind.LEAVE, group)
    hall = Hall(4)
    hall.groups = Groups(hall.find, silence=0.3)
    group = hall.joined()
    for member in hall.members:
        hall.place(member, 0)
    assert hall.place(hall.members[0], 1) == WAIT
    hall.groups.tick(0.29)
    assert hall.members[3].told == [(Kind.JOIN, group)]
    for member in hall.members[:2]:
        hall.groups.passed(member, group, 1, 0.29)
    hall.groups.tick(0.29 + 0.57)  # twice what these needed
    assert hall.members[3].told == [(Kind.JOIN, group)]
    hall.groups.tick(0.29 + 0.59)
    assert hall.members[3].told[-1] == (Kind.LEAVE, group)


def test_what_was_published_late_is_not_held_against_those_who_passed_what_was_before() -> None:
    hall = Hall(4)
    group = hall.fast()
    *quick, slow = hall.members
    first = hall.place(slow, 0).number
    for member in quick:
        hall.place(member, 0)
        hall.groups.passed(member, group, first, hall.now)
    hall.now += PATIENCE - 0.2
    for member in hall.members:
        hall.place(member, 1)
    hall.now += 0.1
    hall.groups.passed(slow, group, first, hall.now)
    hall.now += 0.2
    hall.groups.tick(hall.now)
    assert all(member.told[-1] == (Kind.JOIN, group) for member in hall.members)


def test_when_most_stand_still_they_are_left_behind_after_a_while() -> None:
    hall = Hall(5)
    group = hall.joined()
    for member in hall.members:
        hall.place(member, 0)
    hall.groups.passed(hall.members[0], group, 1, hall.now)
    assert hall.place(hall.members[0], 1) == WAIT
    hall.now = PATIENCE - 0.01
    hall.groups.tick(hall.now)
    assert hall.members[1].told[-1] == (Kind.JOIN, group)
    hall.now = PATIENCE
    hall.groups.tick(hall.now)
    assert hall.members[1].told[-1] == (Kind.LEAVE, group)


def test_one_without_progress_is_left_behind_and_the_others_have_another_group() -> None:
    hall = Hall(3)
    group = hall.fast()
    slow, *others = hall.members
    for number in range(LEAD):
        for member in others:
            hall.groups.passed(member, group, hall.place(member, number).number, hall.now)
    assert hall.place(others[0], LEAD) == WAIT
    hall.now = STALL - 0.01
    hall.groups.tick(hall.now)
    assert slow.told[-1] == (Kind.JOIN, group)
    hall.now = STALL
    hall.groups.tick(hall.now)
    assert all(member.told[-1] == (Kind.LEAVE, group) for member in hall.members)
    assert hall.place(slow, 0) == ALONE_NOW
    assert hall.place(others[0], LEAD) == WAIT
    assert [member.told[-1][0] for member in hall.members] == [Kind.LEAVE, Kind.JOIN, Kind.JOIN]
    hall.now += ALONE
    other = Stream([bytes(100 * SIZE)])
    assert hall.place(slow, 0, other) == WAIT  # it may try again
    assert slow.told[-1][0] is Kind.JOIN


def test_those_who_do_not_join_in_time_are_left_behind() -> None:
    hall = Hall(3)
    assert hall.place(hall.members[0], 0) == WAIT
    group = hall.members[0].told[0][1]
    for member in hall.members[:2]:
        hall.now += JOIN - 0.01  # as long as others do, it may yet
        hall.groups.tick(hall.now)
        hall.groups.joined(member, group, hall.now)
    hall.now += JOIN
    hall.groups.tick(hall.now)
    assert hall.place(hall.members[2], 0) == ALONE_NOW
    assert hall.place(hall.members[0], 0) == WAIT
    for member in hall.members[:2]:
        hall.groups.joined(member, member.told[-1][1], hall.now)
    assert hall.place(hall.members[0], 0).new
    assert not hall.place(hall.members[1], 0).new


def test_many_who_join_one_by_one_keep_the_others_no_longer_than_their_patience() -> None:
    hall = Hall(100)
    assert hall.place(hall.members[0], 0) == WAIT
    group = hall.members[0].told[0][1]
    for member in hall.members[: int(PATIENCE / JOIN)]:
        hall.groups.tick(hall.now)
        assert hall.members[-1].told == [(Kind.JOIN, group)]
        hall.groups.joined(member, group, hall.now)
        hall.now += JOIN - 0.01
    hall.now = PATIENCE
    hall.groups.tick(hall.now)
    assert hall.members[-1].told[-1] == (Kind.LEAVE, group)


def test_a_pause_between_two_messages_is_no_lack_of_progress() -> None:
    hall = Hall(2)
    group = hall.joined()
    for member in hall.members:
        hall.place(member, 0)
        hall.groups.passed(member, group, 1, hall.now)
    hall.now = 1000.0
    assert hall.place(hall.members[0], 1).new
    hall.groups.tick(hall.now + STALL / 2)
    assert not hall.place(hall.members[1], 1).new


def test_a_lost_member_ends_the_group_and_is_told_nothing() -> None:
    hall = Hall(3)
    group = hall.joined()
    lost = hall.members.pop()
    hall.groups.lost(lost, hall.now)
    assert lost.told == [(Kind.JOIN, group)]
    assert [member.told[-1] for member in hall.members] == [(Kind.LEAVE, group)] * 2


def test_lanes_that_take_turns_otherwise_do_not_refer_back() -> None:
    hall = Hall(2)
    hall.fast()
    one, two = hall.members
    other = Stream([bytes(100 * SIZE)])
    assert hall.place(one, 0).new
    second = hall.place(one, 0, other)
    assert second.new
    assert hall.place(two, 0, other).number == second.number
    assert hall.place(two, 0) == ALONE_NOW


def test_one_alone_has_no_group() -> None:
    hall = Hall(1)
    assert hall.place(hall.members[0], 0) == ALONE_NOW
    assert hall.members[0].told == []


class Pair:
    """Two members of a hall, and a message for them."""

    def __init__(self, hall: Hall, other: Listener) -> None:
        self.hall = hall
        self.members = [hall.members[0], other]
        self.stream = Stream([bytes(10 * SIZE)])

    def place(self, number: int = 0) -> Publication:
        audience = tuple(member.id for member in self.members)
        return self.hall.groups.place(self.members[0], Block(self.stream, number * SIZE, audience, []), self.hall.now)

    def join(self) -> None:
        for member in self.members:
            self.hall.groups.joined(member, self.members[1].told[-1][1], self.hall.now)


def pairs(hall: Hall) -> list[Pair]:
    return [Pair(hall, other) for other in hall.members[1:]]


def test_few_groups_are_kept_those_used_last() -> None:
    hall = Hall(KEPT + 2)
    for pair in pairs(hall):
        assert pair.place() == WAIT
        pair.join()  # and nothing is under way
    assert [kind for kind, _ in hall.members[1].told] == [Kind.JOIN, Kind.LEAVE]
    assert all([kind for kind, _ in member.told] == [Kind.JOIN] for member in hall.members[2:])


@pytest.mark.parametrize("busy", ["joining", "under way"])
def test_a_group_in_use_gives_way_to_none_and_the_message_without_one_goes_alone_to_its_end(busy: str) -> None:
    hall = Hall(KEPT + 2)
    *first, last = pairs(hall)
    for pair in first:
        pair.place()
        if busy == "under way":
            pair.join()
            assert pair.place().new
    assert last.place() == ALONE_NOW
    hall.groups.lost(first[0].members[1], hall.now)  # there is room again
    assert last.place(1) == ALONE_NOW
    assert last.members[1].told == []
    assert all([kind for kind, _ in pair.members[1].told] == [Kind.JOIN] for pair in first)


def test_a_message_whose_group_gave_way_does_not_take_that_of_another() -> None:
    hall = Hall(KEPT + 2)
    first, *others = pairs(hall)
    for pair in (first, *others):
        pair.place()
        pair.join()
    assert first.place(1) == ALONE_NOW
    assert all([kind for kind, _ in pair.members[1].told] == [Kind.JOIN] for pair in others)
    hall.now += 2 * STALL  # it is over; another may have its place in memory
    assert first.place() == WAIT


def test_a_client_lost_with_a_block_outstanding_is_alone_for_longer_each_time_until_one_reaches_it() -> None:
    hall = Hall(3)
    bad = hall.members[2]
    for seconds in (ALONE, 2 * ALONE, 4 * ALONE):
        group = hall.joined()
        assert hall.place(bad, 0).group == group
        hall.groups.lost(bad, hall.now)
        hall.members[2] = bad = again(bad)
        hall.now += seconds - 0.1
        assert hall.place(bad, 0, Stream([bytes(SIZE)])) == ALONE_NOW
        hall.now += 0.1
    group = hall.joined()
    hall.all_pass(group, 0)
    assert hall.place(bad, 1).number == 2
    hall.groups.lost(bad, hall.now)
    hall.members[2] = bad = again(bad)
    hall.now += ALONE
    assert hall.place(bad, 0, Stream([bytes(SIZE)])) == WAIT
    assert 4 * ALONE < ALONE_MOST


def test_when_all_links_are_lost_nobody_is_to_blame() -> None:
    hall = Hall(2)
    hall.joined()
    assert hall.place(hall.members[0], 0).new
    hall.groups.clear()
    hall.groups.lost(hall.members[0], hall.now)
    hall.members[0] = again(hall.members[0])
    assert hall.place(hall.members[0], 0) == WAIT


def again(member: Listener) -> Listener:
    """The next link of the same client."""
    other = Listener()
    other.id, other.client = member.id, member.client
    return other


def test_there_is_nothing_to_wait_for_when_nothing_is_under_way() -> None:
    hall = Hall(2)
    assert hall.groups.deadline() == float("inf")
    group = hall.joined()
    for member in hall.members:
        hall.place(member, 0)
    assert hall.groups.deadline() < 1.0
    for member in hall.members:
        hall.groups.passed(member, group, 1, hall.now)
    assert hall.groups.deadline() == float("inf")


def test_a_block_waits_on_the_shelf_for_its_reference_and_a_reference_for_its_block() -> None:
    shelf = Shelf()
    assert shelf.take(1) is None
    shelf.put(1, memoryview(b"one"))
    shelf.put(2, memoryview(b"two"))
    assert bytes(shelf.take(1) or b"") == b"one"
    assert bytes(shelf.take(2) or b"") == b"two"


def test_a_block_that_others_passed_is_lost() -> None:
    shelf = Shelf()
    shelf.put(2, memoryview(b"two"))
    with pytest.raises(ProtocolError, match="block 1 of a group is lost, block 2 has come"):
        shelf.take(1)


def test_a_shelf_keeps_so_many_and_no_block_twice() -> None:
    shelf = Shelf()
    for number in range(1, ROOM + 2):
        shelf.put(number, memoryview(b"x"))
    shelf.put(3, memoryview(b"again"))
    with pytest.raises(ProtocolError):
        shelf.take(1)
    assert bytes(shelf.take(3) or b"") == b"x"
    with pytest.raises(ProtocolError):
        shelf.take(2)


def test_who_may_be_fast_is_waited_for_and_who_is_slow_is_not() -> None:
    hall = Hall(4)
    fast, other, new, slow = hall.members
    new.full = slow.full = False
    new.growing = True
    hall.stream = Stream([bytes(LARGE)])
    assert hall.place(fast, 2) == WAIT
    assert not slow.told
    (_, group), *_ = new.told
    for member in (fast, other, new):
        hall.groups.joined(member, group, hall.now)
    assert hall.place(fast, 2) == WAIT
    assert hall.place(new, 2) == Publication(group, 1, new=True)
    assert fast.woken == 1
    assert hall.place(fast, 2) == Publication(group, 1, new=False)


def test_who_does_not_grow_in_time_is_left_behind() -> None:
    hall = Hall(3)
    *others, new = hall.members
    new.full, new.growing = False, True
    hall.stream = Stream([bytes(LARGE)])
    assert hall.place(others[0], 2) == WAIT
    for member in hall.members:
        hall.groups.joined(member, new.told[0][1], hall.now)
    hall.now = JOIN
    hall.groups.tick(hall.now)
    assert [member.told[-1][0] for member in hall.members] == [Kind.LEAVE] * 3
    assert hall.place(others[0], 2) == WAIT
    assert [member.told[-1][0] for member in hall.members] == [Kind.JOIN, Kind.JOIN, Kind.LEAVE]


def test_a_message_too_small_to_grow_with_goes_alone_rather_than_wait() -> None:
    hall = Hall(2)
    fast, new = hall.members
    new.full, new.growing = False, True
    assert hall.place(fast, 0) == ALONE_NOW


def test_who_began_later_catches_up_alone_and_is_then_one_of_them() -> None:
    hall = Hall(2)
    hall.fast()
    first, second = hall.members
    third, _ = published = [hall.place(first, number) for number in (3, 4)]
    assert all(publication.new for publication in published)
    assert [hall.place(second, number) for number in (1, 2)] == [ALONE_NOW, ALONE_NOW]
    assert hall.place(second, 3) == third._replace(new=False)


def test_a_stream_that_the_user_keeps_is_a_new_message_each_time() -> None:
    hall = Hall(3)
    slow, *others = hall.members
    slow.full = False
    assert hall.place(others[0], 0) == WAIT
    for member in others:
        hall.groups.joined(member, member.told[0][1], hall.now)
    for member in others:
        hall.place(member, 0)
        hall.groups.passed(member, member.told[0][1], 1, hall.now)
    slow.full = True
    assert hall.place(slow, 1) == ALONE_NOW, "the message has its group"
    assert hall.place(slow, 0) == WAIT
    assert [member.told[-1] for member in others] == [slow.told[0]] * 2


def test_a_stream_that_went_alone_once_does_not_so_for_ever() -> None:
    hall = Hall(2)
    hall.groups._single[id(hall.stream), tuple(member.id for member in hall.members)] = hall.now
    assert hall.place(hall.members[0], 1) == ALONE_NOW
    assert hall.place(hall.members[0], 0) == WAIT
