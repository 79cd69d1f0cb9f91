"""A hostile process of the same user: its link ends with one log line, and clients are served meanwhile."""

from __future__ import annotations

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

import pytest

from netq import NetworkLocation
from netq.core import Communicator
from netq.protocol.wire import Frame, FrameKind, Greeting
from netq.shm import control, memfd, rendezvous
from netq.shm.control import (
    HELLO,
    REFUSED,
    RING_SIZE,
    WAKE,
    ControlSocket,
    RingPair,
)
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder

GREETING = Greeting(uuid.UUID(int=99), bytes(16), 2**40, 2**20, 10_000).frame().whole()
MAGIC, VERSION = b"NETQ-SHM", struct.pack("<H", 2)
MIB = 2**20


class Intruder:
    """The client's side of a link, where the test writes each packet and byte."""

    def __init__(self, server: Communicator) -> None:
        self.control = ControlSocket(rendezvous.connect(server.netloc))
        self.rings: RingPair | None = None

    def send(self, *parts: bytes) -> None:
        """Put bytes into the ring, and wake the server."""
        if self.rings is None:
            self.rings = control.offer_rings(self.control)
        self.rings.writer.write(parts)
        self.control.wake_peer()

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


def check_clients_are_served(communicators: Communicators, server: Communicator) -> None:
    introduce(server, communicators.client(server.netloc))


@pytest.mark.parametrize(
    ("packet", "error"),
    [
        (b"GET / HTTP/1.1", "the peer does not speak netq: its first packet is b'GET / HTTP/1.1'"),
        (bytes([HELLO]) + b"NETQ-MEM" + VERSION, "it begins with b'NETQ-MEM', expected b'NETQ-SHM'"),
        (bytes([HELLO]) + MAGIC + b"\1\0", "the peer speaks version 1 of shared memory, this side version 2"),
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
    ("sent", "error"),
    [
        (b"HTTP" * 10, "no frame of netq"),
        (Frame(FrameKind.MSG, length=1, number=1, value=1).whole(), "MSG in state OPENING"),
        (Frame(FrameKind.INI, length=2**31).header(), "INI of 2147483648 bytes"),
    ],
    ids=str,
)
def test_invalid_bytes_end_the_link(
    communicators: Communicators, log: LogRecorder, intrude: Intrude, sent: bytes, error: str
) -> None:
    server = communicators.server()
    intruder = intrude(server)
    intruder.send(sent)
    assert error in log.wait("the connection was closed")
    intruder.wait_for_end()
    check_clients_are_served(communicators, server)


def wait_for_greeting(intruder: Intruder) -> None:
    assert intruder.rings is not None
    intruder.control.sock.settimeout(LIMIT)
    while not intruder.rings.reader.available():
        intruder.wait()


@pytest.mark.parametrize("offset", [0, 64, 128, 192])
def test_random_numbers_in_the_ring_end_the_link(
    communicators: Communicators, log: LogRecorder, intrude: Intrude, offset: int
) -> None:
    server = communicators.server(heartbeat=0.1)
    intruder = intrude(server)
    intruder.send(GREETING)
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
    for packet in (bytes([HELLO]) + MAGIC + VERSION, b"\xff", bytes([WAKE]) + b"\1"):
        intruder = intrude(server)
        intruder.send()
        intruder.control.sock.send(packet)
        intruder.wait_for_end()
    log.wait("a packet of kind", count=3)
    check_clients_are_served(communicators, server)


def test_unexpected_descriptors_are_closed(communicators: Communicators, intrude: Intrude) -> None:
    server = communicators.server()
    intruder = intrude(server)
    intruder.send()
    fds = [os.memfd_create("unasked") for _ in range(8)]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("8i", *fds))]
    intruder.control.sock.sendmsg([bytes([WAKE])], rights)
    for fd in fds:
        os.close(fd)
    intruder.send(GREETING)
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
    half.send(GREETING[:10])
    silent.wait_for_end()
    half.wait_for_end()
    check_clients_are_served(communicators, server)


def test_refused_packet_from_a_client_ends_the_link(
    communicators: Communicators, log: LogRecorder, intrude: Intrude
) -> None:
    server = communicators.server()
    intruder = intrude(server)
    intruder.send()
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
