"""One gRPC stream, and the Connection whose bytes it moves. Lives in a loop; never waits, never retries.

What it hands over, and what it is handed, lies on the two belts of its Stream (netq/grpc/stream.py): the only place
where the netq loop and the engine meet.
"""

from __future__ import annotations

import time

from netq.grpc.event_loop import EventLoop
from netq.grpc.packet_size import MOST
from netq.grpc.stream import END, Stream
from netq.io.baton import Worker
from netq.io.loop import Loop
from netq.protocol.connection import Connection
from netq.runtime.link import LinkListener

_PACKETS = 8  # packets taken before the others have their turn


class Link:
    """Moves bytes between a stream and a connection."""

    inline = False

    def __init__(
        self, listener: LinkListener, loop: Loop, engine: EventLoop, connection: Connection, address: str
    ) -> None:
        self.connection = connection
        self.address = address
        self.peer: Worker | None = None
        self.stream = Stream(engine, self._wake, address)
        self._listener = listener
        self._loop = loop
        self._closed = False

    def flush(self) -> None:
        """Hand packets over, until one is on its way and another waits."""
        down, pace = self.stream.down, self.stream.pace
        while not self._closed and not down.full(pace.packet):
            if not self._give(pace.packet):
                return

    def receive(self) -> bool:
        """Nothing: that is for the loop's thread."""
        return False

    def keep(self) -> None:
        """Nothing is kept here: a packet is a copy."""

    def close(self) -> None:
        """Hand over what the connection has left to say, and end the stream behind it."""
        if not self._closed:
            self._closed = True
            self._give(MOST)
            self.stream.close()

    def move(self, loop: Loop) -> None:
        """Go on in another loop, with what has come meanwhile."""
        self._loop = loop
        loop.call(self._turn, loop)

    def _give(self, limit: int) -> bool:
        buffers = self.connection.to_send(limit, time.monotonic())
        if buffers:
            self.stream.down.give(b"".join(buffers))
        return bool(buffers)

    def _wake(self) -> None:
        """Have a turn. In any thread."""
        loop = self._loop
        loop.call(self._turn, loop)

    def _turn(self, loop: Loop) -> None:
        if loop is not self._loop:  # it has moved meanwhile
            self._loop.call(self._turn, self._loop)
            return
        self._receive()
        self.flush()

    def _receive(self) -> None:
        up = self.stream.up
        for _ in range(_PACKETS):
            packet = up.take()
            if packet is None:
                return
            if self._closed:
                continue
            if packet is END:
                self._lost()
                return
            if events := self.connection.feed(memoryview(packet), time.monotonic()):
                self._listener.deliver(self, events)
            up.taken(len(packet))
        self._wake()

    def _lost(self) -> None:
        self._closed = True
        self.stream.close()
        self._listener.lost(self, self.stream.error)
