"""One lane by itself: positions, the window, cancelling, and where a sender may be told to go on."""

from __future__ import annotations

import ctypes
import itertools
import random
import tracemalloc
import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest

from netq.buffers import LARGE, Buffer
from netq.errors import ProtocolError
from netq.protocol import codec
from netq.protocol import receiver as protocol_receiver
from netq.protocol import sender as protocol_sender
from netq.protocol.codec import Outgoing
from netq.protocol.flow_control import CREDIT
from netq.protocol.memory import Memory
from netq.protocol.receiver import Receiver
from netq.protocol.sender import Part, Sender
from netq.protocol.wire import HEADER_SIZE, OVERHEAD, POSITIONS, Cursor, Frame, Kind
from netq.utils.stream import Stream
from tests.netq.interrupting import interrupted
from tests.netq.parsing import Parser

pytestmark = pytest.mark.usefixtures("each_codec")

WINDOW = 10_000
LANE = 3


class Noted(Outgoing):
    """A message that notes that it is acknowledged."""

    def __init__(self, size: int, acked: list[Outgoing]) -> None:
        super().__init__(Stream([bytes(n % 251 for n in range(size))]), LANE)
        self.noted = acked

    def acked(self) -> None:
        super().acked()
        self.noted.append(self)


def message(size: int) -> Outgoing:
    return Noted(size, [])


def sender(*sizes: int, limit: int = WINDOW) -> tuple[Sender, list[Outgoing]]:
    made, messages = Sender(LANE, limit), noted(*sizes)
    for each in messages:
        made.put(each)
    return made, messages


def noted(*sizes: int) -> list[Outgoing]:
    """Messages that have one list of those that are acknowledged; see `acked`."""
    acked: list[Outgoing] = []
    return [Noted(size, acked) for size in sizes]


def acked(messages: Sequence[Outgoing]) -> list[Outgoing]:
    """Those that were acknowledged since this was asked last, in that order."""
    (first, *_) = messages
    assert isinstance(first, Noted)
    found = first.noted[:]
    first.noted.clear()
    return found


def receiver(window: int = WINDOW, *, merge: bool = True) -> Receiver:
    return Receiver(3, window, Memory(), merge=merge)


def next_frame(sender: Sender, size: int = 100) -> Frame:
    """Let it send, and parse that."""
    assert sender.ready
    header, body = sender.chunk(size)
    data = b"".join([header, *(body.buffers() if body else ())])
    (frame,) = Parser().feed(data)
    return frame


def msg(number: int, length: int, size: int) -> Frame:
    return Frame(Kind.MSG, lane=3, length=length, number=number, value=size, body=bytes(length))


def drop(number: int, size: int) -> Frame:
    return Frame(Kind.DROP, lane=3, number=number, value=size)


def arrive(receiver: Receiver, frame: Frame) -> Stream | None:
    receiver.place(frame)[:] = frame.body
    return receiver.received(frame.length)


def take(receiver: Receiver, number: int, mark: int) -> None:
    """Let the user take a message; `mark`: what it and those before it count."""
    assert receiver.consume(number, mark)
    receiver.release_room()


# The sender's numbers and positions.


def test_messages_are_numbered_and_lie_end_to_end() -> None:
    one, messages = sender(500, 0, 7)
    assert [message.number for message in messages] == [0, 0, 0], "none has left"
    for sent in range(1, 4):
        next_frame(one, 500)
        assert [message.number > 0 for message in messages] == [True] * sent + [False] * (3 - sent)
    assert [(m.number, m.start, m.stop) for m in messages] == [(1, 0, 756), (2, 756, 1012), (3, 1012, 1275)]


def test_a_message_has_its_number_and_its_position_when_its_first_byte_leaves() -> None:
    one, (first, second) = sender(250, 10)
    assert (first.number, first.left) == (0, False)
    next_frame(one)
    assert (first.number, first.start, first.left) == (1, 0, False)
    next_frame(one)
    next_frame(one)
    assert (first.left, second.number, second.left) == (True, 0, False)
    next_frame(one)
    assert (second.number, second.start, second.left) == (2, 250 + OVERHEAD, True)


def test_a_message_leaves_in_chunks() -> None:
    one, (first,) = sender(250)
    frames = [next_frame(one) for _ in range(3)]
    assert [frame.length for frame in frames] == [100, 100, 50]
    assert {(f.kind, f.lane, f.number, f.value) for f in frames} == {(Kind.MSG, 3, 1, 250)}
    assert b"".join(bytes(frame.body) for frame in frames) == bytes(first.data)
    assert not one.ready


def test_a_message_of_nothing_leaves_as_one_frame() -> None:
    one, _ = sender(0)
    assert next_frame(one) == Frame(Kind.MSG, lane=3, number=1)
    assert not one.ready


def test_acknowledged_messages_leave_once_and_in_order() -> None:
    one, messages = sender(1, 2, 3)
    for _ in messages:
        next_frame(one)
    assert len(one.sent) == 3
    assert one.acked(2) == (2, 1 + 2)
    assert acked(messages) == messages[:2]
    assert one.acked(2) == one.acked(1) == (0, 0)
    assert acked(messages) == []
    assert list(one) == messages[2:]
    assert one.acked(3) == (1, 3)
    assert acked(messages) == messages[2:]
    assert (len(one), len(one.sent)) == (0, 0)


def test_the_memory_of_what_is_acknowledged_is_free_before_anybody_is_told() -> None:
    """An echo is acknowledged by the link's next bytes, which may begin a message that wants that memory."""
    memory, made = Memory(), Sender(LANE, 2 * LARGE)
    seen: list[tuple[int, int]] = []

    class Telling(Outgoing):
        def acked(self) -> None:
            super().acked()
            assert memory.idle >= LARGE
            seen.append((self.number, self.size))

    made.put(Telling(Stream([memory.take(LARGE)])))
    made.chunk(LARGE)
    assert memory.idle == 0
    assert made.acked(1) == (1, LARGE)
    assert seen == [(1, LARGE)]


def test_what_was_not_sent_cannot_be_acknowledged() -> None:
    one, messages = sender(1, 150)
    next_frame(one)
    next_frame(one)  # a part of the second
    with pytest.raises(ProtocolError, match="message 2 is acknowledged, 1 was the last sent"):
        one.acked(2)
    assert list(one) == messages
    assert acked(messages) == []
    assert one.number == 2, "is still being sent"


# The window.


@pytest.mark.parametrize(
    ("limit", "sent"),
    [
        (0, []),
        (1, [1]),
        (499, [100, 100, 100, 100, 99]),
        (500, [100] * 5),
        (756, [100] * 5),  # the second message starts at the limit
        (757, [100] * 5 + [1]),
    ],
)
def test_no_byte_leaves_beyond_the_limit(limit: int, sent: list[int]) -> None:
    one, _ = sender(500, 10, limit=limit)
    lengths = []
    while one.ready:
        lengths.append(next_frame(one).length)
    assert lengths == sent


def test_a_message_of_nothing_waits_for_the_limit_too() -> None:
    one, _ = sender(0, 0, limit=OVERHEAD)
    next_frame(one)
    assert not one.ready
    one.limit = OVERHEAD + 1
    assert one.ready


def test_the_receiver_holds_the_sender_to_the_limit() -> None:
    one = receiver(window=300)
    assert arrive(one, msg(1, 10, 10)) is not None
    with pytest.raises(ProtocolError, match="beyond the window"):
        one.place(msg(2, 35, 40))  # it starts at 266
    assert arrive(one, msg(2, 34, 40)) is None  # just up to 300
    assert one.limit == 306  # it has begun, so it may be completed
    assert arrive(one, msg(2, 6, 40)) is not None
    with pytest.raises(ProtocolError, match="beyond the window"):
        one.place(msg(3, 0, 0))


def test_a_message_larger_than_the_window_comes_alone() -> None:
    one = receiver(window=100)
    arrive(one, msg(1, 100, 1000))
    assert one.grant_due
    assert one.cursor == Cursor(3, 0, 100, 1000)
    arrive(one, msg(1, 900, 1000))
    with pytest.raises(ProtocolError, match="beyond the window"):
        one.place(msg(2, 1, 1))
    take(one, 1, 1000 + OVERHEAD)
    assert one.limit == 1000 + OVERHEAD + 100
    assert arrive(one, msg(2, 1, 1)) is not None


def test_a_grant_is_due_from_a_quarter_of_the_window_on() -> None:
    one = receiver(window=10_000)
    for number in range(1, 5):
        arrive(one, msg(number, 400, 400))
    due = []
    for number in range(1, 5):
        take(one, number, number * (400 + OVERHEAD))
        due.append(one.grant_due)
    assert due == [False, False, False, True]  # 4 × 656 ≥ 2500
    assert one.cursor.limit == 12_624
    assert not one.grant_due


def test_a_grant_is_due_when_a_message_that_has_begun_waits_for_it() -> None:
    """Else both sides would wait: the limit moves by less than a quarter, and the message fits the window."""
    one = receiver(window=10_000)
    arrive(one, msg(1, 0, 0))
    assert one.cursor.limit == 10_000
    take(one, 1, OVERHEAD)
    assert not one.grant_due
    arrive(one, msg(2, 9_744, 9_900))  # up to the limit that the peer knows
    assert one.grant_due
    assert one.cursor.limit == 10_256


def test_a_tiny_window_grants_too() -> None:
    one = receiver(window=1)
    arrive(one, msg(1, 1, 2))
    assert one.grant_due
    assert one.cursor.limit == 2


# Putting together.


@pytest.mark.parametrize("merge", [True, False])
def test_chunks_become_the_message(merge: bool) -> None:
    one, (sent,) = sender(250)
    other = receiver(merge=merge)
    assert arrive(other, next_frame(one)) is None
    assert arrive(other, next_frame(one)) is None
    got = arrive(other, next_frame(one))
    assert got is not None
    assert bytes(got) == bytes(sent.data)
    assert len(got.buffers) == 1, "small chunks share a block"
    assert other.cursor == Cursor(3, 1, 0, WINDOW)


def test_a_frame_of_one_byte_costs_some_bytes_and_not_hundreds() -> None:
    one, count = receiver(2**20, merge=False), 200_000
    tracemalloc.start()
    for _ in range(count - 1):
        one.place(msg(1, 1, count))[0] = 7
        assert one.received(1) is None
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    one.place(msg(1, 1, count))[0] = 7
    got = one.received(1)
    assert got is not None
    assert bytes(got) == b"\7" * count
    assert size < 2 * count


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_chunks_of_any_sizes_become_the_message(seed: int, merge: bool) -> None:
    chance = random.Random(seed)
    data, one, stop = chance.randbytes(300_000), receiver(2**20, merge=merge), 0
    got = None
    while got is None:
        length = min(chance.choice([1, 100, 5000, 16_384, 40_000]), len(data) - stop)
        came = length if chance.random() < 0.7 else chance.randrange(length)
        one.place(msg(1, length, len(data)))[:came] = data[stop : stop + came]
        stop += came
        if came == length:
            got = one.received(length)
        else:
            one.interrupted(came)
    assert bytes(got) == data
    assert stop == len(data)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("came", [0, 1, 99])
def test_an_interrupted_body_is_gone_on_with(came: int, merge: bool) -> None:
    one, (sent,) = sender(250)
    other = receiver(merge=merge)
    frame = next_frame(one)
    other.place(frame)[:came] = frame.body[:came]
    other.interrupted(came)
    one.resume(other.cursor)
    got = None
    while one.ready:
        got = arrive(other, next_frame(one))
    assert got is not None
    assert bytes(got) == bytes(sent.data)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (msg(1, 5, 50), "expected message 2 from byte 10"),  # again
        (msg(3, 5, 50), "expected message 2 from byte 10"),  # a gap
        (msg(2, 41, 50), "expected message 2 from byte 10"),  # more than there is
        (msg(2, 5, 51), "changes its size"),
        (msg(2, 0, 50), "brings no bytes"),
        (msg(2, 0, 0), "message 2"),
    ],
)
@pytest.mark.parametrize("merge", [True, False])
def test_what_is_not_just_the_next_is_refused(frame: Frame, why: str, merge: bool) -> None:
    one = receiver(merge=merge)
    arrive(one, msg(1, 3, 3))
    arrive(one, msg(2, 10, 50))
    before = one.cursor
    with pytest.raises(ProtocolError, match=why):
        one.place(frame)
    assert one.cursor == before


def test_memory_is_taken_once_and_not_moved() -> None:
    one = receiver()
    first = one.place(msg(1, 100, 300))
    one.received(100)
    second = one.place(msg(1, 200, 300))
    assert first.obj is second.obj
    got = one.received(200)
    assert got is not None
    assert got.buffers[0].obj is first.obj
    assert got.nbytes == 300


# Cancelling.


def test_a_message_that_waits_leaves_no_trace_and_its_bytes_are_let_go() -> None:
    one, messages = sender(150, 60, 7, limit=420)
    next_frame(one)
    messages[1].withdraw()
    assert len(messages[1].data) == 0
    next_frame(one)
    assert next_frame(one)[:6] == msg(2, 7, 7)[:6]  # its number and its place are the next one's
    assert not one.ready
    assert one.acked(2) == (2, 150 + 7)
    assert acked(messages) == [messages[0], messages[2]]
    assert (messages[1].number, list(one), len(one)) == (0, [], 0)
    with pytest.raises(ProtocolError, match="2 was the last sent"):
        one.acked(3)


def test_a_message_that_has_begun_is_dropped_and_its_bytes_are_let_go() -> None:
    one, messages = sender(150, 150, limit=150 + OVERHEAD + 100)
    for _ in range(3):
        next_frame(one)
    assert one.blocked
    messages[1].withdraw()
    assert len(messages[1].data) == 0
    assert one.ready
    assert next_frame(one) == drop(2, 150)  # beyond the limit: it needs no room
    assert one.acked(2) == (1, 150), "who was withdrawn does not count"
    assert acked(messages) == messages


def test_a_message_of_which_a_part_has_left_is_dropped() -> None:
    one, (first, _) = sender(150, 1)
    other = receiver()
    arrive(other, next_frame(one))
    first.withdraw()
    frame = next_frame(one)
    assert frame == drop(1, 150)
    other.dropped(frame)
    assert other.cursor == Cursor(3, 1, 0, WINDOW + 150 + OVERHEAD)
    assert arrive(other, next_frame(one)) is not None


def test_that_its_last_byte_has_left_is_said_before_it_is_sent_and_for_good() -> None:
    one, (first, second) = sender(250, 0)
    for left in (False, False, True):
        assert not first.left
        next_frame(one)
        assert first.left is left
    one.resume(Cursor(3, 0, 240, WINDOW))
    assert first.left
    assert next_frame(one).length == 10
    assert first.left
    assert not second.left
    next_frame(one)
    assert second.left


def test_a_drop_that_was_lost_is_sent_again() -> None:
    one, (first,) = sender(150)
    next_frame(one)
    first.withdraw()
    next_frame(one)
    one.resume(Cursor(3, 0, 100, WINDOW))
    assert next_frame(one) == drop(1, 150)


@pytest.mark.parametrize("frame", [drop(1, 50), drop(3, 50), drop(2, 51)])
def test_a_drop_of_another_message_is_refused(frame: Frame) -> None:
    one = receiver()
    arrive(one, msg(1, 3, 3))
    arrive(one, msg(2, 10, 50))
    with pytest.raises(ProtocolError, match="is cancelled, expected 2"):
        one.dropped(frame)


def test_positions_end_somewhere() -> None:
    """A cancelled message brings no bytes, so only its word says how large it was."""
    largest = 2**62 - 1
    for value in (largest + 1, POSITIONS - 1, 2**64 - 1):
        with pytest.raises(ProtocolError, match="expected fewer than 4611686018427387904"):
            receiver().dropped(drop(1, value))
    one = receiver()
    one.dropped(drop(1, largest))
    rest = POSITIONS - (largest + OVERHEAD)
    with pytest.raises(ProtocolError, match="to end before 9223372036854775808"):
        one.dropped(drop(2, rest - OVERHEAD))
    assert one.cursor.held == 1
    one.dropped(drop(2, rest - OVERHEAD - 1))
    assert (one.held, one.limit < 2**64) == (2, True)
    with pytest.raises(ProtocolError, match="behind position 9223372036854775807"):
        one.dropped(drop(3, 0))


# Going on.


def test_every_possible_cursor_is_gone_on_from_and_every_other_refused() -> None:
    sizes = (150, 0, 30)
    possible = [(0, offset) for offset in range(150)] + [(1, 0), *((2, offset) for offset in range(20))]
    possible.append((2, 20))
    for held in range(5):
        for partial in range(200):
            one, messages = sender(*sizes)
            for size in (100, 100, 100, 20):
                next_frame(one, size)
            cursor = Cursor(3, held, partial, WINDOW + 5)
            if (held, partial) not in possible:
                with pytest.raises(ProtocolError, match=f"stands at message {held + 1}, byte {partial}"):
                    one.check(cursor)
                continue
            one.check(cursor)
            assert one.resume(cursor) == (held, sum(sizes[:held]))
            assert acked(messages) == messages[:held]
            assert one.limit == WINDOW + 5
            frame = next_frame(one, 1000)
            assert (frame.number, frame.length) == (held + 1, sizes[held] - partial)


def test_a_cursor_before_what_was_acknowledged_is_refused() -> None:
    one, _ = sender(1, 1)
    next_frame(one)
    next_frame(one)
    one.acked(1)
    with pytest.raises(ProtocolError, match="has acknowledged 1"):
        one.check(Cursor(3, 0, 0, WINDOW))
    one.check(Cursor(3, 1, 0, WINDOW))
    one.check(Cursor(3, 2, 0, WINDOW))


def test_a_cursor_that_comes_late_does_not_make_the_true_one_impossible() -> None:
    """A link that was long on its way says where the peer stood; the next one where it stands."""
    one, messages = sender(150, 60)
    for _ in range(3):
        next_frame(one)
    one.resume(Cursor(3, 0, 20, WINDOW))
    one.check(Cursor(3, 1, 30, WINDOW))
    assert one.resume(Cursor(3, 1, 30, WINDOW)) == (1, 150)
    assert acked(messages) == messages[:1]
    assert next_frame(one) == msg(2, 30, 60)._replace(body=bytes(messages[1].data)[30:60])


def test_a_message_that_has_left_before_a_late_cursor_is_not_taken_out() -> None:
    one, messages = sender(10, 120, 30)
    next_frame(one)
    next_frame(one)
    one.resume(Cursor(3, 0, 0, WINDOW))
    for message in messages[1:]:
        message.withdraw()
        one.remove(message)
    assert len(one) == 2
    next_frame(one)
    assert next_frame(one) == drop(2, 120)
    assert not one.ready


def test_unsent_are_those_of_which_no_byte_has_left() -> None:
    one, messages = sender(150, 10, 20)
    assert one.unsent() == messages
    next_frame(one)
    assert one.unsent() == messages[1:]
    next_frame(one)
    assert one.unsent() == messages[1:]
    next_frame(one)
    assert one.unsent() == messages[2:]
    one.rewind()
    assert one.unsent() == messages


# Small messages, many in one step.


def batched(sender: Sender, small: int = 100, limit: int = 10**6) -> tuple[list[Frame], int]:
    """Let it send a batch, and parse that; return also how many bytes it said."""
    out: list[Buffer | Part] = []
    assert sender.ready
    size = sender.batch(out, small, limit)
    data = b"".join(piece for piece in out if not isinstance(piece, Part))
    assert len(data) == size, "no parts, and what it says is what it sends"
    return list(Parser().feed(data)), size


def test_a_batch_is_of_whole_messages_with_their_numbers_and_positions() -> None:
    one, messages = sender(5, 0, 100, 7)
    contents = [bytes(message.data) for message in messages]
    frames, size = batched(one)
    assert [(f.kind, f.lane, f.length, f.number, f.value) for f in frames] == [
        (Kind.MSG, 3, 5, 1, 5),
        (Kind.MSG, 3, 0, 2, 0),
        (Kind.MSG, 3, 100, 3, 100),
        (Kind.MSG, 3, 7, 4, 7),
    ]
    assert [bytes(frame.body) for frame in frames] == contents
    assert size == 4 * HEADER_SIZE + 112
    assert [(m.number, m.start, m.left) for m in messages] == [
        (1, 0, True),
        (2, 5 + OVERHEAD, True),
        (3, 5 + 2 * OVERHEAD, True),
        (4, 105 + 3 * OVERHEAD, True),
    ]
    assert (one.ready, len(one.sent), len(one), list(one)) == (False, 4, 4, messages)
    assert one.number == 5
    assert one.acked(4) == (4, 112)
    assert acked(messages) == messages


def test_the_bytes_of_a_batch_are_not_copied() -> None:
    one, memory = Sender(LANE, WINDOW), [bytearray(b"one"), bytearray(b"two")]
    one.put(Outgoing(Stream(memory), LANE))
    out: list[Buffer | Part] = []
    one.batch(out, 100, 100)
    assert [piece.obj for piece in out if isinstance(piece, memoryview)] == memory


@pytest.mark.parametrize(
    ("limit", "count"), [(-5, 0), (0, 0), (1, 1), (34, 1), (35, 2), (68, 2), (69, 3), (102, 3), (103, 4), (10**6, 4)]
)
def test_a_batch_ends_when_it_has_as_many_bytes_as_wanted(limit: int, count: int) -> None:
    one, messages = sender(10, 10, 10, 10)
    frames, size = batched(one, limit=limit)
    assert (len(frames), size) == (count, count * (HEADER_SIZE + 10))
    assert [message.left for message in messages] == [True] * count + [False] * (4 - count)
    rest, _ = batched(one) if count < 4 else ([], 0)
    assert [frame.number for frame in (*frames, *rest)] == [1, 2, 3, 4]


@pytest.mark.parametrize("small", [0, 9, 10, 11])
def test_a_batch_ends_before_a_message_that_is_not_small(small: int) -> None:
    one, _ = sender(0, small, small + 1, 0)
    frames, _ = batched(one, small)
    assert [frame.value for frame in frames] == [0, small]
    assert batched(one, small) == ([], 0)
    assert next_frame(one, 10**6).value == small + 1
    assert [frame.number for frame in batched(one, small)[0]] == [4]


@pytest.mark.parametrize(
    ("limit", "whole", "rest"),
    [
        (1, 0, 1),
        (9, 0, 9),
        (10, 1, 0),
        (10 + OVERHEAD, 1, 0),  # the second, of no bytes, starts at the limit
        (11 + OVERHEAD, 2, 0),
        (10 + 2 * OVERHEAD, 2, 0),
        (11 + 2 * OVERHEAD, 2, 1),
        (29 + 2 * OVERHEAD, 2, 19),
        (30 + 2 * OVERHEAD, 3, 0),
    ],
)
def test_a_batch_ends_where_the_window_does(limit: int, whole: int, rest: int) -> None:
    one, _ = sender(10, 0, 20, limit=limit)
    frames, _ = batched(one)
    assert [frame.value for frame in frames] == [10, 0, 20][:whole]
    assert one.ready is (rest > 0)
    if rest:
        assert batched(one) == ([], 0)
        assert (next_frame(one).length, one.ready) == (rest, False)


def test_a_batch_goes_nowhere_without_a_window() -> None:
    one, _ = sender(0, 1, limit=0)
    assert not one.ready
    assert one.batch([], 100, 100) == 0
    assert not one.sent


def test_a_batch_leaves_no_trace_of_what_was_cancelled() -> None:
    one, messages = sender(1, 2, 3, 4, 5)
    for index in (1, 2, 4):
        messages[index].withdraw()
    one.remove(messages[2])
    frames = []
    while one.ready:
        frames += batched(one)[0]
    assert [(frame.number, frame.value) for frame in frames] == [(1, 1), (2, 4)]
    assert (messages[0].stop, messages[3].start) == (1 + OVERHEAD, 1 + OVERHEAD)
    assert len(one) == 2
    assert one.acked(2) == (2, 5)
    for message in messages[1:3]:
        one.remove(message)
    assert (len(one), list(one), acked(messages)) == (0, [], [messages[0], messages[3]])


def test_a_batch_waits_until_what_has_begun_is_sent() -> None:
    one, _ = sender(150, 10, 10)
    next_frame(one)
    assert batched(one) == ([], 0)
    next_frame(one)
    assert [frame.number for frame in batched(one)[0]] == [2, 3]
    one.resume(Cursor(3, 1, 4, WINDOW))
    one.put(message(1))
    assert batched(one) == ([], 0), "again, from where the peer stands"
    assert [(frame.number, frame.length) for frame in (next_frame(one), next_frame(one))] == [(2, 6), (3, 10)]
    assert [frame.number for frame in batched(one)[0]] == [4]


@pytest.mark.parametrize("seed", range(200))
def test_batches_and_chunks_bring_all_in_order_and_within_the_window(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([0, 1, 10, 99, 100, 101, 300]) for _ in range(40)]
    window = chance.choice([50, 400, 2000])
    one, messages = sender(*sizes, limit=window)
    other, got, mark = receiver(window), list[bytes](), 0
    contents = [bytes(message.data) for message in messages]
    gone: set[int] = set()
    for _ in range(1000):
        if chance.random() < 0.1 and not messages[index := chance.randrange(40)].left:
            messages[index].withdraw()
            gone.add(index)
        if one.ready and chance.random() < 0.7:
            frames = batched(one, chance.choice([0, 50, 100]), chance.choice([1, 100, 500]))[0]
        else:
            frames = [next_frame(one, chance.choice([1, 50, 100]))] if one.ready else []
        for frame in frames:
            if frame.kind is Kind.DROP:
                other.dropped(frame)
            elif (whole := arrive(other, frame)) is not None:
                got.append(bytes(whole))
                mark += whole.nbytes + OVERHEAD
                take(other, other.held, mark)
        one.acked(other.held)
        one.limit = max(one.limit, other.announce_limit())
    assert not one.ready
    assert got == [content for index, content in enumerate(contents) if index not in gone]
    assert acked(messages) == [message for message in messages if message.number]
    for index in gone:
        one.remove(messages[index])
    assert (len(one), list(one)) == (0, [])


@pytest.mark.parametrize("count", [1, 63, 64, 65, 130, 1000])
def test_who_cancels_many_before_anybody_hears_of_it_is_counted_once(count: int) -> None:
    """A user's thread withdraws them, and the loop takes them out later, one by one."""
    one, messages = sender(*[1] * count, 2, limit=0)
    for gone in messages[:count]:
        gone.withdraw()
    for gone in messages[:count]:
        one.remove(gone)
    assert len(one) == 1
    one.limit = WINDOW
    assert [(frame.number, frame.value) for frame in batched(one)[0]] == [(1, 2)]
    assert one.acked(1) == (1, 2)
    assert (len(one), list(one)) == (0, [])


# What the user has taken.


def test_a_message_that_came_twice_is_taken_once() -> None:
    one = receiver()
    for number in (1, 2):
        arrive(one, msg(number, 400, 400))
    assert one.consume(1, 656)
    assert not one.consume(1, 656)
    assert one.consume(2, 1312)
    assert not one.consume(1, 656)
    one.release_room()
    assert one.announce_limit() == WINDOW + 1312


def test_what_the_user_takes_counts_when_it_is_told_or_asked_for() -> None:
    """`release_room` may be called late: what is said meanwhile is right all the same."""
    one = receiver(window=1000)
    arrive(one, msg(1, 100, 100))
    arrive(one, msg(2, 100, 100))
    assert not one.release_due
    assert one.consume(1, 356)
    assert (one.grant_due, one.release_due) == (True, True)
    assert one.announce_limit() == one.limit == one.announced == 1356
    assert (one.grant_due, one.release_due) == (False, False)
    assert one.consume(2, 712)
    assert one.cursor == Cursor(3, 2, 0, 1712)


def test_attention_goes_to_who_attends() -> None:
    told: list[Receiver] = []
    one = Receiver(3, WINDOW, Memory(), merge=True, request_release=told.append)
    one.request_release()
    assert told == [one]
    assert not one.release_due
    one.retire()
    assert one.release_due, "its untaken messages count, whatever the window"


def test_what_was_cancelled_counts_beside_what_was_taken() -> None:
    one = receiver(window=1000)
    peer = uuid.UUID(int=5)
    items = []
    for number in (1, 3):
        arrive(one, msg(number, 10, 10))
        items.append(one.item(peer, b"x"))
        one.dropped(drop(number + 1, 20))
    assert items == [(peer, b"x", one, 1, 266), (peer, b"x", one, 3, 532)]
    assert one.cancelled == 2 * 276
    assert one.start == 2 * 266 + 2 * 276
    for _, _, its, number, mark in items:
        assert its.consume(number, mark)
    assert one.announce_limit() == 1000 + 2 * 266 + 2 * 276


def simple(receiver: Receiver) -> bool:
    """Whether it is what `take_small` wants."""
    return not (receiver.parts or receiver.claimed)


@pytest.mark.parametrize("window", [10_000, CREDIT, CREDIT + 1])
def test_the_short_path_is_for_receivers_with_nothing_begun_and_nothing_beyond_their_window(window: int) -> None:
    one = receiver(window)
    assert simple(one)
    arrive(one, msg(1, 5, 10))
    assert not simple(one)
    arrive(one, msg(1, 5, 10))
    assert simple(one)
    arrive(one, msg(2, 10, 2 * window))
    one.dropped(drop(2, 2 * window))
    assert simple(one)
    arrive(one, msg(3, one.limit - one.start, 3 * window))
    arrive(one, msg(3, 3 * window - one.partial, 3 * window))
    assert not simple(one), "the budget has granted what is here, and wants it back"
    assert one.release_due
    one.release_room()
    assert not simple(one)
    take(one, 3, 10 + 3 * window + 2 * OVERHEAD)
    assert simple(one)


# A thread that is interrupted.


class Broken:
    """A sender that is interrupted at work: what it has sent before, what it does, and what is left of it."""

    SIZES = (150, 5, 0, 30, 120, 10, 10)

    def __init__(self, act: str) -> None:
        self.sender, self.messages = sender(*self.SIZES)
        self.act: Callable[[], object] = getattr(self, act)
        self.least = 0  # what the peer is known to hold
        if act in ("ends_a_chunk", "drops", "batches", "acknowledges"):
            next_frame(self.sender)
        if act in ("batches", "acknowledges"):
            next_frame(self.sender)
        if act == "drops":
            self.messages[0].withdraw()
        if act == "acknowledges":
            batched(self.sender)
        if act in ("skips", "batches"):
            for index in (3, 4):
                self.messages[index].withdraw()
            self.sender.remove(self.messages[4])

    def begins(self) -> None:
        self.sender.chunk(100)

    ends_a_chunk = drops = begins

    def sends_one_whole(self) -> None:
        self.sender.chunk(150)

    def batches(self) -> None:
        self.sender.batch([], 100, 10**6)

    def skips(self) -> None:
        self.sender.drop_oldest(100)
        self.sender.chunk(150)
        while self.sender.ready:
            self.sender.batch([], 100, 10**6)

    def acknowledges(self) -> None:
        self.least = 3
        self.sender.acked(3)

    def check(self) -> None:
        """All messages are there once, in order; those that have begun have their numbers, end to end."""
        one, messages = self.sender, self.messages
        there, begun = list(one), list(one.sent)
        assert there == [message for message in messages if message in there]
        for message in set(messages) - set(there):
            assert message in acked_ever(messages) or (message.withdrawn and not message.number)
        assert [message.number for message in there[len(begun) :]] == [0] * (len(there) - len(begun))
        assert not any(message.left for message in there[len(begun) :])
        first = begun[0].number if begun else 0
        assert [message.number for message in begun] == list(range(first, first + len(begun)))
        assert all(message.stop == after.start for message, after in itertools.pairwise(begun))
        assert all(message.left or message is begun[-1] or message.withdrawn for message in begun)
        assert len(one) == sum(message.number > 0 or not message.withdrawn for message in there)

    def go_on(self, held: int, partial: int) -> None:
        """Send the rest over another link to a peer that stands there."""
        one, messages = self.sender, self.messages
        numbers = [message for message in messages if message.number]
        other = receiver()
        for message in numbers[:held]:
            arrive(other, msg(message.number, message.size, message.size))
        if partial:
            arrive(other, msg(held + 1, partial, numbers[held].size))
        assert one.resume(other.cursor)[0] <= held
        got = []
        while one.ready:
            frames = batched(one)[0] or [next_frame(one)]
            for frame in frames:
                if frame.kind is Kind.DROP:
                    other.dropped(frame)
                elif arrive(other, frame) is not None:
                    got.append(frame.value)
        rest = [message for message in messages if message.number > held]
        assert got == [message.size for message in rest if not message.withdrawn]
        assert [message.number for message in rest] == list(range(held + 1, other.held + 1))
        one.acked(other.held)
        assert (len(one), list(one), len(one.sent)) == (0, [], 0)
        for message in messages:
            assert (message in acked_ever(messages)) is (message.number > 0)
            assert message.number or message.withdrawn


def acked_ever(messages: Sequence[Outgoing]) -> list[Outgoing]:
    assert isinstance(messages[0], Noted)
    return messages[0].noted


ACTS = ("begins", "ends_a_chunk", "drops", "sends_one_whole", "batches", "skips", "acknowledges")


def breaks(act: str) -> Iterator[Broken]:
    """A sender interrupted in this, at each bytecode, and recounted."""
    for left in itertools.count():
        broken = Broken(act)
        if not interrupted(left, broken.act, codec, protocol_receiver, protocol_sender):
            assert left > 20, "it was interrupted somewhere"
            return
        broken.sender.repair()
        yield broken


@pytest.mark.parametrize("act", ACTS)
def test_a_sender_that_was_interrupted_anywhere_has_all_its_messages_in_order(act: str) -> None:
    for broken in breaks(act):
        broken.check()
        broken.sender.repair()
        broken.check()


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("act", ACTS)
def test_a_sender_that_was_interrupted_anywhere_goes_on_wherever_the_peer_stands(act: str, cancel: bool) -> None:
    """It may have what was sent, or less: nobody knows how much has left. What can be cancelled still can."""
    for left, _ in enumerate(breaks(act)):
        for back, partial in itertools.product(range(8), (0, 40)):
            broken = Broken(act)
            interrupted(left, broken.act, codec, protocol_receiver, protocol_sender)
            broken.sender.repair()
            begun = [message for message in broken.messages if message.number]
            held = len(begun) - back
            if held < broken.least or (partial and (held == len(begun) or begun[held].size <= partial)):
                continue
            if held > sum(message.left or message.withdrawn for message in begun):
                continue
            for message in broken.messages if cancel else ():
                if not message.left:
                    message.withdraw()
                    broken.sender.remove(message)
            broken.go_on(held, partial)


@pytest.mark.parametrize("cancelled", [0, 1])
@pytest.mark.parametrize("steps", range(4))
def test_a_receiver_that_was_interrupted_anywhere_holds_what_the_user_has_or_nothing_new(
    steps: int, cancelled: int
) -> None:
    """`take_small` says what has come last, then what is held, then where the next starts."""
    one = receiver()
    for number in range(1, cancelled + 1):
        one.dropped(drop(number, 20))
    arrive(one, msg(cancelled + 1, 7, 7))
    one.item(uuid.UUID(int=5), b"before")
    before = one.held, one.start
    after = before[0] + 2, before[1] + 2 * (7 + OVERHEAD)
    if steps > 0:
        one.last = after[0], after[1] - one.cancelled
    if steps > 1:
        one.held = after[0]
    if steps > 2:
        one.start = after[1]
    for _ in range(2):
        one.repair()
        assert (one.held, one.start) == (after if steps else before)
    assert arrive(one, msg(one.held + 1, 5, 5)) is not None
    assert one.start == (after if steps else before)[1] + 5 + OVERHEAD


def test_recounting_changes_nothing_of_what_is_right() -> None:
    one = receiver()
    one.repair()
    assert (one.held, one.start) == (0, 0)
    arrive(one, msg(1, 7, 7))
    one.item(uuid.UUID(int=5), b"1234567")
    one.dropped(drop(2, 100))
    arrive(one, msg(3, 5, 50))
    before = one.held, one.partial, one.start, one.limit
    one.repair()
    assert (one.held, one.partial, one.start, one.limit) == before
    assert arrive(one, msg(3, 45, 50)) is not None
    one.item(uuid.UUID(int=5), b"50")
    one.repair()
    assert (one.held, one.start) == (3, 157 + 3 * OVERHEAD)
    empty = Sender(LANE, WINDOW)
    empty.repair()
    assert (empty.ready, len(empty), len(empty.sent)) == (False, 0, 0)
    sending, _ = sender(10, 20)
    sending.repair()
    assert [frame.number for frame in batched(sending)[0]] == [1, 2]
    sending.acked(2)
    sending.repair()
    sending.put(message(3))
    assert [(frame.number, frame.value) for frame in batched(sending)[0]] == [(3, 3)]


# Messages for several.

SEVERAL = (uuid.UUID(int=1), uuid.UUID(int=2))


def test_the_oldest_that_waits_is_dropped_and_not_what_has_begun() -> None:
    one, messages = sender(150, 10, 10, 10)
    assert next_frame(one).length == 100  # of the first
    assert one.drop_oldest(4) is None
    assert one.drop_oldest(3) is messages[1]
    assert one.drop_oldest(3) is None
    assert one.drop_oldest(1) is messages[2]
    one.put(message(11))
    frames = [next_frame(one) for _ in range(3) if one.ready]
    assert [(frame.number, frame.value) for frame in frames] == [(1, 150), (2, 10), (3, 11)]
    assert one.drop_oldest(0) is None


def test_a_message_that_is_cancelled_meanwhile_is_not_dropped() -> None:
    one, (first, second) = sender(1, 1)
    first.withdraw()
    assert one.drop_oldest(2) is None, "only one waits"
    assert one.drop_oldest(1) is second
    assert len(one) == 0
    one.remove(first)  # its owner says so late
    assert len(one) == 0


def test_a_sender_whose_link_is_away_keeps_little_of_what_was_dropped() -> None:
    one = Sender(LANE, 0)
    for _ in range(10_000):
        one.drop_oldest(5)
        one.put(message(1))
        assert len(list(one)) < 200
    assert len(one) == 5


@pytest.mark.parametrize(("limit", "stuck"), [(0, True), (50, True), (100, False)])
def test_a_sender_is_stuck_when_the_limit_keeps_it(limit: int, stuck: bool) -> None:
    one, _ = sender(100, limit=limit)
    assert not Sender(LANE, limit).blocked
    if limit:
        assert not one.blocked
        next_frame(one)
    assert one.blocked is stuck


def for_several(size: int) -> Outgoing:
    return Outgoing(Stream([bytes(n % 251 for n in range(size))]), LANE, SEVERAL)


def parts(sender: Sender, size: int, grid: int) -> list[tuple[int, int]]:
    """Let it send all it may; return which bytes went in each frame."""
    found = []
    while sender.ready:
        _, part = sender.chunk(size, grid)
        assert part is not None
        assert part.audience == SEVERAL
        found.append((part.start, part.stop))
    return found


def test_senders_of_the_same_message_cut_it_alike_again_after_their_windows_have_not() -> None:
    one, other = Sender(LANE, 10_000), Sender(3, 130)
    one.put(for_several(450))
    other.put(for_several(450))
    assert parts(one, 100, 100) == [(0, 100), (100, 200), (200, 300), (300, 400), (400, 450)]
    assert parts(other, 100, 100) == [(0, 100), (100, 130)]
    other.limit = 10_000
    assert parts(other, 100, 100) == [(130, 200), (200, 300), (300, 400), (400, 450)]


def test_what_else_is_in_a_batch_does_not_move_the_cuts() -> None:
    one = Sender(LANE, 10_000)
    one.put(for_several(250))
    assert parts(one, 37, 100) == [(0, 100), (100, 200), (200, 250)]


def test_a_part_keeps_its_bytes_when_its_message_is_cancelled() -> None:
    one = Sender(LANE, 10_000)
    message = for_several(250)
    one.put(message)
    _, part = one.chunk(100, 100)
    message.withdraw()
    assert part is not None
    assert b"".join(part.buffers()) == bytes(range(100))
    assert part.size == 100
    assert one.chunk(100, 100) == (Frame(Kind.DROP, lane=3, number=1, value=250).header(), None)


@pytest.mark.parametrize("merge", [True, False])
def test_a_link_may_bring_the_memory_of_a_body_and_what_began_there_stays_there(merge: bool) -> None:
    one, own = receiver(2**30, merge=merge), Memory()
    view = own.take(2 * LARGE)  # the only idle block that any memory has
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    del view
    first = one.place(Frame(Kind.MSG, lane=3, length=LARGE, number=1, value=2 * LARGE), own)
    assert ctypes.addressof(ctypes.c_char.from_buffer(first)) == address
    one.received(LARGE)
    second = one.place(
        Frame(Kind.MSG, lane=3, length=LARGE, number=1, value=2 * LARGE)
    )  # by another link, that has none
    assert (second.obj is first.obj) is merge
    got = one.received(LARGE)
    assert got is not None
    assert got.nbytes == 2 * LARGE
