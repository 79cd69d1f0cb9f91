"""What a transport has in the engine: a claim on it, and the way in which a new stream becomes a link.

Made and left in the thread of the netq loop (or before it starts). The loop has nothing of grpc to watch, and would
end before the last words are sent: so it watches a socket that never becomes ready, until the transport has left the
engine.
"""

from __future__ import annotations

import asyncio
import socket

from netq.grpc.event_loop import acquire, release
from netq.grpc.link import Link
from netq.io.loop import Loop
from netq.io.selector import READ
from netq.options import check_put_merge
from netq.runtime.link import LinkListener


class EventLoopHandle:
    """One transport's place in the engine. Raises RuntimeError in a fork of a process that has ever had one."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        check_put_merge(listener.options, "gRPC")
        self.closed = False  # no more links
        self._listener = listener
        self._loop = loop
        self._hold = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self.engine = acquire()
        except BaseException:
            self._hold.close()
            raise
        loop.watch(self._hold, READ, lambda mask: None)

    async def introduce(self, address: str) -> Link | None:
        """Have a link made for a stream that is up; None if none is wanted any more. In the engine."""
        answer: asyncio.Future[Link | None] = self.engine.loop.create_future()
        self._loop.call(self._attach, answer, address)
        return await answer

    def leave(self) -> None:
        """All is over here."""
        self._loop.forget(self._hold)
        self._hold.close()
        release(self.engine)

    def _attach(self, answer: asyncio.Future[Link | None], address: str) -> None:
        if self.closed:
            self.engine.call(_tell, answer, None)
            return
        link = Link(self._listener, self._loop, self.engine, self._listener.connect(), address)
        self.engine.call(_tell, answer, link)
        self._listener.attach(link)


def _tell(answer: asyncio.Future[Link | None], link: Link | None) -> None:
    if not answer.done():
        answer.set_result(link)
    elif link is not None:
        link.stream.end()  # the stream has ended while its link was made
