"""The connecting side of gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from netq import core
from netq.errors import InvalidOption
from netq.grpc import channel_options
from netq.grpc._grpc import grpc
from netq.grpc.channel_options import METHOD
from netq.grpc.errors import translate
from netq.grpc.handle import EventLoopHandle
from netq.grpc.link import Link
from netq.grpc.resolver import addresses
from netq.grpc.stream import StreamFunctions
from netq.grpc.tls import of_client, read_headers, refusal, renewed
from netq.io import connect
from netq.io.loop import Loop
from netq.io.tunnel import ProxyRefused
from netq.options import CommunicatorOptions, Purpose
from netq.proxy import Proxy, proxy_for
from netq.runtime.link import LinkListener
from netq.security.tls import with_own_id


class ClientTransport:
    """Connects to a server: each `open` is one attempt, on a new channel."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        security = listener.options.security
        self.netloc = listener.options.netloc
        connect.check(self.netloc)
        self._proxy = _proxy(listener.options)
        self._listener = listener
        self._loop = loop
        self._address = connect.address(self.netloc, self._proxy)
        self._files = None if security is None else renewed(security, partial(of_client, security, self.netloc.host))
        self._require = security is not None and security.post_quantum == "require"
        self._handle = EventLoopHandle(listener, loop)
        self._tasks: set[asyncio.Task[None]] = set()  # of the event loop
        self._attempt: asyncio.Task[None] | None = None  # the task that has no link yet

    def open(self) -> None:
        """Begin an attempt."""
        self._handle.event_loop.call(self._begin)

    def close(self) -> None:
        """Make no more attempts. The last link may still send its last packets."""
        if not self._handle.closed:
            self._handle.closed = True
            self._handle.event_loop.call(self._end)

    def _failed(self, error: Exception) -> None:
        if not self._handle.closed:
            self._listener.lost(None, error)

    # The methods below run in the event loop.

    def _begin(self) -> None:
        self._attempt = task = asyncio.create_task(self._connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self) -> None:
        attempt, self._attempt = self._attempt, None  # a reference to the cancelled task would keep its channel
        if attempt is not None:
            attempt.cancel()
        asyncio.gather(*self._tasks, return_exceptions=True).add_done_callback(self._ended)

    def _ended(self, done: asyncio.Future[list[BaseException | None]]) -> None:
        self._loop.call(self._handle.release)

    async def _connect(self) -> None:
        error: Exception | None = None
        try:
            host, port = self.netloc if self._proxy is None else (self._proxy.host, self._proxy.port)
            for target in await addresses(self._handle.event_loop, host, port):
                error = await self._try(target)
                if error is None:
                    return
        except Exception as unknown:  # every attempt must end in a link or in `lost`, whatever grpc raises
            error = unknown.with_traceback(None)  # the traceback would keep this frame alive
        # An attempt ends in a link, or in one call of `lost`: without either, no timer would begin the next one. A link
        # that was made reports its own end. After `close` the attempt is None, and nothing is reported.
        if self._attempt is asyncio.current_task():
            self._attempt = None
            if self._proxy is not None and isinstance(error, OSError):
                error = _through(self._proxy, error)
            self._loop.call(self._failed, error)

    async def _try(self, target: str) -> Exception | None:
        """Connect to one address and carry a link until it ends. Return the error if that is not possible."""
        async with self._channel(target) as channel:
            call = channel.stream_stream(METHOD)()
            try:
                async with asyncio.timeout(self._listener.options.connection.handshake_timeout):
                    error = await self._refusal(channel, call)
                    if error is None and self._require:
                        error = await self._weakness(call)
                if error is None:
                    await self._carry(call)
            except TimeoutError:
                error = TimeoutError("it does not answer")
            finally:
                call.cancel()
        return error

    async def _refusal(self, channel: grpc.aio.Channel, call: grpc.aio.StreamStreamCall) -> Exception | None:
        """Wait until the channel is ready; return an error if it fails.

        The server's headers are not awaited: a proxy may hold them back until there is data. The end of the call is
        awaited too, because the server may hang up between two looks at the state of the channel.
        """
        over = asyncio.create_task(call.code())
        try:
            state = channel.get_state()
            while state is not grpc.ChannelConnectivity.READY:
                if over.done() or state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    return self._translate(await call.details() or "")
                change = asyncio.create_task(channel.wait_for_state_change(state))
                await asyncio.wait({change, over}, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                state = channel.get_state()
        finally:
            over.cancel()
        return None

    async def _weakness(self, call: grpc.aio.StreamStreamCall) -> Exception | None:
        """Wait for the server's headers; return an error if they do not tell of a post-quantum key exchange."""
        found = read_headers(await call.initial_metadata())
        if found is None and call.done():  # the server has refused this client
            return self._translate(await call.details() or "")
        return refusal(found, f"the server {self.netloc.host}", require=True)

    def _translate(self, details: str) -> Exception:
        return translate(details, self.netloc.host, self._proxy)

    async def _carry(self, call: grpc.aio.StreamStreamCall) -> None:
        link = await self._handle.make_link(self._address)
        self._attempt = None
        if link is None:
            return
        # Not awaited here: a proxy may hold the headers back until there is data.
        learning = None if self._files is None else asyncio.create_task(_learn_protection(link, call))
        try:
            await link.stream.carry(functions_of(call))
        finally:
            if learning is not None:
                learning.cancel()

    def _channel(self, target: str) -> grpc.aio.Channel:
        options = channel_options.of_client(self.netloc, self._proxy)
        if self._files is None:
            return grpc.aio.insecure_channel(target, options)
        key, certificate, trusted = self._files.current()
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(trusted, key, certificate), options)


def _through(proxy: Proxy, error: OSError) -> OSError:
    """Return the error of an attempt through a proxy: of the proxy, or of the server behind it."""
    if type(error) is OSError or isinstance(error, TimeoutError | ProxyRefused):
        return connect.at_proxy(proxy, error)
    return type(error)(f"{error} (through the proxy {proxy})")


def _proxy(options: CommunicatorOptions) -> Proxy | None:
    """Return the proxy of the options. Raises InvalidOption for one that grpc cannot use."""
    proxy = proxy_for(options.proxy, *options.netloc)
    if proxy is not None and proxy.scheme != "http":
        hint = 'expected "http://HOST:PORT", or "none"; or use Protocol.TCP'
        raise InvalidOption(f"CommunicatorOptions.proxy: {str(proxy)!r}; gRPC uses HTTP proxies only: {hint}")
    return proxy


async def _learn_protection(link: Link, call: grpc.aio.StreamStreamCall) -> None:
    """Note what the server tells of the connection: grpc does not tell a client."""
    with contextlib.suppress(grpc.RpcError):
        link.protection = read_headers(await call.initial_metadata())


def functions_of(call: grpc.aio.StreamStreamCall) -> StreamFunctions:
    """Return the functions of a client's stream.

    Packets are read by iteration: after a failed write `call.read` no longer returns packets that have arrived, and
    unread packets keep the channel alive.
    """
    packets = aiter(call)
    return StreamFunctions(lambda: anext(packets, grpc.aio.EOF), call.write, call.done_writing)


class Communicator(core.Communicator):
    """A client on gRPC. Raises SecurityError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(with_own_id(options), Purpose.CLIENT, ClientTransport)
