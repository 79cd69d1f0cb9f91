"""The connecting side of gRPC."""

from __future__ import annotations

import asyncio

from netq import core
from netq.grpc._grpc import grpc
from netq.grpc.channel_options import METHOD, of_client
from netq.grpc.errors import translate
from netq.grpc.handle import EventLoopHandle
from netq.grpc.resolver import addresses
from netq.grpc.stream import Ends
from netq.grpc.tls import authorities
from netq.io.connect import check
from netq.io.loop import Loop
from netq.options import CommunicatorOptions, Purpose
from netq.runtime.link import LinkListener


class ClientTransport:
    """A transport: each `open` is one attempt, with a channel of its own."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        security = listener.options.security
        self.netloc = listener.options.netloc
        check(self.netloc)
        self._listener = listener
        self._loop = loop
        self._address = "{}:{}".format(*self.netloc)
        self._trusted = None if security is None else authorities(security, self.netloc.host)
        self._outpost = EventLoopHandle(listener, loop)
        self._tasks: set[asyncio.Task[None]] = set()  # in the engine
        self._attempt: asyncio.Task[None] | None = None  # that of them which has no link yet

    def open(self) -> None:
        """Begin an attempt."""
        self._outpost.engine.call(self._begin)

    def close(self) -> None:
        """Connect no more; the last link may have something to say still."""
        if not self._outpost.closed:
            self._outpost.closed = True
            self._outpost.engine.call(self._end)

    def _failed(self, error: Exception) -> None:
        if not self._outpost.closed:
            self._listener.lost(None, error)

    # In the engine.

    def _begin(self) -> None:
        self._attempt = task = asyncio.create_task(self._connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self) -> None:
        attempt, self._attempt = self._attempt, None  # a cancelled task would keep the channel
        if attempt is not None:
            attempt.cancel()
        asyncio.gather(*self._tasks, return_exceptions=True).add_done_callback(self._left)

    def _left(self, done: asyncio.Future[list[BaseException | None]]) -> None:
        self._loop.call(self._outpost.leave)

    async def _connect(self) -> None:
        error: Exception | None = None
        try:
            for target in await addresses(self._outpost.engine, *self.netloc):
                error = await self._try(target)
                if error is None:
                    return
        except Exception as unknown:  # it ends in a link or in `lost`, whatever a library may raise
            error = unknown.with_traceback(None)  # whose frames are this one
        if self._attempt is asyncio.current_task():  # no link was made, which would have been told
            self._attempt = None
            self._loop.call(self._failed, error)

    async def _try(self, target: str) -> Exception | None:
        """Carry a link, if somebody is there; return what is wrong if not."""
        async with self._channel(target) as channel:
            call = channel.stream_stream(METHOD)()
            try:
                async with asyncio.timeout(self._listener.options.connection.handshake_timeout):
                    error = await self._refusal(channel, call)
                if error is None:
                    await self._carry(call)
            except TimeoutError:
                error = TimeoutError("it does not answer")
            finally:
                call.cancel()
        return error

    async def _refusal(self, channel: grpc.aio.Channel, call: grpc.aio.StreamStreamCall) -> Exception | None:
        """Wait until the channel is up. Not for the server's headers: a proxy may keep them until there is more.

        Or until the call is over: who hangs up at once may do so between two looks at the channel.
        """
        over = asyncio.create_task(call.code())
        try:
            state = channel.get_state()
            while state is not grpc.ChannelConnectivity.READY:
                if over.done() or state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    return translate(await call.details() or "", self.netloc.host)
                change = asyncio.create_task(channel.wait_for_state_change(state))
                await asyncio.wait({change, over}, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                state = channel.get_state()
        finally:
            over.cancel()
        return None

    async def _carry(self, call: grpc.aio.StreamStreamCall) -> None:
        link = await self._outpost.introduce(self._address)
        self._attempt = None
        if link is not None:
            await link.stream.carry(ends_of(call))

    def _channel(self, target: str) -> grpc.aio.Channel:
        options = of_client(self.netloc)
        if self._trusted is None:
            return grpc.aio.insecure_channel(target, options)
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(self._trusted), options)


def ends_of(call: grpc.aio.StreamStreamCall) -> Ends:
    """Return the ends of a client's stream. What is not read of one that broke keeps its channel, so it is iterated:

    once a write has failed, `call.read` returns no more of what has come.
    """
    packets = aiter(call)
    return Ends(lambda: anext(packets, grpc.aio.EOF), call.write, call.done_writing)


class Communicator(core.Communicator):
    """A client on gRPC. Raises SecurityError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.CLIENT, ClientTransport)
