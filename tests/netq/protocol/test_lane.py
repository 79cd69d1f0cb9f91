"""Both halves of a lane together: the receiver assembles what the sender sends. Mirrors sender.py and receiver.py."""

from __future__ import annotations

import random

import pytest

from netq.protocol.wire import OVERHEAD, Cursor, FrameKind
from tests.netq.protocol.lanes import (
    WINDOW,
    acked,
    arrive,
    batched,
    drop,
    next_frame,
    receiver,
    sender,
    take,
)

pytestmark = pytest.mark.usefixtures("each_codec")


# Reassembly.


@pytest.mark.parametrize("merge", [True, False])
def test_chunks_are_reassembled(merge: bool) -> None:
    one, (sent,) = sender(250)
    other = receiver(merge=merge)
    assert arrive(other, next_frame(one)) is None
    assert arrive(other, next_frame(one)) is None
    got = arrive(other, next_frame(one))
    assert got is not None
    assert bytes(got) == bytes(sent.data)
    assert len(got.buffers) == 1, "small chunks share a block"
    assert other.cursor == Cursor(3, 1, 0, WINDOW)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("came", [0, 1, 99])
def test_interrupted_body_is_continued(came: int, merge: bool) -> None:
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


# Cancelling.


def test_partly_sent_message_is_dropped() -> None:
    one, (first, _) = sender(150, 1)
    other = receiver()
    arrive(other, next_frame(one))
    first.withdraw()
    frame = next_frame(one)
    assert frame == drop(1, 150)
    other.dropped(frame)
    assert other.cursor == Cursor(3, 1, 0, WINDOW + 150 + OVERHEAD)
    assert arrive(other, next_frame(one)) is not None


# Batches of small messages.


@pytest.mark.parametrize("seed", range(50))
def test_batches_and_chunks_keep_order_and_window(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([0, 1, 10, 99, 100, 101, 300]) for _ in range(40)]
    window = chance.choice([50, 400, 2000])
    one, messages = sender(*sizes, limit=window)
    other, got, mark = receiver(window), list[bytes](), 0
    contents = [bytes(message.data) for message in messages]
    gone: set[int] = set()
    for _ in range(1000):
        if not len(one):
            break
        if chance.random() < 0.1 and not messages[index := chance.randrange(40)].left:
            messages[index].withdraw()
            gone.add(index)
        if one.ready and chance.random() < 0.7:
            frames = batched(one, chance.choice([0, 50, 100]), chance.choice([1, 100, 500]))[0]
        else:
            frames = [next_frame(one, chance.choice([1, 50, 100]))] if one.ready else []
        for frame in frames:
            if frame.kind is FrameKind.DROP:
                other.dropped(frame)
            elif (whole := arrive(other, frame)) is not None:
                got.append(bytes(whole))
                mark += whole.nbytes + OVERHEAD
                take(other, mark)
        one.acked(other.held)
        one.limit = max(one.limit, other.announce_limit())
    assert not one.ready
    assert got == [content for index, content in enumerate(contents) if index not in gone]
    assert acked(messages) == [message for message in messages if message.number]
    for index in gone:
        one.remove(messages[index])
    assert (len(one), list(one)) == (0, [])
