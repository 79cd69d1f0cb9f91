"""How two processes come to share their rings: the client brings the memory, the server checks it.

One sealed block holds two rings of equal size: the first is written by the client, the second by the server.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import NamedTuple

from netq.errors import ProtocolError
from netq.shm import memfd
from netq.shm.control import HELLO, Control, Packet
from netq.shm.fence import make_fence
from netq.shm.ring import Reader, Writer

VERSION = 1
RING = 256 * 1024  # bytes of a ring, its header too: room for more than all that goes through it at once (BESIDE)
_LEAST, _MOST = 4096, 1024 * 1024  # bytes of a peer's ring
_MAGIC = b"NETQ-SHM"
_HELLO = struct.Struct("<8sH")


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
        self.memory.close()


def bring(control: Control) -> Channel:
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
