"""A session by itself: lanes, the outbox, the short path, acknowledgements, resuming, epochs, restarting."""

from __future__ import annotations

import collections
import dataclasses
import random
import uuid

import pytest

from netq.buffers import Buffer
from netq.errors import Closed, MessageTooLarge, ProtocolError, QueueFull
from netq.options import ConnectionOptions
from netq.protocol.codec import Outgoing
from netq.protocol.connection import LENGTH, Connection
from netq.protocol.events import Lost
from netq.protocol.flow_control import CREDIT, Budget
from netq.protocol.memory import Memory
from netq.protocol.receiver import Receiver
from netq.protocol.sender import SMALL, Part
from netq.protocol.session import Session
from netq.protocol.wire import ANSWER, ANY_LANE, EPOCHS, LEAVING, OVERHEAD, Cursor, Frame, FrameKind, Greeting
from netq.testing.lossy_pair import LossyPair
from netq.utils.stream import Stream
from tests.netq.parsing import Parser

pytestmark = pytest.mark.usefixtures("each_codec")

PEER = uuid.UUID(int=7)
OPTIONS = ConnectionOptions(transport_size=100, window=10_000)
PLENTY = 1_000_000
LITTLE = 4096  # bytes: the largest message that `primed` receives on the short path, within its window


class Noting(Session):
    """A session that notes which of its messages are acknowledged."""

    def __init__(self, options: ConnectionOptions) -> None:
        super().__init__(b"t" * 16, options, Memory())
        self.settled: list[Outgoing] = []


class Noted(Outgoing):
    """A message that is noted when it is acknowledged; and what it failed of."""

    def __init__(self, session: Noting, size: int, lane: int) -> None:
        super().__init__(Stream([bytes(size)]), lane)
        self._session = session
        self.failed: list[Exception] = []
        self.watched = True

    def acked(self) -> None:
        super().acked()
        self._session.settled.append(self)

    def fail(self, error: Exception) -> bool:
        self.failed.append(error)
        return super().fail(error)


def session(options: ConnectionOptions = OPTIONS, *, begun: bool = True) -> Noting:
    made = Noting(options)
    if begun:
        made.begin(greeting(), 1)
    return made


def greeting(*cursors: Cursor, message_size: int = 2**40, credit: int = 10_000, epoch: int = 1) -> Greeting:
    return Greeting(PEER, b"t" * 16, message_size, credit, 1000, cursors, resume=True, epoch=epoch)


def put(session: Noting, size: int, lane: int = 0) -> Noted:
    message = Noted(session, size, lane)
    session.put(message)
    return message


def acked(session: Noting, frame: Frame) -> list[Outgoing]:
    """What an ACK settles, in order."""
    session.acked(frame)
    return settled(session)


def resumed(session: Noting, greeting: Greeting) -> list[Outgoing]:
    """What resuming settles, in order."""
    session.resume(greeting)
    return settled(session)


def settled(session: Noting) -> list[Outgoing]:
    found, session.settled = session.settled, []
    return found


def sent(session: Session, limit: int = PLENTY) -> list[Frame]:
    """What it sends now, parsed."""
    out: list[Buffer | Part] = []
    parts = session.frames(out, limit, SMALL)
    assert parts is any(isinstance(piece, Part) for piece in out)
    data = b"".join(b"".join(piece.buffers()) if isinstance(piece, Part) else piece for piece in out)
    return list(Parser().feed(data))


def acks(session: Session) -> list[Frame]:
    """The ACKs that are due, parsed."""
    out: list[Buffer | Part] = []
    session.acknowledge(out)
    return list(Parser().feed(b"".join(piece for piece in out if not isinstance(piece, Part))))


def ack(number: int, limit: int = 10_000, lane: int = 0) -> Frame:
    return Frame(FrameKind.ACK, lane=lane, number=number, value=limit)


def granted(session: Session) -> int:
    """How far the peer may send on lane 0; it counts as told."""
    return session.receivers[0].announce_limit()


def arrive(session: Session, number: int, size: int, lane: int = 0) -> Receiver:
    """Let a message of one chunk come."""
    frame = Frame(FrameKind.MSG, lane=lane, length=size, number=number, value=size)
    session.place(frame)
    before = len(session.arrived)
    session.received(frame)
    assert len(session.arrived) == before + 1
    peer, data, receiver, _ = session.arrived[-1]
    assert (peer, len(data), receiver.lane, receiver.held) == (PEER, size, lane, number)
    return receiver


def take(session: Session, count: int) -> bool:
    """Let the user take so many messages, the oldest first; return whether the peer is to be told of the room."""
    for _ in range(count):
        _, _, receiver, mark = session.arrived.popleft()
        assert mark > receiver.taken_room
        receiver.taken_room = mark
    return session.release_room(receiver)


# Sending.


def test_nothing_is_sent_before_handshake() -> None:
    one = session(begun=False)
    put(one, 5)
    assert sent(one) == []
    one.begin(greeting(), 1)
    assert [frame.length for frame in sent(one)] == [5]


def test_small_message_passes_large_one_on_other_lane() -> None:
    one = session()
    put(one, 1000, lane=0)
    assert [frame.lane for frame in sent(one, limit=100)] == [0]
    put(one, 64, lane=1)
    assert [frame.lane for frame in sent(one, limit=24 + 64)] == [1]
    assert [frame.lane for frame in sent(one, limit=100)] == [0]


def without_order(session: Noting, *sizes: int) -> list[int]:
    """The lanes of such messages, put one after the other."""
    messages = [Noted(session, size, ANY_LANE) for size in sizes]
    session.outbox.extend(messages)
    session.drain()
    return [message.lane for message in messages]


def test_small_messages_without_order_share_a_lane() -> None:
    one = session(dataclasses.replace(OPTIONS, transport_size=PLENTY), begun=False)
    one.begin(greeting(credit=PLENTY), 1)
    shared = SMALL // (100 + OVERHEAD) + 1
    assert without_order(one, *[100] * shared) == [8] * shared
    assert without_order(one, 100) == [9], "SMALL bytes wait on the other"
    assert sorted(frame.lane for frame in sent(one)) == [8] * shared + [9]


def test_message_without_order_does_not_wait_for_large_one() -> None:
    one = session()
    assert without_order(one, SMALL, 10, 10) == [8, 9, 9]
    assert put(one, 10, lane=ANY_LANE).lane == 9
    assert [frame.lane for _ in range(2) for frame in sent(one, limit=100)][:2] == [8, 9]


def test_message_without_order_takes_lane_with_room() -> None:
    one = session(begun=False)
    one.begin(greeting(credit=1000), 1)
    assert without_order(one, 500, 500, 500, 10) == [8, 9, 10, 10]


def test_lanes_take_turns() -> None:
    one = session()
    for lane in (5, 0, 9):
        put(one, 300, lane)
    assert [frame.lane for frame in sent(one)] == [5, 9, 0] * 3


def test_blocked_lane_does_not_block_others() -> None:
    one = session()
    put(one, 20_000, lane=0)
    sent(one)
    put(one, 10, lane=1)
    assert [frame.lane for frame in sent(one)] == [1]


def test_frames_observes_byte_limit() -> None:
    one = session()
    put(one, 1000)
    assert [frame.length for frame in sent(one, limit=150)] == [100, 26]
    assert sent(one, limit=0) == []


def test_cancelled_waiting_message_is_removed() -> None:
    one = session(begun=False)
    first, second, third = put(one, 10), put(one, 20), put(one, 130)
    second.withdraw()
    one.withdraw(second)
    assert one.queued == 2
    one.begin(greeting(), 1)
    frames = sent(one, limit=24 + 10 + 24 + 30)
    assert [(f.kind, f.number, f.value, f.length) for f in frames] == [
        (FrameKind.MSG, 1, 10, 10),
        (FrameKind.MSG, 2, 130, 54),
    ]
    assert (third.number, third.start) == (2, first.stop)
    third.withdraw()
    one.withdraw(third)  # some of it has left: the peer must acknowledge it
    assert one.queued == 2
    assert sent(one) == [Frame(FrameKind.DROP, number=2, value=130)]
    assert acked(one, ack(2)) == [first, third]
    assert (one.queued, one.due, second.number) == (0, False, 0)


def test_queue_full_leaves_message_unchanged() -> None:
    one = session(dataclasses.replace(OPTIONS, queue_size=2))
    put(one, 1)
    put(one, 1, lane=1)
    third = Noted(one, 1, 0)
    with pytest.raises(QueueFull) as caught:
        one.put(third)
    assert caught.value.peer == PEER
    assert (one.queued, third.number, len(third.data)) == (2, 0, 1)
    assert third.failed == []
    sent(one)
    one.acked(ack(1))
    one.put(third)
    assert [(frame.number, frame.length) for frame in sent(one)] == [(2, 1)]
    assert third.number == 2


def test_message_too_large_for_peer_is_refused() -> None:
    one = session(begun=False)
    one.begin(greeting(message_size=10), 1)
    put(one, 10)
    with pytest.raises(MessageTooLarge) as caught:
        put(one, 11)
    assert caught.value.peer == PEER
    assert one.queued == 1


def test_handshake_rejects_queued_messages_too_large_for_peer() -> None:
    one = session(begun=False)
    small, large, cancelled = put(one, 5), put(one, 11), put(one, 12)
    cancelled.withdraw()
    ((message, error),) = one.begin(greeting(message_size=10), 1)
    assert message is large
    assert isinstance(error, MessageTooLarge)
    assert [(frame.kind, frame.number, frame.value) for frame in sent(one)] == [(FrameKind.MSG, 1, 5)]
    assert acked(one, ack(1)) == [small]
    assert (one.queued, large.number, cancelled.number) == (0, 0, 0)
    assert (large.withdrawn, large.waits) == (False, False)


# The outbox.


def test_outbox_keeps_order_of_puts() -> None:
    one = session()
    first = put(one, 1)
    rest = [Noted(one, size, 0) for size in range(2, 6)]
    one.outbox.extend(rest)
    assert (one.ready, one.due, one.queued) == (True, True, 1)
    rest[1].withdraw()
    assert [(frame.number, frame.value) for frame in sent(one)] == [(1, 1), (2, 2), (3, 4), (4, 5)]
    assert (list(one.outbox), one.queued) == ([], 4)
    one.withdraw(rest[1])  # its owner says so late
    assert one.queued == 4
    assert acked(one, ack(4)) == [first, rest[0], *rest[2:]]
    assert (rest[1].number, rest[1].failed, one.queued, one.due) == (0, [], 0, False)


def test_cancelled_message_that_has_begun_is_due_until_drop_arrives() -> None:
    pair = LossyPair(dataclasses.replace(OPTIONS, transport_size=1000), limit=1000)
    pair.run()
    message = pair.put(pair.client, bytes(5000))
    pair.turn()
    pair.cut()
    client, server = pair.client.session, pair.server.session
    assert client is not None
    assert server is not None
    assert server.arriving == 1000
    message.withdraw()
    client.withdraw(message)
    pair.close(pair.client)
    assert client.due, "the server holds a part of it"
    pair.run()
    assert server.arriving == 0
    assert (client.due, pair.client.over, pair.server.over) == (False, True, True)


def test_cancelled_message_in_outbox_is_not_due() -> None:
    one = session()
    only = Noted(one, 5, 0)
    one.outbox.append(only)
    only.withdraw()
    one.drain()
    assert (one.due, one.ready, one.queued, sent(one)) == (False, False, 0, [])


@pytest.mark.parametrize("drop_oldest", [False, True])
def test_outbox_message_fails_with_error_of_put(drop_oldest: bool) -> None:
    one = session(dataclasses.replace(OPTIONS, queue_size=3, drop_oldest=drop_oldest), begun=False)
    one.begin(greeting(message_size=10), 1)
    put(one, 1)
    messages = [Noted(one, size, 0) for size in (11, 2, 3, 4)]
    one.outbox.extend(messages)
    one.drain()
    assert [[type(error) for error in message.failed] for message in messages] == [
        [MessageTooLarge],
        [],
        [],
        [] if drop_oldest else [QueueFull],
    ]
    assert one.queued == 3
    one.close()
    late = Noted(one, 1, 0)
    one.outbox.append(late)
    one.drain()
    assert [type(error) for error in late.failed] == [Closed]


def test_close_queues_outbox_first() -> None:
    one, other = session(), session()
    before, lost = Noted(one, 1, 0), Noted(other, 1, 0)
    one.outbox.append(before)
    one.close()
    assert (before.failed, one.queued) == ([], 1)
    assert [frame.number for frame in sent(one)] == [1]
    other.outbox.append(lost)
    assert other.abandon() == [lost]
    again = session()
    kept = Noted(again, 1, 0)
    again.outbox.append(kept)
    assert again.restart() == []
    again.begin(greeting(epoch=2), 2)
    assert [frame.number for frame in sent(again)] == [1]


@pytest.mark.parametrize("through_outbox", [False, True])
def test_queue_size_counts_all_lanes(through_outbox: bool) -> None:
    one = session(dataclasses.replace(OPTIONS, queue_size=64), begun=False)
    refused = 0
    for lane in (0, 1, 2, 3, *[0] * 60, *[1, 2, 3] * 16):
        message = Noted(one, 1, lane)
        if through_outbox:
            one.outbox.append(message)
            one.drain()
            refused += len(message.failed)
        else:
            try:
                one.put(message)
            except QueueFull:
                refused += 1
    assert (one.queued, refused) == (64, 48)


@pytest.mark.parametrize("through_outbox", [False, True])
def test_queue_bytes_counts_all_lanes(through_outbox: bool) -> None:
    one = session(dataclasses.replace(OPTIONS, queue_bytes=1000), begun=False)
    first = [Noted(one, 10**9, lane) for lane in (0, 1, 2)]
    behind = [Noted(one, size, lane) for size, lane in ((600, 0), (300, 1), (200, 0), (100, 2), (1, 2))]
    for message in (*first, *behind):
        if through_outbox:
            one.outbox.append(message)
            one.drain()
            continue
        try:
            one.put(message)
        except QueueFull as error:
            message.fail(error)
    assert [len(message.failed) for message in (*first, *behind)] == [0, 0, 0, 0, 0, 1, 0, 1]
    assert (one.queued, one.bytes_behind) == (6, 1000)


def test_full_queue_says_what_is_full() -> None:
    one = session(dataclasses.replace(OPTIONS, queue_bytes=1000))
    put(one, 1)
    put(one, 800)
    with pytest.raises(QueueFull) as caught:
        put(one, 201)
    assert str(caught.value) == (
        f"{PEER}: 800 of 1000 bytes (queue_bytes) already wait for it; wait for their futures first"
    )


def test_a_message_that_alone_exceeds_queue_bytes_says_so() -> None:
    one = session(dataclasses.replace(OPTIONS, queue_bytes=1000))
    put(one, 5000)  # the first may have any size
    with pytest.raises(QueueFull) as caught:
        put(one, 2000)
    assert str(caught.value) == (
        f"{PEER}: the message alone has 2000 bytes, and 1000 bytes (queue_bytes) may wait behind the first of its "
        "lane; wait for the earlier futures of the lane, send it in parts, or set a larger queue_bytes"
    )


def test_a_message_that_is_cancelled_or_has_begun_makes_room() -> None:
    one = session(dataclasses.replace(OPTIONS, queue_bytes=1000))
    begun, second, third = put(one, 5000), put(one, 900), put(one, 100)
    with pytest.raises(QueueFull):
        put(one, 1)
    third.withdraw()
    one.withdraw(third)
    put(one, 100)
    assert sent(one, limit=124)  # `begun` travels: the second is the first that waits
    assert begun.number == 1
    put(one, 900)
    assert one.bytes_behind == 1000
    second.withdraw()
    one.withdraw(second)
    assert one.bytes_behind == 900


def test_drop_oldest_keeps_within_queue_bytes() -> None:
    one = session(dataclasses.replace(OPTIONS, drop_oldest=True, queue_bytes=1000), begun=False)
    messages = [put(one, size) for size in (400, 400, 200, 900, 5000)]
    assert [len(message.failed) for message in messages] == [1, 1, 1, 1, 0]
    assert "of 1000 bytes (queue_bytes) waited" in str(messages[0].failed[0])
    assert one.queued == 1


def test_drop_oldest_fails_oldest_waiting_message() -> None:
    one = session(dataclasses.replace(OPTIONS, drop_oldest=True, queue_size=2))
    messages = [put(one, 150)]
    assert [frame.length for frame in sent(one, limit=124)] == [100]
    messages += [put(one, size) for size in (1, 2, 3, 4)]
    assert [len(message.failed) for message in messages] == [0, 1, 1, 0, 0]
    for message in messages[1:3]:
        (error,) = message.failed
        assert isinstance(error, QueueFull)
        assert (error.peer, error.dropped) == (PEER, True)
    assert [(frame.number, frame.value) for frame in sent(one)] == [(1, 150), (2, 3), (3, 4)]


# Small messages leave many in one step.


def test_batches_and_chunks_keep_order_of_puts() -> None:
    one = session()
    messages = [put(one, size) for size in (5, 0, 100, 101, 3, 250, 4, 4)]
    frames = sent(one)
    assert [(frame.number, frame.length) for frame in frames] == [
        (1, 5),
        (2, 0),
        (3, 100),
        (4, 100),
        (4, 1),
        (5, 3),
        (6, 100),
        (6, 100),
        (6, 50),
        (7, 4),
        (8, 4),
    ]
    assert acked(one, ack(8)) == messages


def test_two_lanes_of_small_messages_take_turns() -> None:
    one = session()
    for lane in (4, 4, 4, 9, 9, 9, 9):
        put(one, 10, lane)
    assert [(frame.lane, frame.number) for frame in sent(one, limit=3 * 34)] == [(4, 1), (9, 1), (4, 2)]
    assert [(frame.lane, frame.number) for frame in sent(one)] == [(9, 2), (4, 3), (9, 3), (9, 4)]


@pytest.mark.parametrize("room", [100, 4])
def test_outbox_leaves_while_lanes_are_idle(room: int) -> None:
    one = session(dataclasses.replace(OPTIONS, queue_size=2 + room))
    for lane in (9, 4):
        put(one, 10, lane)
    assert {frame.lane for frame in sent(one)} == {4, 9}
    messages = [Noted(one, 10, lane) for lane in (4, 4, 9, 4, 9)]
    one.outbox.extend(messages)
    assert [(frame.lane, frame.number) for frame in sent(one, limit=34)] == [(4, 2)]
    rest = [(frame.lane, frame.number) for frame in sent(one)]
    assert [number for lane, number in rest if lane == 4] == [3, 4]
    assert [number for lane, number in rest if lane == 9] == [2, 3][: room - 3]
    assert [len(message.failed) for message in messages] == [0, 0, 0, 0, int(room == 4)]  # queue_size is for all lanes


@pytest.mark.parametrize("size", [10, 300])
def test_first_message_of_another_lane_is_sent_at_once(size: int) -> None:
    one = session()
    put(one, 10, lane=1)
    assert [(frame.lane, frame.number) for frame in sent(one)] == [(1, 1)]
    one.outbox.append(message := Noted(one, size, 2))
    assert {frame.lane for frame in sent(one)} == {2}
    assert message.left


def test_small_and_large_lanes_take_turns() -> None:
    one = session()
    put(one, 300, lane=1)
    for _ in range(4):
        put(one, 10, lane=2)
    assert [(frame.lane, frame.length) for frame in sent(one)] == [
        (1, 100),
        (2, 10),
        (1, 100),
        (2, 10),
        (1, 100),
        (2, 10),
        (2, 10),
    ]


@pytest.mark.parametrize("lanes", [1, 2])
def test_batch_exceeds_limit_by_one_small_message_at_most(lanes: int) -> None:
    one = session()
    for number in range(40):
        put(one, 10 * (number % 4), lane=number % lanes)
    while one.ready:
        frames = sent(one, limit=200)
        size = sum(24 + frame.length for frame in frames)
        assert size < 200 + 24 + 30
        assert size >= 200 or not one.ready


def test_batch_continues_when_window_widens() -> None:
    one = session(begun=False)
    one.begin(greeting(credit=3 * 266), 1)
    messages = [put(one, 10) for _ in range(10)]
    assert [frame.number for frame in sent(one)] == [1, 2, 3]
    assert (one.ready, one.blocked) == (False, True)
    assert acked(one, ack(3, limit=5 * 266 + 10)) == messages[:3]
    assert [frame.number for frame in sent(one)] == [4, 5, 6]
    one.acked(ack(3, limit=PLENTY))
    assert [frame.number for frame in sent(one)] == [7, 8, 9, 10]


def test_message_cancelled_between_batches_is_removed() -> None:
    one = session()
    messages = [put(one, 10) for _ in range(6)]
    assert [frame.number for frame in sent(one, limit=2 * 34)] == [1, 2]
    for index in (2, 4):
        messages[index].withdraw()
        one.withdraw(messages[index])
    assert one.queued == 4
    assert [frame.number for frame in sent(one)] == [3, 4]
    assert acked(one, ack(4)) == [messages[index] for index in (0, 1, 3, 5)]
    assert (one.queued, one.messages_out, one.bytes_out) == (0, 4, 40)


# Acknowledgement.


def test_ack_without_unacknowledged_messages_is_legal() -> None:
    """It answers a PING, or gives room that the user has made."""
    one = session()
    first = put(one, 5)
    sent(one)
    assert acked(one, ack(1)) == [first]
    assert acked(one, ack(1, limit=20_000)) == []
    put(one, 19_000)
    assert sum(frame.length for frame in sent(one)) == 19_000


def test_ack_of_unused_lane() -> None:
    one = session()
    assert acked(one, ack(0, lane=4)) == []
    with pytest.raises(ProtocolError, match="lane 4: message 1 is acknowledged"):
        one.acked(ack(1, lane=4))


def test_limit_of_unused_lane_is_kept() -> None:
    one = session()
    one.acked(ack(0, limit=50_000, lane=4))
    put(one, 30_000, lane=4)
    assert sum(frame.length for frame in sent(one)) == 30_000
    other = session()
    other.resume(greeting(Cursor(4, 0, 0, 50_000)))
    put(other, 30_000, lane=4)
    assert sum(frame.length for frame in sent(other)) == 30_000


def test_limit_never_shrinks() -> None:
    one = session()
    one.acked(ack(0, limit=5))
    put(one, 1000)
    assert sum(frame.length for frame in sent(one)) == 1000
    one.acked(ack(0, limit=5))
    put(one, 10)
    assert [frame.length for frame in sent(one)] == [10]


def test_arriving_counts_bytes_of_incomplete_messages() -> None:
    one = session()
    for lane, number, size in ((0, 1, 100), (3, 1, 70)):
        part = Frame(FrameKind.MSG, lane=lane, length=40, number=number, value=size)
        one.place(part)
        one.received(part)
        assert not one.arrived
    assert (one.arriving, one.expected) == (80, 170)
    rest = Frame(FrameKind.MSG, lane=3, length=30, number=1, value=70)
    one.place(rest)
    one.received(rest)
    assert [(item[2].lane, len(item[1]), item[3]) for item in one.arrived] == [(3, 70, 70 + OVERHEAD)]
    assert (one.arriving, one.expected) == (40, 100)


def test_one_ack_per_lane_serves_all_messages() -> None:
    one = session()
    arrive(one, 1, 10)
    arrive(one, 2, 10)
    arrive(one, 1, 10, lane=3)
    assert one.owed
    assert acks(one) == [ack(2), ack(1, lane=3)]
    assert not one.owed
    assert acks(one) == []


def test_taking_messages_moves_limit() -> None:
    one = session()
    arrive(one, 1, 100)
    arrive(one, 2, 4900)
    acks(one)
    assert not take(one, 1)
    assert acks(one) == []
    assert take(one, 1)
    assert acks(one) == [ack(2, limit=15_512)]


def test_small_grant_goes_with_next_ack() -> None:
    one = session()
    arrive(one, 1, 100)
    assert acks(one) == [ack(1)]
    assert not take(one, 1)
    arrive(one, 2, 100)
    assert acks(one) == [ack(2, limit=10_356)]


def test_drop_is_acknowledged() -> None:
    one = session()
    one.dropped(Frame(FrameKind.DROP, number=1, value=50))
    assert acks(one) == [ack(1, limit=10_306)]


# Small messages and ACKs that come: the short path.


def msg(number: int, size: int, lane: int = 0, flags: int = 0) -> Frame:
    """A whole message of one frame; no two alike."""
    body = bytes((7 * number + 3 * lane + n) % 256 for n in range(size))
    return Frame(FrameKind.MSG, flags, lane, size, number, size, body)


def take_small(session: Session, *frames: Frame | bytes) -> int:
    """How many bytes of these the short path takes."""
    data = b"".join(frame.whole() if isinstance(frame, Frame) else frame for frame in frames)
    before, behind = VALID.whole(), VALID.whole()  # which are not its concern
    low = session.take_small(memoryview(before + data + behind), len(before), len(before) + len(data))
    return low - len(before)


VALID = msg(1, 50)


def primed(options: ConnectionOptions = OPTIONS) -> Noting:
    """A session in which lanes 0 and 3 have received a message, and 0 and 5 have sent three of 10 bytes."""
    one = session(options)
    one.small = min(one.small, LITTLE)
    for lane in (0, 3):
        arrive(one, 1, 5, lane)
    for number in range(6):
        put(one, 10, lane=5 * (number % 2))
    assert len(sent(one)) == 6
    acks(one)
    one.arrived.clear()
    return one


def test_short_path_takes_small_messages_and_acks() -> None:
    one = primed()
    frames = [msg(2, 10), msg(3, 0), ack(1, limit=10_500), msg(4, 100), msg(2, 7, lane=3), ack(3, 0, lane=5), msg(5, 1)]
    size = sum(24 + frame.length for frame in frames)
    assert take_small(one, *frames) == size
    lanes = {0: [10, 0, 100, 1], 3: [7]}
    wanted = [frame for frame in frames if frame.kind is FrameKind.MSG]
    assert [(peer, data, receiver.lane) for peer, data, receiver, _ in one.arrived] == [
        (PEER, frame.body, frame.lane) for frame in wanted
    ]
    for lane, sizes in lanes.items():
        marks = [item[3] for item in one.arrived if item[2].lane == lane]
        assert marks == [5 + OVERHEAD + sum(sizes[: n + 1]) + (n + 1) * OVERHEAD for n in range(len(sizes))]
    assert [(message.lane, message.number) for message in settled(one)] == [(0, 1), (5, 1), (5, 2), (5, 3)]
    assert (one.messages_in, one.bytes_in) == (2 + 5, 10 + 118)
    assert (one.messages_out, one.bytes_out) == (4, 40)
    assert {frame.lane: frame.number for frame in acks(one)} == {0: 5, 3: 2}
    assert one.greeting(PEER, resume=True).cursors == (Cursor(0, 5, 0, 10_000), Cursor(3, 2, 0, 10_000))


def test_short_path_copies_messages() -> None:
    one = primed()
    data = bytearray(msg(2, 10).whole())
    assert one.take_small(memoryview(data), 0, len(data)) == len(data)
    data[:] = bytes(len(data))
    assert one.arrived[0][1] == msg(2, 10).body


def test_short_path_continues_after_drop() -> None:
    one = primed()
    assert take_small(one, msg(2, 10)) == 34
    one.dropped(Frame(FrameKind.DROP, number=3, value=50))
    assert take_small(one, msg(4, 20)) == 44
    assert [item[3] for item in one.arrived] == [5 + 10 + 2 * 256, 5 + 10 + 20 + 3 * 256]
    assert take(one, 2) is False
    assert acks(one) == [ack(4, 10_000 + 5 + 10 + 20 + 50 + 4 * 256)]


@pytest.mark.parametrize(("value", "limit"), [(10_300, 10_300), (10_000, 10_000), (0, 10_000), (2**63 - 1, 2**63 - 1)])
def test_ack_on_short_path_only_raises_limit(value: int, limit: int) -> None:
    one = primed()
    assert take_small(one, ack(0, value), ack(3, value), ack(1, 0), ack(3, 5)) == 4 * 24
    assert len(settled(one)) == 3
    put(one, 20_000)
    room = limit - 3 * (10 + OVERHEAD)
    assert sum(frame.length for frame in sent(one)) == min(20_000, room)


def half(frame: Frame, size: int) -> bytes:
    return frame.whole()[:size]


STOPS: dict[str, Frame | bytes] = {
    "a chunk, the first": Frame(FrameKind.MSG, length=10, number=3, value=11, body=bytes(10)),
    "a chunk of more than there is": Frame(FrameKind.MSG, length=10, number=3, value=9, body=bytes(10)),
    "a chunk of nothing": Frame(FrameKind.MSG, number=3, value=9),
    "DROP": Frame(FrameKind.DROP, number=3, value=9),
    "PING": Frame(FrameKind.PING),
    "PING, LEAVING": Frame(FrameKind.PING, LEAVING),
    "PING, ANSWER": Frame(FrameKind.PING, ANSWER),
    "FIN": Frame(FrameKind.FIN),
    "FIN with a reason": Frame(FrameKind.FIN, length=4, number=1, body=b"busy"),
    "INI": Greeting(PEER, b"t" * 16, 1, 1, 1).frame(),
    "of no kind": bytes([0]) + msg(3, 5).whole()[1:],
    "of an unknown kind": bytes([7]) + msg(3, 5).whole()[1:],
    "a number again": msg(2, 10),
    "a number left out": msg(4, 10),
    "number 0": msg(0, 10),
    "the largest number": msg(2**64 - 1, 10),
    "beyond the window": msg(3, 10_000 - 527),
    "larger than is small": msg(3, LITTLE + 1),
    "larger than any": Frame(FrameKind.MSG, length=2**32 - 1, number=3, value=2**32 - 1),
    "a flag": msg(3, 10, flags=1),
    "all flags": msg(3, 10, flags=255),
    "a lane on which nothing has come": msg(1, 10, lane=2),
    "no lane": msg(3, 10, lane=16),
    "the last lane of all": msg(3, 10, lane=65535),
    "an ACK with a flag": Frame(FrameKind.ACK, 1, number=2, value=20_000),
    "an ACK with all flags": Frame(FrameKind.ACK, 255, number=2, value=20_000),
    "an ACK with a body": Frame(FrameKind.ACK, length=5, number=2, value=20_000, body=b"12345"),
    "an ACK of what was not sent": ack(4),
    "an ACK of the largest number": ack(2**64 - 1),
    "an ACK of a lane that has sent nothing": ack(0, lane=3),
    "an ACK of no lane": ack(0, lane=16),
    **{f"{size} bytes of a message": half(msg(3, 10), size) for size in (0, 1, 23, 24, 25, 33)},
    **{f"{size} bytes of a message without any": half(msg(3, 0), size) for size in (1, 23)},
    **{f"{size} bytes of an ACK": half(ack(2), size) for size in (1, 23)},
}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
def test_short_path_stops_before_other_frames(stop: Frame | bytes, at_once: bool) -> None:
    one = primed()
    first = [msg(2, 10), ack(1), msg(2, 10, lane=3)]
    size = sum(24 + frame.length for frame in first)
    part = isinstance(stop, bytes) and len(stop) < 24 + 10
    behind: list[Frame] = [] if part else [msg(3, 5), ack(3), msg(3, 5, lane=3)]
    if at_once:
        assert take_small(one, *first, stop, *behind) == size
    else:
        assert take_small(one, *first) == size
        assert take_small(one, stop, *behind) == 0
    assert [(item[2].lane, item[3]) for item in one.arrived] == [(0, 15 + 2 * OVERHEAD), (3, 15 + 2 * OVERHEAD)]
    assert [message.number for message in settled(one)] == [1]
    assert sorted((frame.lane, frame.number, frame.value) for frame in acks(one)) == [(0, 2, 10_000), (3, 2, 10_000)]
    assert (one.messages_in, one.bytes_in, one.messages_out, one.bytes_out, one.arriving) == (4, 30, 1, 10, 0)
    put(one, 20_000)
    assert sum(frame.length for frame in sent(one)) == 10_000 - 3 * 266, "the window is as it was"


def test_short_path_observes_window_exactly() -> None:
    for size, taken in ((10_000 - 5 - 256, 0), (LITTLE + 1, 0), (LITTLE, 1)):
        one = primed()
        assert bool(take_small(one, msg(2, size))) is bool(taken)
    for behind, taken in ((0, 1), (100, 1), (101, 0)):
        one = primed(dataclasses.replace(OPTIONS, window=5 + 256 + 50 + 256 + 100))
        assert take_small(one, msg(2, 50)) == 74
        assert take_small(one, msg(3, behind)) == taken * (24 + behind)
    one = primed(dataclasses.replace(OPTIONS, window=5 + 256 + 50 + 256))
    assert take_small(one, msg(2, 50), msg(3, 0)) == 74, "not even one without bytes may start at the limit"


def test_short_path_receives_64_kib_of_data() -> None:
    one = session(dataclasses.replace(OPTIONS, window=1_000_000))
    arrive(one, 1, 5)
    assert SMALL > 64 * 1024
    for number, size, taken in ((2, SMALL, 1), (3, SMALL + 1, 0)):
        assert take_small(one, msg(number, size)) == taken * (24 + size)


def test_short_path_observes_message_size() -> None:
    one = primed(dataclasses.replace(OPTIONS, message_size=20))
    assert take_small(one, msg(2, 20), msg(3, 21)) == 44


def test_short_path_waits_for_begun_message() -> None:
    one = primed()
    part = Frame(FrameKind.MSG, length=10, number=2, value=15, body=bytes(10))
    one.place(part)
    one.received(part)
    rest = Frame(FrameKind.MSG, length=5, number=2, value=15, body=bytes(5))
    assert take_small(one, rest) == take_small(one, msg(3, 5)) == take_small(one, msg(2, 15)) == 0
    assert take_small(one, msg(2, 5, lane=3)) == 29, "another lane does not wait"
    one.place(rest)
    one.received(rest)
    assert take_small(one, msg(3, 5)) == 29


def test_short_path_waits_until_claimed_message_is_taken() -> None:
    """What it has of the budget is to be given back; that is for the loop's thread."""
    one = primed()
    part = Frame(FrameKind.MSG, length=100, number=2, value=20_000)
    one.place(part)
    one.received(part)
    rest = part._replace(length=19_900)
    one.place(rest)
    one.received(rest)
    _, _, receiver, mark = one.arrived.popleft()
    receiver.taken_room = mark
    assert granted(one) == 10_000 + mark
    assert take_small(one, msg(3, 5)) == 0
    assert receiver.release_due
    one.release_room(receiver)
    assert take_small(one, msg(3, 5)) == 29


def test_short_path_lane_is_lent_more_after_taking() -> None:
    one = session(dataclasses.replace(OPTIONS, window=2 * CREDIT))
    budget = one._memory.budget = Budget(2 * CREDIT)
    budget.lent = CREDIT  # by others
    assert take_small(one, msg(1, 5)) == 0, "the first of a lane is never for it"
    arrive(one, 1, 5)
    assert granted(one) == CREDIT
    budget.lent = 0
    count = 0
    while not one.receivers[0].release_due:
        count += 1
        assert take_small(one, msg(one.receivers[0].held + 1, 1000)) == 1024
        _, _, receiver, mark = one.arrived.popleft()
        receiver.taken_room = mark
    assert count < CREDIT // 1256
    assert one.release_room(one.receivers[0])
    assert budget.lent == CREDIT
    assert granted(one) == 2 * CREDIT + mark


class Long(Session):
    """A session without the short path."""

    def take_small(self, data: memoryview, low: int, high: int) -> int:
        return low


class Twin:
    """A connection whose peer sends what it likes; with the short path or without."""

    def __init__(self, kind: type[Session], options: ConnectionOptions) -> None:
        self.told: list[object] = []  # all that can be seen of it
        self.acked: list[int] = []
        self.given: list[tuple[int, int, bytes]] = []
        self.session = kind(b"t" * 16, options, Memory())
        self.connection = Connection(PEER, options, 0.0)
        ini = Greeting(uuid.UUID(int=8), b"t" * 16, 2**40, 3000, 1000)
        self.connection.feed(memoryview(ini.frame().whole()), 0.0)
        self.connection.accept(self.session, ini, resumed=False, now=0.0)
        for n in range(12):
            self._put(n)
        self.send(400)

    def _put(self, n: int) -> None:
        twin = self

        class Counted(Outgoing):
            def acked(self) -> None:
                super().acked()
                twin.acked.append(n)

        message = Counted(Stream([bytes(n * n)]), n % 3)
        message.watched = True
        self.session.put(message)

    def send(self, limit: int) -> None:
        self.told.append(b"".join(self.connection.to_send(limit, 0.0)))

    def feed(self, data: bytes) -> None:
        events = self.connection.feed(memoryview(data), 0.0)
        self.told.append([(type(event), str(event.error) if isinstance(event, Lost) else "") for event in events])

    def take(self, count: int) -> None:
        for _ in range(min(count, len(self.session.arrived))):
            peer, data, receiver, mark = self.session.arrived.popleft()
            assert peer == uuid.UUID(int=8)
            receiver.taken_room = mark
            self.given.append((receiver.lane, mark, bytes(data)))
            self.session.release_room(receiver)

    def seen(self) -> tuple[object, ...]:
        """Return what can be seen of it, and was not before."""
        one = self.session
        told, self.told = self.told, []
        numbers = (one.messages_in, one.messages_out, one.bytes_in, one.bytes_out, one.queued, one.arriving)
        return told, numbers, len(one.arrived), one.confirmed, self.connection.state

    def end(self) -> tuple[object, ...]:
        self.connection.detach()
        there = [(item[2].lane, item[3], bytes(item[1])) for item in self.session.arrived]
        return self.seen(), self.acked, self.given, there, self.session.greeting(PEER, resume=True)


def believable(chance: random.Random) -> bytes:
    """Frames that mostly are just the next, small and whole; some are not."""
    frames, number = [], collections.Counter[int]()
    bold = chance.choice([0.0, 0.02, 0.1])
    for _ in range(chance.randrange(1, 60)):
        lane, size = chance.choice([0, 0, 0, 1, 2]), chance.choice([0, 1, 10, 10, 50, 200, 4096, 4097, 5000, 5001])
        if chance.random() < bold:
            frames.append(chance.choice([*STOPS.values(), chance.randbytes(40)]))
        elif (kind := chance.random()) < 0.15:
            frames.append(ack(chance.choice([0, 0, 1, 1, 2, 4, 5]), chance.choice([0, 3000, 5000, 10**6]), lane))
        elif kind < 0.2:
            frames.append(Frame(FrameKind.PING, chance.choice([0, 0, LEAVING])))
        elif kind < 0.25:
            number[lane] += 1
            frames.append(Frame(FrameKind.DROP, lane=lane, number=number[lane], value=size))
        elif kind < 0.35 and size:
            number[lane] += 1
            whole, cut = msg(number[lane], size, lane), chance.randrange(size)
            bodies = (whole.body[:cut], whole.body[cut:])
            frames += [whole._replace(length=len(body), body=body) for body in bodies if body]
        elif size < 4000 or chance.random() < 0.2:
            number[lane] += 1
            frames.append(msg(number[lane], size, lane))
    return b"".join(frame.whole() if isinstance(frame, Frame) else frame for frame in frames)


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(10))
def test_short_path_behaves_as_general_path(tens: int, thin: int) -> None:
    for ones in range(0, 10, thin):
        compare_paths(10 * tens + ones)


def compare_paths(seed: int) -> None:
    """Have two connections receive the same, one with the short path and one without."""
    chance = random.Random(seed)
    options = ConnectionOptions(
        transport_size=100,
        message_size=5000,
        window=chance.choice([600, 3000, 20_000, CREDIT + 5000]),
        get_merge=chance.random() < 0.5,
    )
    short, long = Twin(Session, options), Twin(Long, options)
    short.session.small = chance.choice([50, 4096, 5000])
    data, step = believable(chance), chance.choice([1, 7, 100, 1000, 10**6])
    while data:
        count, part, data = chance.randrange(6), data[:step], data[step:]
        limit = chance.choice([0, 100, 1000])
        for twin in (short, long):
            twin.feed(part)
            twin.take(count)
            twin.send(limit)
        assert short.seen() == long.seen(), seed
        if long.connection.closed:
            step = 10**6  # what still comes is not read
    assert short.end() == long.end(), seed


# Resuming.


def test_resume_settles_held_messages_and_continues() -> None:
    one = session()
    first, second, other = put(one, 150), put(one, 250), put(one, 10, lane=2)
    sent(one)
    assert resumed(one, greeting(Cursor(0, 1, 90, 10_000), Cursor(2, 1, 0, 10_000))) == [first, other]
    assert [(frame.number, frame.length) for frame in sent(one)] == [(2, 100), (2, 60)]
    assert acked(one, ack(2)) == [second]


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
def test_impossible_cursor_changes_no_lane(bad: Cursor) -> None:
    one = session()
    messages = [put(one, 10, lane=0), put(one, 10, lane=1)]
    sent(one)
    with pytest.raises(ProtocolError, match=f"lane {bad.lane}"):
        one.resume(greeting(Cursor(0, 1, 0, 99_999), bad))
    assert one.queued == 2
    assert one.settled == []
    assert resumed(one, greeting(Cursor(0, 1, 0, 10_000), Cursor(1, 1, 0, 10_000))) == messages


def test_lane_without_cursor_resumes_from_start() -> None:
    one = session()
    put(one, 10, lane=1)
    sent(one)
    assert resumed(one, greeting()) == []
    assert [frame.number for frame in sent(one)] == [1]
    one.acked(ack(1, lane=1))
    with pytest.raises(ProtocolError, match="has acknowledged 1"):
        one.resume(greeting())


def test_resume_refuses_another_peer_id() -> None:
    one = session()
    with pytest.raises(ProtocolError, match="goes on with a session of"):
        one.resume(dataclasses.replace(greeting(), id=uuid.UUID(int=8)))
    assert one.peer == PEER


def test_epoch_resumes_or_begins_again_or_is_refused() -> None:
    one = session(begun=False)
    one.begin(greeting(epoch=4), 5)
    message = put(one, 10)
    sent(one)
    assert not one.can_resume(greeting(epoch=4))  # it never heard of 5, so it has nothing of it
    assert one.restart() == []
    one.begin(greeting(epoch=4), 5)
    assert [frame.number for frame in sent(one)] == [message.number] == [1]
    assert one.can_resume(greeting(epoch=5))
    for epoch in (0, 3, 4, 6):
        with pytest.raises(ProtocolError, match=f"epoch {epoch}"):
            one.can_resume(greeting(epoch=epoch))
        with pytest.raises(ProtocolError, match=f"epoch {epoch}"):
            one.resume(greeting(epoch=epoch))


@pytest.mark.parametrize("confirmed", [False, True])
@pytest.mark.parametrize(
    ("ours", "before", "other", "after"),
    [
        (1, (0,), (), (2, 3, EPOCHS - 1)),
        (5, (4,), (0, 1, 3), (6, 1000, EPOCHS - 1)),
        (EPOCHS, (EPOCHS - 1,), (0, 1, EPOCHS - 2), ()),
    ],
)
def test_epoch_order_tells_stale_from_restarted_elsewhere(
    ours: int, before: tuple[int, ...], other: tuple[int, ...], after: tuple[int, ...], confirmed: bool
) -> None:
    one = session(begun=False)
    assert not one.is_stale(greeting(epoch=0))
    assert not one.restarted_elsewhere(greeting(epoch=ours))
    one.begin(greeting(epoch=before[0]), ours)
    one.confirmed = confirmed
    said = {epoch: greeting(epoch=epoch) for epoch in (ours, *before, *other, *after)}
    lies = {epoch: (one.is_stale(said[epoch]), one.restarted_elsewhere(said[epoch])) for epoch in said}
    assert lies[ours] == (False, False)
    assert all(lies[epoch] == (confirmed, False) for epoch in before)
    assert all(lies[epoch] == (True, False) for epoch in other)
    assert all(lies[epoch] == (False, True) for epoch in after)


def test_restart_keeps_unsent_messages_in_order() -> None:
    one = session(dataclasses.replace(OPTIONS, transport_size=100))
    gone = put(one, 5)
    sent(one)
    assert acked(one, ack(1)) == [gone]
    whole, part, kept = put(one, 10), put(one, 250), [put(one, 3), put(one, 4)]
    sent(one, limit=24 + 10 + 50)
    kept.append(put(one, 5, lane=1))
    kept[2].withdraw()
    lost = one.restart()
    assert lost == [whole, part]
    assert gone not in lost
    one.begin(greeting(epoch=2), 2)
    assert [(f.kind, f.lane, f.number, f.value) for f in sent(one)] == [
        (FrameKind.MSG, 0, 1, 3),
        (FrameKind.MSG, 0, 2, 4),
    ]
    assert [message.number for message in kept] == [1, 2, 0]
    assert acked(one, ack(2)) == kept[:2]


def test_message_cancelled_before_a_restart_counts_no_longer() -> None:
    one = session()
    cancelled, _ = put(one, 3), put(one, 4)
    cancelled.withdraw()
    assert one.restart() == []
    one.withdraw(cancelled)  # in the loop, which had not come to it before
    assert (one.queued, one.bytes_behind) == (1, 0)
    one.begin(greeting(epoch=2), 2)
    assert [(frame.number, frame.value) for frame in sent(one)] == [(1, 4)]


def test_restart_ignores_drop_oldest() -> None:
    """What was sent and never heard of is unsent again, and may be more than `queue_size`."""
    one = session(dataclasses.replace(OPTIONS, drop_oldest=True, queue_size=1))
    for size in range(1, 6):
        put(one, size)
        assert len(sent(one)) == 1
    assert not one.can_resume(greeting(epoch=0))
    assert one.restart() == []
    one.begin(greeting(), 1)
    assert [frame.length for frame in sent(one)] == [1, 2, 3, 4, 5]


def test_limits_are_lifted_when_both_sides_close() -> None:
    for first, second in ((Session.close, Session.peer_leaves), (Session.peer_leaves, Session.close)):
        one = session(dataclasses.replace(OPTIONS, window=10))
        arrive(one, 1, 5)
        acks(one)
        first(one)
        assert [frame.value for frame in acks(one)] == []
        second(one)
        assert [frame.value for frame in acks(one)] == [2**63 - 1]
        arrive(one, 1, 5, lane=3)
        assert {frame.value for frame in acks(one)} == {2**63 - 1}


def test_restart_discards_received_parts_and_old_grants() -> None:
    one = session()
    receiver = arrive(one, 1, 5000)
    one.restart()
    assert one.greeting(PEER, resume=True).cursors == ()
    one.begin(greeting(), 2)
    assert not take(one, 1)
    arrive(one, 1, 10)
    assert acks(one) == [ack(1, limit=10_000)]
    assert not one.release_room(receiver)


def test_abandon_returns_unacknowledged_messages() -> None:
    one = session()
    messages = [put(one, 10), put(one, 10), put(one, 10, lane=1)]
    sent(one)
    one.acked(ack(1))
    assert one.abandon() == messages[1:]
    assert one.queued == 0
    assert one.settled == messages[:1]


# What an INI says.


def test_greeting_has_cursors_and_counts_as_announced() -> None:
    one = session()
    arrive(one, 1, 5000, lane=3)
    take(one, 1)
    arrive(one, 1, 1)
    said = one.greeting(PEER, resume=True)
    assert said.cursors == (Cursor(0, 1, 0, 10_000), Cursor(3, 1, 0, 15_256))
    assert (said.resume, said.epoch, said.credit, said.message_size) == (True, 1, 10_000, OPTIONS.message_size)
    assert acks(one) == []


@pytest.mark.parametrize(("seconds", "said"), [(10.0, 10_000), (0.001, 1), (0.0019, 1), (3600.0, 3_600_000)])
def test_every_legal_heartbeat_fits_greeting(seconds: float, said: int) -> None:
    frame = session(ConnectionOptions(heartbeat=seconds)).greeting(PEER, resume=False).frame()
    assert Greeting.read(frame).heartbeat == said


def test_largest_options_fit_greeting() -> None:
    options = ConnectionOptions(message_size=2**62, window=2**62)
    one = session(options)
    arrive(one, 1, 1000)
    take(one, 1)
    frame = one.greeting(PEER, resume=True).frame()
    assert LENGTH[FrameKind.INI][0] <= frame.length <= LENGTH[FrameKind.INI][1]
    assert Greeting.read(frame).cursors[0].limit > 2**61
