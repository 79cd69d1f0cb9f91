"""Illegal and damaged bytes: a connection returns events, never raises, and never allocates much memory.

Mirrors no module: each input goes through a whole connection.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import random
import uuid
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netq.errors import MessageTooLarge, ProtocolError
from netq.options import ConnectionOptions
from netq.protocol.codec import Outgoing
from netq.protocol.connection import Connection, State
from netq.protocol.events import Event, Failed, Finished, Hello, Lost, Opened
from netq.protocol.memory import Memory
from netq.protocol.session import Session
from netq.protocol.wire import Cursor, Frame, FrameKind, Greeting
from netq.testing.lossy_pair import CLIENT_ID, SERVER_ID, TOKEN, LossyPair
from netq.utils.stream import Stream

pytestmark = pytest.mark.usefixtures("each_codec")

OPTIONS = ConnectionOptions(transport_size=40, window=600, message_size=5000)
INI = 24 + 64
CLAIMED = 12_000  # inputs that the tests of this module try, at least

tried: collections.Counter[str] = collections.Counter()
short: collections.Counter[str] = collections.Counter()  # frames that the short path has taken, by kind


class Recording(Memory):
    """Memory that notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def take(self, size: int, *, fresh: bool = False) -> memoryview:
        self.asked.append(size)
        return super().take(size, fresh=fresh)


class Watched(Session):
    """A session that counts what its short path takes."""

    def take_small(self, data: memoryview, low: int, high: int) -> int:
        stop = super().take_small(data, low, high)
        assert low <= stop <= high
        for frame in split(bytes(data[low:stop])):
            short[FrameKind(frame[0]).name] += 1
        return stop


class Victim:
    """A connection, and the least that a communicator does with its events; it checks what it sees."""

    def __init__(self, *, server: bool, merge: bool = True) -> None:
        self.options = ConnectionOptions(transport_size=40, window=600, message_size=5000, get_merge=merge)
        self.memory = Recording()
        self.session = Watched(TOKEN, self.options, self.memory)
        self.connection = Connection(
            SERVER_ID if server else CLIENT_ID, self.options, 0.0, None if server else self.session
        )
        self.events: list[Event] = []
        self.arrived: list[bytes] = []
        self.acked: list[Outgoing] = []
        for message in () if server else said_by_client(self.acked):
            self.session.put(message)

    def feed(self, data: bytes) -> None:
        """Let bytes come, and all happen that they ask for."""
        queue = collections.deque(self.connection.feed(memoryview(data), 1.0))
        while queue:
            event = queue.popleft()
            self.events.append(event)
            match event:
                case Hello(greeting):
                    queue += self.connection.accept(self.session, greeting, resumed=False, now=1.0)
                case Opened(session):
                    with contextlib.suppress(MessageTooLarge):
                        session.put(Noted(self.acked, b"to the peer"))
                case Finished(session, over):
                    session.closing = True
                    if not over:
                        queue += self.connection.close()
                case Lost(error):
                    assert isinstance(error, ProtocolError | MemoryError | ConnectionError), repr(error)
                    assert self.connection.closed
                case Failed():
                    pass
        while self.session.arrived:
            peer, message, receiver, mark = self.session.arrived.popleft()
            assert peer == self.session.peer
            assert len(message) <= self.options.message_size
            assert mark > receiver.taken_room, "it came twice"
            receiver.taken_room = mark
            self.session.release_room(receiver)
            self.arrived.append(bytes(message))
        sent = self.connection.to_send(10_000, 1.0)
        assert all(len(buffer) >= 0 for buffer in sent)
        assert max(self.memory.asked, default=0) <= self.options.message_size

    def end(self) -> None:
        """Whatever came, the usual calls still work."""
        self.connection.tick(2.0)
        self.connection.tick(1e9)
        self.connection.detach()
        self.session.greeting(CLIENT_ID, resume=True).frame().whole()
        assert len(self.events) < 1000


def attack(test: str, data: bytes, *, server: bool, step: int = 10**9, merge: bool = True) -> Victim:
    victim = Victim(server=server, merge=merge)
    victim.feed(data[:INI])  # a client waits for the answer, so no more comes at once
    for at in range(INI, len(data), step):
        victim.feed(data[at : at + step])
    victim.end()
    tried[test] += 1
    return victim


class Noted(Outgoing):
    """A message that notes that it is acknowledged."""

    def __init__(self, acked: list[Outgoing], content: bytes, lane: int = 0) -> None:
        super().__init__(Stream([content] if content else ()), lane)
        self._acked = acked
        self.watched = True

    def acked(self) -> None:
        super().acked()
        self._acked.append(self)


def said_by_client(acked: list[Outgoing]) -> list[Outgoing]:
    """The last is cancelled, in the exchange, when it has begun."""
    return [Noted(acked, b"one message" * 5), Noted(acked, b"", lane=1), Noted(acked, b"cancelled" * 8)]


def exchange() -> tuple[bytes, bytes]:
    """What a client and a server say to each other, all kinds of frames in it."""
    pair = LossyPair(OPTIONS, limit=64)
    assert pair.client.session is not None
    messages = said_by_client([])
    for message in messages:
        pair.client.session.put(message)
    while not messages[2].number:
        pair.connect() if not pair.up else pair.turn()
    assert not messages[2].left
    messages[2].withdraw()
    pair.run()
    pair.put(pair.server, b"to the client")
    pair.tick(15.0)
    pair.run()
    pair.close(pair.client)
    pair.run()
    to_server, to_client = pair.links[0]
    return bytes(to_server), bytes(to_client)


TO_SERVER, TO_CLIENT = exchange()
EITHER = [(TO_SERVER, True), (TO_CLIENT, False)]
either = pytest.mark.parametrize(("valid", "server"), EITHER, ids=["server", "client"])


def kinds(data: bytes) -> set[int]:
    found = set()
    while data:
        found.add(data[0])
        data = data[24 + int.from_bytes(data[4:8], "little") :]
    return found


def test_valid_exchange_has_all_kinds() -> None:
    assert kinds(TO_SERVER) | kinds(TO_CLIENT) == {kind.value for kind in FrameKind}
    victim = attack("valid", TO_SERVER, server=True)
    assert [type(event) for event in victim.events] == [Hello, Opened, Finished, Finished]
    assert victim.arrived == [b"", b"one message" * 5]
    assert [message.size for message in victim.acked] == [len(b"to the peer")]
    victim = attack("valid", TO_CLIENT, server=False)
    assert [type(event) for event in victim.events] == [Opened, Finished]
    assert victim.arrived == [b"to the client"]
    assert sorted((message.lane, message.number) for message in victim.acked) == [(0, 1), (0, 2), (1, 1)]


# Valid exchanges, damaged.


def bits(valid: bytes) -> list[int]:
    """The bits of all headers and of what INIs say, and of the other bodies those of the first byte."""
    found, at = list[int](), 0
    for frame in split(valid):
        found += range(8 * at, 8 * (at + (len(frame) if frame[0] == FrameKind.INI.value else min(len(frame), 25))))
        at += len(frame)
    return found


@pytest.mark.slow
@either
def test_every_bit_flipped(valid: bytes, server: bool, thin: int) -> None:
    for bit in bits(valid)[::thin]:
        data = bytearray(valid)
        data[bit // 8] ^= 1 << bit % 8
        attack("bits", bytes(data), server=server)


@either
def test_every_prefix(valid: bytes, server: bool, thin: int) -> None:
    for merge in (True, False):
        for size in range(0, len(valid), thin):
            attack("prefixes", valid[:size], server=server, merge=merge)


@either
def test_every_prefix_then_garbage(valid: bytes, server: bool, thin: int) -> None:
    chance = random.Random(1)
    for size in range(0, len(valid), thin):
        attack("nonsense", valid[:size] + chance.randbytes(100), server=server)


@either
def test_frames_missing_doubled_and_swapped(valid: bytes, server: bool) -> None:
    frames = list(split(valid))
    for one, other in itertools.product(range(len(frames)), repeat=2):
        swapped = frames.copy()
        swapped[one], swapped[other] = frames[other], frames[one]
        attack("frames", b"".join(swapped), server=server)
        attack("frames", b"".join(frames[:one] + frames[other:]), server=server)
        attack("frames", b"".join([*frames[:one], frames[other], *frames[one:]]), server=server)


@either
def test_bytes_missing_and_doubled(valid: bytes, server: bool, thin: int) -> None:
    for at in range(0, len(valid), thin):
        attack("bytes", valid[:at] + valid[at + 1 :], server=server)
        attack("bytes", valid[: at + 1] + valid[at:], server=server)


def split(data: bytes) -> Iterator[bytes]:
    while data:
        size = 24 + int.from_bytes(data[4:8], "little")
        yield data[:size]
        data = data[size:]


# Strangers.

STRANGERS = {
    "http": b"GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: x\r\nAccept: */*\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000012040000000000000300000064000400100000"),
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(range(189)),
    "ssh": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "mqtt": bytes.fromhex("101000044d5154540402003c000474657374"),
    "smtp": b"EHLO example.org\r\n",
    "zeros": bytes(1000),
    "ones": b"\xff" * 1000,
}


@pytest.mark.parametrize("server", [True, False])
@pytest.mark.parametrize("name", STRANGERS)
def test_foreign_protocol_is_recognised_by_24_bytes(name: str, server: bool) -> None:
    for step in (1, 7, 10**9):
        data = STRANGERS[name].ljust(24, b"\n")
        victim = attack("strangers", data, server=server, step=step)
        (event,) = victim.events
        assert isinstance(event, Lost)
        assert isinstance(event.error, ProtocolError)
        assert victim.memory.asked == []


# Anything.

BYTES = st.binary(max_size=200)
NUMBERS = st.one_of(
    st.integers(0, 3), st.sampled_from([2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]), st.integers(0, 6000)
)
CURSORS = st.lists(st.builds(Cursor, st.integers(0, 17), NUMBERS, NUMBERS, NUMBERS), max_size=3).map(tuple)
GREETINGS = st.builds(
    Greeting,
    st.sampled_from([CLIENT_ID, SERVER_ID, uuid.UUID(int=3)]),
    st.just(TOKEN),
    NUMBERS,
    NUMBERS,
    NUMBERS.map(lambda number: number % 2**32),
    CURSORS,
    st.booleans(),
    NUMBERS.map(lambda number: number % 2**32),
).map(lambda greeting: greeting.frame().whole())
FRAMES = st.builds(
    lambda kind, flags, lane, body, length, number, value: Frame(
        kind, flags, lane, len(body) if length is None else length % 2**32, number, value, body
    ).whole(),
    st.sampled_from(FrameKind),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from([0, 0, 0, 1, 15, 16]),
    st.binary(max_size=20),
    st.one_of(st.none(), NUMBERS),
    NUMBERS,
    NUMBERS,
)
GREETED = {True: next(split(TO_SERVER)), False: next(split(TO_CLIENT))}
PREFIXES: dict[State, Callable[[bool], bytes]] = {
    State.OPENING: lambda server: b"",
    State.OPEN: lambda server: GREETED[server],
    State.ENDING: lambda server: GREETED[server] + Frame(FrameKind.FIN).whole(),
}
quick = settings(max_examples=40, derandomize=True, database=None)


# Drawing an input takes longer than trying it, so each is tried in every state, at both ends.
STATES = tuple(itertools.product(PREFIXES, (True, False)))


@pytest.mark.slow
@quick
@given(BYTES, st.sampled_from([1, 5, 24, 1000]), st.booleans())
def test_any_bytes_in_any_state(data: bytes, step: int, merge: bool) -> None:
    for state, server in STATES:
        attack("any", PREFIXES[state](server) + data, server=server, step=step, merge=merge)


@pytest.mark.slow
@quick
@given(st.lists(st.one_of(FRAMES, GREETINGS), max_size=12), st.booleans())
def test_any_frames_in_any_state(frames: list[bytes], merge: bool) -> None:
    for state, server in STATES:
        attack("frames of any kind", PREFIXES[state](server) + b"".join(frames), server=server, merge=merge)


@pytest.mark.slow
@pytest.mark.parametrize("server", [True, False])
def test_random_plausible_frames(server: bool, thin: int) -> None:
    """Numbers that just fit take a conversation further than numbers that any generator finds."""
    chance = random.Random(5)
    for _ in range(750 // thin):
        frames = [GREETED[server]]
        number = dict.fromkeys(range(3), 1)
        for _ in range(chance.randrange(20)):
            kind = chance.choice([FrameKind.MSG, FrameKind.MSG, FrameKind.DROP, FrameKind.ACK, FrameKind.PING])
            lane, size = chance.randrange(3), chance.choice([0, 1, 20, 100, 4000])
            length = min(size, chance.choice([20, 100, 4000])) if kind is FrameKind.MSG else 0
            odd = chance.random() < 0.1 and kind in (FrameKind.ACK, FrameKind.DROP)
            value = chance.choice([10**6, 2**63 - 1000, 2**63, 2**64 - 1]) if odd else size
            current = number[lane] if kind in (FrameKind.MSG, FrameKind.DROP) else 0
            frames.append(Frame(kind, 0, lane if current else 0, length, current, value, bytes(length)).whole())
            number[lane] += bool((current and length == size) or kind is FrameKind.DROP)
        attack("believable", b"".join(frames), server=server, merge=chance.random() < 0.5)


def test_header_never_allocates_more_than_message_size(thin: int) -> None:
    chance = random.Random(7)
    for _ in range(1400 // thin):
        header = Frame(
            FrameKind.MSG,
            0,
            0,
            chance.randrange(1, 2 ** chance.randrange(1, 33)),
            1,
            chance.randrange(2 ** chance.randrange(1, 65)),
        ).header()
        victim = attack("headers", GREETED[True] + header, server=True, merge=chance.random() < 0.5)
        assert len(victim.memory.asked) <= 1


@pytest.mark.slow
def test_claimed_number_of_inputs_was_tried(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    if len([item for item in request.session.items if item.path == request.path]) < 40:
        pytest.skip("counts the inputs of the whole module, of which only a part was selected")
    record_property("inputs", dict(tried))
    print(f"{tried.total()} inputs: {dict(tried)}")
    assert tried.total() >= CLAIMED
    print(f"by the short path: {dict(short)}")
    assert set(short) == {"MSG", "ACK"}
    assert min(short.values()) >= 1000
