"""A link is cut at every byte of a conversation, and nothing is lost, duplicated, reordered or sent again.

Mirrors no module: two whole connections run over a LossyPair.
"""

from __future__ import annotations

import collections
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from netq.options import ConnectionOptions
from netq.protocol import codec
from netq.protocol.codec import Outgoing
from netq.protocol.sender import Sender
from netq.protocol.session import Session
from netq.testing.lossy_pair import LossyPair, PairEnd

pytestmark = pytest.mark.slow

STEPS = (1, 2, 7, 1000)
# Of the cuts of a table, where another one holds each: primes, so that they pass all places of a frame.
SOME = 3
THIN = 17
CLAIMED = 4_200  # cuts that the tests of this module make, at least
HEADER = struct.Struct("<BBHIQQ")
HANDSHAKE = 2 * (24 + 64 + 2 * 32)  # bytes of both INIs, with the cursors of two lanes
GREETING = 24 + 64  # bytes of one INI, without cursors
RESUMED = 2 * 32 + 72  # bytes behind that: the cursors of two lanes, and the rest of a frame that was cut or two frames
FRAMES = 1  # extra headers per cut, at most: one for the rest of the chunk that was cut
CANCELLED = 72  # bytes of the message that is cancelled when a part of it has left; no other is as long

made: collections.Counter[str] = collections.Counter()  # cuts, by test


def narrow(merge: bool) -> ConnectionOptions:
    """Chunks of 9 bytes; a message waits until the one before it is acknowledged."""
    return ConnectionOptions(transport_size=9, window=30, heartbeat=5.0, get_merge=merge)


def wide(merge: bool) -> ConnectionOptions:
    """Chunks of 50 bytes; several messages are on their way at once."""
    return ConnectionOptions(transport_size=50, window=600, heartbeat=5.0, get_merge=merge)


class Divided(LossyPair):
    """Delivers in steps where a cut can make a difference, and all else at once, as it was sent.

    The division of a frame matters while a part of it has arrived. So the bytes that are sent at once with the one at
    which the link is cut arrive in steps, and so do the first of each end behind the next handshake: the rest of what
    was cut. A conversation that is not cut is divided throughout.
    """

    def deliver(self, end: PairEnd, count: int) -> int:
        return super().deliver(end, count if self._divides(end) else len(end.wire))

    def _divides(self, end: PairEnd) -> bool:
        if self._cuts and self._cuts[0] - self.moved <= len(end.wire):
            return True
        if len(self.links) == 1:
            return not self._cuts
        return GREETING <= len(self.links[-1][end is self.server]) < GREETING + RESUMED


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
        self.sent: dict[PairEnd, list[Outgoing]] = {pair.client: [], pair.server: []}
        self.expected: dict[PairEnd, dict[int, list[bytes]]] = {pair.client: {}, pair.server: {}}
        self._speak()
        close(pair)
        pair.run()

    def _speak(self) -> None:
        pair, client = self.pair, self.pair.client
        self._put(client, b"0123456789", b"a" * 15)
        self._put(client, lane=1)
        self._withdraw(self._put(client, b"cancelled while it waits", kept=False))
        self._put(client, b"in its place")
        pair.run()
        self._put(client, b"and its successor")
        pair.run()
        pair.tick(6.0)  # both say PING
        self._put(client, b"L" * (client.options.window + 10), lane=1)
        begun = self._put(client, b"c" * CANCELLED, kept=False)
        self._put(pair.server, b"to the client")
        pair.turn()
        self._withdraw(begun)
        pair.run()
        self._put(pair.server, b"the last")

    def _put(self, end: PairEnd, *buffers: bytes, lane: int = 0, kept: bool = True) -> Outgoing:
        message = self.pair.put(end, *buffers, lane=lane)
        self.sent[end].append(message)
        if kept:
            self.expected[self.pair.other(end)].setdefault(lane, []).append(b"".join(buffers))
        return message

    def _withdraw(self, message: Outgoing) -> None:
        """Cancel it; if no byte of it has left, the peer never knows of it."""
        client = self.pair.client
        assert client.session is not None
        message.withdraw()
        client.session.withdraw(message)
        if not message.number:
            self.sent[client].remove(message)

    def check(self) -> None:
        for end in (self.pair.client, self.pair.server):
            assert end.received == self.expected[end]
            assert collections.Counter(end.acked) == collections.Counter(self.sent[end])
            assert (end.failed, end.lost, end.over) == ([], [], True)
        self._check_payload()

    def _check_payload(self) -> None:
        """No byte of a message arrives a second time."""
        arrived: collections.Counter[bool] = collections.Counter()
        for link in self.pair.links:
            for data in link:
                for size, count in messages(data):
                    arrived[size == CANCELLED] += count
        due = sum(len(m) for lanes in self.expected.values() for lane in lanes.values() for m in lane)
        assert arrived[False] == due
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
    pair = Divided(options, step=step, limit=options.transport_size + HEADER.size, cuts=cuts)
    conversation = Conversation(pair, close)
    conversation.check()
    return pair


def cut_everywhere(
    test: str,
    options: ConnectionOptions,
    step: int,
    close: Callable[[LossyPair], None] = close_client,
    *,
    tail: int = 0,
    each: int = 1,
) -> None:
    """Cut at each byte, or at each `each`-th, of all or of the last `tail`."""
    whole = converse(options, step, close=close).moved
    assert whole > 900
    for cut in range(whole - tail if tail else 1, whole, each):
        pair = converse(options, step, cut, close=close)
        made[test] += 1
        assert pair.moved <= whole + HANDSHAKE + FRAMES * HEADER.size, f"cut at {cut}: {pair.moved} bytes, not {whole}"
        assert len(pair.links) <= 2


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_one_cut_at_every_byte(step: int, merge: bool) -> None:
    each = {(1, True): 1, (1000, False): SOME}.get((step, merge), THIN)
    cut_everywhere("one", narrow(merge), step, each=each)


@pytest.mark.parametrize("merge", [True, False])
def test_one_cut_with_messages_in_flight(merge: bool) -> None:
    cut_everywhere("wide", wide(merge), step=100, each=SOME if merge else THIN)


@pytest.mark.parametrize("close", [close_server, close_both])
@pytest.mark.parametrize("step", STEPS)
def test_one_cut_at_every_byte_of_closing(step: int, close: Callable[[LossyPair], None]) -> None:
    cut_everywhere("end", narrow(True), step, close, tail=200, each=1 if step == 1 else THIN)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_two_cuts(step: int, merge: bool) -> None:
    options = narrow(merge)
    whole = converse(options, step).moved
    chance = random.Random(step)
    for _ in range(20):
        first = chance.randrange(1, whole)
        second = first + chance.randrange(1, whole - first + HANDSHAKE)
        pair = converse(options, step, first, second)
        made["two"] += len(pair.links) - 1
        assert pair.moved <= whole + 2 * (HANDSHAKE + FRAMES * HEADER.size)


# Many small messages: those that are sent and received in one step, whole.

SHORT = ConnectionOptions(transport_size=200, window=1500, heartbeat=5.0)
SMALL_ONES = 9  # messages that each end puts at once, at the end of which some wait for the window


class Chatter(Conversation):
    """Both ends put many small messages, on one lane or two, and more while those are under way."""

    def __init__(self, pair: LossyPair, lanes: int) -> None:
        self._lanes = lanes
        super().__init__(pair, close_both)

    def _speak(self) -> None:
        pair = self.pair
        ends = (pair.client, pair.server)
        pair.run()
        for end in ends:
            for n in range(SMALL_ONES):
                self._put_small(end, n)
        self._withdraw(self._put(pair.client, b"cancelled while it waits", kept=False))
        pair.turn()
        for end in ends:
            self._put_small(end, SMALL_ONES)
        pair.run()
        self._put(pair.client, b"l" * 230, lane=self._lanes - 1)
        self._put_small(pair.client, SMALL_ONES + 1)
        pair.run()

    def _put_small(self, end: PairEnd, n: int) -> None:
        self._put(end, bytes([65 + n, end is self.pair.client]) * (3 * n % 7), lane=n % self._lanes)


@pytest.fixture
def short_path(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[str]:
    """Count the messages that are sent and received by the short path, and the ACKs that are."""
    count: collections.Counter[str] = collections.Counter()
    batch, take_small = codec.batch, Session.take_small

    def counted_batch(sender: Sender, *args: Any) -> int:
        before = len(sender.sent)
        size = batch(sender, *args)
        count["sent"] += len(sender.sent) - before
        return size

    def counted_take(self: Session, data: memoryview, low: int, high: int) -> int:
        stop = take_small(self, data, low, high)
        while low < stop:
            kind, _, _, length, _, _ = HEADER.unpack_from(data, low)
            count["received" if kind == 2 else "acked"] += 1
            low += HEADER.size + length
        assert low == stop
        return stop

    monkeypatch.setattr(codec, "batch", counted_batch)
    monkeypatch.setattr(Session, "take_small", counted_take)
    return count


class Chat:
    """Chatters of one kind, and how much of them goes by the short path."""

    def __init__(self, step: int, lanes: int, count: collections.Counter[str]) -> None:
        self._step = step
        self._lanes = lanes
        self._count = count
        # Of frames that come byte by byte the reader sees the header first, and the body is received by itself.
        self._least = {"sent": 20, "received": 2 if step < 1000 else 11, "acked": 4}
        self._talks = 0
        self.whole = self.talk().moved

    def talk(self, *cuts: int) -> LossyPair:
        pair = Divided(SHORT, step=self._step, limit=1000, cuts=cuts)
        Chatter(pair, self._lanes).check()
        self._talks += 1
        assert len(pair.links) <= len(cuts) + 1
        if cuts:
            made["short"] += len(pair.links) - 1
            most = self.whole + len(cuts) * (HANDSHAKE + FRAMES * HEADER.size)
            assert pair.moved <= most, f"cut at {cuts}: {pair.moved} bytes, not {self.whole}"
        return pair

    def check(self) -> None:
        """The short path was used."""
        for what, least in self._least.items():
            assert self._count[what] >= least * self._talks, what


@pytest.fixture
def chat(step: int, lanes: int, short_path: collections.Counter[str]) -> Iterator[Chat]:
    chat = Chat(step, lanes, short_path)
    assert chat.whole > 1200
    yield chat
    chat.check()


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_one_cut_in_many_small_messages(chat: Chat, step: int, lanes: int) -> None:
    for cut in range(1, chat.whole, SOME if (step, lanes) == (1000, 2) else THIN):
        chat.talk(cut)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("step", [7, 1000])
def test_two_cuts_of_many_small_messages(chat: Chat, step: int, lanes: int) -> None:
    chance = random.Random(step + lanes)
    for _ in range(50):
        first = chance.randrange(1, chat.whole)
        chat.talk(first, first + chance.randrange(1, chat.whole - first + HANDSHAKE))


def test_cut_in_last_fin_leaves_session_to_timeout() -> None:
    """The client has sent and received all. It cannot know whether its last FIN arrived, so it does not reconnect."""
    options = narrow(True)
    whole = converse(options, 1000, close=close_server).moved
    pair = converse(options, 1000, whole - 1, close=close_server)
    assert len(pair.links) == 1


@pytest.fixture
def whole_module(request: pytest.FixtureRequest) -> None:
    mine = [item for item in request.session.items if item.path == request.path]
    if len(mine) < 38:
        pytest.skip("counts the cuts of the whole module, of which only a part was selected")


@pytest.mark.usefixtures("whole_module")
def test_claimed_number_of_cuts_was_made(record_property: Callable[[str, object], None]) -> None:
    record_property("cuts", dict(made))
    print(f"{made.total()} cuts: {dict(made)}")
    assert made.total() >= CLAIMED
