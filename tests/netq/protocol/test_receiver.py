"""The receiving half of a lane: reassembly, limits and grants, cancelled and taken messages."""

from __future__ import annotations

import random
import tracemalloc
import uuid

import pytest

from netq.errors import ProtocolError
from netq.protocol.flow_control import CREDIT
from netq.protocol.memory import Memory
from netq.protocol.receiver import Receiver
from netq.protocol.wire import OVERHEAD, POSITIONS, Cursor, Frame
from tests.netq.protocol.lanes import (
    WINDOW,
    arrive,
    drop,
    msg,
    receiver,
    take,
)

pytestmark = pytest.mark.usefixtures("each_codec")


# The window.


def test_bytes_beyond_limit_are_refused() -> None:
    one = receiver(window=300)
    assert arrive(one, msg(1, 10, 10)) is not None
    with pytest.raises(ProtocolError, match="beyond the window"):
        one.place(msg(2, 35, 40))  # it starts at 266
    assert arrive(one, msg(2, 34, 40)) is None  # just up to 300
    assert one.limit == 306  # it has begun, so it may be completed
    assert arrive(one, msg(2, 6, 40)) is not None
    with pytest.raises(ProtocolError, match="beyond the window"):
        one.place(msg(3, 0, 0))


def test_message_larger_than_window_comes_alone() -> None:
    one = receiver(window=100)
    arrive(one, msg(1, 100, 1000))
    assert one.grant_due
    assert one.cursor == Cursor(3, 0, 100, 1000)
    arrive(one, msg(1, 900, 1000))
    with pytest.raises(ProtocolError, match="beyond the window"):
        one.place(msg(2, 1, 1))
    take(one, 1000 + OVERHEAD)
    assert one.limit == 1000 + OVERHEAD + 100
    assert arrive(one, msg(2, 1, 1)) is not None


def test_grant_is_due_from_a_quarter_of_window() -> None:
    one = receiver(window=10_000)
    for number in range(1, 5):
        arrive(one, msg(number, 400, 400))
    due = []
    for number in range(1, 5):
        take(one, number * (400 + OVERHEAD))
        due.append(one.grant_due)
    assert due == [False, False, False, True]  # 4 × 656 ≥ 2500
    assert one.cursor.limit == 12_624
    assert not one.grant_due


def test_grant_is_due_when_begun_message_waits() -> None:
    """Else both sides would wait: the limit moves by less than a quarter, and the message fits the window."""
    one = receiver(window=10_000)
    arrive(one, msg(1, 0, 0))
    assert one.cursor.limit == 10_000
    take(one, OVERHEAD)
    assert not one.grant_due
    arrive(one, msg(2, 9_744, 9_900))  # up to the limit that the peer knows
    assert one.grant_due
    assert one.cursor.limit == 10_256


def test_tiny_window_grants() -> None:
    one = receiver(window=1)
    arrive(one, msg(1, 1, 2))
    assert one.grant_due
    assert one.cursor.limit == 2


# Reassembly.


@pytest.mark.slow
def test_one_byte_frames_cost_little_memory() -> None:
    one, count = receiver(2**20, merge=False), 10_000
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
def test_chunks_of_any_size_are_reassembled(seed: int, merge: bool) -> None:
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
def test_frame_out_of_sequence_is_refused(frame: Frame, why: str, merge: bool) -> None:
    one = receiver(merge=merge)
    arrive(one, msg(1, 3, 3))
    arrive(one, msg(2, 10, 50))
    before = one.cursor
    with pytest.raises(ProtocolError, match=why):
        one.place(frame)
    assert one.cursor == before


def test_memory_of_message_is_allocated_once() -> None:
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


@pytest.mark.parametrize("frame", [drop(1, 50), drop(3, 50), drop(2, 51)])
def test_drop_of_other_message_is_refused(frame: Frame) -> None:
    one = receiver()
    arrive(one, msg(1, 3, 3))
    arrive(one, msg(2, 10, 50))
    with pytest.raises(ProtocolError, match=rf"{frame.number} of {frame.value} bytes is cancelled, expected 2 of 50"):
        one.dropped(frame)


def test_positions_have_upper_bound() -> None:
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


# Taken messages.


def test_taken_messages_count_in_next_announced_limit() -> None:
    """`release_room` may be called late: what is said meanwhile is right all the same."""
    one = receiver(window=1000)
    arrive(one, msg(1, 100, 100))
    arrive(one, msg(2, 100, 100))
    assert not one.release_due
    one.taken_room = 356
    assert (one.grant_due, one.release_due) == (True, True)
    assert one.announce_limit() == one.limit == one.announced == 1356
    assert (one.grant_due, one.release_due) == (False, False)
    one.taken_room = 712
    assert one.cursor == Cursor(3, 2, 0, 1712)


def test_request_release_calls_its_callback() -> None:
    told: list[Receiver] = []
    one = Receiver(3, WINDOW, Memory(), merge=True, request_release=told.append)
    one.request_release()
    assert told == [one]
    assert not one.release_due
    one.retire()
    assert one.release_due, "its untaken messages count, whatever the window"


def test_cancelled_messages_count_as_taken() -> None:
    one = receiver(window=1000)
    peer = uuid.UUID(int=5)
    items = []
    for number in (1, 3):
        arrive(one, msg(number, 10, 10))
        items.append(one.item(peer, b"x"))
        one.dropped(drop(number + 1, 20))
    assert items == [(peer, b"x", one, 266), (peer, b"x", one, 532)]
    assert one.cancelled == 2 * 276
    assert one.start == 2 * 266 + 2 * 276
    for _, _, its, mark in items:
        its.taken_room = mark
    assert one.announce_limit() == 1000 + 2 * 266 + 2 * 276


def simple(receiver: Receiver) -> bool:
    """Whether it is what `take_small` wants."""
    return not (receiver.parts or receiver.claimed)


@pytest.mark.parametrize("window", [10_000, CREDIT, CREDIT + 1])
def test_short_path_needs_no_begun_message_and_no_claim(window: int) -> None:
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
    take(one, 10 + 3 * window + 2 * OVERHEAD)
    assert simple(one)
