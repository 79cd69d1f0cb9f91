"""The Connection whose bytes one Channel moves. Lives in the loop of its peer; what it tells its port crosses to the
first loop, where the connection to the broker is.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from netq.buffers import Buffer
from netq.io.baton import Worker
from netq.io.loop import Loop
from netq.mqtt.channel import Channel, Segment
from netq.mqtt.multicast.group import Block
from netq.protocol.connection import Connection
from netq.protocol.sender import Part
from netq.runtime.link import LinkListener

_STOCK, _AWAY = 1, 2  # segments that may wait for their turn; where the port is in another loop
PREFIX = 256  # bytes that may come with a block, beyond the size of a packet
_BLOCK = 4 * 1024  # bytes of a part that is worth a reference
_MULTICAST = 64 * 1024  # bytes of a message that is worth a group


class Link:
    """Moves bytes between a port and a connection, `size` of them in a packet at most."""

    inline = False

    def __init__(
        self, listener: LinkListener, port: Channel, home: Loop, connection: Connection, address: str, size: int
    ) -> None:
        self.connection = connection
        self.address = address
        self.peer: Worker | None = None
        self._listener = listener
        self._port = port
        self._home = self._loop = home
        self._size = size
        self._grid = min(size, listener.options.connection.transport_size)
        self._stock = 0
        self._over = False
        port.link = self

    def flush(self) -> None:
        """Take from the connection what is the next to be sent, and no more than that."""
        stock = _STOCK if self._loop is self._home else _AWAY
        while self._stock < stock and not self._over and self._take():
            pass

    def receive(self) -> bool:
        """Nothing: that is for the loop's thread."""
        return False

    def keep(self) -> None:
        """Go on with copies; what has moved to another loop is one already."""
        if self._loop is self._home:
            self._port.keep()

    def close(self) -> None:
        """Send what the connection has left to say, and part."""
        if not self._over:
            while self._take():
                pass
            self._over = True
            self._in(self._home, self._port.close)

    def move(self, loop: Loop) -> None:
        """Go on in another loop; the port stays."""
        self._loop = loop

    def broadcast_peer(self, size: int) -> uuid.UUID | None:
        """Return the peer if it takes blocks of this size; None before the handshake, or if its packets are smaller."""
        session = self.connection.session
        able = self.connection.open and self._size == size
        return session.peer if session is not None and able else None

    # For the port.

    def call(self, function: Callable[..., None], *args: object) -> None:
        """Run something in this link's loop; at once if that is the first."""
        self._in(self._loop, function, *args)

    # For the port, in this link's loop.

    def feed(self, data: memoryview) -> None:
        """Take bytes of the session."""
        if not self._over and (events := self.connection.feed(data, time.monotonic())):
            self._listener.deliver(self, events)
        self._in(self._home, self._port.used)
        self.flush()

    def published(self) -> None:
        """A segment has left."""
        self._stock -= 1
        self.flush()

    def lost(self, error: Exception) -> None:
        """No byte passes any more."""
        if not self._over:
            self._over = True
            self._listener.lost(self, error)

    def _take(self) -> bool:
        pieces = self.connection.pieces(min(self._size, self._port.pace.size), time.monotonic())
        segments = self._cut(pieces)
        if self._loop is not self._home:  # there, nobody knows when the memory is the user's again
            segments = [segment.copy() for segment in segments]
        self._stock += len(segments)
        if segments:
            self._in(self._home, self._port.post, segments)
        return bool(segments)

    def _cut(self, pieces: list[Buffer | Part]) -> list[Segment]:
        """Segments that end with the blocks that others may send too, none larger than a packet."""
        segments: list[Segment] = []
        buffers: list[Buffer] = []
        for piece in pieces:
            if not isinstance(piece, Part):
                buffers.append(piece)
            elif self._is_block(piece):
                before, buffers = _packets(buffers, self._size), []
                last = before.pop() if before and sum(map(len, before[-1])) <= PREFIX else []
                block = Block(piece.stream, piece.start, piece.audience, piece.buffers())
                segments += [*map(Segment, before), Segment(last, block)]
            else:
                buffers += piece.buffers()
        return segments + [Segment(packet) for packet in _packets(buffers, self._size)]

    def _is_block(self, part: Part) -> bool:
        """Whether all links cut this part alike, and it is worth the while."""
        whole = part.start % self._grid == 0 and part.stop == min(part.start + self._grid, part.stream.nbytes)
        return bool(part.audience) and whole and part.stream.nbytes >= _MULTICAST and part.size >= _BLOCK

    def _in(self, loop: Loop, function: Callable[..., None], *args: object) -> None:
        if self._loop is self._home:
            function(*args)
        else:
            loop.call(function, *args)


def _packets(buffers: list[Buffer], size: int) -> list[list[Buffer]]:
    """Divide buffers, of which some may be too long, into packets of `size` bytes at most."""
    packets: list[list[Buffer]] = []
    room = 0
    for buffer in buffers:
        rest = memoryview(buffer)
        while rest:
            if not room:
                packets.append([])
                room = size
            packets[-1].append(rest[:room])
            room, rest = max(0, room - len(rest)), rest[room:]
    return packets
