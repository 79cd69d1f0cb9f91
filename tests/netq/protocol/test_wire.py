"""Frames: whole, byte by byte, truncated at every length, with extra bytes; and bytes that are no frame."""

from __future__ import annotations

import collections
import struct
import uuid

import pytest

from netq.errors import ProtocolError
from netq.protocol.wire import (
    ANSWER,
    EPOCHS,
    GREETING_LIMIT,
    GREETING_SIZE,
    HEADER_SIZE,
    LANES,
    LEAVING,
    RESUME,
    VERSION,
    Code,
    Cursor,
    Frame,
    FrameKind,
    Greeting,
    Reader,
    message_header,
)
from tests.netq.parsing import Parser

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
TOKEN = bytes(range(16))
GREETING = Greeting(ID, TOKEN, 2**40, 2**26, 10_000, (Cursor(0, 1, 2, 3), Cursor(15, 4, 5, 6)), resume=True, epoch=7)
IDLE, SCRATCH = 1024, 128 * 1024  # bytes that are received at once, of an idle and of a busy peer

FRAMES = {
    "INI": Greeting(ID, TOKEN, 1, 1, 1).frame(),
    "INI with cursors": GREETING.frame(),
    "INI with all cursors": Greeting(ID, TOKEN, 1, 1, 1, tuple(Cursor(n, 0, 0, 0) for n in range(LANES))).frame(),
    "MSG": Frame(FrameKind.MSG, lane=1, length=5, number=2, value=300, body=b"hello"),
    "MSG of nothing": Frame(FrameKind.MSG, number=1),
    "MSG of the largest numbers": Frame(FrameKind.MSG, lane=15, length=1, number=2**64 - 1, value=2**64 - 1, body=b"x"),
    "ACK": Frame(FrameKind.ACK, lane=15, number=2, value=2**40),
    "DROP": Frame(FrameKind.DROP, lane=3, number=3, value=72),
    "PING": Frame(FrameKind.PING, number=1),
    "PING of one who closes": Frame(FrameKind.PING, LEAVING, number=2**64 - 1),
    "ANSWER": Frame(FrameKind.PING, ANSWER, number=2**64 - 1),
    "FIN": Frame(FrameKind.FIN),
    "FIN with a reason": Frame(FrameKind.FIN, length=4, number=Code.REFUSED, body=b"busy"),
}
every_frame = pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)


def receive(reader: Reader, data: bytes) -> list[Frame]:
    reader.buffer()[: len(data)] = data
    return list(reader.advance(len(data)))


@every_frame
def test_frame_round_trip(frame: Frame) -> None:
    assert list(Parser().feed(frame.whole())) == [frame]


@every_frame
def test_frame_byte_by_byte(frame: Frame) -> None:
    assert list(Parser().feed(frame.whole(), step=1)) == [frame]


@every_frame
def test_truncated_frame_is_not_yielded(frame: Frame) -> None:
    data = frame.whole()
    for size in range(len(data)):
        half = Parser()
        assert list(half.feed(data[:size])) == []
        body = None if size < HEADER_SIZE else size - HEADER_SIZE
        assert (None if half.incomplete is None else half.incomplete[1]) == body
        assert list(half.feed(data[size:])) == [frame]


@every_frame
def test_extra_bytes_wait_for_rest(frame: Frame) -> None:
    data = frame.whole()
    for spare in range(1, HEADER_SIZE):
        half = Parser()
        assert list(half.feed(data + data[:spare])) == [frame]
        assert list(half.feed(data[spare:])) == [frame]


@pytest.mark.parametrize("step", [1, 2, 7, 23, 24, 25, 1000, 10**9])
def test_all_frames_in_any_division(step: int) -> None:
    data = b"".join(frame.whole() for frame in FRAMES.values())
    assert list(Parser().feed(data, step)) == list(FRAMES.values())


def test_more_small_frames_than_scratch_holds() -> None:
    frames = [
        Frame(FrameKind.MSG, length=n % 50, number=n, value=9, body=bytes([n % 256]) * (n % 50)) for n in range(1, 6000)
    ]
    data = b"".join(frame.whole() for frame in frames)
    assert len(data) > 2 * SCRATCH
    assert list(Parser().feed(data)) == frames


def test_scratch_grows_for_busy_peer() -> None:
    one = Parser()
    ping = Frame(FrameKind.PING).header()
    assert len(list(one.feed(3 * ping, step=HEADER_SIZE))) == 3
    assert one.buffer().nbytes == IDLE
    assert len(list(one.feed(1000 * ping))) == 1000
    assert one.buffer().nbytes > 8 * IDLE - HEADER_SIZE
    assert len(list(one.feed(10_000 * ping))) == 10_000
    assert one.buffer().nbytes > SCRATCH - HEADER_SIZE


def test_scratch_does_not_grow_for_large_bodies() -> None:
    one = Parser()
    for number in range(1, 4):
        large = Frame(FrameKind.MSG, length=2 * SCRATCH, number=number, value=2 * SCRATCH, body=bytes(2 * SCRATCH))
        assert list(one.feed(large.whole())) == [large]
        assert one.buffer().nbytes == IDLE


def test_message_header_equals_frame_header() -> None:
    frame = FRAMES["MSG"]
    assert message_header(frame.lane, frame.length, frame.number, frame.value) == frame.header()


@pytest.mark.parametrize(
    ("kind", "flags", "lane"),
    [
        (0, 0, 0),
        (7, 0, 0),
        (255, 0, 0),
        (2, 1, 0),
        (3, 1, 0),
        (1, 255, 0),
        (4, 1, 0),
        (5, 3, 0),
        (5, 4, 0),
        (6, 1, 0),
        (2, 0, LANES),
        (2, 0, 65535),
    ],
)
def test_illegal_header_is_refused_before_place(kind: int, flags: int, lane: int) -> None:
    asked: list[Frame] = []

    def place(frame: Frame) -> memoryview:
        asked.append(frame)
        return memoryview(bytearray(frame.length))

    data = struct.pack("<BBHIQQ", kind, flags, lane, 8, 1, 8)
    with pytest.raises(ProtocolError, match="no frame of netq, it begins with"):
        receive(Reader(place), data)
    assert asked == []


def test_place_is_called_at_header() -> None:
    memory = memoryview(bytearray(5))
    asked: list[Frame] = []

    def place(frame: Frame) -> memoryview:
        asked.append(frame)
        return memory

    half = Reader(place)
    frame = FRAMES["MSG"]
    assert receive(half, frame.header()[:-1]) == []
    assert asked == []
    assert receive(half, frame.header()[-1:]) == []
    assert asked == [frame._replace(body=b"")]
    buffer = half.buffer()
    assert buffer.nbytes == 5  # it goes on right there, and no byte beyond
    buffer[:] = b"hello"
    assert bytes(memory) == b"hello"
    assert list(half.advance(5)) == asked


def test_body_received_with_header_is_placed() -> None:
    memory = memoryview(bytearray(5))
    half = Reader(lambda frame: memory)
    data = FRAMES["MSG"].whole() + FRAMES["PING"].header()[:3]
    half.buffer()[: len(data)] = data
    (got,) = half.advance(len(data))
    assert got == FRAMES["MSG"]._replace(body=b"")
    assert bytes(memory) == b"hello"
    assert half.incomplete is None
    assert half.buffer().nbytes == IDLE - 3


def test_error_of_place_is_raised() -> None:
    def place(frame: Frame) -> memoryview:
        raise ProtocolError("not this one")

    with pytest.raises(ProtocolError, match="not this one"):
        receive(Reader(place), FRAMES["MSG"].whole())


# What is taken before it is looked at.


class Taker:
    """Takes whole frames of MSG and ACK, up to a size, as the short path does; notes what it was shown and took."""

    def __init__(self, most: int = 4096, *, refuses: int = 10**9) -> None:
        self.taken: list[bytes] = []
        self.shown: list[bytes] = []
        self._most = most
        self._refuses = refuses  # takes so many frames

    def __call__(self, data: memoryview, low: int, high: int) -> int:
        self.shown.append(bytes(data[low:high]))
        while high - low >= HEADER_SIZE and len(self.taken) < self._refuses:
            kind, _, _, length, _, _ = struct.unpack_from("<BBHIQQ", data, low)
            if kind not in (FrameKind.MSG, FrameKind.ACK) or length > self._most or high - low < HEADER_SIZE + length:
                break
            self.taken.append(bytes(data[low : low + HEADER_SIZE + length]))
            low += HEADER_SIZE + length
        return low


def taking(taker: Taker) -> Parser:
    reader = Parser()
    reader.take = taker
    return reader


@pytest.mark.parametrize("step", [1, 2, 7, 23, 24, 25, 30, 100, 1000, 10**9])
def test_take_gets_frames_before_place(step: int) -> None:
    sent = [*FRAMES.values()] * 3
    taker = Taker(5)
    got = list(taking(taker).feed(b"".join(frame.whole() for frame in sent), step))
    wanted = [frame.whole() for frame in sent if frame.kind in (FrameKind.MSG, FrameKind.ACK)]
    others = [frame for frame in sent if frame.kind not in (FrameKind.MSG, FrameKind.ACK)]
    taken = collections.Counter(taker.taken)
    assert taken + collections.Counter(frame.whole() for frame in got) == collections.Counter(
        frame.whole() for frame in sent
    )
    assert [frame for frame in got if frame.kind not in (FrameKind.MSG, FrameKind.ACK)] == others
    if step > 1000:
        assert taker.taken == wanted
        assert got == others


def test_take_is_called_again_after_other_frame() -> None:
    taker = Taker()
    message, ping = FRAMES["MSG"].whole(), FRAMES["PING"].whole()
    assert list(taking(taker).feed(message + ping + message + ping + ping + message[:10])) == [FRAMES["PING"]] * 3
    assert taker.taken == [message, message]


def test_take_may_be_replaced_at_any_time() -> None:
    taker = Taker(refuses=1)
    reader = taking(taker)
    frames = reader.feed(4 * FRAMES["MSG"].whole())
    assert next(frames) == FRAMES["MSG"]
    reader.take = other = Taker(refuses=1)
    assert list(frames) == [FRAMES["MSG"]]
    assert taker.taken == other.taken == [FRAMES["MSG"].whole()]


def test_take_needs_whole_header_outside_body() -> None:
    taker = Taker(0)
    data = FRAMES["MSG"].whole()
    reader = taking(taker)
    assert list(reader.feed(data[: HEADER_SIZE - 1], step=1)) == []
    assert taker.shown == []
    assert list(reader.feed(data[HEADER_SIZE - 1 :], step=1)) == [FRAMES["MSG"]]
    assert taker.shown == [data[:HEADER_SIZE]]


def message(size: int, number: int = 1) -> bytes:
    return Frame(FrameKind.MSG, length=size, number=number, value=size, body=bytes([number % 256]) * size).whole()


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    ("frame", "size"),
    [(FRAMES["PING"].whole(), 24), (FRAMES["FIN"].whole(), 24), (message(2**20), 124), (message(4096), 300)],
)
def test_buffer_is_never_empty(frame: bytes, size: int, ahead: bool, busy: bool) -> None:
    """A receive into an empty buffer would look like the end of the stream."""
    reader = taking(Taker())
    list(reader.feed(message(0) * (10_000 if busy else 0)))
    room = reader.buffer().nbytes
    assert (room > 50 * IDLE) is busy
    count, rest = divmod(room - size, HEADER_SIZE)
    small = message(rest) + message(0) * (count - 1)
    data = small + frame[:size] if ahead else (frame + small)[:room]
    assert len(data) == room
    reader.buffer()[:] = data
    list(reader.advance(room))
    assert reader.buffer().nbytes >= 1


# INI


@pytest.mark.parametrize("name", [name for name in FRAMES if name.startswith("INI")])
def test_greeting_round_trip(name: str) -> None:
    assert Greeting.read(FRAMES[name]).frame() == FRAMES[name]


def test_greeting_has_all_fields() -> None:
    assert Greeting.read(GREETING.frame()) == GREETING
    assert GREETING.frame().flags == RESUME
    assert GREETING_LIMIT == FRAMES["INI with all cursors"].length == GREETING_SIZE + 16 * 32


def ini(body: bytes) -> Frame:
    return Frame(FrameKind.INI, length=len(body), body=body)


def changed(at: int, layout: str, *values: object) -> Frame:
    body = bytearray(GREETING.frame().body)
    struct.pack_into(layout, body, at, *values)
    return ini(bytes(body))


def test_other_version_is_named_in_error() -> None:
    with pytest.raises(ProtocolError, match=f"version 9 .*this side version {VERSION}"):
        Greeting.read(changed(4, "<H", 9))
    with pytest.raises(ProtocolError, match="version 9"):  # of which we know nothing but the first bytes
        Greeting.read(ini(b"NETQ\x09\x00\x00\x00"))


def test_other_magic_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"does not speak netq.*SSH-"):
        Greeting.read(ini(b"SSH-2.0-"))


def test_greeting_of_wrong_length_is_refused() -> None:
    body = bytes(GREETING.frame().body)
    for size in range(8, len(body)):
        with pytest.raises(ProtocolError, match=f"INI of {size} bytes"):
            Greeting.read(ini(body[:size]))
    for more in (1, 32):
        with pytest.raises(ProtocolError, match="2 cursors"):
            Greeting.read(ini(body + bytes(more)))


@pytest.mark.parametrize(("at", "layout"), [(40, "<Q"), (48, "<Q"), (56, "<I")])
def test_zero_size_is_refused(at: int, layout: str) -> None:
    with pytest.raises(ProtocolError, match=r"an INI whose \w+ is 0; expected 1 or more"):
        Greeting.read(changed(at, layout, 0))


def test_last_epoch_is_refused() -> None:
    assert Greeting.read(changed(60, "<I", 2**32 - 2)).epoch == EPOCHS - 1
    with pytest.raises(ProtocolError, match=f"an INI of epoch {EPOCHS}; expected less"):
        Greeting.read(changed(60, "<I", 2**32 - 1))


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [
        (64, "<H", 16),  # no such lane
        (64, "<H", 15),  # the second is not above it
        (96, "<H", 0),  # a lane twice
        (66, "<H", 1),  # not 0
        (68, "<I", 1),
    ],
)
def test_illegal_cursor_is_refused(at: int, layout: str, value: int) -> None:
    with pytest.raises(ProtocolError, match="cursors out of order"):
        Greeting.read(changed(at, layout, value))
