"""The listening side of gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from urllib.parse import unquote

from netq import core
from netq.errors import SecurityError
from netq.grpc import channel_options
from netq.grpc._grpc import grpc
from netq.grpc.channel_options import CONNECT, SERVICE
from netq.grpc.handle import EventLoopHandle
from netq.grpc.stream import StreamFunctions
from netq.grpc.tls import Files, headers, of_server, protection, refusal, renewed
from netq.io.connect import bind, cannot_listen, check_no_proxy
from netq.io.loop import Loop
from netq.options import CommunicatorOptions, NetworkLocation, Purpose
from netq.runtime.link import LinkListener
from netq.security.renewal import Renewed

_GRACE = 0.9  # seconds for the last packets of all streams


class ServerTransport:
    """Listens, and makes a link for each stream that a client opens."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        check_no_proxy(listener.options, "a server listens, and connects to nothing")
        security = listener.options.security
        self.netloc = listener.options.netloc
        self._listener = listener
        self._loop = loop
        self._files = None if security is None else renewed(security, partial(of_server, security))
        self._require = security is not None and security.post_quantum == "require"
        self._handle: EventLoopHandle | None = None
        self._server: grpc.aio.Server | None = None  # used in the event loop
        self._stopping: asyncio.Task[None] | None = None  # as well

    def open(self) -> None:
        """Listen; raises AddressError."""
        with bind(self.netloc) as sock:  # for the system's error, which grpc does not report
            host, port = sock.getsockname()[0], self.netloc.port
        self._handle = EventLoopHandle(self._listener, self._loop)
        try:
            bound = self._handle.event_loop.run(self._start(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
            if not bound:
                raise cannot_listen(self.netloc, OSError("grpc does not say why"))
        except BaseException:
            self._handle.release()
            raise
        self.netloc = NetworkLocation(self.netloc.host, bound)

    def close(self) -> None:
        """Stop listening. The streams may still send their last packets."""
        if self._handle is not None and not self._handle.closed:
            self._handle.closed = True
            self._handle.event_loop.call(self._end)

    # The methods below run in the event loop.

    async def _start(self, address: str) -> int:
        """Start listening, and return the port; 0 if grpc cannot bind the address."""
        server = grpc.aio.server(options=channel_options.of_server(self._listener.options.connection))
        methods = {CONNECT: grpc.stream_stream_rpc_method_handler(self._serve)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        try:
            if self._files is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, _credentials(self._files))
        except RuntimeError:
            return 0
        await server.start()
        self._server = server
        return int(port)

    def _end(self) -> None:
        self._stopping = asyncio.create_task(self._stop())
        self._stopping.add_done_callback(self._stopped)

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(_GRACE)

    def _stopped(self, done: asyncio.Future[None]) -> None:
        if self._handle is not None:
            self._loop.call(self._handle.release)

    async def _serve(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        assert self._handle is not None
        address = unquote(context.peer().partition(":")[2])
        found = error = None
        if self._files is not None:
            try:
                found = protection(context.auth_context())
                error = refusal(found, "a client", require=self._require)
            except SecurityError as unreadable:
                error = unreadable
        await context.send_initial_metadata(headers(found.security) if found else ())
        link = await self._handle.make_link(address, found, error)
        if error is not None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        if link is not None:
            await link.stream.carry(StreamFunctions(context.read, context.write, _finish))


def _credentials(files: Renewed[Files]) -> grpc.ServerCredentials:
    """Return credentials that grpc asks for before each handshake. It keeps those before where it gets None."""
    last = files.current()

    def configuration(found: Files) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(found.key, found.certificate)], found.trusted)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal last
        before, last = last, files.current()
        return None if last is before else configuration(last)

    return grpc.dynamic_ssl_server_credentials(configuration(last), fetch, last.trusted is not None)


class Communicator(core.Communicator):
    """A server on gRPC. Raises AddressError, SecurityError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.SERVER, ServerTransport)


async def _finish() -> None:
    """Do nothing: a server's stream finishes when its handler returns."""
