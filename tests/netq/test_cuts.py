"""A link is cut at every byte of a conversation: nothing may be lost, doubled, reordered or sent again."""

from __future__ import annotations

import collections
import random
import struct
from collections.abc import Callable, Iterator

import pytest

from netq.lane import Outgoing
from netq.options import ConnectionOptions
from netq.testing.pair import End, LossyPair

STEPS = (1, 2, 7, 1000)
CLAIMED = 13_800  # cuts that the tests of this module make, at least
HEADER = struct.Struct("<BBHIQQ")
HANDSHAKE = 2 * (24 + 64 + 2 * 32)  # bytes of both INIs, with the cursors of two lanes
FRAMES = 1  # headers that a cut costs beside, at most: that of the rest of the chunk that it hit
CANCELLED = 72  # bytes of the message that is cancelled when a part of it has left; no other is as long

made: collections.Counter[str] = collections.Counter()  # cuts, by test


def narrow(merge: bool) -> ConnectionOptions:
    """Chunks of 9 bytes; a message waits until the one before it is acknowledged."""
    return ConnectionOptions(transport_size=9, window=30, heartbeat=5.0, get_merge=merge)


def wide(merge: bool) -> ConnectionOptions:
    """Chunks of 50 bytes; several messages are on their way at once."""
    return ConnectionOptions(transport_size=50, window=600, heartbeat=5.0, get_merge=merge)


def close_client(pair: LossyPair) -> None:
    pair.close(pair.client)


def close_server(pair: LossyPair) -> None:
    pair.close(pair.server)


def close_both(pair: LossyPair) -> None:
    pair.close(pair.client)
    pair.close(pair.server)


class Conversation:
    """All that a session can do, over a link that is cut somewhere in it, and what must come of it."""

    def __init__(self, pair: LossyPair, close: Callable[[LossyPair], None]) -> None:
        self.pair = pair
        self.claims: collections.Counter[int] = collections.Counter()
        self.sent: dict[End, list[Outgoing]] = {pair.client: [], pair.server: []}
        self.expected: dict[End, dict[int, list[bytes]]] = {pair.client: {}, pair.server: {}}
        self._speak()
        close(pair)
        pair.run()

    def _speak(self) -> None:
        pair, client = self.pair, self.pair.client
        self._put(client, b"0123456789", b"a" * 15)
        self._put(client, lane=1)
        queued = self._put(client, b"cancelled while it waits", kept=False)
        queued.cancel()
        pair.run()
        pair.tick(6.0)  # both say PING
        self._put(client, b"L" * (client.options.window + 10), lane=1)
        begun = self._put(client, b"c" * CANCELLED, kept=False)
        self._put(pair.server, b"to the client")
        pair.turn()
        begun.cancel()
        pair.run()
        self._put(pair.server, b"the last")

    def _put(self, end: End, *buffers: bytes, lane: int = 0, kept: bool = True) -> Outgoing:
        index = sum(map(len, self.sent.values()))

        def claim() -> bool:
            self.claims[index] += 1
            return True

        message = self.pair.put(end, *buffers, lane=lane, claim=claim)
        self.sent[end].append(message)
        if kept:
            self.expected[self.pair.other(end)].setdefault(lane, []).append(b"".join(buffers))
        return message

    def check(self) -> None:
        for end in (self.pair.client, self.pair.server):
            assert end.received == self.expected[end]
            assert collections.Counter(end.acked) == collections.Counter(self.sent[end])
            assert (end.failed, end.lost, end.over) == ([], [], True)
        assert set(self.claims.values()) == {1}
        self._check_payload()

    def _check_payload(self) -> None:
        """No byte of a message arrives a second time."""
        arrived: collections.Counter[bool] = collections.Counter()
        for link in self.pair.links:
            for data in link:
                for size, count in messages(data):
                    arrived[size == CANCELLED] += count
        assert arrived[False] == sum(
            len(m) for lanes in self.expected.values() for lane in lanes.values() for m in lane
        )
        assert arrived[True] <= CANCELLED


def messages(data: bytearray) -> Iterator[tuple[int, int]]:
    """The size of the message of each MSG, and how many bytes came of its body: a parser that owes nothing to ours."""
    at = 0
    while at + HEADER.size <= len(data):
        kind, _, _, length, _, size = HEADER.unpack_from(data, at)
        at += HEADER.size
        if kind == 2:
            yield size, min(length, len(data) - at)
        at += length


def converse(
    options: ConnectionOptions,
    step: int,
    *cuts: int,
    close: Callable[[LossyPair], None] = close_client,
) -> LossyPair:
    pair = LossyPair(options, step=step, limit=options.transport_size + HEADER.size, cuts=cuts)
    conversation = Conversation(pair, close)
    conversation.check()
    return pair


def cut_everywhere(
    test: str, options: ConnectionOptions, step: int, close: Callable[[LossyPair], None] = close_client, tail: int = 0
) -> None:
    whole = converse(options, step, close=close).moved
    assert whole > 900
    for cut in range(whole - tail if tail else 1, whole):
        pair = converse(options, step, cut, close=close)
        made[test] += 1
        assert pair.moved <= whole + HANDSHAKE + FRAMES * HEADER.size, f"cut at {cut}: {pair.moved} bytes, not {whole}"
        assert len(pair.links) <= 2


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_one_cut_at_every_byte(step: int, merge: bool) -> None:
    cut_everywhere("one", narrow(merge), step)


@pytest.mark.slow
@pytest.mark.parametrize("merge", [True, False])
def test_one_cut_at_every_byte_with_messages_on_their_way(merge: bool) -> None:
    cut_everywhere("wide", wide(merge), step=100)


@pytest.mark.parametrize("close", [close_server, close_both])
@pytest.mark.parametrize("step", STEPS)
def test_one_cut_at_every_byte_of_the_end(step: int, close: Callable[[LossyPair], None]) -> None:
    cut_everywhere("end", narrow(True), step, close, tail=200)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_two_cuts(step: int, merge: bool) -> None:
    options = narrow(merge)
    whole = converse(options, step).moved
    chance = random.Random(step)
    for _ in range(125):
        first = chance.randrange(1, whole)
        second = first + chance.randrange(1, whole - first + HANDSHAKE)
        pair = converse(options, step, first, second)
        made["two"] += len(pair.links) - 1
        assert pair.moved <= whole + 2 * (HANDSHAKE + FRAMES * HEADER.size)


def test_a_cut_in_the_very_last_frame_leaves_a_session_to_its_timeout() -> None:
    """The client has said all and heard all; that the server heard it, nobody can tell it any more."""
    options = narrow(True)
    whole = converse(options, 1000, close=close_server).moved
    pair = converse(options, 1000, whole - 1, close=close_server)
    assert len(pair.links) == 1


@pytest.fixture
def whole_module(request: pytest.FixtureRequest) -> None:
    mine = [item for item in request.session.items if item.path == request.path]
    if len(mine) < 28:
        pytest.skip("counts the cuts of the whole module, of which only a part was selected")


@pytest.mark.slow
@pytest.mark.usefixtures("whole_module")
def test_so_many_cuts_were_made(record_property: Callable[[str, object], None]) -> None:
    record_property("cuts", dict(made))
    print(f"{made.total()} cuts: {dict(made)}")
    assert made.total() >= CLAIMED
