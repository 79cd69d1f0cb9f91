"""Sealed connections: what they move, what is visible, and what becomes of bytes that were changed on the way."""

from __future__ import annotations

import gc
import itertools
import random
import struct
import weakref
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netq.errors import SecurityError
from netq.options import ConnectionOptions
from netq.protocol.connection import Connection
from netq.protocol.events import Lost
from netq.security import records
from netq.security.handshake import PREFACE, UNIT, Handshake, Unit
from netq.security.sealed import SealedConnection
from netq.testing.lossy_pair import CLIENT_ID, SERVER_ID, TOKEN, LossyPair, PairEnd
from tests.netq.security.conftest import Seals

OPTIONS = ConnectionOptions(heartbeat=5.0)
SECRET = b"the model of the hospital"
PLAIN = (Connection, Connection)


def connected(seals: Seals, step: int = 65536) -> LossyPair:
    """A pair whose session has begun, with nothing on the wire."""
    pair = LossyPair(OPTIONS, step=step, new=seals)
    pair.run()
    assert pair.client.opened == pair.server.opened == [False]
    return pair


def units(data: bytes) -> list[bytes]:
    """The units in some bytes that begin with a unit."""
    found, at = [], 0
    while at < len(data):
        stop = at + UNIT + (struct.unpack_from("<I", data, at)[0] >> 8)
        found.append(data[at:stop])
        at = stop
    assert at == len(data)
    return found


def errors(end: PairEnd) -> list[str]:
    return [str(lost.error) for lost in end.lost]


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 7, 1000, 65536])
def test_messages_of_all_sizes_arrive(seals: Seals, step: int) -> None:
    pair = connected(seals, step=step)
    sizes = [0, 1, 4096, 4097, 8192, 8193, 70_000] if step < 1000 else [0, 5000, 300_000, 3 * 2**20]
    data = [random.Random(size).randbytes(size) for size in sizes]
    for end in (pair.client, pair.server):
        for message in data:
            pair.put(end, message[: len(message) // 3], message[len(message) // 3 :])
    pair.run()
    assert pair.client.received == pair.server.received == {0: data}
    assert len(pair.links) == 1


def test_no_plaintext_is_on_the_wire(seals: Seals) -> None:
    for new in (PLAIN, seals):
        pair = LossyPair(OPTIONS, new=new)
        pair.put(pair.client, SECRET)
        pair.run()
        pair.put(pair.server, SECRET * 1000)
        pair.close(pair.client)
        pair.run()
        ((to_server, to_client),) = pair.links
        visible = [
            text in to_server + to_client for text in (SECRET, TOKEN, b"NETQ\1", CLIENT_ID.bytes, SERVER_ID.bytes)
        ]
        certificates = [text in to_server + to_client for text in (b"a peer", b"authority", b"urn:uuid")]
        assert visible == [new is PLAIN] * 5
        assert not any(certificates)


@pytest.mark.slow
def test_session_resumes_after_a_cut_at_any_byte(seals: Seals) -> None:
    data = [bytes([number]) * size for number, size in enumerate((10, 5000, 20_000))]

    def talk(cuts: list[int]) -> LossyPair:
        pair = LossyPair(OPTIONS, new=seals, cuts=cuts, step=10_000)
        for message in data:
            pair.put(pair.client, message)
        pair.run()
        for message in data:
            pair.put(pair.server, message)
        pair.close(pair.client)
        pair.run()
        return pair

    whole = talk([]).moved
    for cut in itertools.chain(range(1, 6000, 199), range(6000, whole, 1787)):
        pair = talk([cut])
        assert pair.server.received == pair.client.received == {0: data}, cut
        assert len(pair.links) == 2, cut
        assert pair.server.lost == pair.client.lost == [], cut


def test_keys_change_after_a_count_of_records(seals: Seals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "REKEY", 4)
    pair = connected(seals)
    keys = set()
    for number in range(20):
        pair.put(pair.client, b"%d" % number)
        pair.run()
        assert isinstance(pair.client.connection, SealedConnection)
        assert pair.client.connection._record_writer is not None
        keys.add(pair.client.connection._record_writer._key)
    assert len(keys) >= 5
    assert len(pair.server.received[0]) == 20
    assert len(pair.links) == 1


def test_handshake_is_freed_with_its_secrets_when_it_is_over(seals: Seals) -> None:
    """Without the garbage collector: its private key would let a thief of the memory read what was recorded."""
    gc.collect()
    gc.disable()
    try:
        pair = LossyPair(OPTIONS, new=seals)
        pair.connect()
        handshakes = [weakref.ref(_handshake(end)) for end in (pair.client, pair.server)]
        pair.run()
        assert pair.server.opened
        assert [handshake() for handshake in handshakes] == [None, None]
    finally:
        gc.enable()


def _handshake(end: PairEnd) -> Handshake:
    assert isinstance(end.connection, SealedConnection)
    assert end.connection._handshake is not None
    return end.connection._handshake


# What an attacker may do to the units of two messages that are on the wire, with those of the messages before them.


def _flip(now: list[bytes], before: list[bytes]) -> Iterator[list[bytes]]:
    for at in range(len(now[0])):
        flipped = bytearray(now[0])
        flipped[at] ^= 1 << at % 8
        yield [bytes(flipped), *now[1:]]


ATTACKS: dict[str, Callable[[list[bytes], list[bytes]], Iterator[list[bytes]]]] = {
    "flip": _flip,
    "reorder": lambda now, before: iter([[now[1], now[0]]]),
    "drop": lambda now, before: iter([now[1:]]),
    "repeat": lambda now, before: iter([[now[0], now[0], now[1]]]),
    "replay": lambda now, before: iter([[before[-1], *now], [*before, *now]]),
    "cut the end": lambda now, before: iter(
        [[now[0][:1] + (len(now[0]) - UNIT - 1).to_bytes(3, "little") + now[0][UNIT:-1], now[1]]]
    ),
    "another type": lambda now, before: iter([[bytes([Unit.SHARED]) + now[0][1:], now[1]]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_changed_records_reach_no_frame(seals: Seals, attack: str) -> None:
    refused = 0
    for change in itertools.count():
        pair = connected(seals)
        pair.put(pair.client, b"before")
        pair.send(pair.client)
        before = units(bytes(pair.client.wire))
        pair.run()
        for text in (b"one", b"two"):
            pair.put(pair.client, text)
            pair.send(pair.client)
        changed = next(itertools.islice(ATTACKS[attack](units(bytes(pair.client.wire)), before), change, None), None)
        if changed is None:
            break
        pair.client.wire[:] = b"".join(changed)
        while pair.client.wire and pair.deliver(pair.client, 65536):
            pass
        # A longer length alone makes the reader wait for the rest.
        assert pair.server.received[0] in ([b"before"], [b"before", b"one"])
        assert pair.server.received[0] == [b"before"] or attack == "repeat"
        refused += len(errors(pair.server))
        assert all(isinstance(lost.error, SecurityError) for lost in pair.server.lost)
        pair.cut()
        pair.run()
        assert pair.server.received[0] == [b"before", b"one", b"two"], "the session resumes"
        assert pair.server.opened == [False, True]
    assert refused >= max(1, change - 8), "only flips of the length may go without an error"


def test_records_of_another_link_and_another_peer_are_refused(seals: Seals) -> None:
    first, other = connected(seals), connected(seals)
    first.put(first.client, b"secret")
    first.send(first.client)
    stolen = bytes(first.client.wire)
    for pair in (first, other):
        if pair is first:
            pair.cut()
            pair.run()
            pair.server.received.clear()
        pair.client.wire[:] = stolen
        pair.deliver(pair.client, 65536)
        assert pair.server.received == {}
        assert "record" in errors(pair.server)[0]


def test_records_do_not_come_back_to_their_sender(seals: Seals) -> None:
    pair = connected(seals)
    pair.put(pair.client, b"secret")
    pair.send(pair.client)
    assert pair.client.connection is not None
    pair.server.wire[:] = pair.client.wire
    pair.client.wire.clear()
    pair.deliver(pair.server, 65536)
    assert "does not authenticate" in errors(pair.client)[0]
    assert pair.client.received == {}


def test_flood_of_empty_records_is_refused(seals: Seals) -> None:
    pair = connected(seals)
    connection = pair.client.connection
    assert isinstance(connection, SealedConnection)
    assert connection._record_writer is not None
    pair.client.wire[:] = b"".join(connection._record_writer.seal(Unit.DATA, b""))
    pair.deliver(pair.client, 65536)
    assert errors(pair.server) == ["a record of 16 bytes; expected more than 16"]


def test_length_is_checked_before_memory_is_taken(seals: Seals) -> None:
    pair = connected(seals)
    pair.client.wire[:] = struct.pack("<I", Unit.DATA | (2**24 - 1) << 8)
    pair.deliver(pair.client, 65536)
    assert errors(pair.server) == [
        "a unit of type 5 and 16777215 bytes on a sealed link; expected DATA of at most 262160"
    ]


# One side seals, the other does not; versions.


@pytest.mark.parametrize("sealed_client", [True, False])
def test_one_side_alone_is_told_at_both_ends(seals: Seals, sealed_client: bool) -> None:
    new = (seals[0], Connection) if sealed_client else (Connection, seals[1])
    pair = LossyPair(OPTIONS, new=new)
    pair.put(pair.client, SECRET)
    pair.connect()
    pair.send(pair.client)
    sent = bytes(pair.client.wire)
    at_server = pair.server.connection
    assert at_server is not None
    (lost,) = at_server.feed(memoryview(sent), 0.0)
    at_server.refuse(1, str(lost.error))  # type: ignore[arg-type,union-attr]
    answer = b"".join(at_server.to_send(1000, 0.0))
    assert pair.client.connection is not None
    (seen,) = pair.client.connection.feed(memoryview(answer), 0.0)
    texts = [str(lost.error), str(seen.error)]  # type: ignore[union-attr]
    expected = ["the peer seals what it sends", "the peer does not seal what it sends"]
    for text, begin in zip(texts, expected if sealed_client else expected[::-1], strict=True):
        assert text.startswith(begin)
        assert "give SealOptions (CommunicatorOptions.seal) to both sides" in text
    assert pair.server.received == {}
    assert pair.server.opened == pair.client.opened == []


@pytest.mark.parametrize(
    ("begin", "text"),
    [
        (PREFACE[:-1] + b"\2", "the peer speaks version 2 of sealing, this side version 1"),
        (b"\x16\x03\x01\x02\x00", "the peer speaks TLS"),
        (b"GET / HTTP/1.1", "does not seal"),
        (b"N" * 24, "does not seal"),
    ],
)
@pytest.mark.parametrize("size", [1, 100])
def test_foreign_bytes_are_named(seals: Seals, begin: bytes, text: str, size: int) -> None:
    for new in seals:
        connection = new(SERVER_ID, OPTIONS, 0.0, None)
        events = []
        for at in range(0, len(begin), size):
            events += connection.feed(memoryview(begin[at : at + size]), 0.0)
        (lost,) = events
        assert text in str(lost.error)  # type: ignore[union-attr]
        assert connection.closed


def test_refusal_before_keys_is_shown_as_not_proved(seals: Seals) -> None:
    pair = LossyPair(OPTIONS, new=seals)
    pair.connect()
    pair.send(pair.client)
    assert pair.server.connection is not None
    pair.server.connection.refuse(1, "the server is \x1bclosing")  # type: ignore[arg-type]
    pair.send(pair.server)
    pair.deliver(pair.server, 65536)
    assert errors(pair.client) == ["the peer refuses, before it has proved who it is: the server is \\x1bclosing"]


# The handshake, under attack. Frames may come from a side only if both have seen the same bytes.


def _shake_hands(seals: Seals, number: int, change: Callable[[bytes], bytes]) -> tuple[LossyPair, int]:
    """Connect, and change the flight with this number: 0 and 2 are the client's, 1 is the server's."""
    pair = LossyPair(OPTIONS, new=seals)
    pair.put(pair.client, SECRET)
    pair.connect()
    size = 0
    for flight in range(4):
        end = (pair.client, pair.server)[flight % 2]
        pair.send(end)
        if flight == number:
            size = len(end.wire)
            end.wire[:] = change(bytes(end.wire))
        while end.wire and pair.deliver(end, 65536):
            pass
    return pair, size


def _has_opened(pair: LossyPair, number: int) -> bool:
    """Whether the receiver of the flight with this number, or the server, has accepted frames."""
    return bool(pair.server.opened or (number != 2 and pair.client.opened))


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 2])
def test_flipped_handshake_opens_no_session(seals: Seals, number: int) -> None:
    pair, size = _shake_hands(seals, number, lambda data: data)
    assert _has_opened(pair, number)
    for bit in range(0, 8 * size, 47):  # in each sixth byte one bit, another one each time
        pair, _ = _shake_hands(seals, number, lambda data, bit=bit: _flipped(data, bit))  # type: ignore[misc]
        # The third flight ends with the records of the client: a flip there leaves the handshake whole.
        assert not _has_opened(pair, number), bit
        assert pair.server.received == {}, bit
        assert all(isinstance(lost.error, SecurityError | OSError) for lost in pair.server.lost + pair.client.lost)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 2])
def test_truncated_handshake_opens_no_session(seals: Seals, number: int) -> None:
    _, size = _shake_hands(seals, number, lambda data: data)
    for stop in range(0, size, 29):
        pair, _ = _shake_hands(seals, number, lambda data, stop=stop: data[:stop])  # type: ignore[misc]
        assert not _has_opened(pair, number), stop
        assert pair.server.received == {}, stop


@pytest.mark.parametrize("number", [0, 1, 2])
def test_replayed_handshake_opens_no_session(seals: Seals, number: int) -> None:
    seen: list[bytes] = []

    def record(data: bytes) -> bytes:
        seen.append(data)
        return data

    _shake_hands(seals, number, record)
    pair, _ = _shake_hands(seals, number, lambda data: seen[0])
    assert not _has_opened(pair, number)
    assert pair.server.received == {}
    assert pair.client.lost or pair.server.lost


@settings(max_examples=100)
@given(st.data())
def test_any_bytes_end_the_link_and_nothing_else(seals: Seals, data: st.DataObject) -> None:
    """Both sides at each step of the handshake, and after it, are given bytes of the right form, and others."""
    pair = LossyPair(OPTIONS, new=seals)
    pair.put(pair.client, SECRET)
    pair.connect()
    for flight in range(data.draw(st.integers(0, 3))):
        end = (pair.client, pair.server)[flight % 2]
        pair.send(end)
        while end.wire and pair.deliver(end, 65536):
            pass
    ends = (pair.server, pair.client)
    connection = ends[data.draw(st.integers(0, 1))].connection
    assert isinstance(connection, SealedConnection)
    for _ in range(data.draw(st.integers(1, 3))):
        kind, limit = data.draw(st.sampled_from(sorted(connection._units.limits.items())))
        size = data.draw(st.sampled_from([0, 1, 31, 33, 34, limit - 1, limit]))
        body = random.Random(size).randbytes(max(size, 0)) if data.draw(st.booleans()) else bytes(max(size, 0))
        begin = data.draw(st.sampled_from([PREFACE, b""]))
        before = len(pair.server.received.get(0, []))
        events = connection.feed(memoryview(begin + struct.pack("<I", kind | len(body) << 8) + body), 0.0)
        assert all(isinstance(event, Lost) for event in events)
        assert len(pair.server.received.get(0, [])) == before
        if connection.closed:
            break


def test_public_key_that_makes_no_secret_is_refused(seals: Seals) -> None:
    """A point of small order in X25519, and numbers out of range in ML-KEM."""
    for key in (b"\xff" * 1184 + bytes(32), bytes(1184 + 32), b"\xff" * 1216):
        server = seals[1](SERVER_ID, OPTIONS, 0.0, None)
        hello = bytes(32) + b"\x01\x01" + key
        events = server.feed(memoryview(PREFACE + struct.pack("<I", Unit.HELLO | len(hello) << 8) + hello), 0.0)
        assert [str(event.error) for event in events] != []  # type: ignore[union-attr]
        assert isinstance(events[0].error, SecurityError)  # type: ignore[union-attr]


def test_handshake_is_bounded(seals: Seals) -> None:
    """No more than a HELLO is taken of a stranger, and the memory for it."""
    connection = seals[1](SERVER_ID, OPTIONS, 0.0, None)
    (lost,) = connection.feed(memoryview(PREFACE + struct.pack("<I", Unit.HELLO | 1258 << 8)), 0.0)
    assert "HELLO of at most 1257, ALERT of at most 256" in str(lost.error)  # type: ignore[union-attr]
    assert connection.tick(100.0) == []
    waiting = seals[1](SERVER_ID, OPTIONS, 0.0, None)
    assert waiting.feed(memoryview(PREFACE), 0.0) == []
    assert "no greeting within 10 s" in str(waiting.tick(waiting.deadline())[0].error)  # type: ignore[union-attr]


def _flipped(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8 % len(data)] ^= 1 << bit % 8  # the size of a signature varies by some bytes
    return bytes(flipped)
