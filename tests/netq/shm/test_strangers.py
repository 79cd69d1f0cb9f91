"""A hostile process of the same user: its link is lost, in one line of the log, and nobody else notices."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from pickle import PickleBuffer
from types import SimpleNamespace
from typing import Any, cast

import pytest

from netq import Closed, Delivery, NetworkLocation, Unreadable
from netq.buffers import Buffer
from netq.core import Communicator
from netq.io.baton import Worker
from netq.io.receive_size import INITIAL_READ, READ_BUDGET
from netq.io.selector import READ
from netq.protocol import wire
from netq.protocol.wire import Greeting, message_header
from netq.shm import control, memfd, records, rendezvous, sender
from netq.shm.control import BELL, HELLO, REFUSED, RING, SEGMENT, Channel, ControlSocket, Packet, take
from netq.shm.descriptors import Descriptors
from netq.shm.link import Link
from netq.shm.records import Kind, Record
from netq.shm.ring import Reader, Writer
from netq.shm.segments import Pool
from netq.shm.sender import BATCH, Sender
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder

GREETING = Greeting(uuid.UUID(int=99), bytes(16), 2**40, 2**20, 10_000).frame().whole()
MAGIC, VERSION = b"NETQ-SHM", struct.pack("<H", 1)
MIB = 2**20


class Stranger:
    """The client's side of a link, in our hands."""

    def __init__(self, server: Communicator) -> None:
        self.control = ControlSocket(rendezvous.connect(server.netloc))
        self.channel: Channel | None = None

    def say(self, *parts: bytes) -> None:
        """Put bytes into the ring and ring the bell."""
        if self.channel is None:
            self.channel = control.bring(self.control)
        self.channel.writer.write(parts)
        self.control.ring()

    def hears(self) -> Record:
        """Wait for the next record that is no DATA."""
        assert self.channel is not None
        self.control.sock.settimeout(LIMIT)
        reader = self.channel.reader
        while True:
            if not reader.ready():
                self.wait()
                continue
            header = memoryview(bytearray(24))
            reader.read_into(header)
            said = Record(*records.unpack(header))
            if said.kind != Kind.DATA:
                return said
            reader.skip(said.size)

    def wait(self) -> None:
        """Wait for the bell, if there is nothing in the ring."""
        assert self.channel is not None
        if self.channel.reader.sleep():
            packet = self.control.receive()
            assert packet is not None
            if packet.fd is not None:
                os.close(packet.fd)
        self.channel.reader.wake()

    def is_cut(self) -> bool:
        self.control.sock.settimeout(LIMIT)
        while not self.is_at_end():
            pass
        return True

    def is_at_end(self) -> bool:
        """Wait for a packet and drop it; or for the end, which is a reset if bells of ours were not heard."""
        try:
            packet = self.control.receive()
        except ConnectionResetError:
            return True
        if packet is not None and packet.fd is not None:
            os.close(packet.fd)
        return packet is None

    def close(self) -> None:
        self.control.sock.close()
        if self.channel is not None:
            self.channel.close()


Meet = Callable[[Communicator], Stranger]


@pytest.fixture
def meet() -> Iterator[Meet]:
    with ExitStack() as stack:

        def meet(server: Communicator) -> Stranger:
            stranger = Stranger(server)
            stack.callback(stranger.close)
            return stranger

        yield meet


def data(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return records.data(len(body)) + body


def unharmed(communicators: Communicators, server: Communicator) -> None:
    introduce(server, communicators.client(server.netloc))


@pytest.mark.parametrize(
    ("packet", "complaint"),
    [
        (b"GET / HTTP/1.1", "the peer does not speak netq: its first packet is b'GET / HTTP/1.1'"),
        (bytes([HELLO]) + b"NETQ-MEM" + VERSION, "it begins with b'NETQ-MEM', expected b'NETQ-SHM'"),
        (bytes([HELLO]) + MAGIC + b"\2\0", "the peer speaks version 2 of shared memory, this side version 1"),
        (bytes([HELLO]) + MAGIC + VERSION, "the peer's rings did not come"),
        (bytes([HELLO]) + MAGIC + VERSION + b"more", "the peer does not speak netq"),
        (bytes([BELL]), "the peer does not speak netq"),
    ],
    ids=str,
)
def test_a_first_packet_that_is_no_hello(
    communicators: Communicators, log: LogRecorder, meet: Meet, packet: bytes, complaint: str
) -> None:
    server = communicators.server()
    stranger = meet(server)
    stranger.control.sock.send(packet)
    assert complaint in log.wait("the connection was closed")
    stranger.control.sock.settimeout(LIMIT)
    answer = stranger.control.receive()
    assert answer is not None
    assert (answer.kind, complaint.encode() in answer.body) == (REFUSED, True)
    unharmed(communicators, server)


def sized(size: int) -> int:
    return memfd.make(size)


def unsealed(size: int) -> int:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


def huge(size: int) -> int:
    """Memory in huge pages, of which there need be none before it is touched."""
    try:
        fd = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC | os.MFD_HUGETLB | os.MFD_HUGE_2MB)
    except OSError as error:
        pytest.skip(f"no huge pages: {error}")
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def pipe(size: int) -> int:
    read, write = os.pipe()
    os.close(write)
    return read


@pytest.mark.parametrize(
    ("make", "size", "complaint"),
    [
        (unsealed, 2 * RING, "has the seals 0x0; expected 0x7"),
        (pipe, 0, "the descriptor that the peer sent is no shared memory"),
        (lambda size: os.open("/dev/null", os.O_RDWR), 0, "is no shared memory"),
        (sized, 4096, "two rings in 4096 bytes"),
        (sized, 2 * RING + 4096, "two rings in"),
        (sized, 2 * MIB + 8192, "expected a multiple of 8192 up to 2097152"),
        (sized, 2**40, "two rings in 1099511627776 bytes"),
        (huge, 4 * MIB, "has pages of 2097152 bytes; expected 4096"),
    ],
)
def test_rings_that_are_no_rings(
    communicators: Communicators, log: LogRecorder, meet: Meet, make: Callable[[int], int], size: int, complaint: str
) -> None:
    server = communicators.server()
    stranger = meet(server)
    fd = make(size)
    stranger.control.send(HELLO, MAGIC + VERSION, fd)
    os.close(fd)
    assert complaint in log.wait("the connection was closed")
    assert stranger.is_cut()
    unharmed(communicators, server)


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        (b"x", "1 bytes of a record that has 24"),
        (Record(0).pack(), "a record of kind 0"),
        (Record(99).pack(), "a record of kind 99"),
        (records.data(0), "0 bytes are said to follow, 0 do"),
        (records.data(10) + b"short", "10 bytes are said to follow, 5 do"),
        (records.data(2**64 - 1) + b"x", "18446744073709551615 bytes are said to follow"),
        (data(b"HTTP" * 10), "no frame of netq"),
        (Record(Kind.ANNOUNCE).pack(), "0 bytes are announced"),
        (Record(Kind.GRANT, 1, 0, 100).pack(), "grants 100 bytes that were not announced"),
        (Record(Kind.INLINE).pack(), "refuses bytes that were not announced"),
        (Record(Kind.WROTE, size=10).pack(), "10 bytes were written beside the ring, 0 were allowed"),
        (Record(Kind.STOPPED).pack(), "cannot write where it was not asked to"),
        (Record(Kind.RELEASE, 7).pack(), "segment 7, which was never sent"),
    ],
    ids=str,
)
def test_records_that_make_no_sense(
    communicators: Communicators, log: LogRecorder, meet: Meet, records: bytes, complaint: str
) -> None:
    server = communicators.server()
    stranger = meet(server)
    stranger.say(records)
    assert complaint in log.wait("the connection was closed")
    assert stranger.is_cut()
    unharmed(communicators, server)


def begin_message(stranger: Stranger, size: int) -> Record:
    """Become known to the server, and announce the body of a message; return its answer."""
    stranger.say(data(GREETING))
    wait_for_greeting(stranger)
    stranger.say(data(message_header(0, size, 1, size)) + Record(Kind.ANNOUNCE, size=size).pack())
    return stranger.hears()


def wait_for_greeting(stranger: Stranger) -> None:
    assert stranger.channel is not None
    stranger.control.sock.settimeout(LIMIT)
    while not stranger.channel.reader.ready():
        stranger.wait()


SIZE = 256 * 1024  # all that may be sent unasked, and enough for a segment


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        (Record(Kind.WROTE, size=SIZE + 1).pack(), f"{SIZE + 1} bytes were written beside the ring, {SIZE} were"),
        (Record(Kind.WROTE).pack(), "0 bytes were written beside"),
        (data(b"x"), f"bytes in the ring before {SIZE} that come beside it"),
        (Record(Kind.ANNOUNCE, size=10).pack(), f"10 bytes are announced before {SIZE} others"),
    ],
    ids=str,
)
def test_a_transfer_that_is_none(
    communicators: Communicators, log: LogRecorder, meet: Meet, records: bytes, complaint: str
) -> None:
    server = communicators.server()
    stranger = meet(server)
    answer = begin_message(stranger, SIZE)
    assert (answer.kind, answer.offset, answer.size) == (Kind.GRANT, 0, SIZE)
    stranger.say(records)
    assert complaint in log.wait("lost (")
    assert stranger.is_cut()
    unharmed(communicators, server)


@pytest.mark.parametrize(
    ("offset", "size", "complaint"),
    [
        (1, SIZE, f"{SIZE} bytes are granted at 1 of segment 1, which has {SIZE}"),
        (2**64 - 1, 1, f"1 bytes are granted at {2**64 - 1}"),
        (0, SIZE + 1, f"{SIZE + 1} bytes are granted at 0"),
        (0, 0, "grants 0 bytes that were not announced"),
    ],
)
def test_a_grant_of_what_is_not_there(
    communicators: Communicators, log: LogRecorder, meet: Meet, offset: int, size: int, complaint: str
) -> None:
    server = communicators.server()
    stranger = meet(server)
    future = announced(server, stranger)
    stranger.say(Record(Kind.GRANT, 1, offset, size).pack())
    assert complaint in log.wait("lost (")
    assert stranger.is_cut()
    unharmed(communicators, server)
    communicators.abort(server)
    assert isinstance(future.exception(LIMIT), Closed)


def test_a_peer_that_grants_and_vanishes_gets_nothing_and_harms_nobody(
    communicators: Communicators, log: LogRecorder, meet: Meet
) -> None:
    server = communicators.server()
    stranger = meet(server)
    future = announced(server, stranger)
    stranger.say(Record(Kind.GRANT, 1, 0, 1000).pack(), Record(Kind.GRANT, 1, 0, 1000).pack())
    log.wait("grants 1000 bytes that were not announced")
    communicators.abort(server)
    assert isinstance(future.exception(LIMIT), Closed)


def announced(server: Communicator, stranger: Stranger) -> Delivery:
    """Let the server announce a message of SIZE bytes, and give it a segment."""
    stranger.say(data(GREETING))
    wait_for_greeting(stranger)
    future = server.put(PickleBuffer(bytearray(SIZE)))
    said = stranger.hears()
    assert said.kind == Kind.ANNOUNCE
    assert said.size > SIZE
    fd = memfd.make(SIZE)
    stranger.control.send(SEGMENT, struct.pack("<I", 1), fd)
    os.close(fd)
    return future


def test_a_reader_that_never_reads_is_cut_before_its_answers_fill_our_memory(
    communicators: Communicators, log: LogRecorder, meet: Meet
) -> None:
    server = communicators.server()
    stranger = meet(server)
    stranger.control.sock.settimeout(LIMIT)
    stranger.say()
    while not log.having("left 1024 records unread"):
        assert stranger.channel is not None
        if stranger.channel.writer.room() >= 2400:
            stranger.say(Record(Kind.ANNOUNCE, size=1).pack() * 100)
        elif stranger.channel.writer.sleep() and stranger.is_at_end():
            break
    assert stranger.is_cut()
    log.wait("left 1024 records unread")
    unharmed(communicators, server)


def fill(link: Link) -> None:
    """Ring bells that nobody hears, until the socket takes no more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            link._control.sock.send(bytes([BELL]))


def test_a_peer_whose_socket_is_full_gets_no_segment_but_its_message_comes(
    communicators: Communicators, meet: Meet, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = communicators.server()
    stranger = meet(server)
    stranger.say(data(GREETING))
    assert stranger.channel is not None
    reader = stranger.channel.reader
    while not reader.ready():
        pass
    reader.skip(reader.ready())
    (peer,) = server._endpoint.peers.values()
    assert isinstance(peer.link, Link)
    peer.loop.ask(fill, peer.link)
    monkeypatch.setattr(stranger, "wait", lambda: None)  # it looks into the ring only: to listen would make room
    stranger.say(data(message_header(0, SIZE, 1, SIZE)) + Record(Kind.ANNOUNCE, size=SIZE).pack())
    assert stranger.hears().kind == Kind.INLINE
    for _ in range(4):
        while stranger.channel.writer.room() < SIZE // 4 + 24:
            pass
        stranger.say(data(bytes(SIZE // 4)))
    with pytest.raises(Unreadable):
        server.get(timeout=LIMIT)  # zeros are no pickle, but they came


@pytest.mark.parametrize("offset", [0, 64, 128, 192])
def test_numbers_in_the_ring_at_random(communicators: Communicators, log: LogRecorder, meet: Meet, offset: int) -> None:
    server = communicators.server(heartbeat=0.1)
    stranger = meet(server)
    stranger.say(data(GREETING))
    wait_for_greeting(stranger)
    assert stranger.channel is not None
    chance = random.Random(offset)
    for half in (0, RING):
        stranger.channel.memory[half + offset : half + offset + 8] = chance.randbytes(7) + b"\x7f"
    stranger.control.ring()
    unharmed(communicators, server)
    if offset in (0, 128):
        assert "says" in log.wait("lost (")
        assert stranger.is_cut()


def test_a_second_hello_and_other_packets(communicators: Communicators, log: LogRecorder, meet: Meet) -> None:
    server = communicators.server()
    for packet in (bytes([HELLO]) + MAGIC + VERSION, b"\xff", bytes([SEGMENT]) + b"\1"):
        stranger = meet(server)
        stranger.say()
        stranger.control.sock.send(packet)
        assert stranger.is_cut()
    log.wait("a packet of kind", count=3)
    unharmed(communicators, server)


@pytest.mark.parametrize("make", [unsealed, pipe, huge])
def test_a_segment_that_is_none(
    communicators: Communicators, log: LogRecorder, meet: Meet, make: Callable[[int], int]
) -> None:
    server = communicators.server()
    stranger = meet(server)
    stranger.say()
    fd = make(2 * MIB)
    stranger.control.send(SEGMENT, struct.pack("<I", 1), fd)
    os.close(fd)
    log.wait("the connection was closed")
    assert stranger.is_cut()
    unharmed(communicators, server)


def test_descriptors_that_nobody_asked_for_are_closed_again(communicators: Communicators, meet: Meet) -> None:
    server = communicators.server()
    stranger = meet(server)
    stranger.say()
    fds = [os.memfd_create("unasked") for _ in range(8)]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("8i", *fds))]
    stranger.control.sock.sendmsg([bytes([BELL])], rights)
    for fd in fds:
        os.close(fd)
    stranger.say(data(GREETING))
    wait_for_greeting(stranger)  # so the packet before was read
    assert not [path for path in Path("/proc/self/fd").iterdir() if "unasked" in target(path)]
    assert server.statistics()


def target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except OSError:  # that of the listing itself
        return ""


def test_whoever_says_nothing_is_cut_in_time(communicators: Communicators, meet: Meet) -> None:
    server = communicators.server(handshake_timeout=0.1)
    silent, half = meet(server), meet(server)
    half.say(data(GREETING[:10]))
    assert silent.is_cut()
    assert half.is_cut()
    unharmed(communicators, server)


def test_the_answer_of_a_server_is_no_news_from_a_client(
    communicators: Communicators, log: LogRecorder, meet: Meet
) -> None:
    server = communicators.server()
    stranger = meet(server)
    stranger.say()
    stranger.control.send(REFUSED, b"no\nCRITICAL root: all is lost")
    assert "a packet of kind 4" in log.wait("the connection was closed")
    assert not log.having("all is lost")
    unharmed(communicators, server)


def test_the_words_of_a_refusal_make_one_line(communicators: Communicators, log: LogRecorder) -> None:
    door = rendezvous.listen(NetworkLocation("localhost", 0))
    try:
        communicators.client(door.netloc)
        door.sock.setblocking(True)
        door.sock.settimeout(LIMIT)
        with door.sock.accept()[0] as sock:
            ControlSocket(sock).send(REFUSED, b"no\nCRITICAL root: all is lost \x1b[31m" + b"x" * 400)
            assert "the peer refuses: no\\nCRITICAL root: all is lost \\x1b[31m" in log.wait("the peer refuses")
    finally:
        door.close()


def a_link(control: ControlSocket, received: Callable[[int, float], object] | None = None) -> tuple[Link, list[object]]:
    """A server's link that nothing but the test moves, and what it was lost for, or asks its loop for."""
    lost: list[object] = []
    fd = memfd.make(2 * RING)
    ends = take(Packet(HELLO, MAGIC + VERSION, fd))
    os.close(fd)
    listener = SimpleNamespace(
        connect=lambda: SimpleNamespace(
            source=None, to_send=lambda limit, now: [], buffer=lambda: memoryview(bytearray(MIB)), received=received
        ),
        deliver=lambda link, events: None,
        lost=lambda link, error: lost.append(error),
    )
    loop = SimpleNamespace(
        watch=lambda *_: None,
        forget=lambda *_: None,
        add_ring=lambda ring: None,
        remove_ring=lambda ring: None,
        call=lambda step, *_: lost.append(step.__name__),
        is_own=True,
        baton=SimpleNamespace(
            flush_later_from_loop=lambda worker: lost.append("flush_later_from_loop"), reply_expected=False
        ),
    )
    return Link(listener, loop, control, ends, Pool(0), "stranger"), lost  # type: ignore[arg-type]


class Endless(ControlSocket):
    """Bells that come as fast as they are heard."""

    heard = 0

    def receive(self) -> Packet:
        self.heard += 1
        assert self.heard < 10_000
        return Packet(BELL, b"", None)


def test_bells_without_end_before_a_segment_that_never_comes() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        link, lost = a_link(Endless(ours))
        link._guarded(lambda: link._do(Record(Kind.RELEASE, 7)))
        link._channel.close()
    assert str(lost[-1]) == "segment 7, which was never sent"


def test_much_that_is_announced_is_granted_in_parts(communicators: Communicators, meet: Meet) -> None:
    size = 64 * MIB
    server = communicators.server()
    stranger = meet(server)
    stranger.say(data(GREETING))
    wait_for_greeting(stranger)
    stranger.say(data(message_header(0, 1, 1, size), b"x"))
    while not server_grants(stranger):
        pass
    stranger.say(data(message_header(0, size - 1, 1, size)) + Record(Kind.ANNOUNCE, size=size - 1).pack())
    answer = stranger.hears()
    assert (answer.kind, answer.size) == (Kind.GRANT, BATCH)


def server_grants(stranger: Stranger) -> bool:
    """Whether the server has said how much more of the message may come; waits for it to say anything."""
    wait_for_greeting(stranger)
    assert stranger.channel is not None
    reader = stranger.channel.reader
    said = memoryview(bytearray(reader.ready()))
    reader.read_into(said)
    return bytes([wire.Kind.ACK]) in bytes(said)


def test_a_record_that_costs_much_is_taken_in_parts_and_asked_for_once() -> None:
    def costly(n: int, now: float) -> None:
        begin = time.thread_time()
        while time.thread_time() - begin < READ_BUDGET + n * 1e-6:
            pass

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        link, asked = a_link(ControlSocket(ours), costly)
        asked.clear()
        link._due = 0
        link._channel.memory[256 : 256 + 24 + 200_000] = data(bytes(200_000))
        link._channel.memory[:8] = struct.pack("Q", 200_024)
        took = []
        for _ in range(3):
            theirs.send(bytes([BELL]))
            begin, left = time.thread_time(), link._in._left
            link._rung(READ)
            took.append(((left or 200_000) - link._in._left, time.thread_time() - begin))
        assert asked == ["_go_on"]
        assert took[0][0] <= INITIAL_READ
        assert [size for size, _ in took[1:]] == [0, 0]  # its turn is yet to come
        link._go_on(link._loop)
        assert 0 < took[0][0] + link._in._left < 200_000
        link._go()
        link._channel.close()


def test_an_ack_waits_for_an_answer_that_is_likely_to_come_soon() -> None:
    """The loop says whether it is, and has it sent after a millisecond if none comes."""
    sent: list[int] = []

    def to_send(limit: int, now: float) -> list[bytes]:
        sent.append(limit)
        return []

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        link, asked = a_link(ControlSocket(ours), lambda n, now: None)
        asked.clear()
        link._due = 0
        link.connection.to_send = to_send  # type: ignore[assignment, method-assign]
        link.peer = cast(Worker, object())
        for likely, due, sends in [(False, [], 1), (True, ["flush_later_from_loop"], 0)]:
            link._baton.reply_expected = likely  # type: ignore[misc]
            theirs.send(bytes([BELL]))
            link._rung(READ)
            assert asked == due
            assert len(sent) == sends
            sent.clear()
        link.flush()
        assert len(sent) == 1
        link._go()
        link._channel.close()


def test_segments_are_not_kept_where_descriptors_are_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    files, fd, other = Descriptors(lambda: False), memfd.make(SIZE), memfd.make(SIZE)
    files.add(1, fd)
    monkeypatch.setattr("resource.getrlimit", lambda kind: (2 * other, 2 * other))
    files.add(2, other)
    assert (files.place(1, 0, SIZE), files.place(2, 0, SIZE)) == (fd, None)
    files.clear()
    for closed in (fd, other):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(closed)


def test_a_peer_that_makes_writing_wait_gets_the_rest_in_the_ring_until_that_is_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, durations = [0.0], iter([0.06, 0.01, 0.06])
    write = os.pwritev

    def slow_write(*args: Any) -> int:
        now[0] += next(durations, 0.0)
        return write(*args)

    monkeypatch.setattr(sender, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sender, "os", SimpleNamespace(pwritev=slow_write))
    monkeypatch.setattr(sender, "_PIECE", 100)
    memory = bytearray(RING)
    reader = Reader(memory)
    bodies: list[list[Buffer]] = [[memoryview(bytes(SIZE))], [memoryview(bytes(SIZE))], [b"end"]]
    files, said = Descriptors(lambda: False), []
    out = Sender(Writer(memory), lambda limit: bodies.pop(0) if bodies else [], files)
    files.add(1, memfd.make(SIZE))

    def go_on() -> None:
        more = True
        while more:
            more = out.push()
            while reader.ready():
                header = memoryview(bytearray(24))
                reader.read_into(header)
                said.append(Record(*records.unpack(header)))
                if said[-1].kind == Kind.DATA:
                    reader.skip(said[-1].size)

    go_on()
    out.granted(Record(Kind.GRANT, 1, 0, 1000))  # it will be written slowly, quickly, slowly
    go_on()
    kinds = [records.kind for records in said]
    assert kinds[:5] == [Kind.ANNOUNCE, *[Kind.WROTE] * 3, Kind.STOPPED]
    assert set(kinds[5:]) == {Kind.DATA}
    assert sum(records.size for records in said[5:]) == 2 * SIZE - 300 + 3
    now[0] = 6.1  # of which 0.12 s are less than 2 %
    bodies.append([memoryview(bytes(SIZE))])
    go_on()
    assert said[-1].kind == Kind.ANNOUNCE
    out.clear()


def test_a_segment_where_bytes_are_still_to_be_written_is_not_released(
    communicators: Communicators, meet: Meet, log: LogRecorder
) -> None:
    """Its descriptor's number may be that of any other file by the time that they are written."""
    server = communicators.server()
    stranger = meet(server)
    stranger.say(data(GREETING))
    fd = memfd.make(2 * SIZE)
    while not server.statistics():
        pass  # it is being let in
    server.put(bytes(SIZE), uuid.UUID(int=99))
    announced = stranger.hears()
    assert announced.kind == Kind.ANNOUNCE
    stranger.control.send(SEGMENT, struct.pack("<I", 1), fd)
    os.close(fd)
    stranger.say(Record(Kind.GRANT, 1, 0, announced.size).pack(), Record(Kind.RELEASE, 1).pack())
    assert stranger.is_cut()
    log.wait(f"the peer releases segment 1, where it wants {announced.size} bytes")
    server.close(0)  # its message has begun, and waits for a stranger
    communicators.release(server)


def test_of_small_messages_few_are_taken_at_once_and_of_large_ones_much() -> None:
    memory, asked, small = bytearray(RING), [], True

    def take(limit: int) -> list[Buffer]:
        asked.append(limit)
        return [bytes(100)] * (limit // 100) if small else [memoryview(bytes(limit))]

    reader = Reader(memory)
    out = Sender(Writer(memory), take, Descriptors(lambda: False))

    def pushes(count: int) -> None:
        while len(asked) < count:
            out.push()
            reader.skip(reader.ready())
            if not small and out._announced:
                out.inline()

    pushes(4)
    assert asked == [1024 * 1024, 100 * 512, 100 * 512, 100 * 512]
    small = False
    pushes(6)
    assert asked[4:] == [100 * 512, BATCH]
