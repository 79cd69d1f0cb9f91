"""The control socket of a link, and how two processes come to share their rings.

The client makes the memory, and the server checks it. One sealed memfd holds two rings of equal size: the client writes
the first, the server the second. Then the socket carries wakeups. Its end is the end of the link, so the death of a
process is noticed at once.

Packets of a Unix SOCK_SEQPACKET socket; the first byte is the kind:

    1 HELLO    "NETQ-SHM", version u16, and the rings' descriptor     the client's first packet, and its only HELLO
    2 WAKE     -                                                      look into the rings
    4 REFUSED  text, UTF-8                                            the server's answer to a HELLO that it refuses

The first bytes of HELLO say who shall use the rings: a link (LINK), or a ring socket (RING_SOCKET; socket_handshake.py
has its other packets). Never waits. Owned by a link or a ring socket.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from typing import NamedTuple

from netq.errors import ProtocolError
from netq.io.interrupts import suppress
from netq.shm import memfd
from netq.shm.fence import make_fence
from netq.shm.ring import Reader, Writer

RING_SIZE = 512 * 1024  # bytes of a link's ring, with the header: some pieces are read while others are written
MIN_RING, MAX_RING = 4096, 1024 * 1024  # bytes of a ring that a peer may bring
LINK, RING_SOCKET = b"NETQ-SHM", b"NETQRING"  # what the rings are for
_VERSIONS = {LINK: 2, RING_SOCKET: 1}
_NAMES = {LINK: "communicator of Protocol.SHM", RING_SOCKET: "ring socket (netq.shm.ring_socket)"}
_HELLO = struct.Struct("<8sH")
HELLO, WAKE, REFUSED = 1, 2, 4
WAKE_PACKET = bytes([WAKE])
MAX_PACKET = 512  # bytes
_FD = struct.Struct("i")
# Ancillary data for one descriptor: the system closes all others that a peer sends.
_FD_SPACE = socket.CMSG_LEN(_FD.size) if hasattr(socket, "CMSG_LEN") else 0


class Packet(NamedTuple):
    """A received packet. Its receiver owns the descriptor."""

    kind: int
    body: bytes
    fd: int | None


class ControlSocket:
    """Sends and receives packets."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)

    def wake_peer(self) -> None:
        """Send WAKE. An error is ignored: a full socket has a WAKE in it, and the end of a socket is received later."""
        with suppress(OSError):
            self.sock.send(WAKE_PACKET)

    def send(self, kind: int, body: bytes = b"", fd: int | None = None) -> None:
        """Send a packet; raises OSError."""
        socket.send_fds(self.sock, [bytes([kind]), body], () if fd is None else (fd,))

    def receive(self) -> Packet | None:
        """Return the next packet, None at the end; raises OSError, and BlockingIOError when there is none now."""
        # MSG_CMSG_CLOEXEC: a process that this one starts must not inherit the peer's memory.
        data, files, _, _ = self.sock.recvmsg(MAX_PACKET, _FD_SPACE, socket.MSG_CMSG_CLOEXEC)
        fd = _FD.unpack(files[0][2])[0] if files and files[0][1] == socket.SCM_RIGHTS else None
        if data:
            return Packet(data[0], data[1:], fd)
        if fd is not None:
            os.close(fd)
        return None


class RingPair(NamedTuple):
    """This side's ends of the two rings."""

    writer: Writer
    reader: Reader
    memory: mmap.mmap
    is_client: bool

    def close(self) -> None:
        """Unmap the memory, which closes the mapping's own descriptor."""
        self.writer.release()
        self.reader.release()
        with suppress(BufferError):  # the traceback of an exception may hold a view; the memory goes with that
            self.memory.close()


def offer_rings(control: ControlSocket, purpose: bytes = LINK, size: int = RING_SIZE) -> RingPair:
    """Make two rings of `size` bytes and send them to the server; raises OSError."""
    fd = memfd.make(2 * size)
    try:
        memory = mmap.mmap(fd, 2 * size)
        control.send(HELLO, _HELLO.pack(purpose, _VERSIONS[purpose]), fd)
    finally:
        os.close(fd)
    return _ring_pair(memory, is_client=True)


def accept_rings(packet: Packet, purpose: bytes = LINK) -> RingPair:
    """Check and map the rings of a client's HELLO; raises ProtocolError and OSError."""
    if packet.kind != HELLO or len(packet.body) != _HELLO.size:
        raise ProtocolError(f"the peer does not speak netq: its first packet is {bytes([packet.kind]) + packet.body!r}")
    magic, version = _HELLO.unpack(packet.body)
    if magic != purpose:
        if magic in _NAMES:
            raise ProtocolError(f"the peer is a {_NAMES[magic]}, and this address belongs to a {_NAMES[purpose]}")
        raise ProtocolError(f"the peer does not speak netq: it begins with {magic!r}, expected {purpose!r}")
    if version != (ours := _VERSIONS[purpose]):
        raise ProtocolError(f"the peer speaks version {version} of shared memory, this side version {ours}")
    if packet.fd is None:
        raise ProtocolError("the peer's rings did not come: it sent no descriptor, or this process may have no more")
    size = memfd.inspect(packet.fd)
    if not 2 * MIN_RING <= size <= 2 * MAX_RING or size % (2 * MIN_RING):
        raise ProtocolError(f"two rings in {size} bytes; expected a multiple of {2 * MIN_RING} up to {2 * MAX_RING}")
    return _ring_pair(mmap.mmap(packet.fd, size), is_client=False)


def _ring_pair(memory: mmap.mmap, *, is_client: bool) -> RingPair:
    half = len(memory) // 2
    fence = make_fence()
    with memoryview(memory) as whole, whole[:half] as first, whole[half:] as second:
        ours, theirs = (first, second) if is_client else (second, first)
        return RingPair(Writer(ours, fence), Reader(theirs, fence), memory, is_client)
