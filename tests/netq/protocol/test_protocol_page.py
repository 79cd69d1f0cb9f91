"""docs/reference/protocol.md and the code agree: this reads the page's bytes and tables."""

from __future__ import annotations

import pickle
import re
import struct
import uuid

import pytest

from netq.options import ConnectionOptions
from netq.protocol import wire
from netq.protocol.codec import Outgoing
from netq.protocol.connection import LEGAL, LENGTH, Connection, State
from netq.protocol.events import Finished, Hello
from netq.protocol.memory import Memory
from netq.protocol.receiver import Receiver
from netq.protocol.sender import Sender
from netq.protocol.session import Session
from netq.protocol.wire import Code, Cursor, Frame, FrameKind, Greeting
from netq.utils.stream import PickleSerializer, Stream
from tests.netq.parsing import Parser
from tests.pages import Page

PAGE = Page("docs/reference/protocol.md")
CLIENT = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
SERVER = uuid.UUID("ffeeddcc-bbaa-9988-7766-554433221100")
TOKEN = b"sixteen byte key"
MIB = 1024**2

FRAMES = {
    "MSG": Frame(FrameKind.MSG, lane=1, length=5, number=2, value=300, body=b"hello"),
    "ACK": Frame(FrameKind.ACK, lane=1, number=2, value=67109376),
    "DROP": Frame(FrameKind.DROP, number=3, value=72),
    "PING": Frame(FrameKind.PING, number=10**10),
    "ANSWER": Frame(FrameKind.PING, wire.ANSWER, number=10**10),
    "FIN": Frame(FrameKind.FIN),
    "REFUSED": Frame(FrameKind.FIN, length=4, number=Code.REFUSED, body=b"busy"),
    "INI": Greeting(
        CLIENT, TOKEN, 2**40, MIB // 4, 10_000, (Cursor(2, 3, 8, 64 * MIB + 1024),), resume=True, epoch=1
    ).frame(),
}

NAMES = {
    (FrameKind.INI, wire.RESUME): f"{wire.RESUME}: RESUME",
    (FrameKind.PING, wire.LEAVING): f"{wire.LEAVING}: LEAVING",
    (FrameKind.PING, wire.ANSWER): f"{wire.ANSWER}: ANSWER",
}


def blocks() -> list[tuple[str, bytes]]:
    return [(name, bytes.fromhex(re.sub(r"#.*", "", text))) for name, text in PAGE.named_blocks("hex")]


def test_page_has_one_example_of_each_frame() -> None:
    names = [name for name, _ in blocks() if not name.startswith("exchange")]
    assert sorted(names) == sorted(FRAMES)


@pytest.mark.parametrize("name", FRAMES)
def test_examples_equal_encoded_frames(name: str) -> None:
    data = dict(blocks())[name]
    assert FRAMES[name].whole() == data
    (frame,) = Parser().feed(data)
    assert frame == FRAMES[name]
    if name == "INI":
        assert Greeting.read(frame).frame().whole() == data


def test_complete_exchange_equals_two_connections() -> None:
    options = ConnectionOptions()
    session = Session(TOKEN, options, Memory())
    session.put(Outgoing(Stream([b"hello"])))
    session.closing = True
    ends = {"client": Connection(CLIENT, options, 0.0, session), "server": Connection(SERVER, options, 0.0)}
    other = {"client": "server", "server": "client"}
    exchange = [(name.removeprefix("exchange "), data) for name, data in blocks() if name.startswith("exchange")]
    assert [name for name, _ in exchange] == ["client", "server"] * 3
    for name, data in exchange:
        assert b"".join(ends[name].to_send(1000, 0.0)) == data
        for event in ends[other[name]].feed(memoryview(data), 0.0):
            if isinstance(event, Hello):
                ends["server"].accept(Session(TOKEN, options, Memory()), event.greeting, resumed=False, now=0.0)
            if isinstance(event, Finished) and not event.over:
                event.session.closing = True
                ends["server"].close()
    assert ends["client"].closed
    assert ends["server"].closed


def test_layout_tables_equal_struct_sizes() -> None:
    header, greeting, cursor = [rows[1:] for rows in PAGE.tables("offset", "size", "field", "")]
    assert ends(header) == wire.HEADER_SIZE
    assert ends(greeting[:-1]) == int(greeting[-1][0]) == wire.GREETING_SIZE
    assert ends(cursor) == int(greeting[-1][1].removesuffix(" each"))


def ends(rows: list[list[str]]) -> int:
    """Where the last field ends; the fields lie side by side."""
    at = 0
    for offset, size, *_ in rows:
        assert int(offset) == at
        at += int(size)
    return at


def test_kinds_and_flags() -> None:
    rows = PAGE.rows("kind", "frame", "flags")
    kinds = {kind: [row for row in rows if int(row[0]) == kind] for kind in FrameKind}
    assert sum(map(len, kinds.values())) == len(rows)
    for kind, of_kind in kinds.items():
        assert of_kind[0][1] == kind.name
        flags = ", or ".join(row[2] for row in of_kind).split(", or ")
        assert flags == [NAMES.get((kind, flag), str(flag)) for flag in wire.FLAGS[kind]]
    assert [row[1] for row in kinds[FrameKind.PING]] == ["PING", "ANSWER"]


def free_fields() -> set[tuple[str, str]]:
    """The pairs of a frame and a field of its header that have a – in the table of section 2."""
    rows = [(row[1], dict(zip(("number", "value"), row[3:5], strict=True))) for row in PAGE.rows("kind", "frame")]
    return {(name, field) for name, cells in rows for field, cell in cells.items() if cell == "–"}


def pair() -> tuple[Connection, Connection]:
    """An open connection of a client and one of a server. One message has come from the server."""
    options = ConnectionOptions()
    client, server = Connection(CLIENT, options, 0.0, Session(TOKEN, options, Memory())), unopened()
    (hello,) = server.feed(memoryview(sent(client)), 0.0)
    assert isinstance(hello, Hello)
    server.accept(Session(TOKEN, options, Memory()), hello.greeting, resumed=False, now=0.0)
    assert server.session is not None
    server.session.put(Outgoing(Stream([b"hi"])))
    client.feed(memoryview(sent(server)), 0.0)
    return client, server


def unopened() -> Connection:
    """A server's connection that waits for INI."""
    return Connection(SERVER, ConnectionOptions(), 0.0)


def sent(connection: Connection, limit: int = 1000, now: float = 0.0) -> bytes:
    return b"".join(connection.to_send(limit, now))


RECEIVED = {  # a frame of each name that a server accepts, in a connection of `pair`; INI in an `unopened` one
    "INI": FRAMES["INI"],
    "MSG": Frame(FrameKind.MSG, length=2, number=1, value=2, body=b"hi"),
    "ACK": Frame(FrameKind.ACK, number=1, value=64 * MIB),
    "DROP": Frame(FrameKind.DROP, number=1, value=2),
    "PING": Frame(FrameKind.PING, number=7),
    "ANSWER": Frame(FrameKind.PING, wire.ANSWER, number=7),
    "FIN": Frame(FrameKind.FIN),
}


def effect(name: str, frame: Frame) -> object:
    """Feed a frame to a server, and return all that it has changed there: events, numbers and flags, what is sent."""
    connection = unopened() if name == "INI" else pair()[1]
    events = connection.feed(memoryview(frame.whole()), 10.0)
    session = connection.session
    lanes = [] if session is None else [*session.senders.values(), *session.receivers.values()]
    return (
        [(type(event), getattr(event, "greeting", None)) for event in events],
        [[value for value in vars(one).values() if isinstance(value, int | float)] for one in lanes],
        [
            [value for value in vars(one).values() if isinstance(value, int | float)]
            for one in (connection, session)
            if one
        ],
        sent(connection),
    )


@pytest.mark.parametrize("field", ["number", "value"])
@pytest.mark.parametrize("name", RECEIVED)
def test_fields_without_effect_are_the_free_ones(name: str, field: str) -> None:
    frame = RECEIVED[name]
    changed = frame._replace(**{field: getattr(frame, field) + 2**41})
    assert (effect(name, frame) == effect(name, changed)) is ((name, field) in free_fields())


def test_free_fields_are_sent_as_0() -> None:
    client, server = pair()
    assert client.session is not None
    message = Outgoing(Stream([bytes(9000)]))
    client.session.put(message)
    data = sent(Connection(CLIENT, ConnectionOptions(), 0.0, Session(TOKEN, ConnectionOptions(), Memory())))
    data += sent(client)  # an ACK, and the first bytes of the message
    message.withdraw()
    client.session.withdraw(message)
    data += sent(client)
    server.tick(10.0)
    ping = sent(server, now=10.0)
    client.feed(memoryview(ping), 10.0)
    data += ping + sent(client, now=10.0)
    server.refuse(Code.REFUSED, "busy")
    data += sent(server)
    frames = list(Parser().feed(data))
    names = ["ANSWER" if frame[:2] == (FrameKind.PING, wire.ANSWER) else frame.kind.name for frame in frames]
    assert set(names) == set(RECEIVED)
    free = free_fields()
    for name, frame in zip(names, frames, strict=True):
        assert not any(getattr(frame, field) for field in ("number", "value") if (name, field) in free), frame


def test_codes_of_fin() -> None:
    assert [(int(row[0]), row[1]) for row in PAGE.rows("code", "name")] == [(code.value, code.name) for code in Code]


def test_legality_table() -> None:
    ((head, *rows),) = PAGE.tables("state", "entered when")
    kinds = [kind.name for kind in FrameKind]
    assert head[2:] == kinds
    page = {
        State[row[0]]: {FrameKind[k] for k, cell in zip(kinds, row[2:], strict=True) if cell == "yes"} for row in rows
    }
    assert page == LEGAL


def test_limits() -> None:
    assert {name: int(value) for name, value in PAGE.rows("limit", "value")} == {
        "version": wire.VERSION,
        "bytes of a header": wire.HEADER_SIZE,
        "lanes": wire.LANES,
        "bytes that a message counts besides its own": wire.OVERHEAD,
        "positions of a lane, below": wire.POSITIONS,
        "epochs of a session, below": wire.EPOCHS,
        "bytes of an INI, at least": LENGTH[FrameKind.INI][0],
        "bytes of an INI of version 1, at least": wire.GREETING_SIZE,
        "bytes of an INI, at most": LENGTH[FrameKind.INI][1],
        "bytes of a chunk, at most": LENGTH[FrameKind.MSG][1],
        "bytes of a FIN's reason, at most": LENGTH[FrameKind.FIN][1],
    }


def test_example_of_flow_control() -> None:
    rows = PAGE.rows("what happens", "message")
    sender, receiver = Sender(0, 1000), Receiver(0, 1000, Memory(), merge=True)
    messages = [Outgoing(Stream([bytes(size)])) for size in (500, 300, 10)]
    for message in messages:
        sender.put(message)
    seen = []

    def arrive(row: list[str]) -> None:
        header, body = sender.chunk(1000)
        number, size = struct.unpack_from("<QQ", header, 8)
        length = body.size if body else 0
        receiver.place(Frame(FrameKind.MSG, length=length, number=number, value=size))
        receiver.received(length)
        see(row)

    def see(row: list[str]) -> None:
        number = int(row[1])
        message, before = messages[number - 1], messages[number - 2]
        start = message.start if message.number else before.stop  # it is to have
        seen.append([start, start + message.size + wire.OVERHEAD, sender.limit])

    arrive(rows[0])
    arrive(rows[1])
    assert (receiver.partial, receiver.grant_due) == (244, True)
    sender.limit = receiver.cursor.limit
    arrive(rows[2])
    assert not sender.ready
    see(rows[3])
    receiver.taken_room = messages[0].stop
    receiver.release_room()
    sender.limit = receiver.limit
    arrive(rows[4])
    assert receiver.held == 3
    assert seen == [[int(cell) for cell in row[2:]] for row in rows]


def test_layout_of_pickled_message() -> None:
    buffers = [bytearray(b"x" * 100), bytearray(b"y" * 3)]
    data = bytes(PickleSerializer().dump([pickle.PickleBuffer(buffer) for buffer in buffers]))
    size, count = struct.unpack_from("<QQ", data)
    assert (count, struct.unpack_from("<2Q", data, 16)) == (2, (100, 3))
    start = 16 + 8 * count
    assert data[start : start + 2] == b"\x80\x05"  # a pickle of protocol 5
    first = -(-(start + size) // 64) * 64
    assert data[first:] == b"x" * 100 + bytes(28) + b"y" * 3
    assert not any(data[start + size : first])
