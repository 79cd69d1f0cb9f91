"""The socket of a link: it greets, rings the peer's bell, hands descriptors over, and its end is the peer's death.

And how two processes come to share their rings: the client brings the memory, the server checks it. One sealed block
holds two rings of equal size: the first is written by the client, the second by the server.

Packets of a Unix SOCK_SEQPACKET socket; the first byte says what it is:

    1 HELLO    "NETQ-SHM", version u16, and the rings' descriptor     the client's first packet, and its only one
    2 BELL     -                                                      look into the rings
    3 SEGMENT  number u32, and its descriptor                         before the first GRANT that names it
    4 REFUSED  text, UTF-8                                            the server's answer to a HELLO that will not do

Never waits. Owned by a link.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from typing import NamedTuple

from netq.errors import ProtocolError
from netq.io.signal_handlers import suppress
from netq.shm import memfd
from netq.shm.fence import make_fence
from netq.shm.ring import Reader, Writer

VERSION = 1
RING = 256 * 1024  # bytes of a ring, its header too: a batch of less than BESIDE is read while another is written
_LEAST, _MOST = 4096, 1024 * 1024  # bytes of a peer's ring
_MAGIC = b"NETQ-SHM"
_HELLO = struct.Struct("<8sH")
HELLO, BELL, SEGMENT, REFUSED = 1, 2, 3, 4
NUMBER = struct.Struct("<I")  # of a segment
_LONGEST = 512  # bytes of a packet
_FD = struct.Struct("i")
_ROOM = socket.CMSG_LEN(_FD.size) if hasattr(socket, "CMSG_LEN") else 0  # for one descriptor: the system closes others
_BELL = bytes([BELL])


class Packet(NamedTuple):
    """What came; its receiver owns the descriptor."""

    kind: int
    body: bytes
    fd: int | None


class ControlSocket:
    """Packets in and out."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)

    def ring(self) -> None:
        """Ring the peer's bell. A peer whose socket is full has bells waiting, or is gone: that, its end tells."""
        with suppress(OSError):
            self.sock.send(_BELL)

    def send(self, kind: int, body: bytes = b"", fd: int | None = None) -> None:
        """Send a packet; raises OSError."""
        socket.send_fds(self.sock, [bytes([kind]), body], () if fd is None else (fd,))

    def take_bell(self) -> bool:
        """Take the next packet if it is a BELL; return whether it was."""
        try:
            if self.sock.recv(1, socket.MSG_PEEK) != _BELL:
                return False
            self.sock.recv(1)
        except OSError:
            return False
        return True

    def receive(self) -> Packet | None:
        """Return the next packet, None at the end; raises OSError, and BlockingIOError when there is none now."""
        data, files, _, _ = self.sock.recvmsg(_LONGEST, _ROOM, socket.MSG_CMSG_CLOEXEC)
        fd = _FD.unpack(files[0][2])[0] if files and files[0][1] == socket.SCM_RIGHTS else None
        if data:
            return Packet(data[0], data[1:], fd)
        if fd is not None:
            os.close(fd)
        return None


class Channel(NamedTuple):
    """Our ends of the two rings."""

    writer: Writer
    reader: Reader
    memory: mmap.mmap
    brought: bool  # by this side: it is the client

    def close(self) -> None:
        """Let go of the memory, and of the descriptor that the mapping has."""
        self.writer.release()
        self.reader.release()
        with suppress(BufferError):  # an exception that came out of a get has a view: it goes with that
            self.memory.close()


def bring(control: ControlSocket) -> Channel:
    """Make the rings and send them to the server; raises OSError."""
    fd = memfd.make(2 * RING)
    try:
        memory = mmap.mmap(fd, 2 * RING)
        control.send(HELLO, _HELLO.pack(_MAGIC, VERSION), fd)
    finally:
        os.close(fd)
    return _ends(memory, writes_first=True)


def take(packet: Packet) -> Channel:
    """Map the rings that a client's HELLO brings; raises ProtocolError and OSError."""
    if packet.kind != HELLO or len(packet.body) != _HELLO.size:
        raise ProtocolError(f"the peer does not speak netq: its first packet is {bytes([packet.kind]) + packet.body!r}")
    magic, version = _HELLO.unpack(packet.body)
    if magic != _MAGIC:
        raise ProtocolError(f"the peer does not speak netq: it begins with {magic!r}, expected {_MAGIC!r}")
    if version != VERSION:
        raise ProtocolError(f"the peer speaks version {version} of shared memory, this side version {VERSION}")
    if packet.fd is None:
        raise ProtocolError("the peer's rings did not come: it sent no descriptor, or this process may have no more")
    size = memfd.inspect(packet.fd)
    if not 2 * _LEAST <= size <= 2 * _MOST or size % (2 * _LEAST):
        raise ProtocolError(f"two rings in {size} bytes; expected a multiple of {2 * _LEAST} up to {2 * _MOST}")
    return _ends(mmap.mmap(packet.fd, size), writes_first=False)


def _ends(memory: mmap.mmap, *, writes_first: bool) -> Channel:
    half = len(memory) // 2
    fence = make_fence()
    with memoryview(memory) as whole, whole[:half] as first, whole[half:] as second:
        ours, theirs = (first, second) if writes_first else (second, first)
        return Channel(Writer(ours, fence), Reader(theirs, fence), memory, writes_first)
