"""One lane by itself: positions, the window, cancelling, and where a sender may be told to go on."""

from __future__ import annotations

import ctypes
import random
import tracemalloc
import uuid

import pytest

from netq.errors import ProtocolError
from netq.lane import Outgoing, Receiver, Sender
from netq.memory import LARGE, Memory
from netq.utils.stream import Stream
from netq.wire import OVERHEAD, POSITIONS, Cursor, Frame, Kind
from tests.netq.parsing import Parser

WINDOW = 10_000


def message(size: int) -> Outgoing:
    return Outgoing(Stream([bytes(n % 251 for n in range(size))]))


def sender(*sizes: int, limit: int = WINDOW) -> tuple[Sender, list[Outgoing]]:
    made, messages = Sender(3, limit), [message(size) for size in sizes]
    for each in messages:
        made.put(each)
    return made, messages


def receiver(window: int = WINDOW, *, merge: bool = True) -> Receiver:
    return Receiver(3, window, Memory(), merge=merge)


def next_frame(sender: Sender, size: int = 100) -> Frame:
    """Let it send, and parse that."""
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


# The sender's numbers and positions.


def test_messages_are_numbered_and_lie_end_to_end() -> None:
    _, messages = sender(500, 0, 7)
    assert [(m.number, m.start, m.stop) for m in messages] == [(1, 0, 756), (2, 756, 1012), (3, 1012, 1275)]


def test_a_message_leaves_in_chunks() -> None:
    one, (first,) = sender(250)
    frames = [next_frame(one) for _ in range(3)]
    assert [frame.length for frame in frames] == [100, 100, 50]
    assert {(f.kind, f.lane, f.number, f.value) for f in frames} == {(Kind.MSG, 3, 1, 250)}
    assert b"".join(bytes(frame.body) for frame in frames) == bytes(first.stream)
    assert not one.ready


def test_a_message_of_nothing_leaves_as_one_frame() -> None:
    one, _ = sender(0)
    assert next_frame(one) == Frame(Kind.MSG, lane=3, number=1)
    assert not one.ready


def test_acknowledged_messages_leave_once_and_in_order() -> None:
    one, messages = sender(1, 2, 3)
    for _ in messages:
        next_frame(one)
    assert one.acked(2) == messages[:2]
    assert one.acked(2) == one.acked(1) == []
    assert list(one) == messages[2:]
    assert one.acked(3) == messages[2:]
    assert len(one) == 0


def test_the_memory_of_what_is_acknowledged_is_free_before_anybody_is_told() -> None:
    """An echo is acknowledged by the link's next bytes, which may begin a message that wants that memory."""
    memory, made = Memory(), Sender(3, 2 * LARGE)
    made.put(Outgoing(Stream([memory.take(LARGE)])))
    made.chunk(LARGE)
    assert memory.idle == 0
    gone = made.acked(1)
    assert memory.idle >= LARGE
    assert [(message.number, message.size) for message in gone] == [(1, LARGE)]


def test_what_was_not_sent_cannot_be_acknowledged() -> None:
    one, messages = sender(1, 150)
    next_frame(one)
    next_frame(one)  # a part of the second
    with pytest.raises(ProtocolError, match="message 2 is acknowledged, 1 was the last sent"):
        one.acked(2)
    assert list(one) == messages


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
    one.taken(1000 + OVERHEAD)
    assert one.limit == 1000 + OVERHEAD + 100
    assert arrive(one, msg(2, 1, 1)) is not None


def test_a_grant_is_due_from_a_quarter_of_the_window_on() -> None:
    one = receiver(window=10_000)
    for number in range(1, 5):
        arrive(one, msg(number, 400, 400))
    due = []
    for _ in range(4):
        one.taken(400 + OVERHEAD)
        due.append(one.grant_due)
    assert due == [False, False, False, True]  # 4 × 656 ≥ 2500
    assert one.cursor.limit == 12_624
    assert not one.grant_due


def test_a_grant_is_due_when_a_message_that_has_begun_waits_for_it() -> None:
    """Else both sides would wait: the limit moves by less than a quarter, and the message fits the window."""
    one = receiver(window=10_000)
    arrive(one, msg(1, 0, 0))
    assert one.cursor.limit == 10_000
    one.taken(OVERHEAD)
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
    assert bytes(got) == bytes(sent.stream)
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
    assert bytes(got) == bytes(sent.stream)


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


def test_a_message_that_waits_is_dropped_and_its_bytes_are_let_go() -> None:
    one, messages = sender(150, 60, limit=300)
    next_frame(one)
    messages[1].cancel()
    assert messages[1].stream.nbytes == 0
    next_frame(one)
    assert next_frame(one) == drop(2, 60)  # beyond the limit: it needs no room
    assert one.acked(2) == messages


def test_a_message_of_which_a_part_has_left_is_dropped() -> None:
    one, (first, _) = sender(150, 1)
    other = receiver()
    arrive(other, next_frame(one))
    first.cancel()
    frame = next_frame(one)
    assert frame == drop(1, 150)
    other.dropped(frame)
    assert other.cursor == Cursor(3, 1, 0, WINDOW + 150 + OVERHEAD)
    assert arrive(other, next_frame(one)) is not None


def test_claim_is_asked_once_before_the_last_byte_leaves() -> None:
    asked: list[int] = []
    one = Sender(3, WINDOW)
    one.put(Outgoing(Stream([bytes(250)]), 3, claim=lambda: not asked.append(1)))  # type: ignore[func-returns-value]
    next_frame(one)
    next_frame(one)
    assert asked == []
    next_frame(one)
    assert asked == [1]
    one.resume(Cursor(3, 0, 240, WINDOW))
    assert next_frame(one).length == 10
    assert asked == [1]


def test_a_claim_that_is_denied_drops_the_message() -> None:
    one = Sender(3, WINDOW)
    one.put(Outgoing(Stream([bytes(150)]), 3, claim=lambda: False))
    assert next_frame(one).kind is Kind.MSG
    assert next_frame(one) == drop(1, 150)
    assert not one.ready


def test_a_drop_that_was_lost_is_sent_again() -> None:
    one, (first,) = sender(150)
    next_frame(one)
    first.cancel()
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
            assert one.resume(cursor) == messages[:held]
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
    assert one.resume(Cursor(3, 1, 30, WINDOW)) == messages[:1]
    assert next_frame(one) == msg(2, 30, 60)._replace(body=messages[1].stream.slices(30, 60)[0])


def test_a_message_that_has_left_before_a_late_cursor_is_not_taken_out() -> None:
    one, messages = sender(10, 20, 30)
    next_frame(one)
    next_frame(one)
    one.resume(Cursor(3, 0, 0, WINDOW))
    for message in messages[1:]:
        message.cancel()
        one.remove(message)
    assert len(one) == 2
    next_frame(one)
    assert next_frame(one) == drop(2, 20)
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
    one = Sender(3, WINDOW)
    one.put(Outgoing(Stream([b"x"]), claim=lambda: False))
    one.put(message(1))
    assert one.drop_oldest(2) is not None
    assert len(one) == 1


def test_a_sender_whose_link_is_away_keeps_little_of_what_was_dropped() -> None:
    one = Sender(3, 0)
    for _ in range(10_000):
        one.drop_oldest(5)
        one.put(message(1))
        assert len(list(one)) < 200
    assert len(one) == 5


@pytest.mark.parametrize(("limit", "stuck"), [(0, True), (50, True), (100, False)])
def test_a_sender_is_stuck_when_the_limit_keeps_it(limit: int, stuck: bool) -> None:
    one, _ = sender(100, limit=limit)
    assert not Sender(3, limit).stuck
    if limit:
        assert not one.stuck
        next_frame(one)
    assert one.stuck is stuck


def for_several(size: int) -> Outgoing:
    return Outgoing(Stream([bytes(n % 251 for n in range(size))]), audience=SEVERAL)


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
    one, other = Sender(3, 10_000), Sender(3, 130)
    one.put(for_several(450))
    other.put(for_several(450))
    assert parts(one, 100, 100) == [(0, 100), (100, 200), (200, 300), (300, 400), (400, 450)]
    assert parts(other, 100, 100) == [(0, 100), (100, 130)]
    other.limit = 10_000
    assert parts(other, 100, 100) == [(130, 200), (200, 300), (300, 400), (400, 450)]


def test_what_else_is_in_a_batch_does_not_move_the_cuts() -> None:
    one = Sender(3, 10_000)
    one.put(for_several(250))
    assert parts(one, 37, 100) == [(0, 100), (100, 200), (200, 250)]


def test_a_part_keeps_its_bytes_when_its_message_is_cancelled() -> None:
    one = Sender(3, 10_000)
    message = for_several(250)
    one.put(message)
    _, part = one.chunk(100, 100)
    message.cancel()
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
