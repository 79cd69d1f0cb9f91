"""A transport's use of the event loop: acquires it, makes links for new streams, and releases it.

Made and released in the thread of the netq loop, or before that starts. The netq loop watches no socket of grpc, and
would end before the last packets are sent. Therefore it watches a socket that never becomes ready until `release`.
"""

from __future__ import annotations

import asyncio
import socket

from netq.errors import SecurityError
from netq.grpc.event_loop import acquire, release
from netq.grpc.link import Link
from netq.identity import Protection
from netq.io.loop import Loop
from netq.io.selector import READ
from netq.options import check_put_merge
from netq.runtime.link import LinkListener


class EventLoopHandle:
    """One transport's use of the event loop. Raises RuntimeError in a fork of a process that has used gRPC."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        check_put_merge(listener.options, "gRPC")
        self.closed = False  # makes no more links
        self._listener = listener
        self._loop = loop
        self._hold = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self.event_loop = acquire()
        except BaseException:
            self._hold.close()
            raise
        loop.watch(self._hold, READ, lambda mask: None)

    async def make_link(
        self, address: str, protection: Protection | None = None, error: SecurityError | None = None
    ) -> Link | None:
        """Return a link for a new stream; None if it cannot be used now. Called in the event loop.

        `error` is why the stream is refused: the link has then ended.
        """
        # A link belongs to the netq loop, which therefore makes it. While this waits the stream may end: `_set_result`
        # then ends the link, which has no task that would report the end to it.
        made: asyncio.Future[Link | None] = self.event_loop.loop.create_future()
        self._loop.call(self._attach, made, address, protection, error)
        return await made

    def release(self) -> None:
        """Release the event loop, after the last stream has ended."""
        self._loop.forget(self._hold)
        self._hold.close()
        release(self.event_loop)

    def _attach(
        self,
        made: asyncio.Future[Link | None],
        address: str,
        protection: Protection | None,
        error: SecurityError | None,
    ) -> None:
        if self.closed or not self._listener.has_room():  # then the stream ends, and a client tries again
            self.event_loop.call(_set_result, made, None)
            return
        # The stream is started first: its queues keep what comes in either direction until both sides are ready.
        link = Link(self._listener, self._loop, self.event_loop, self._listener.connect(), address)
        link.protection = protection
        self.event_loop.call(_set_result, made, link)
        self._listener.attach(link)
        if error is not None:
            link.lost(error)


def _set_result(made: asyncio.Future[Link | None], link: Link | None) -> None:
    if not made.done():
        made.set_result(link)
    elif link is not None:
        link.stream.end()  # the stream ended while its link was made
