"""A hostile process of the same user: its link ends with one log line, and clients are served meanwhile."""

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
from netq.shm.control import (
    HELLO,
    REFUSED,
    RING_SIZE,
    SEGMENT,
    WAKE,
    ControlSocket,
    Packet,
    RingPair,
    accept_rings,
)
from netq.shm.descriptors import Descriptors
from netq.shm.link import Link
from netq.shm.records import Kind, Record
from netq.shm.ring import Reader, Writer
from netq.shm.segments import Pool
from netq.shm.sender import MAX_BATCH, Sender
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder

GREETING = Greeting(uuid.UUID(int=99), bytes(16), 2**40, 2**20, 10_000).frame().whole()
MAGIC, VERSION = b"NETQ-SHM", struct.pack("<H", 1)
MIB = 2**20


class Intruder:
    """The client's side of a link, where the test writes each packet and record."""

    def __init__(self, server: Communicator) -> None:
        self.control = ControlSocket(rendezvous.connect(server.netloc))
        self.rings: RingPair | None = None

    def send_records(self, *parts: bytes) -> None:
        """Put bytes into the ring, and wake the server."""
        if self.rings is None:
            self.rings = control.offer_rings(self.control)
        self.rings.writer.write(parts)
        self.control.wake_peer()

    def next_record(self) -> Record:
        """Wait for the next record other than DATA."""
        assert self.rings is not None
        self.control.sock.settimeout(LIMIT)
        reader = self.rings.reader
        while True:
            if not reader.available():
                self.wait()
                continue
            header = memoryview(bytearray(24))
            reader.read_into(header)
            record = Record(*records.unpack(header))
            if record.kind != Kind.DATA:
                return record
            reader.skip(record.size)

    def wait(self) -> None:
        """Wait for a packet, if there is nothing in the ring."""
        assert self.rings is not None
        if self.rings.reader.sleep():
            packet = self.control.receive()
            assert packet is not None
            if packet.fd is not None:
                os.close(packet.fd)
        self.rings.reader.wake()

    def wait_for_end(self) -> None:
        """Drop all packets until the server ends the connection."""
        self.control.sock.settimeout(LIMIT)
        while not self.is_at_end():
            pass

    def is_at_end(self) -> bool:
        """Wait for a packet and drop it, or for the end. The end is a reset if the server left packets unread."""
        try:
            packet = self.control.receive()
        except ConnectionResetError:
            return True
        if packet is not None and packet.fd is not None:
            os.close(packet.fd)
        return packet is None

    def close(self) -> None:
        self.control.sock.close()
        if self.rings is not None:
            self.rings.close()


Intrude = Callable[[Communicator], Intruder]


@pytest.fixture
def intrude() -> Iterator[Intrude]:
    with ExitStack() as stack:

        def intrude(server: Communicator) -> Intruder:
            intruder = Intruder(server)
            stack.callback(intruder.close)
            return intruder

        yield intrude


def data(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return records.data(len(body)) + body


def check_clients_are_served(communicators: Communicators, server: Communicator) -> None:
    introduce(server, communicators.client(server.netloc))


@pytest.mark.parametrize(
    ("packet", "error"),
    [
        (b"GET / HTTP/1.1", "the peer does not speak netq: its first packet is b'GET / HTTP/1.1'"),
        (bytes([HELLO]) + b"NETQ-MEM" + VERSION, "it begins with b'NETQ-MEM', expected b'NETQ-SHM'"),
        (bytes([HELLO]) + MAGIC + b"\2\0", "the peer speaks version 2 of shared memory, this side version 1"),
        (bytes([HELLO]) + MAGIC + VERSION, "the peer's rings did not come"),
        (bytes([HELLO]) + MAGIC + VERSION + b"more", "the peer does not speak netq"),
        (bytes([WAKE]), "the peer does not speak netq"),
    ],
    ids=str,
)
def test_first_packet_other_than_hello_is_refused(
    communicators: Communicators, log: LogRecorder, intrude: Intrude, packet: bytes, error: str
) -> None:
    server = communicators.server()
    intruder = intrude(server)
    intruder.control.sock.send(packet)
    assert error in log.wait("the connection was closed")
    intruder.control.sock.settimeout(LIMIT)
    answer = intruder.control.receive()
    assert answer is not None
    assert (answer.kind, error.encode() in answer.body) == (REFUSED, True)
    check_clients_are_served(communicators, server)


def sized(size: int) -> int:
    return memfd.make(size)


def unsealed(size: int) -> int:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


def huge(size: int) -> int:
    """Return memory in huge pages, which the system may not have when they are touched."""
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
    ("make", "size", "error"),
    [
        (unsealed, 2 * RING_SIZE, "has the seals 0x0; expected 0x7"),
        (pipe, 0, "the descriptor that the peer sent is no shared memory"),
        (lambda size: os.open("/dev/null", os.O_RDWR), 0, "is no shared memory"),
        (sized, 4096, "two rings in 4096 bytes"),
        (sized, 2 * RING_SIZE + 4096, "two rings in"),
        (sized, 2 * MIB + 8192, "expected a multiple of 8192 up to 2097152"),
        (sized, 2**40, "two rings in 1099511627776 bytes"),
        (huge, 4 * MIB, "has pages of 2097152 bytes; expected 4096"),
    ],
)
def test_invalid_rings_are_refused(
    communicators: Communicators, log: LogRecorder, intrude: Intrude, make: Callable[[int], int], size: int, error: str
) -> None:
    server = communicators.server()
    intruder = intrude(server)
    fd = make(size)
    intruder.control.send(HELLO, MAGIC + VERSION, fd)
    os.close(fd)
    assert error in log.wait("the connection was closed")
    intruder.wait_for_end()
    check_clients_are_served(communicators, server)


@pytest.mark.parametrize(
    ("records", "error"),
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
        (Record(Kind.WROTE, size=10).pack(), "10 bytes were written by direct transfer, 0 were allowed"),
        (Record(Kind.STOPPED).pack(), "cannot write where it was not asked to"),
        (Record(Kind.RELEASE, 7).pack(), "segment 7, which was never sent"),
    ],
    ids=str,
)
def test_invalid_record_ends_the_link(
    communicators: Communicators, log: LogRecorder, intrude: Intrude, records: bytes, error: str
) -> None:
    server = communicators.server()
    intruder = intrude(server)
    intruder.send_records(records)
    assert error in log.wait("the connection was closed")
    intruder.wait_for_end()
    check_clients_are_served(communicators, server)


def begin_message(intruder: Intruder, size: int) -> Record:
    """Open a session, and announce the body of a message; return the server's answer."""
    intruder.send_records(data(GREETING))
    wait_for_greeting(intruder)
    intruder.send_records(data(message_header(0, size, 1, size)) + Record(Kind.ANNOUNCE, size=size).pack())
    return intruder.next_record()


def wait_for_greeting(intruder: Intruder) -> None:
    assert intruder.rings is not None
    intruder.control.sock.settimeout(LIMIT)
    while not intruder.rings.reader.available():
        intruder.wait()


SIZE = 256 * 1024  # bytes: the initial credit of a lane, and large enough for a segment


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (Record(Kind.WROTE, size=SIZE + 1).pack(), f"{SIZE + 1} bytes were written by direct transfer, {SIZE} were"),
        (Record(Kind.WROTE).pack(), "0 bytes were written by direct transfer"),
        (data(b"x"), f"bytes in the ring before {SIZE} that come by direct transfer"),
        (Record(Kind.ANNOUNCE, size=10).pack(), f"10 bytes are announced before {SIZE} others"),
    ],
    ids=str,
)
def test_invalid_record_during_a_direct_transfer_ends_the_link(
    communicators: Communicators, log: LogRecorder, intrude: Intrude, records: bytes, error: str
) -> None:
    server = communicators.server()
    intruder = intrude(server)
    answer = begin_message(intruder, SIZE)
    assert (answer.kind, answer.offset, answer.size) == (Kind.GRANT, 0, SIZE)
    intruder.send_records(records)
    assert error in log.wait("lost (")
    intruder.wait_for_end()
    check_clients_are_served(communicators, server)


@pytest.mark.parametrize(
    ("offset", "size", "error"),
    [
        (1, SIZE, f"{SIZE} bytes are granted at 1 of segment 1, which has {SIZE}"),
        (2**64 - 1, 1, f"1 bytes are granted at {2**64 - 1}"),
        (0, SIZE + 1, f"{SIZE + 1} bytes are granted at 0"),
        (0, 0, "grants 0 bytes that were not announced"),
    ],
)
def test_grant_beyond_the_segment_ends_the_link(
    communicators: Communicators, log: LogRecorder, intrude: Intrude, offset: int, size: int, error: str
) -> None:
    server = communicators.server()
    intruder = intrude(server)
    future = announced(server, intruder)
    intruder.send_records(Record(Kind.GRANT, 1, offset, size).pack())
    assert error in log.wait("lost (")
    intruder.wait_for_end()
    check_clients_are_served(communicators, server)
    communicators.abort(server)
    assert isinstance(future.exception(LIMIT), Closed)


def test_second_grant_ends_the_link(communicators: Communicators, log: LogRecorder, intrude: Intrude) -> None:
    server = communicators.server()
    intruder = intrude(server)
    future = announced(server, intruder)
    intruder.send_records(Record(Kind.GRANT, 1, 0, 1000).pack(), Record(Kind.GRANT, 1, 0, 1000).pack())
    log.wait("grants 1000 bytes that were not announced")
    communicators.abort(server)
    assert isinstance(future.exception(LIMIT), Closed)


def announced(server: Communicator, intruder: Intruder) -> Delivery:
    """Let the server announce a message of SIZE bytes, and send it a segment of that size."""
    intruder.send_records(data(GREETING))
    wait_for_greeting(intruder)
    future = server.put(PickleBuffer(bytearray(SIZE)))
    record = intruder.next_record()
    assert record.kind == Kind.ANNOUNCE
    assert record.size > SIZE
    fd = memfd.make(SIZE)
    intruder.control.send(SEGMENT, struct.pack("<I", 1), fd)
    os.close(fd)
    return future


def test_peer_that_never_reads_is_cut_at_1024_records(
    communicators: Communicators, log: LogRecorder, intrude: Intrude
) -> None:
    server = communicators.server()
    intruder = intrude(server)
    intruder.control.sock.settimeout(LIMIT)
    intruder.send_records()
    while not log.having("left 1024 records unread"):
        assert intruder.rings is not None
        if intruder.rings.writer.free() >= 2400:
            intruder.send_records(Record(Kind.ANNOUNCE, size=1).pack() * 100)
        elif intruder.rings.writer.sleep() and intruder.is_at_end():
            break
    intruder.wait_for_end()
    log.wait("left 1024 records unread")
    check_clients_are_served(communicators, server)


@pytest.fixture
def server_controls(monkeypatch: pytest.MonkeyPatch) -> list[ControlSocket]:
    """The control sockets that servers make from here on."""
    controls: list[ControlSocket] = []

    class Recorded(ControlSocket):
        def __init__(self, sock: socket.socket) -> None:
            super().__init__(sock)
            controls.append(self)

    monkeypatch.setattr("netq.shm.server.ControlSocket", Recorded)
    return controls


def fill(control: ControlSocket) -> None:
    """Fill the peer's control socket with WAKE packets."""
    with contextlib.suppress(BlockingIOError):
        while True:
            control.sock.send(bytes([WAKE]))


def test_message_comes_inline_while_the_control_socket_is_full(
    communicators: Communicators,
    intrude: Intrude,
    server_controls: list[ControlSocket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = communicators.server()
    intruder = intrude(server)
    intruder.send_records(data(GREETING))
    assert intruder.rings is not None
    reader = intruder.rings.reader
    while not reader.available():
        pass
    reader.skip(reader.available())
    fill(server_controls[0])
    monkeypatch.setattr(intruder, "wait", lambda: None)  # look into the ring only: reading packets would make room
    intruder.send_records(data(message_header(0, SIZE, 1, SIZE)) + Record(Kind.ANNOUNCE, size=SIZE).pack())
    assert intruder.next_record().kind == Kind.INLINE
    for _ in range(4):
        while intruder.rings.writer.free() < SIZE // 4 + 24:
            pass
        intruder.send_records(data(bytes(SIZE // 4)))
    with pytest.raises(Unreadable):
        server.get(timeout=LIMIT)  # zeros are no pickle, but they arrived


@pytest.mark.parametrize("offset", [0, 64, 128, 192])
def test_random_numbers_in_the_ring_end_the_link(
    communicators: Communicators, log: LogRecorder, intrude: Intrude, offset: int
) -> None:
    server = communicators.server(heartbeat=0.1)
    intruder = intrude(server)
    intruder.send_records(data(GREETING))
    wait_for_greeting(intruder)
    assert intruder.rings is not None
    chance = random.Random(offset)
    for half in (0, RING_SIZE):
        intruder.rings.memory[half + offset : half + offset + 8] = chance.randbytes(7) + b"\x7f"
    intruder.control.wake_peer()
    check_clients_are_served(communicators, server)
    if offset in (0, 128):
        assert "says" in log.wait("lost (")
        intruder.wait_for_end()


def test_second_hello_and_unknown_packets_end_the_link(
    communicators: Communicators, log: LogRecorder, intrude: Intrude
) -> None:
    server = communicators.server()
    for packet in (bytes([HELLO]) + MAGIC + VERSION, b"\xff", bytes([SEGMENT]) + b"\1"):
        intruder = intrude(server)
        intruder.send_records()
        intruder.control.sock.send(packet)
        intruder.wait_for_end()
    log.wait("a packet of kind", count=3)
    check_clients_are_served(communicators, server)


@pytest.mark.parametrize("make", [unsealed, pipe, huge])
def test_invalid_segment_ends_the_link(
    communicators: Communicators, log: LogRecorder, intrude: Intrude, make: Callable[[int], int]
) -> None:
    server = communicators.server()
    intruder = intrude(server)
    intruder.send_records()
    fd = make(2 * MIB)
    intruder.control.send(SEGMENT, struct.pack("<I", 1), fd)
    os.close(fd)
    log.wait("the connection was closed")
    intruder.wait_for_end()
    check_clients_are_served(communicators, server)


def test_unexpected_descriptors_are_closed(communicators: Communicators, intrude: Intrude) -> None:
    server = communicators.server()
    intruder = intrude(server)
    intruder.send_records()
    fds = [os.memfd_create("unasked") for _ in range(8)]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("8i", *fds))]
    intruder.control.sock.sendmsg([bytes([WAKE])], rights)
    for fd in fds:
        os.close(fd)
    intruder.send_records(data(GREETING))
    wait_for_greeting(intruder)
    deadline = time.monotonic() + LIMIT
    while [path for path in Path("/proc/self/fd").iterdir() if "unasked" in target(path)]:
        assert time.monotonic() < deadline
    assert server.statistics()


def target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except OSError:  # that of the listing itself
        return ""


def test_silent_connection_is_cut_in_time(communicators: Communicators, intrude: Intrude) -> None:
    server = communicators.server(handshake_timeout=0.1)
    silent, half = intrude(server), intrude(server)
    half.send_records(data(GREETING[:10]))
    silent.wait_for_end()
    half.wait_for_end()
    check_clients_are_served(communicators, server)


def test_refused_packet_from_a_client_ends_the_link(
    communicators: Communicators, log: LogRecorder, intrude: Intrude
) -> None:
    server = communicators.server()
    intruder = intrude(server)
    intruder.send_records()
    intruder.control.send(REFUSED, b"no\nCRITICAL root: all is lost")
    assert "a packet of kind 4" in log.wait("the connection was closed")
    assert not log.having("all is lost")
    check_clients_are_served(communicators, server)


def test_text_of_a_refusal_is_one_line_in_the_log(communicators: Communicators, log: LogRecorder) -> None:
    listening = rendezvous.listen(NetworkLocation("localhost", 0))
    try:
        communicators.client(listening.netloc)
        listening.sock.setblocking(True)
        listening.sock.settimeout(LIMIT)
        with listening.sock.accept()[0] as sock:
            ControlSocket(sock).send(REFUSED, b"no\nCRITICAL root: all is lost \x1b[31m" + b"x" * 400)
            assert "the peer refuses: no\\nCRITICAL root: all is lost \\x1b[31m" in log.wait("the peer refuses")
    finally:
        listening.close()


def lone_link(
    control: ControlSocket, received: Callable[[int, float], object] | None = None
) -> tuple[Link, list[object]]:
    """Return a server's link that only the test moves, and a list of its errors and of the calls in its loop."""
    lost: list[object] = []
    fd = memfd.make(2 * RING_SIZE)
    ends = accept_rings(Packet(HELLO, MAGIC + VERSION, fd))
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
        baton=SimpleNamespace(
            flush_later_from_loop=lambda worker: lost.append("flush_later_from_loop"), reply_expected=False
        ),
        is_own=True,
    )
    return Link(listener, loop, control, ends, Pool(0), "intruder"), lost  # type: ignore[arg-type]


class Endless(ControlSocket):
    """A socket with an endless number of WAKE packets."""

    received_packets = 0

    def receive(self) -> Packet:
        self.received_packets += 1
        assert self.received_packets < 10_000
        return Packet(WAKE, b"", None)


def test_endless_wakes_before_a_missing_segment_end_the_link() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        link, lost = lone_link(Endless(ours))
        link._guarded(lambda: link._handle_record(Record(Kind.RELEASE, 7)))
        link._rings.close()
    assert str(lost[-1]) == "segment 7, which was never sent"


def test_large_announcement_is_granted_in_parts(communicators: Communicators, intrude: Intrude) -> None:
    size = 64 * MIB
    server = communicators.server()
    intruder = intrude(server)
    intruder.send_records(data(GREETING))
    wait_for_greeting(intruder)
    intruder.send_records(data(message_header(0, 1, 1, size), b"x"))
    while not server_grants(intruder):
        pass
    intruder.send_records(data(message_header(0, size - 1, 1, size)) + Record(Kind.ANNOUNCE, size=size - 1).pack())
    answer = intruder.next_record()
    assert (answer.kind, answer.size) == (Kind.GRANT, MAX_BATCH)
    communicators.abort(server)  # else it would wait for a goodbye


def server_grants(intruder: Intruder) -> bool:
    """Wait for bytes from the server; return whether an ACK, which extends the credit, is among them."""
    wait_for_greeting(intruder)
    assert intruder.rings is not None
    reader = intruder.rings.reader
    record = memoryview(bytearray(reader.available()))
    reader.read_into(record)
    return bytes([wire.Kind.ACK]) in bytes(record)


def test_expensive_record_is_processed_over_several_turns() -> None:
    def costly(n: int, now: float) -> None:
        begin = time.thread_time()
        while time.thread_time() - begin < READ_BUDGET + n * 1e-6:
            pass

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        link, asked = lone_link(ControlSocket(ours), costly)
        asked.clear()
        link._scheduled = 0
        link._rings.memory[256 : 256 + 24 + 200_000] = data(bytes(200_000))
        link._rings.memory[:8] = struct.pack("Q", 200_024)
        took = []
        for _ in range(3):
            theirs.send(bytes([WAKE]))
            begin, left = time.thread_time(), link._receiver._unread
            link._ready(READ)
            took.append(((left or 200_000) - link._receiver._unread, time.thread_time() - begin))
        assert asked == ["_run_scheduled"]
        assert took[0][0] <= INITIAL_READ
        assert [size for size, _ in took[1:]] == [0, 0]  # its turn is yet to come
        link._run_scheduled(link._loop)
        assert 0 < took[0][0] + link._receiver._unread < 200_000
        link._end()
        link._rings.close()


def test_ack_waits_for_an_expected_reply() -> None:
    """The loop expects a reply or not, and flushes after a millisecond if none comes."""
    sent: list[int] = []

    def to_send(limit: int, now: float) -> list[bytes]:
        sent.append(limit)
        return []

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        link, asked = lone_link(ControlSocket(ours), lambda n, now: None)
        asked.clear()
        link._scheduled = 0
        link.connection.to_send = to_send  # type: ignore[assignment, method-assign]
        link.peer = cast(Worker, object())
        for likely, due, sends in [(False, [], 1), (True, ["flush_later_from_loop"], 0)]:
            link._baton.reply_expected = likely  # type: ignore[misc]
            theirs.send(bytes([WAKE]))
            link._ready(READ)
            assert asked == due
            assert len(sent) == sends
            sent.clear()
        link.flush()
        assert len(sent) == 1
        link._end()
        link._rings.close()


def test_descriptors_are_closed_where_they_are_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    files, fd, other = Descriptors(lambda: False), memfd.make(SIZE), memfd.make(SIZE)
    files.add(1, fd)
    monkeypatch.setattr("resource.getrlimit", lambda kind: (2 * other, 2 * other))
    files.add(2, other)
    assert (files.find(1, 0, SIZE), files.find(2, 0, SIZE)) == (fd, None)
    files.clear()
    for closed in (fd, other):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(closed)


def test_slow_direct_writes_switch_to_the_ring_for_a_while(
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
    memory = bytearray(RING_SIZE)
    reader = Reader(memory)
    bodies: list[list[Buffer]] = [[memoryview(bytes(SIZE))], [memoryview(bytes(SIZE))], [b"end"]]
    files, record = Descriptors(lambda: False), []
    out = Sender(Writer(memory), lambda limit: bodies.pop(0) if bodies else [], files)
    files.add(1, memfd.make(SIZE))

    def go_on() -> None:
        more = True
        while more:
            more = out.push()
            while reader.available():
                header = memoryview(bytearray(24))
                reader.read_into(header)
                record.append(Record(*records.unpack(header)))
                if record[-1].kind == Kind.DATA:
                    reader.skip(record[-1].size)

    go_on()
    out.granted(Record(Kind.GRANT, 1, 0, 1000))  # written in a slow, a fast and a slow piece
    go_on()
    kinds = [records.kind for records in record]
    assert kinds[:5] == [Kind.ANNOUNCE, *[Kind.WROTE] * 3, Kind.STOPPED]
    assert set(kinds[5:]) == {Kind.DATA}
    assert sum(records.size for records in record[5:]) == 2 * SIZE - 300 + 3
    now[0] = 6.1  # 0.12 s are less than 2 % of that
    bodies.append([memoryview(bytes(SIZE))])
    go_on()
    assert record[-1].kind == Kind.ANNOUNCE
    out.clear()


def test_release_during_a_direct_transfer_ends_the_link(
    communicators: Communicators, intrude: Intrude, log: LogRecorder
) -> None:
    """The number of a closed descriptor may be that of any other file when the rest is written."""
    server = communicators.server()
    intruder = intrude(server)
    intruder.send_records(data(GREETING))
    fd = memfd.make(2 * SIZE)
    while not server.statistics():
        pass  # the session is being opened
    server.put(bytes(SIZE), uuid.UUID(int=99))
    announced = intruder.next_record()
    assert announced.kind == Kind.ANNOUNCE
    intruder.control.send(SEGMENT, struct.pack("<I", 1), fd)
    os.close(fd)
    intruder.send_records(Record(Kind.GRANT, 1, 0, announced.size).pack(), Record(Kind.RELEASE, 1).pack())
    intruder.wait_for_end()
    log.wait(f"the peer releases segment 1, where it wants {announced.size} bytes")
    server.close(0)  # its message waits for the intruder
    communicators.release(server)


def test_batch_adapts_to_the_size_of_messages() -> None:
    memory, asked, small = bytearray(RING_SIZE), [], True

    def take(limit: int) -> list[Buffer]:
        asked.append(limit)
        return [bytes(100)] * (limit // 100) if small else [memoryview(bytes(limit))]

    reader = Reader(memory)
    out = Sender(Writer(memory), take, Descriptors(lambda: False))

    def pushes(count: int) -> None:
        while len(asked) < count:
            out.push()
            reader.skip(reader.available())
            if not small and out._announced:
                out.declined()

    pushes(4)
    assert asked == [1024 * 1024, 100 * 512, 100 * 512, 100 * 512]
    small = False
    pushes(6)
    assert asked[4:] == [100 * 512, MAX_BATCH]


def test_wake_up_for_room_is_left_to_the_loop() -> None:
    """A user's thread that polls takes the WAKE that says "there is room"; only the loop's thread sends on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        link, calls = lone_link(ControlSocket(ours))
        link._run_scheduled(link._loop)
        calls.clear()
        link.peer = cast(Any, object())
        link._sender.blocked = True
        theirs.send(bytes([WAKE]))
        assert not link.woken()
        assert calls == ["_run_scheduled"]
        link._end()
