"""A session by itself: lanes in turn, limits of its queue, resuming all or nothing, beginning anew."""

from __future__ import annotations

import dataclasses
import uuid

import pytest

from netq.connection import LENGTH
from netq.errors import MessageTooLarge, ProtocolError, QueueFull
from netq.lane import Outgoing, Receiver
from netq.memory import Memory
from netq.options import ConnectionOptions
from netq.session import Session, following
from netq.utils.stream import Stream
from netq.wire import ANSWER, OVERHEAD, Cursor, Frame, Greeting, Kind, Reader

PEER = uuid.UUID(int=7)
OPTIONS = ConnectionOptions(transport_size=100, window=10_000)
PLENTY = 1_000_000


def session(options: ConnectionOptions = OPTIONS, *, begun: bool = True) -> Session:
    made = Session(b"t" * 16, options, Memory())
    if begun:
        made.begin(greeting(), 1)
    return made


def greeting(*cursors: Cursor, message_size: int = 2**40, credit: int = 10_000, epoch: int = 1) -> Greeting:
    return Greeting(PEER, b"t" * 16, message_size, credit, 1000, cursors, resume=True, epoch=epoch)


def put(session: Session, size: int, lane: int = 0) -> Outgoing:
    message = Outgoing(Stream([bytes(size)]), lane)
    session.put(message)
    return message


def sent(session: Session, limit: int = PLENTY) -> list[Frame]:
    """What it sends now, parsed."""
    frames: list[Frame] = []
    for header, body in session.chunks(limit):
        data = b"".join([header, *(body.buffers() if body else ())])
        reader = Reader(lambda frame: memoryview(bytearray(frame.length)))
        reader.buffer()[: len(data)] = data
        frames += reader.advance(len(data))
    return frames


def ack(number: int, limit: int = 10_000, lane: int = 0) -> Frame:
    return Frame(Kind.ACK, lane=lane, number=number, value=limit)


def arrive(session: Session, number: int, size: int, lane: int = 0) -> Receiver:
    """Let a message of one chunk come."""
    frame = Frame(Kind.MSG, lane=lane, length=size, number=number, value=size)
    session.place(frame)
    whole = session.received(frame)
    assert whole is not None
    return whole[0]


# Sending.


def test_nothing_leaves_before_the_peer_has_greeted() -> None:
    one = session(begun=False)
    put(one, 5)
    assert sent(one) == []
    one.begin(greeting(), 1)
    assert [frame.length for frame in sent(one)] == [5]


def test_a_small_message_goes_after_one_chunk_of_a_large_one() -> None:
    one = session()
    put(one, 1000, lane=0)
    assert [frame.lane for frame in sent(one, limit=100)] == [0]
    put(one, 64, lane=1)
    assert [frame.lane for frame in sent(one, limit=24 + 64)] == [1]
    assert [frame.lane for frame in sent(one, limit=100)] == [0]


def test_the_lanes_take_turns() -> None:
    one = session()
    for lane in (5, 0, 9):
        put(one, 300, lane)
    assert [frame.lane for frame in sent(one)] == [5, 9, 0] * 3


def test_a_lane_that_waits_for_room_does_not_hold_up_another() -> None:
    one = session()
    put(one, 20_000, lane=0)
    sent(one)
    put(one, 10, lane=1)
    assert [frame.lane for frame in sent(one)] == [1]


def test_the_limit_of_bytes_at_once_is_kept() -> None:
    one = session()
    put(one, 1000)
    assert [frame.length for frame in sent(one, limit=150)] == [100, 26]
    assert sent(one, limit=0) == []


def test_a_message_that_is_cancelled_before_it_leaves_is_taken_out() -> None:
    one = session(begun=False)
    first, second, third = put(one, 10), put(one, 20), put(one, 30)
    second.cancel()
    one.withdraw(second)
    assert one.queued == 2
    one.begin(greeting(), 1)
    frames = [frame for frame in sent(one) if frame.kind is Kind.MSG]
    assert [(frame.number, frame.value) for frame in frames] == [(1, 10), (2, 30)]
    assert (third.number, third.start) == (2, first.stop)
    third.cancel()
    one.withdraw(third)  # it has left: the peer must acknowledge it
    assert one.queued == 2


def test_one_message_too_many_is_refused_and_untouched() -> None:
    one = session(dataclasses.replace(OPTIONS, queue_size=2))
    put(one, 1)
    put(one, 1, lane=1)
    third = Outgoing(Stream([b"x"]))
    with pytest.raises(QueueFull) as caught:
        one.put(third)
    assert caught.value.peer == PEER
    assert (one.queued, third.number, third.stream.nbytes) == (2, 0, 1)
    sent(one)
    one.acked(ack(1))
    one.put(third)
    assert third.number == 2


def test_a_message_that_the_peer_does_not_take_is_refused() -> None:
    one = session(begun=False)
    one.begin(greeting(message_size=10), 1)
    put(one, 10)
    with pytest.raises(MessageTooLarge) as caught:
        put(one, 11)
    assert caught.value.peer == PEER
    assert one.queued == 1


def test_messages_that_were_put_before_are_refused_when_the_peer_says_what_it_takes() -> None:
    one = session(begun=False)
    small, large, cancelled = put(one, 5), put(one, 11), put(one, 12)
    cancelled.cancel()
    ((message, error),) = one.begin(greeting(message_size=10), 1)
    assert message is large
    assert isinstance(error, MessageTooLarge)
    assert [frame.kind for frame in sent(one)] == [Kind.MSG, Kind.DROP, Kind.DROP]
    assert one.acked(ack(3)) == [small, large, cancelled]


# Acknowledgement.


def test_an_ack_may_come_when_nothing_is_left_to_acknowledge() -> None:
    """It answers a PING, or gives room that the user has made."""
    one = session()
    first = put(one, 5)
    sent(one)
    assert one.acked(ack(1)) == [first]
    assert one.acked(ack(1, limit=20_000)) == []
    put(one, 19_000)
    assert sum(frame.length for frame in sent(one)) == 19_000


def test_an_ack_of_a_lane_that_has_sent_nothing() -> None:
    one = session()
    assert one.acked(ack(0, lane=4)) == []
    with pytest.raises(ProtocolError, match="lane 4: message 1 is acknowledged"):
        one.acked(ack(1, lane=4))


def test_a_limit_of_a_lane_that_has_sent_nothing_is_kept() -> None:
    one = session()
    one.acked(ack(0, limit=50_000, lane=4))
    put(one, 30_000, lane=4)
    assert sum(frame.length for frame in sent(one)) == 30_000
    other = session()
    other.resume(greeting(Cursor(4, 0, 0, 50_000)))
    put(other, 30_000, lane=4)
    assert sum(frame.length for frame in sent(other)) == 30_000


def test_a_limit_never_shrinks() -> None:
    one = session()
    one.acked(ack(0, limit=5))
    put(one, 1000)
    assert sum(frame.length for frame in sent(one)) == 1000
    one.acked(ack(0, limit=5))
    put(one, 10)
    assert [frame.length for frame in sent(one)] == [10]


def test_what_has_come_of_messages_that_are_not_whole_is_counted() -> None:
    one = session()
    for lane, number, size in ((0, 1, 100), (3, 1, 70)):
        part = Frame(Kind.MSG, lane=lane, length=40, number=number, value=size)
        one.place(part)
        assert one.received(part) is None
    assert one.arriving == 80
    rest = Frame(Kind.MSG, lane=3, length=30, number=1, value=70)
    one.place(rest)
    assert one.received(rest) is not None
    assert one.arriving == 40


def test_one_ack_a_lane_says_all() -> None:
    one = session()
    arrive(one, 1, 10)
    arrive(one, 2, 10)
    arrive(one, 1, 10, lane=3)
    assert one.acks() == [ack(2), ack(1, lane=3)]
    assert one.acks() == []


def test_the_answer_to_a_ping_says_what_was_due() -> None:
    one = session()
    assert one.said(ANSWER) == Frame(Kind.ACK, ANSWER, value=10_000)
    arrive(one, 1, 10)
    assert one.said(ANSWER) == Frame(Kind.ACK, ANSWER, number=1, value=10_000)
    assert one.acks() == []


def test_taking_messages_gives_room() -> None:
    one = session()
    receiver = arrive(one, 1, 5000)
    one.acks()
    assert not one.taken(receiver, 100)
    assert one.acks() == []
    assert one.taken(receiver, 4900 + OVERHEAD)
    assert one.acks() == [ack(1, limit=15_256)]


def test_a_drop_is_acknowledged() -> None:
    one = session()
    one.dropped(Frame(Kind.DROP, number=1, value=50))
    assert one.acks() == [ack(1, limit=10_306)]


# Going on.


def test_resuming_acknowledges_and_goes_on() -> None:
    one = session()
    first, second, other = put(one, 150), put(one, 250), put(one, 10, lane=2)
    sent(one)
    assert one.resume(greeting(Cursor(0, 1, 90, 10_000), Cursor(2, 1, 0, 10_000))) == [first, other]
    assert [(frame.number, frame.length) for frame in sent(one)] == [(2, 100), (2, 60)]
    assert one.acked(ack(2)) == [second]


@pytest.mark.parametrize(
    "bad",
    [
        Cursor(1, 2, 0, 10_000),  # more than was sent
        Cursor(1, 1, 1, 10_000),  # bytes of what was not sent
        Cursor(1, 0, 10, 10_000),  # all bytes, but not held
        Cursor(5, 1, 0, 10_000),  # a lane that never sent
        Cursor(5, 0, 1, 10_000),
    ],
)
def test_one_impossible_cursor_changes_nothing_in_any_lane(bad: Cursor) -> None:
    one = session()
    messages = [put(one, 10, lane=0), put(one, 10, lane=1)]
    sent(one)
    with pytest.raises(ProtocolError, match=f"lane {bad.lane}"):
        one.resume(greeting(Cursor(0, 1, 0, 99_999), bad))
    assert one.queued == 2
    assert one.resume(greeting(Cursor(0, 1, 0, 10_000), Cursor(1, 1, 0, 10_000))) == messages


def test_a_lane_without_a_cursor_goes_on_from_its_beginning() -> None:
    one = session()
    put(one, 10, lane=1)
    sent(one)
    assert one.resume(greeting()) == []
    assert [frame.number for frame in sent(one)] == [1]
    one.acked(ack(1, lane=1))
    with pytest.raises(ProtocolError, match="has acknowledged 1"):
        one.resume(greeting())


def test_resuming_does_not_change_who_the_peer_is() -> None:
    one = session()
    with pytest.raises(ProtocolError, match="goes on with a session of"):
        one.resume(dataclasses.replace(greeting(), id=uuid.UUID(int=8)))
    assert one.peer == PEER


def test_an_epoch_is_gone_on_with_or_begun_again_or_wrong() -> None:
    one = session(begun=False)
    one.begin(greeting(epoch=4), 5)
    message = put(one, 10)
    sent(one)
    assert not one.heard(greeting(epoch=4))  # it never heard of 5, so it has nothing of it
    assert one.restart() == []
    one.begin(greeting(epoch=4), 5)
    assert [frame.number for frame in sent(one)] == [message.number] == [1]
    assert one.heard(greeting(epoch=5))
    for epoch in (0, 3, 4, 6):
        with pytest.raises(ProtocolError, match=f"epoch {epoch}"):
            one.heard(greeting(epoch=epoch))
        with pytest.raises(ProtocolError, match=f"epoch {epoch}"):
            one.resume(greeting(epoch=epoch))


@pytest.mark.parametrize("confirmed", [False, True])
@pytest.mark.parametrize(
    ("ours", "before", "other", "after"),
    [
        (1, (0, 2**32 - 1), (2**32 - 2,), (2, 3, 2**31 - 1)),
        (5, (4,), (0, 1, 3), (6, 1000)),
        (2**32 - 1, (2**32 - 2,), (0, 2**31 + 1), (1, 2)),
    ],
)
def test_the_side_on_which_an_epoch_lies_says_who_has_gone_on(
    ours: int, before: tuple[int, ...], other: tuple[int, ...], after: tuple[int, ...], confirmed: bool
) -> None:
    one = session(begun=False)
    assert not one.late(greeting(epoch=0))
    assert not one.elsewhere(greeting(epoch=ours))
    one.begin(greeting(epoch=before[0]), ours)
    one.confirmed = confirmed
    said = {epoch: greeting(epoch=epoch) for epoch in (ours, *before, *other, *after)}
    lies = {epoch: (one.late(said[epoch]), one.elsewhere(said[epoch])) for epoch in said}
    assert lies[ours] == (False, False)
    assert {lies[epoch] for epoch in before} == {(confirmed, False)}
    assert {lies[epoch] for epoch in other} == {(True, False)}
    assert {lies[epoch] for epoch in after} == {(False, True)}


def test_epochs_follow_one_another_and_are_never_0() -> None:
    assert [following(epoch) for epoch in (0, 1, 2**32 - 2, 2**32 - 1)] == [1, 2, 2**32 - 1, 1]


def test_a_restart_gives_up_what_had_begun_to_travel_and_keeps_the_rest_in_order() -> None:
    one = session(dataclasses.replace(OPTIONS, transport_size=100))
    gone = put(one, 5)
    sent(one)
    one.acked(ack(1))
    whole, part, kept = put(one, 10), put(one, 250), [put(one, 3), put(one, 4)]
    sent(one, limit=24 + 10 + 50)
    kept.append(put(one, 5, lane=1))
    kept[2].cancel()
    lost = one.restart()
    assert lost == [whole, part]
    assert gone not in lost
    assert [message.number for message in kept[:2]] == [1, 2]
    one.begin(greeting(epoch=2), 2)
    assert [(f.kind, f.lane, f.number) for f in sent(one)] == [(Kind.MSG, 0, 1), (Kind.MSG, 0, 2)]


def test_a_restart_drops_nothing_by_drop_oldest() -> None:
    """What was sent and never heard of is unsent again, and may be more than `queue_size`."""
    one = session(dataclasses.replace(OPTIONS, drop_oldest=True, queue_size=1))
    for size in range(1, 6):
        put(one, size)
        assert len(sent(one)) == 1
    assert not one.heard(greeting(epoch=0))
    assert one.restart() == []
    one.begin(greeting(), 1)
    assert [frame.length for frame in sent(one)] == [1, 2, 3, 4, 5]


def test_two_sides_that_close_take_all_that_the_other_has() -> None:
    for first, second in ((Session.close, Session.peer_leaves), (Session.peer_leaves, Session.close)):
        one = session(dataclasses.replace(OPTIONS, window=10))
        arrive(one, 1, 5)
        one.acks()
        first(one)
        assert [frame.value for frame in one.acks()] == []
        second(one)
        assert [frame.value for frame in one.acks()] == [2**63 - 1]
        arrive(one, 1, 5, lane=3)
        assert {frame.value for frame in one.acks()} == {2**63 - 1}


def test_a_restart_forgets_what_came_and_room_of_before_is_not_given_after() -> None:
    one = session()
    receiver = arrive(one, 1, 5000)
    one.restart()
    assert one.greeting(PEER, resume=True).cursors == ()
    one.begin(greeting(), 2)
    assert not one.taken(receiver, 5000 + OVERHEAD)
    arrive(one, 1, 10)
    assert one.acks() == [ack(1, limit=10_000)]
    assert not one.taken(receiver, 5000 + OVERHEAD)


def test_an_abandoned_session_gives_all_back() -> None:
    one = session()
    messages = [put(one, 10), put(one, 10), put(one, 10, lane=1)]
    sent(one)
    one.acked(ack(1))
    assert one.abandon() == messages[1:]
    assert one.queued == 0


# What an INI says.


def test_a_greeting_says_where_each_lane_stands_and_counts_as_told() -> None:
    one = session()
    receiver = arrive(one, 1, 5000, lane=3)
    one.taken(receiver, 5000 + OVERHEAD)
    arrive(one, 1, 1)
    said = one.greeting(PEER, resume=True)
    assert said.cursors == (Cursor(0, 1, 0, 10_000), Cursor(3, 1, 0, 15_256))
    assert (said.resume, said.epoch, said.credit, said.message_size) == (True, 1, 10_000, OPTIONS.message_size)
    assert one.acks() == []


@pytest.mark.parametrize(("seconds", "said"), [(10.0, 10_000), (0.001, 1), (0.0019, 1), (3600.0, 3_600_000)])
def test_every_heartbeat_that_options_take_can_be_said(seconds: float, said: int) -> None:
    frame = session(ConnectionOptions(heartbeat=seconds)).greeting(PEER, resume=False).frame()
    assert Greeting.read(frame).heartbeat == said


def test_the_largest_options_can_be_said() -> None:
    options = ConnectionOptions(message_size=2**62, window=2**62)
    one = session(options)
    one.taken(arrive(one, 1, 1000), 1000 + OVERHEAD)
    frame = one.greeting(PEER, resume=True).frame()
    assert LENGTH[Kind.INI][0] <= frame.length <= LENGTH[Kind.INI][1]
    assert Greeting.read(frame).cursors[0].limit > 2**61
