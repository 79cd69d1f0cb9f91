"""The sending half of a lane: numbers, positions, chunks, batches, the limit, cancelling, cursors."""

from __future__ import annotations

import uuid

import pytest

from netq.buffers import LARGE, Buffer
from netq.errors import ProtocolError
from netq.protocol.codec import Outgoing
from netq.protocol.memory import Memory
from netq.protocol.sender import Part, Sender
from netq.protocol.wire import HEADER_SIZE, OVERHEAD, Cursor, Frame, FrameKind
from netq.utils.stream import Stream
from tests.netq.protocol.lanes import (
    LANE,
    WINDOW,
    acked,
    batched,
    drop,
    message,
    msg,
    next_frame,
    sender,
)

pytestmark = pytest.mark.usefixtures("each_codec")


# Numbers and positions.


def test_messages_are_numbered_and_lie_end_to_end() -> None:
    one, messages = sender(500, 0, 7)
    assert [message.number for message in messages] == [0, 0, 0], "none has left"
    for sent in range(1, 4):
        next_frame(one, 500)
        assert [message.number > 0 for message in messages] == [True] * sent + [False] * (3 - sent)
    assert [(m.number, m.start, m.stop) for m in messages] == [(1, 0, 756), (2, 756, 1012), (3, 1012, 1275)]


def test_message_gets_number_and_position_when_first_byte_leaves() -> None:
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
    assert {(f.kind, f.lane, f.number, f.value) for f in frames} == {(FrameKind.MSG, 3, 1, 250)}
    assert b"".join(bytes(frame.body) for frame in frames) == bytes(first.data)
    assert not one.ready


def test_empty_message_is_one_frame() -> None:
    one, _ = sender(0)
    assert next_frame(one) == Frame(FrameKind.MSG, lane=3, number=1)
    assert not one.ready


def test_acknowledged_messages_are_settled_once_and_in_order() -> None:
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


def test_memory_is_released_before_acknowledgement_is_reported() -> None:
    """An echo is acknowledged by the link's next bytes, which may begin a message that wants that memory."""
    memory, made = Memory(), Sender(LANE, 2 * LARGE)
    seen: list[tuple[int, int]] = []

    class Telling(Outgoing):
        def acked(self) -> None:
            super().acked()
            assert memory.idle >= LARGE
            seen.append((self.number, self.size))

    message = Telling(Stream([memory.take(LARGE)]))
    message.watched = True
    made.put(message)
    del message
    made.chunk(LARGE)
    assert memory.idle == 0
    assert made.acked(1) == (1, LARGE)
    assert seen == [(1, LARGE)]


def test_ack_of_unsent_message_is_refused() -> None:
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
def test_nothing_is_sent_beyond_limit(limit: int, sent: list[int]) -> None:
    one, _ = sender(500, 10, limit=limit)
    lengths = []
    while one.ready:
        lengths.append(next_frame(one).length)
    assert lengths == sent


def test_empty_message_observes_limit() -> None:
    one, _ = sender(0, 0, limit=OVERHEAD)
    next_frame(one)
    assert not one.ready
    one.limit = OVERHEAD + 1
    assert one.ready


# Cancelling.


def test_cancelled_waiting_message_is_removed_and_released() -> None:
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


def test_cancelled_message_that_has_begun_sends_drop() -> None:
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


def test_left_is_set_before_last_byte_is_sent_and_stays() -> None:
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


def test_lost_drop_is_sent_again() -> None:
    one, (first,) = sender(150)
    next_frame(one)
    first.withdraw()
    next_frame(one)
    one.resume(Cursor(3, 0, 100, WINDOW))
    assert next_frame(one) == drop(1, 150)


# Resuming.


def test_possible_cursors_resume_and_all_others_are_refused() -> None:
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


def test_cursor_before_acknowledged_message_is_refused() -> None:
    one, _ = sender(1, 1)
    next_frame(one)
    next_frame(one)
    one.acked(1)
    with pytest.raises(ProtocolError, match="has acknowledged 1"):
        one.check(Cursor(3, 0, 0, WINDOW))
    one.check(Cursor(3, 1, 0, WINDOW))
    one.check(Cursor(3, 2, 0, WINDOW))


def test_late_cursor_leaves_true_cursor_possible() -> None:
    """A link that was long on its way says where the peer stood; the next one where it stands."""
    one, messages = sender(150, 60)
    for _ in range(3):
        next_frame(one)
    one.resume(Cursor(3, 0, 20, WINDOW))
    one.check(Cursor(3, 1, 30, WINDOW))
    assert one.resume(Cursor(3, 1, 30, WINDOW)) == (1, 150)
    assert acked(messages) == messages[:1]
    assert next_frame(one) == msg(2, 30, 60)._replace(body=bytes(messages[1].data)[30:60])


def test_message_sent_before_late_cursor_stays() -> None:
    one, messages = sender(10, 120, 30)
    next_frame(one)
    next_frame(one)
    one.resume(Cursor(3, 0, 0, WINDOW))
    for each in messages[1:]:
        each.withdraw()
        one.remove(each)
    assert len(one) == 2
    next_frame(one)
    assert next_frame(one) == drop(2, 120)
    assert not one.ready


def test_unsent_returns_messages_without_a_sent_byte() -> None:
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


# Batches of small messages.


def test_batch_has_whole_messages_with_numbers_and_positions() -> None:
    one, messages = sender(5, 0, 100, 7)
    contents = [bytes(message.data) for message in messages]
    frames, size = batched(one)
    assert [(f.kind, f.lane, f.length, f.number, f.value) for f in frames] == [
        (FrameKind.MSG, 3, 5, 1, 5),
        (FrameKind.MSG, 3, 0, 2, 0),
        (FrameKind.MSG, 3, 100, 3, 100),
        (FrameKind.MSG, 3, 7, 4, 7),
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


def test_batch_does_not_copy() -> None:
    one, memory = Sender(LANE, WINDOW), [bytearray(b"one"), bytearray(b"two")]
    one.put(Outgoing(Stream(memory), LANE))
    out: list[Buffer | Part] = []
    one.batch(out, 100, 100)
    assert [piece.obj for piece in out if isinstance(piece, memoryview)] == memory


@pytest.mark.parametrize(
    ("limit", "count"), [(-5, 0), (0, 0), (1, 1), (34, 1), (35, 2), (68, 2), (69, 3), (102, 3), (103, 4), (10**6, 4)]
)
def test_batch_ends_at_wanted_size(limit: int, count: int) -> None:
    one, messages = sender(10, 10, 10, 10)
    frames, size = batched(one, limit=limit)
    assert (len(frames), size) == (count, count * (HEADER_SIZE + 10))
    assert [message.left for message in messages] == [True] * count + [False] * (4 - count)
    rest, _ = batched(one) if count < 4 else ([], 0)
    assert [frame.number for frame in (*frames, *rest)] == [1, 2, 3, 4]


@pytest.mark.parametrize("small", [0, 9, 10, 11])
def test_batch_ends_before_large_message(small: int) -> None:
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
def test_batch_ends_at_limit(limit: int, whole: int, rest: int) -> None:
    one, _ = sender(10, 0, 20, limit=limit)
    frames, _ = batched(one)
    assert [frame.value for frame in frames] == [10, 0, 20][:whole]
    assert one.ready is (rest > 0)
    if rest:
        assert batched(one) == ([], 0)
        assert (next_frame(one).length, one.ready) == (rest, False)


def test_batch_is_empty_without_window() -> None:
    one, _ = sender(0, 1, limit=0)
    assert not one.ready
    assert one.batch([], 100, 100) == 0
    assert not one.sent


def test_batch_skips_cancelled_messages() -> None:
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
    for each in messages[1:3]:
        one.remove(each)
    assert (len(one), list(one), acked(messages)) == (0, [], [messages[0], messages[3]])


def test_batch_waits_for_message_that_has_begun() -> None:
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


@pytest.mark.parametrize("count", [1, 63, 64, 65, 130, 1000])
def test_cancelled_messages_are_counted_once(count: int) -> None:
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


# drop_oldest, and messages to several peers.


SEVERAL = (uuid.UUID(int=1), uuid.UUID(int=2))


def test_drop_oldest_spares_message_that_has_begun() -> None:
    one, messages = sender(150, 10, 10, 10)
    assert next_frame(one).length == 100  # of the first
    assert (one.waiting_count, one.waiting_bytes) == (3, 30)
    for each in messages[1:3]:
        assert one.oldest() is each
        one.drop_oldest()
    assert (one.waiting_count, one.waiting_bytes) == (1, 10)
    one.put(message(11))
    frames = [next_frame(one) for _ in range(3) if one.ready]
    assert [(frame.number, frame.value) for frame in frames] == [(1, 150), (2, 10), (3, 11)]
    assert (one.oldest(), one.waiting_count, one.waiting_bytes) == (None, 0, 0)


def test_drop_oldest_skips_cancelled_message() -> None:
    one, (first, second) = sender(1, 1)
    first.withdraw()
    assert one.oldest() is second
    one.drop_oldest()
    assert (len(one), one.waiting_bytes) == (0, 0)
    one.remove(first)  # its owner says so late
    assert (len(one), one.waiting_bytes) == (0, 0)


def test_cancelled_messages_are_swept_without_link() -> None:
    one = Sender(LANE, 0)
    for _ in range(10_000):
        if one.waiting_count == 5:
            assert one.oldest() is not None
            one.drop_oldest()
        one.put(message(1))
        assert len(list(one)) < 200
    assert len(one) == 5


@pytest.mark.parametrize(("limit", "stuck"), [(0, True), (50, True), (100, False)])
def test_sender_is_blocked_by_limit(limit: int, stuck: bool) -> None:
    one, _ = sender(100, limit=limit)
    assert not Sender(LANE, limit).blocked
    if limit:
        assert not one.blocked
        next_frame(one)
    assert one.blocked is stuck


def test_delay_counts_unacknowledged_and_what_limit_must_move() -> None:
    one, (_, second) = sender(500, 0, limit=700)
    assert one.delay(100) == (500 + 2 * OVERHEAD + 100 - 700, 500 + 2 * OVERHEAD)
    one.remove(second)
    next_frame(one, 500)
    assert one.delay(100) == (500 + OVERHEAD + 100 - 700, 500 + OVERHEAD)
    one.acked(1)
    assert one.delay(100) == (500 + OVERHEAD + 100 - 700, 0), "a lane that is full waits for its reader"
    one.limit = 1000
    assert one.delay(100) == (0, 0)


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


def test_senders_align_chunks_again_after_unequal_windows() -> None:
    one, other = Sender(LANE, 10_000), Sender(3, 130)
    one.put(for_several(450))
    other.put(for_several(450))
    assert parts(one, 100, 100) == [(0, 100), (100, 200), (200, 300), (300, 400), (400, 450)]
    assert parts(other, 100, 100) == [(0, 100), (100, 130)]
    other.limit = 10_000
    assert parts(other, 100, 100) == [(130, 200), (200, 300), (300, 400), (400, 450)]


def test_other_messages_do_not_move_chunk_grid() -> None:
    one = Sender(LANE, 10_000)
    one.put(for_several(250))
    assert parts(one, 37, 100) == [(0, 100), (100, 200), (200, 250)]


def test_part_keeps_bytes_of_cancelled_message() -> None:
    one = Sender(LANE, 10_000)
    message = for_several(250)
    one.put(message)
    _, part = one.chunk(100, 100)
    message.withdraw()
    assert part is not None
    assert b"".join(part.buffers()) == bytes(range(100))
    assert part.size == 100
    assert one.chunk(100, 100) == (Frame(FrameKind.DROP, lane=3, number=1, value=250).header(), None)
