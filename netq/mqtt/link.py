"""Connects a session's Connection to a Channel. Runs in the loop of its peer; calls to the channel are passed to the
first loop, where the connection to the broker is.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from netq.buffers import Buffer
from netq.identity import Protection
from netq.io.baton import Worker
from netq.io.loop import Loop
from netq.mqtt.channel import Channel, Segment
from netq.mqtt.multicast.group import Block
from netq.protocol.connection import Connection
from netq.protocol.sender import SMALL, Part
from netq.runtime.link import LinkListener

_QUEUE, _REMOTE_QUEUE = 1, 2  # segments queued in the channel; more if it is in another loop
PREFIX = 256  # bytes of the session that may precede a block, beyond the size of a packet
_MIN_BLOCK = 4 * 1024  # bytes: smaller parts are sent by unicast


class Link:
    """Moves bytes between a channel and a connection, at most `size` in a packet."""

    inline = False

    def __init__(
        self,
        listener: LinkListener,
        channel: Channel,
        first_loop: Loop,
        connection: Connection,
        address: str,
        size: int,
    ) -> None:
        self.connection = connection
        self.address = address
        self.peer: Worker | None = None
        self.protection: Protection | None = None  # of the connection to the broker
        self._listener = listener
        self._channel = channel
        self._first_loop = self._loop = first_loop
        self._size = size
        self._block_size = min(size, listener.options.connection.transport_size)
        self._queued = 0
        self._closed = False
        channel.link = self

    def flush(self) -> None:
        """Take the next bytes to send from the connection, and no more: later puts may be more urgent."""
        # What is queued here can be neither overtaken nor cancelled. One packet is enough where `published` is called
        # at once; from another loop it takes a round of both loops, in which the broker's connection would be idle.
        limit = _QUEUE if self._loop is self._first_loop else _REMOTE_QUEUE
        while self._queued < limit and not self._closed and self._take_segments():
            pass

    def receive(self) -> None:
        """Do nothing: only the loop's thread receives."""

    def keep(self) -> None:
        """Copy what is queued. A link in another loop has copied it already."""
        if self._loop is self._first_loop:
            self._channel.keep()

    def close(self) -> None:
        """Send what the connection has left, then close the channel."""
        if not self._closed:
            while self._take_segments():
                pass
            self._closed = True
            self._run_in(self._first_loop, self._channel.close)

    def move(self, loop: Loop) -> None:
        """Continue in another loop. The channel stays in the first."""
        self._loop = loop

    def broadcast_peer(self, size: int) -> uuid.UUID | None:
        """Return the peer, or None before the handshake, or if it does not accept blocks of this size."""
        session = self.connection.session
        able = self.connection.open and self._size == size
        return session.peer if session is not None and able else None

    # For the channel.

    def call(self, function: Callable[..., None], *args: object) -> None:
        """Run a function in this link's loop; at once if that is the first loop."""
        self._run_in(self._loop, function, *args)

    # For the channel, in this link's loop.

    def feed(self, data: memoryview) -> None:
        """Process bytes of the session."""
        # `consumed` is called only after the session has taken the bytes: it is the credit for further packets. A link
        # whose loop is behind then slows its own sender, and not the broker's connection, which all links share.
        if not self._closed and (events := self.connection.feed(data, time.monotonic())):
            self._listener.deliver(self, events)
        self._run_in(self._first_loop, self._channel.consumed)
        self.flush()

    def published(self) -> None:
        """Take the next segment: one was published."""
        self._queued -= 1
        self.flush()

    def lost(self, error: Exception) -> None:
        """Report the loss of the link."""
        if not self._closed:
            self._closed = True
            self._listener.lost(self, error)

    def _take_segments(self) -> bool:
        size = min(self._size, self._channel.congestion.size)
        pieces = self.connection.pieces(size, time.monotonic(), self._is_block)
        segments = self._split(pieces)
        if self._loop is not self._first_loop:  # another loop cannot tell when the user's memory is free again
            segments = [segment.copy() for segment in segments]
        self._queued += len(segments)
        if segments:
            self._run_in(self._first_loop, self._channel.enqueue, segments)
        return bool(segments)

    def _split(self, pieces: list[Buffer | Part]) -> list[Segment]:
        """Split buffers into segments, each at most a packet. A segment ends at a block that other links may share."""
        segments: list[Segment] = []
        buffers: list[Buffer] = []
        for piece in pieces:
            if not isinstance(piece, Part):
                buffers.append(piece)
                continue
            before, buffers = _packets(buffers, self._size), []
            block = Block(piece.stream, piece.start, piece.audience, piece.buffers(), piece.sealed)
            room = PREFIX - (sum(map(len, block.buffers)) - piece.size)  # a sealed block is a little larger
            last = before.pop() if before and sum(map(len, before[-1])) <= room else []
            segments += [*map(Segment, before), Segment(last, block)]
        return segments + [Segment(packet) for packet in _packets(buffers, self._size)]

    def _is_block(self, part: Part) -> bool:
        """Whether this part has the same offsets on all links, and is large enough for multicast."""
        whole = part.start % self._block_size == 0 and part.stop == min(
            part.start + self._block_size, part.stream.nbytes
        )
        return bool(part.audience) and whole and part.stream.nbytes > SMALL and part.size >= _MIN_BLOCK

    def _run_in(self, loop: Loop, function: Callable[..., None], *args: object) -> None:
        if self._loop is self._first_loop:
            function(*args)
        else:
            loop.call(function, *args)


def _packets(buffers: list[Buffer], size: int) -> list[list[Buffer]]:
    """Split buffers into packets of at most `size` bytes."""
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
