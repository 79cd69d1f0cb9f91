"""A gRPC link: moves the bytes of one Connection. Runs in a netq loop; never waits, never retries.

It exchanges packets with its Stream (netq/grpc/stream.py) through two queues, the only data that the netq loop and
grpc's event loop share.
"""

from __future__ import annotations

import time

from netq.grpc.event_loop import EventLoop
from netq.grpc.packet_size import MOST
from netq.grpc.stream import END, Stream
from netq.identity import Protection
from netq.io.baton import Worker
from netq.io.loop import Loop
from netq.protocol.connection import Connection
from netq.runtime.link import LinkListener

_PACKETS = 8  # packets received before other links of the loop get a turn


class Link:
    """Moves bytes between a Stream and a Connection."""

    inline = False

    def __init__(
        self, listener: LinkListener, loop: Loop, event_loop: EventLoop, connection: Connection, address: str
    ) -> None:
        self.connection = connection
        self.address = address
        self.peer: Worker | None = None
        self.protection: Protection | None = None  # a client learns it from the headers of the response
        self.stream = Stream(event_loop, self._schedule_turn, address)
        self._listener = listener
        self._loop = loop
        self._closed = False

    def flush(self) -> None:
        """Queue packets for sending, until one is being written and another one waits."""
        outgoing, packet_size = self.stream.outgoing, self.stream.packet_size
        while not self._closed and not outgoing.is_full(packet_size.size):
            if not self._put_packet(packet_size.size):
                return

    def receive(self) -> None:
        """Do nothing: only the loop's thread receives."""

    def keep(self) -> None:
        """Do nothing: packets are copies."""

    def close(self) -> None:
        """Queue the last bytes of the connection, and end the stream after them."""
        if not self._closed:
            self._closed = True
            self._put_packet(MOST)
            self.stream.close()

    def move(self, loop: Loop) -> None:
        """Continue in another loop."""
        self._loop = loop
        loop.call(self._turn, loop)

    def _put_packet(self, limit: int) -> bool:
        buffers = self.connection.to_send(limit, time.monotonic())
        if buffers:
            self.stream.outgoing.put(b"".join(buffers))
        return bool(buffers)

    def _schedule_turn(self) -> None:
        """Schedule a turn in the loop. Any thread may call this."""
        # The link may move between this look at `_loop` and the turn. The turn then finds itself in the wrong loop,
        # where it must not touch the session, and goes on to the right one. The queue has already noted the wake-up as
        # done, so a turn that was dropped instead would leave the link asleep forever.
        loop = self._loop
        loop.call(self._turn, loop)

    def _turn(self, loop: Loop) -> None:
        if loop is not self._loop:  # the link has moved since the call
            self._loop.call(self._turn, self._loop)
            return
        self._receive()
        self.flush()

    def _receive(self) -> None:
        incoming = self.stream.incoming
        for _ in range(_PACKETS):
            packet = incoming.take()
            if packet is None:
                return
            if self._closed:
                continue
            if packet is END:
                self.lost(self.stream.error)
                return
            if events := self.connection.feed(memoryview(packet), time.monotonic()):
                self._listener.deliver(self, events)
            incoming.processed(len(packet))
        self._schedule_turn()

    def lost(self, error: Exception) -> None:
        """Report the loss of the link."""
        self._closed = True
        self.stream.close()
        self._listener.lost(self, error)
