"""The protocol on one link: the table of states and kinds, lengths, deadlines, handshake, round trip, closing."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import math
import struct
import tracemalloc
import uuid
from functools import partial

import pytest

from netq.buffers import Buffer
from netq.errors import MessageTooLarge, ProtocolError
from netq.options import ConnectionOptions
from netq.protocol.codec import Outgoing
from netq.protocol.connection import LEGAL, LENGTH, Connection, State
from netq.protocol.events import Event, Failed, Finished, Hello, Lost, Opened
from netq.protocol.memory import Memory
from netq.protocol.sender import Part
from netq.protocol.session import Session
from netq.protocol.wire import ANSWER, LEAVING, Code, Frame, FrameKind, Greeting
from netq.testing.lossy_pair import LossyPair
from netq.utils.stream import Stream

CLIENT, SERVER = uuid.UUID(int=1), uuid.UUID(int=2)
TOKEN = b"t" * 16
OPTIONS = ConnectionOptions(heartbeat=10.0, misses=3, handshake_timeout=5.0)

VALID = {  # a frame of each kind that is fine where its kind is legal and one message has been sent each way
    FrameKind.INI: Greeting(CLIENT, TOKEN, 2**40, 2**20, 10_000, epoch=1).frame(),
    FrameKind.MSG: Frame(FrameKind.MSG, length=2, number=1, value=2, body=b"hi"),
    FrameKind.ACK: Frame(FrameKind.ACK, number=1, value=2**20),
    FrameKind.DROP: Frame(FrameKind.DROP, number=1, value=2),
    FrameKind.PING: Frame(FrameKind.PING),
    FrameKind.FIN: Frame(FrameKind.FIN),
}


def session(options: ConnectionOptions = OPTIONS) -> Session:
    return Session(TOKEN, options, Memory())


class Noted(Outgoing):
    """A message that counts how often it is acknowledged."""

    times = 0

    def acked(self) -> None:
        super().acked()
        self.times += 1


def message(size: int = 5) -> Noted:
    made = Noted(Stream([bytes(size)]))
    made.watched = True
    return made


def put(connection: Connection) -> Noted:
    """Queue a message."""
    assert connection.session is not None
    one = message()
    connection.session.put(one)
    return one


def arrived(connection: Connection) -> list[bytes]:
    """The messages that have come whole since this was asked last."""
    assert connection.session is not None
    found = [bytes(item[1]) for item in connection.session.arrived]
    connection.session.arrived.clear()
    return found


def feed(connection: Connection, *frames: Frame, now: float = 0.0) -> list[Event]:
    return connection.feed(memoryview(b"".join(frame.whole() for frame in frames)), now)


def sent(connection: Connection, now: float = 0.0) -> bytes:
    return b"".join(connection.to_send(2**20, now))


def kinds(data: bytes) -> list[FrameKind]:
    """The kinds of frames that were sent."""
    found = []
    while data:
        kind, _, _, length, _, _ = struct.unpack_from("<BBHIQQ", data)
        found.append(FrameKind(kind))
        data = data[24 + length :]
    return found


def opened(options: ConnectionOptions = OPTIONS, now: float = 0.0, *messages: Outgoing) -> Connection:
    """A server's connection in OPEN, with one message sent, or these, and an empty outbox."""
    connection = Connection(SERVER, options, now)
    (hello,) = feed(connection, VALID[FrameKind.INI], now=now)
    assert isinstance(hello, Hello)
    connection.accept(session(options), hello.greeting, resumed=False, now=now)
    assert connection.session is not None
    for each in messages or (message(),):
        connection.session.put(each)
    sent(connection, now)
    return connection


def in_state(state: State) -> Connection:
    """A connection in this state; but for OPENING, a server's."""
    if state is State.OPENING:
        return Connection(CLIENT, OPTIONS, 0.0, session())
    if state is State.GREETED:
        connection = Connection(SERVER, OPTIONS, 0.0)
        feed(connection, VALID[FrameKind.INI])
        return connection
    connection = opened()
    assert connection.session is not None
    if state is State.CLOSING:
        connection.session.closing = True
        connection.close()
    if state is State.ENDING:
        feed(connection, VALID[FrameKind.FIN])
    if state is State.CLOSED:
        connection.detach()
    return connection


def only_lost(events: list[Event]) -> Exception:
    (event,) = events
    assert isinstance(event, Lost)
    return event.error


# The table.


@pytest.mark.parametrize("state", [state for state in State if state is not State.CLOSED])
@pytest.mark.parametrize("kind", FrameKind)
def test_frame_is_legal_by_table_or_link_is_lost(state: State, kind: FrameKind) -> None:
    connection = in_state(state)
    assert connection.state is state
    frame = VALID[kind]
    if state in (State.OPENING, State.ENDING) and kind is FrameKind.FIN:
        frame = frame._replace(number=Code.REFUSED)
    events = feed(connection, frame)
    faults = [event for event in events if isinstance(event, Lost) and isinstance(event.error, ProtocolError)]
    if kind in LEGAL[state]:
        assert faults == []
        return
    assert f"{kind.name} in state {state.name}" in str(only_lost(events))
    assert connection.closed
    assert connection.to_send(1000, 0.0) == (
        []
        if connection.session is None or state is not State.OPENING
        else [Connection(CLIENT, OPTIONS, 0.0, session()).to_send(1000, 0.0)[0]]
    )


@pytest.mark.parametrize("kind", FrameKind)
def test_illegal_frame_is_refused_at_header(kind: FrameKind) -> None:
    for state in State:
        if kind in LEGAL[state] or state is State.CLOSED:
            continue
        connection = in_state(state)
        header = VALID[kind]._replace(length=LENGTH[kind][1], value=2**61).header()
        assert connection.feed(memoryview(header[:-1]), 0.0) == []
        assert f"{kind.name} in state" in str(only_lost(connection.feed(memoryview(header[-1:]), 0.0)))


@pytest.mark.parametrize("kind", FrameKind)
def test_closed_connection_ignores_bytes(kind: FrameKind) -> None:
    connection = in_state(State.CLOSED)
    assert feed(connection, VALID[kind]) == []
    assert connection.feed(memoryview(b"\xff" * 100), 0.0) == []
    assert connection.received(10, 0.0) == []


@pytest.mark.parametrize(
    ("state", "number", "length"),
    [(State.OPENING, 0, 0), (State.ENDING, 0, 0), (State.OPEN, 0, 3), (State.OPEN, 4, 0), (State.OPEN, 2**64 - 1, 0)],
)
def test_fin_with_unknown_code_is_refused(state: State, number: int, length: int) -> None:
    error = only_lost(feed(in_state(state), Frame(FrameKind.FIN, length=length, number=number, body=b"x" * length)))
    assert isinstance(error, ProtocolError)


def test_server_refuses_fin_before_ini() -> None:
    header = Frame(FrameKind.FIN, number=Code.REFUSED).header()
    assert "FIN in state OPENING" in str(only_lost(Connection(SERVER, OPTIONS, 0.0).feed(memoryview(header), 0.0)))


def test_reason_of_peer_is_one_printable_line() -> None:
    reason = "no röom\n10.0.0.1: welcome\x1b[2J\u202e\r".encode() + b"\xff"
    error = only_lost(feed(opened(), Frame(FrameKind.FIN, length=len(reason), number=Code.REFUSED, body=reason)))
    assert str(error) == "the peer refuses: no röom\\n10.0.0.1: welcome\\x1b[2J\\u202e\\r\N{REPLACEMENT CHARACTER}"
    assert str(error).isprintable()


@pytest.mark.parametrize(
    ("state", "frame"),
    [
        (State.OPENING, VALID[FrameKind.INI]),
        (State.OPENING, VALID[FrameKind.INI]._replace(flags=1)),
        (State.OPEN, VALID[FrameKind.PING]),
        (State.OPEN, VALID[FrameKind.FIN]),
        (State.OPEN, VALID[FrameKind.PING]._replace(flags=ANSWER)),
    ],
)
def test_frame_without_lane_must_have_lane_0(state: State, frame: Frame) -> None:
    faults = [event for event in feed(in_state(state), frame) if isinstance(event, Lost)]
    assert not any("lane" in str(fault.error) for fault in faults)
    assert "in lane 3; expected lane 0" in str(only_lost(feed(in_state(state), frame._replace(lane=3))))


# Lengths, and memory.


@pytest.mark.parametrize("kind", [kind for kind in FrameKind if kind is not FrameKind.MSG])
def test_illegal_length_is_refused_at_header(kind: FrameKind) -> None:
    least, most = LENGTH[kind]
    state = next(state for state in State if kind in LEGAL[state])
    for length in {least - 1, most + 1, 2**31, 2**32 - 1} - {-1}:
        connection = in_state(state)
        events = connection.feed(memoryview(VALID[kind]._replace(length=length).header()), 0.0)
        assert f"{kind.name} of {length} bytes; expected {least} to {most}" in str(only_lost(events))


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("length", [1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("size", [2**31, 2**40, 2**40 + 1, 2**62, 2**63, 2**64 - 1])
def test_huge_length_allocates_no_memory(size: int, length: int, merge: bool) -> None:
    connection = opened(dataclasses.replace(OPTIONS, get_merge=merge, window=2**62))
    header = memoryview(Frame(FrameKind.MSG, length=length, number=1, value=size).header())
    before = resident()
    tracemalloc.start()
    events = connection.feed(header, 0.0)
    events += connection.feed(memoryview(bytes(10_000)), 0.0)  # and what it likes to send then
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
    assert resident() - before < 2**20
    if size > OPTIONS.message_size:
        assert f"a message of {size} bytes; message_size is {2**40}" in str(only_lost(events))
    elif events:
        assert isinstance(events[-1], Lost)  # the system has no such block, or what came then was no frame


def resident() -> int:
    """Bytes of memory that this process really has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


# Time.


def test_handshake_has_timeout() -> None:
    for connection in (Connection(SERVER, OPTIONS, 100.0), Connection(CLIENT, OPTIONS, 100.0, session())):
        connection.feed(memoryview(VALID[FrameKind.INI].whole()[:50]), 104.0)  # a byte now and then does not help
        assert connection.deadline() == 105.0
        assert connection.tick(104.9) == []
        assert isinstance(only_lost(connection.tick(105.0)), TimeoutError)
        assert connection.closed


def test_idle_connection_sends_ping() -> None:
    connection = opened(now=100.0)
    assert connection.deadline() == 110.0
    assert connection.tick(109.9) == []
    assert kinds(sent(connection, 109.9)) == []
    assert connection.tick(110.0) == []
    assert kinds(sent(connection, 110.0)) == [FrameKind.PING]
    assert connection.deadline() == 120.0


def test_busy_connection_sends_no_ping() -> None:
    connection = opened(now=100.0)
    assert connection.session is not None
    connection.session.put(message())
    assert kinds(sent(connection, 109.0)) == [FrameKind.MSG]
    assert connection.tick(110.0) == []
    assert connection.deadline() == 119.0


def test_quiet_link_needs_little_memory() -> None:
    """It keeps the memory of its busy time up to the next heartbeat, and what has come of a frame."""
    connection = talking()
    idle = connection.buffer().nbytes
    for rest, kept in ((b"", False), (whole(2)[:10], True)):
        connection.feed(memoryview(Frame(FrameKind.PING).header() * 1000 + rest), 0.0)
        busy = connection.buffer().nbytes
        assert busy > 4 * idle
        assert connection.tick(connection.deadline()) == []
        assert (connection.buffer().nbytes == busy) is kept
    connection.feed(memoryview(whole(2)[10:]), 20.0)
    assert arrived(connection) == [b"\2\2"]


def idle(connection: Connection, until: float) -> None:
    """Tick whenever it is due before a time, and nothing comes."""
    while (due := connection.deadline()) < until:
        assert connection.tick(due) == []
        sent(connection, due)


def test_link_is_lost_after_missed_heartbeats() -> None:
    connection = opened(now=100.0)
    idle(connection, 130.0)
    assert connection.tick(129.9) == []
    assert connection.deadline() == 130.0
    error = only_lost(connection.tick(130.0))
    assert isinstance(error, TimeoutError)
    assert "30.0 s" in str(error)
    assert connection.deadline() == math.inf
    assert connection.tick(1e9) == []


def test_time_in_which_this_process_stood_still_is_no_silence() -> None:
    connection = opened(now=100.0)
    idle(connection, 115.0)
    connection.probe(115.0)
    sent(connection, 115.0)
    assert connection.tick(200.0) == []  # it was due at 117
    assert kinds(sent(connection, 200.0)) == [FrameKind.PING]
    assert connection.deadline() == 202.0
    assert len(connection.tick(202.0)) == 1


@pytest.mark.parametrize(
    ("heartbeat", "late", "lost"), [(10.0, 10.0, 1), (10.0, 10.1, 0), (0.01, 0.09, 1), (0.01, 0.2, 0)]
)
def test_a_timer_that_is_a_little_late_still_ends_the_silence(heartbeat: float, late: float, lost: int) -> None:
    connection = opened(ConnectionOptions(heartbeat=heartbeat, misses=3))
    ends = 30.0  # with the client's heartbeat of 10 s
    idle(connection, ends)
    assert len(connection.tick(ends + late)) == lost


def test_probed_link_is_lost_without_answer() -> None:
    connection = opened(now=100.0)
    connection.probe(105.0)
    assert kinds(sent(connection, 105.0)) == [FrameKind.PING]
    assert connection.deadline() == 107.0
    connection.probe(106.0)
    assert kinds(sent(connection, 106.0)) == [], "asked once"
    assert connection.tick(106.9) == []
    assert isinstance(only_lost(connection.tick(107.0)), TimeoutError)


def test_probed_link_survives_any_byte() -> None:
    connection = opened(now=100.0)
    connection.probe(105.0)
    connection.feed(memoryview(VALID[FrameKind.MSG].whole()[:1]), 106.9)
    assert connection.tick(107.0) == []
    assert connection.deadline() == 115.0
    connection.probe(108.0)
    assert connection.deadline() == 110.0


def test_probe_does_not_extend_silence_timeout() -> None:
    connection = opened(now=100.0)
    idle(connection, 129.0)
    connection.probe(129.0)
    assert isinstance(only_lost(connection.tick(130.0)), TimeoutError)


@pytest.mark.parametrize("state", [State.OPENING, State.GREETED, State.CLOSED])
def test_probe_needs_open_connection(state: State) -> None:
    connection = in_state(state)
    deadline = connection.deadline()
    sent(connection)
    connection.probe(1.0)
    assert (connection.deadline(), sent(connection)) == (deadline, b"")


def test_first_byte_after_greeting_confirms_session() -> None:
    connection = opened()
    assert connection.session is not None
    assert not connection.session.confirmed
    feed(connection, VALID[FrameKind.PING])
    assert connection.session.confirmed


def test_any_byte_resets_silence_timeout() -> None:
    connection = opened(now=100.0)
    idle(connection, 129.0)
    connection.feed(memoryview(VALID[FrameKind.MSG].whole()[:1]), 129.0)
    idle(connection, 159.0)
    assert len(connection.tick(159.0)) == 1


@pytest.mark.parametrize(("theirs", "patience"), [(1_000, 30.0), (10_000, 30.0), (60_000, 180.0)])
def test_slower_heartbeat_sets_silence_timeout(theirs: int, patience: float) -> None:
    connection = Connection(SERVER, OPTIONS, 0.0)
    greeting = Greeting(CLIENT, TOKEN, 2**40, 2**20, theirs)
    feed(connection, greeting.frame())
    connection.accept(session(), greeting, resumed=False, now=0.0)
    sent(connection)
    idle(connection, patience)
    assert len(connection.tick(patience)) == 1


@pytest.mark.parametrize("state", State)
def test_every_state_but_closed_has_a_deadline(state: State) -> None:
    assert (in_state(state).deadline() == math.inf) == (state is State.CLOSED)


# Round trip.


@pytest.mark.parametrize("flags", [0, LEAVING])
def test_answer_repeats_number_of_ping(flags: int) -> None:
    connection = opened()
    feed(connection, Frame(FrameKind.PING, flags, number=2**64 - 1))
    assert sent(connection) == Frame(FrameKind.PING, ANSWER, number=2**64 - 1).whole()
    assert sent(connection) == b"", "answered once"


def test_one_answer_serves_all_pings_before_it() -> None:
    connection = opened()
    feed(connection, Frame(FrameKind.PING, number=7), Frame(FrameKind.PING, number=8))
    assert sent(connection) == Frame(FrameKind.PING, ANSWER, number=8).whole()


def test_answer_is_not_answered() -> None:
    connection = opened()
    feed(connection, Frame(FrameKind.PING, ANSWER, number=7))
    assert sent(connection) == b""


def ping(connection: Connection, now: float) -> memoryview:
    """Let something come, so that the link is not lost, and return the PING that is sent at this time."""
    feed(connection, VALID[FrameKind.PING]._replace(flags=ANSWER), now=now)
    connection.tick(now)
    data = sent(connection, now)
    assert kinds(data) == [FrameKind.PING]
    return memoryview(data)


def round_trip(connection: Connection) -> float | None:
    assert connection.session is not None
    return connection.session.round_trip


def test_round_trip_is_measured_from_the_ping_that_was_answered() -> None:
    one, other = opened(now=100.0), opened(now=100.0)
    assert round_trip(one) is None
    first, second, third = ping(one, 110.0), ping(one, 120.0), ping(one, 130.0)
    other.feed(first, 121.0)
    one.feed(memoryview(sent(other, 121.0)), 132.0)
    assert round_trip(one) == pytest.approx(22.0)
    other.feed(second, 132.5)
    other.feed(third, 132.5)
    one.feed(memoryview(sent(other, 132.5)), 133.0)
    assert round_trip(one) == pytest.approx(3.0)


def test_round_trip_is_measured_by_a_ping_that_says_leaving() -> None:
    one, other = opened(OPTIONS, 100.0, message(2**20 + 1)), opened(now=100.0)
    assert one.session is not None
    one.session.close()
    one.close()
    data = sent(one, 104.0)
    assert data[1] == LEAVING
    assert kinds(data) == [FrameKind.PING]
    other.feed(memoryview(data), 104.25)
    one.feed(memoryview(sent(other, 104.25)), 104.5)
    assert round_trip(one) == pytest.approx(0.5)


def test_last_round_trip_outlives_its_link() -> None:
    one, other = opened(now=100.0), opened(now=100.0)
    other.feed(ping(one, 110.0), 110.2)
    one.feed(memoryview(sent(other, 110.2)), 110.5)
    one.detach()
    assert round_trip(one) == pytest.approx(0.5)


def test_answer_to_a_ping_of_the_future_is_not_measured() -> None:
    one = opened(now=100.0)
    feed(one, Frame(FrameKind.PING, ANSWER, number=50_000_000_001), now=150.0)
    assert round_trip(one) is None
    feed(one, Frame(FrameKind.PING, ANSWER, number=2**64 - 1), now=150.0)
    assert round_trip(one) is None


# Greeting.


def test_handshake_opens_both_sides() -> None:
    client, server = Connection(CLIENT, OPTIONS, 0.0, session()), Connection(SERVER, OPTIONS, 0.0)
    (hello,) = server.feed(memoryview(sent(client)), 0.0)
    assert isinstance(hello, Hello)
    assert (hello.greeting.id, hello.greeting.token, hello.greeting.resume) == (CLIENT, TOKEN, False)
    assert sent(server) == b""
    assert [type(event) for event in server.accept(session(), hello.greeting, resumed=False, now=0.0)] == [Opened]
    (event,) = client.feed(memoryview(sent(server)), 0.0)
    assert isinstance(event, Opened)
    assert not event.resumed
    assert event.session.peer == SERVER
    assert (client.open, server.open) == (True, True)


def test_refused_client_gets_reason() -> None:
    for code in (Code.REFUSED, Code.SUPERSEDED):
        client, server = Connection(CLIENT, OPTIONS, 0.0, session()), Connection(SERVER, OPTIONS, 0.0)
        server.feed(memoryview(sent(client)), 0.0)
        server.refuse(code, "no room")
        assert server.closed
        (event,) = client.feed(memoryview(sent(server)), 0.0)
        assert isinstance(event, Lost)
        assert event.code is code
        assert isinstance(event.error, ConnectionRefusedError)
        assert "no room" in str(event.error)


def test_long_reason_is_truncated() -> None:
    server = in_state(State.GREETED)
    server.refuse(Code.REFUSED, "ü" * 1000)
    client = in_state(State.OPENING)
    (event,) = client.feed(memoryview(sent(server)), 0.0)
    assert isinstance(event, Lost)
    assert "ü" * 128 in str(event.error)


def test_superseded_link_keeps_received_part() -> None:
    """In one block a chunk, a body that will not be completed must not become a part of the message."""
    for merge in (True, False):
        options = dataclasses.replace(OPTIONS, get_merge=merge)
        first = opened(options)
        kept = first.session
        assert kept is not None
        feed(first, Frame(FrameKind.MSG, length=2, number=1, value=6, body=b"ab"))
        first.feed(memoryview(Frame(FrameKind.MSG, length=4, number=1, value=6).header() + b"c"), 0.0)
        first.refuse(Code.SUPERSEDED, "a newer link")
        first.detach()
        second = Connection(SERVER, options, 0.0)
        greeting = dataclasses.replace(Greeting.read(VALID[FrameKind.INI]), resume=True, epoch=kept.epoch)
        feed(second, greeting.frame())
        second.accept(kept, greeting, resumed=True, now=0.0)
        assert arrived(second) == []
        assert feed(second, Frame(FrameKind.MSG, length=3, number=1, value=6, body=b"def")) == []
        assert arrived(second) == [b"abcdef"]


def test_server_drops_link_silently_on_wrong_epoch() -> None:
    kept = opened().session
    assert kept is not None
    server = in_state(State.GREETED)
    greeting = dataclasses.replace(Greeting.read(VALID[FrameKind.INI]), epoch=kept.epoch + 1)
    assert isinstance(only_lost(server.accept(kept, greeting, resumed=True, now=0.0)), ProtocolError)
    assert sent(server) == b""
    assert kept.queued == 1


def test_client_refuses_resume_of_unknown_session() -> None:
    client = in_state(State.OPENING)
    greeting = Greeting(SERVER, TOKEN, 2**40, 2**20, 10_000, resume=True, epoch=1)
    assert isinstance(only_lost(feed(client, greeting.frame())), ProtocolError)


@pytest.mark.parametrize("epoch", [0, 2, 2**32 - 2])
def test_server_begins_the_epoch_after_the_clients(epoch: int) -> None:
    greeting = Greeting(SERVER, TOKEN, 2**40, 2**20, 10_000, epoch=epoch)
    error = only_lost(feed(in_state(State.OPENING), greeting.frame()))
    assert f"epoch {epoch} of a session in epoch 0; expected 1" in str(error)


def test_ini_of_other_version_or_magic_is_refused() -> None:
    for body, why in ((b"NETQ\x02\x00\x00\x00", "version 2"), (b"SSH-2.0-", "does not speak netq")):
        error = only_lost(feed(Connection(SERVER, OPTIONS, 0.0), Frame(FrameKind.INI, length=8, body=body)))
        assert why in str(error)


# Events, in order.


def test_frames_before_fault_are_processed() -> None:
    one = message()
    connection = opened(OPTIONS, 0.0, one)
    events = feed(connection, VALID[FrameKind.MSG], VALID[FrameKind.ACK], VALID[FrameKind.INI], VALID[FrameKind.PING])
    assert [type(event) for event in events] == [Lost]
    assert (arrived(connection), one.times) == ([b"hi"], 1)
    assert connection.closed
    assert sent(connection) == b""


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("fault", [VALID[FrameKind.ACK]._replace(number=3), VALID[FrameKind.DROP]._replace(number=9)])
def test_frames_after_fault_are_ignored(fault: Frame, late: bool) -> None:
    """Nor are small messages and ACKs, even when the rest is processed as the link is lost."""
    first, second = message(), message()
    connection = opened(OPTIONS, 0.0, first, second)
    before = (VALID[FrameKind.MSG], VALID[FrameKind.ACK])
    behind = (VALID[FrameKind.MSG]._replace(number=2), VALID[FrameKind.ACK]._replace(number=2))
    events = feed(connection, *before) if late else []
    events += feed(connection, *(() if late else before), fault, *behind)
    assert isinstance(only_lost(events), ProtocolError)
    assert (arrived(connection), first.times, second.times) == ([b"hi"], 1, 0)
    assert connection.session is not None
    assert [cursor.held for cursor in connection.session.greeting(SERVER, resume=True).cursors] == [1]


def test_greeting_before_fault_is_processed() -> None:
    events = feed(Connection(SERVER, OPTIONS, 0.0), VALID[FrameKind.INI], VALID[FrameKind.PING])
    assert [type(event) for event in events] == [Hello, Lost]


def test_link_lost_before_answer_stays_lost() -> None:
    server, untouched = in_state(State.GREETED), session()
    feed(server, VALID[FrameKind.PING])
    error = only_lost(server.accept(untouched, Greeting.read(VALID[FrameKind.INI]), resumed=False, now=0.0))
    assert isinstance(error, ConnectionResetError)
    assert server.closed
    assert sent(server) == b""
    assert not untouched.begun


def test_illegal_frame_for_session_drops_link() -> None:
    for frame in (
        VALID[FrameKind.MSG]._replace(number=2),
        VALID[FrameKind.DROP]._replace(number=2),
        VALID[FrameKind.DROP]._replace(value=2**64 - 1),
        VALID[FrameKind.ACK]._replace(number=2),
        VALID[FrameKind.MSG]._replace(value=1),
    ):
        assert isinstance(only_lost(feed(opened(), frame)), ProtocolError)


def test_memory_error_drops_link() -> None:
    class Full(Memory):
        def take(self, size: int, *, fresh: bool = False) -> memoryview:
            raise MemoryError("no memory")

    connection = in_state(State.GREETED)
    greeting = Greeting.read(VALID[FrameKind.INI])
    connection.accept(Session(TOKEN, OPTIONS, Full()), greeting, resumed=False, now=0.0)
    assert isinstance(only_lost(feed(connection, VALID[FrameKind.MSG])), MemoryError)


def test_server_without_session_begins_new_epoch() -> None:
    pair = LossyPair(OPTIONS, limit=100)
    pair.run()
    done = pair.put(pair.client, b"done")
    pair.run()
    travelled = pair.put(pair.client, b"x" * 1000)
    waiting = pair.put(pair.client, b"waiting")
    pair.send(pair.client)
    pair.restart_server()
    pair.run()
    assert pair.client.acked == [done, waiting]
    assert pair.client.failed == [Failed(travelled, None)]
    assert pair.client.opened == [False, False]
    assert pair.server.received == {0: [b"done", b"waiting"]}


def test_server_begins_epoch_again_if_its_ini_was_lost() -> None:
    """Its INI is lost. Then the client's cursors still mean the session before: believed, they would lose a message."""
    pair = LossyPair(OPTIONS)
    pair.run()
    pair.put(pair.server, b"before")
    pair.run()
    pair.restart_server()
    pair.connect()
    pair.send(pair.client)
    pair.deliver(pair.client, 1000)
    after = pair.put(pair.server, b"after")
    pair.send(pair.server)
    pair.cut()
    pair.run()
    assert pair.client.received == {0: [b"before", b"after"]}
    assert pair.server.acked[-1] is after
    assert pair.server.opened == [False, True]  # its user gets one event
    assert pair.client.opened == [False, False]
    assert pair.client.lost + pair.server.lost == []


def test_smaller_message_size_of_peer_fails_queued_messages() -> None:
    pair = LossyPair(OPTIONS, dataclasses.replace(OPTIONS, message_size=10))
    large, small = pair.put(pair.client, b"x" * 11), pair.put(pair.client, b"x" * 10)
    pair.run()
    ((failed),) = pair.client.failed
    assert failed.message is large
    assert isinstance(failed.error, MessageTooLarge)
    assert pair.server.received == {0: [b"x" * 10]}
    assert pair.client.acked == [small]  # the server never hears of the first
    assert (large.number, small.number) == (0, 1)
    with pytest.raises(MessageTooLarge):
        pair.put(pair.client, b"x" * 11)


# Small messages and ACKs, and parts of messages.


def held(connection: Connection) -> tuple[int, int]:
    """Whole messages of lane 0 that count as received, and bytes of the next."""
    assert connection.session is not None
    (cursor,) = connection.session.greeting(SERVER, resume=True).cursors
    return cursor.held, cursor.partial


def whole(number: int, size: int = 2) -> bytes:
    return Frame(FrameKind.MSG, length=size, number=number, value=size, body=bytes([number]) * size).whole()


def talking(*messages: Outgoing) -> Connection:
    """A connection in OPEN that has received a message, as the first of a lane does not go by the short path."""
    connection = opened(OPTIONS, 0.0, *messages)
    connection.feed(memoryview(whole(1)), 0.0)
    assert arrived(connection) == [b"\1\1"]
    sent(connection)
    return connection


def test_small_messages_and_acks_are_received() -> None:
    one = message()
    connection = talking(one)
    connection.probe(1.0)
    assert connection.session is not None
    connection.session.confirmed = False
    assert connection.feed(memoryview(whole(2) + VALID[FrameKind.ACK].whole() + whole(3)), 1.5) == []
    assert (arrived(connection), one.times, held(connection)) == ([b"\2\2", b"\3\3"], 1, (3, 0))
    assert connection.session.confirmed
    assert kinds(sent(connection, 1.5)) == [FrameKind.PING]
    assert connection.tick(10.0) == []
    assert connection.deadline() == 11.5


def test_connection_owes_acks_and_messages() -> None:
    assert not Connection(SERVER, OPTIONS, 0.0).owes, "it has no session yet"
    connection = talking()
    assert connection.session is not None
    assert not connection.owes
    connection.feed(memoryview(whole(2)[:25]), 0.0)
    assert not connection.owes, "the message is not whole"
    connection.feed(memoryview(whole(2)[25:]), 0.0)
    assert connection.owes
    sent(connection)
    assert not connection.owes
    connection.session.put(message())
    assert connection.owes


@pytest.mark.parametrize("size", [1, 23, 24, 25, 123])
def test_part_of_message_survives_link_loss(size: int) -> None:
    """No byte of it comes again; nothing of it is there before it is whole."""
    connection = talking()
    connection.feed(memoryview(whole(2, 100)[:size]), 0.0)
    connection.detach()
    assert held(connection) == (1, max(0, size - 24))
    assert arrived(connection) == []


def test_frames_behind_fault_are_ignored() -> None:
    one, other = message(), message()
    connection = talking(one, other)
    events = connection.feed(memoryview(whole(2) + whole(2) + whole(3) + VALID[FrameKind.ACK].whole()), 0.0)
    assert isinstance(only_lost(events), ProtocolError)
    assert (arrived(connection), held(connection), one.times) == ([b"\2\2"], (2, 0), 0)


# Goodbye.


@pytest.mark.parametrize("order", [("client",), ("server",), ("client", "server"), ("server", "client")])
@pytest.mark.parametrize("waiting", [0, 1, 5])
def test_either_side_may_close_first_without_loss(order: tuple[str, ...], waiting: int) -> None:
    pair = LossyPair(dataclasses.replace(OPTIONS, transport_size=10, window=300), limit=10)
    pair.run()
    ends = {"client": pair.client, "server": pair.server}
    sent = [pair.put(end, b"x" * 50) for end in ends.values() for _ in range(waiting)]
    pair.turn()
    for name in order:
        pair.close(ends[name])
    pair.run()
    for end in ends.values():
        assert len(end.received.get(0, [])) == waiting
        assert end.over
        assert [event.over for event in end.finished][-1]
    assert len(pair.client.acked) + len(pair.server.acked) == len(sent)
    assert len(pair.links) == 1
    assert not pair.up


def test_side_that_received_fin_may_send() -> None:
    first = message()
    server = opened(OPTIONS, 0.0, first)
    feed(server, VALID[FrameKind.FIN])
    assert server.state is State.ENDING
    assert server.session is not None
    second = put(server)
    assert kinds(sent(server)) == [FrameKind.MSG]
    server.session.closing = True
    assert server.close() == []
    assert kinds(sent(server)) == []
    events = feed(server, VALID[FrameKind.ACK]._replace(number=2))
    assert [type(event) for event in events] == [Finished]
    assert (first.times, second.times) == (1, 1)
    assert kinds(sent(server)) == [FrameKind.FIN]
    assert server.closed


def test_side_that_sent_fin_still_acknowledges() -> None:
    server = opened()
    assert server.session is not None
    server.session.closing = True
    assert server.close() == []
    assert kinds(sent(server)) == []  # one message is not acknowledged
    feed(server, VALID[FrameKind.ACK])
    assert kinds(sent(server)) == [FrameKind.FIN]
    feed(server, VALID[FrameKind.MSG], VALID[FrameKind.PING])
    assert kinds(sent(server)) == [FrameKind.PING, FrameKind.ACK]
    (event,) = feed(server, VALID[FrameKind.FIN])
    assert isinstance(event, Finished)
    assert event.over
    assert server.closed
    assert sent(server) == b""


@pytest.mark.parametrize("state", State)
def test_close_is_idempotent_in_every_state(state: State) -> None:
    connection = in_state(state)
    for _ in range(3):
        if connection.session is not None:
            connection.session.closing = True
        assert connection.close() == []
    connection.detach()
    connection.detach()
    assert connection.close() == []
    assert connection.closed


def test_session_closed_without_link_sends_fin_on_next() -> None:
    pair = LossyPair(OPTIONS)
    pair.run()
    pair.cut()
    message = pair.put(pair.client, b"the last")
    pair.close(pair.client)
    pair.run()
    assert pair.client.acked == [message]
    assert (pair.client.over, pair.server.over) == (True, True)


def test_message_and_fin_in_every_division() -> None:
    data = VALID[FrameKind.MSG].whole() + VALID[FrameKind.FIN].whole()
    for cut in range(len(data) + 1):
        connection = opened()
        events = list(
            itertools.chain.from_iterable(connection.feed(memoryview(part), 0.0) for part in (data[:cut], data[cut:]))
        )
        assert [type(event) for event in events] == [Finished]
        assert arrived(connection) == [b"hi"]
        assert connection.state is State.ENDING


def test_lost_connection_releases_message_without_gc() -> None:
    connection = Connection(SERVER, OPTIONS, 0.0)
    (hello,) = feed(connection, VALID[FrameKind.INI])
    assert isinstance(hello, Hello)
    memory = Memory()
    connection.accept(Session(TOKEN, OPTIONS, memory), hello.greeting, resumed=False, now=0.0)
    size = 2**20
    feed(connection, Frame(FrameKind.MSG, length=1000, number=1, value=size, body=bytes(1000)))
    connection.feed(memoryview(Frame(FrameKind.MSG, length=1000, number=1, value=size).header() + b"a part"), 0.0)
    gc.disable()
    try:
        connection.detach()
        assert memory.idle == 0, "the session goes on with it"
        assert connection.session is not None
        connection.session.abandon()
        assert memory.idle >= size
    finally:
        gc.enable()


def test_pieces_returns_accepted_bodies_as_parts() -> None:
    several = (uuid.UUID(int=8), uuid.UUID(int=9))
    sent: list[list[Buffer | Part]] = []
    for with_parts in (False, True):
        connection = in_state(State.OPEN)
        take = partial(connection.pieces, is_block=_has_audience) if with_parts else connection.to_send
        assert connection.session is not None
        connection.session.put(Outgoing(Stream([bytes(3000), bytes(3000)]), audience=several))
        connection.session.put(Outgoing(Stream([bytes(4097)])))
        connection.session.put(Outgoing(Stream([b"for one"])))
        sent.append([piece for _ in range(3) for piece in take(4000, 0.0)])
        assert connection._is_block is None, "a reference to the link would make a cycle"
    plain, taken = sent
    bodies = [piece for piece in taken if isinstance(piece, Part)]
    assert [(part.start, part.stop, part.audience) for part in bodies] == [
        (0, 4000, several),
        (4000, 6000, several),
    ]
    assert taken[-1] == b"for one", "not worth a part"
    assert not any(isinstance(piece, Part) for piece in plain)
    assert b"".join(plain) == b"".join(  # type: ignore[arg-type]
        b"".join(piece.buffers()) if isinstance(piece, Part) else piece for piece in taken
    )


def _has_audience(part: Part) -> bool:
    return bool(part.audience)
