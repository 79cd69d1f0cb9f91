"""Both halves of a lane together: the receiver assembles what the sender sends. Mirrors sender.py and receiver.py."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from netq.protocol import codec
from netq.protocol import receiver as protocol_receiver
from netq.protocol import sender as protocol_sender
from netq.protocol.codec import Outgoing
from netq.protocol.wire import OVERHEAD, Cursor, Kind
from tests.netq.interrupting import interrupted
from tests.netq.protocol.lanes import (
    WINDOW,
    Noted,
    acked,
    arrive,
    batched,
    drop,
    msg,
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


@pytest.mark.parametrize("seed", range(200))
def test_batches_and_chunks_keep_order_and_window(seed: int) -> None:
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


# Interrupted threads.


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
        self.sender.oldest()
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

    def cursors(self) -> Iterator[tuple[int, int]]:
        """Where the peer may stand: what it holds, and how much of the next message."""
        begun = [message for message in self.messages if message.number]
        most = sum(message.left or message.withdrawn for message in begun)
        for held in range(self.least, most + 1):
            yield held, 0
            if held < len(begun) and begun[held].size > 40:
                yield held, 40

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
def test_interrupted_sender_keeps_all_messages_in_order(act: str) -> None:
    for broken in breaks(act):
        broken.check()
        broken.sender.repair()
        broken.check()


@pytest.mark.slow
@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("act", ACTS)
def test_interrupted_sender_resumes_from_any_cursor(act: str, cancel: bool) -> None:
    """The peer may have all that was sent, or less. Messages that can be cancelled still can."""
    for left, found in enumerate(breaks(act)):
        for held, partial in found.cursors():
            broken = Broken(act)
            interrupted(left, broken.act, codec, protocol_receiver, protocol_sender)
            broken.sender.repair()
            for message in broken.messages if cancel else ():
                if not message.left:
                    message.withdraw()
                    broken.sender.remove(message)
            broken.go_on(held, partial)
