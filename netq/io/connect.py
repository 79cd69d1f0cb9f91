"""Connects a socket without waiting: resolves a host, and tries its addresses one after the other. Also binds one.

Through a proxy it connects to that instead, and asks it for a tunnel (netq/io/tunnel.py).

For transports whose links begin with a socket of their own. Runs in the thread of the loop; only the lookup of a name,
which may take seconds, runs in a thread of its own. Knows nothing of the protocol.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from netq.errors import AddressError, InvalidOption
from netq.io.loop import Loop
from netq.io.selector import READ, WRITE
from netq.io.timers import Timer
from netq.io.tunnel import Tunnel, tunnel
from netq.options import CommunicatorOptions, NetworkLocation
from netq.proxy import ENVIRONMENT, NONE, Proxy, proxy_for

Address = tuple[int, Any]  # family, and what connect takes
_NO_HOST = "expected a host's name or address, without port or scheme; only Protocol.SHM takes the path of a socket"


class Connector:
    """Each `connect` is one attempt at all addresses of the host. It ends in a call of `connected` or `failed`.

    `connected` gets a non-blocking socket, and owns it. The options' handshake_timeout is for each address, and for a
    proxy's answer. Raises InvalidOption.
    """

    def __init__(
        self,
        loop: Loop,
        options: CommunicatorOptions,
        connected: Callable[[socket.socket], object],
        failed: Callable[[OSError], object],
    ) -> None:
        check(options.netloc)
        self._proxy = proxy_for(options.proxy, *options.netloc)
        self._loop = loop
        self._netloc = options.netloc
        self._timeout = options.connection.handshake_timeout
        self._connected = connected
        self._failed = failed
        self._sock: socket.socket | None = None  # while it is connecting
        self._timer: Timer | None = None
        self._closed = False

    @property
    def address(self) -> str:
        """The address of the server, and of the proxy on the way to it, for log lines."""
        return address(self._netloc, self._proxy)

    def connect(self) -> None:
        """Resolve the host, then connect."""
        host, port = self._netloc if self._proxy is None else (self._proxy.host, self._proxy.port)
        try:
            self._try(look_up(host, port, numeric=True))
        except socket.gaierror:  # it is a name, and its lookup may take seconds
            call = self._loop.call
            look_up_in_thread(host, port, partial(call, self._try), partial(call, self._refused, []))

    def close(self) -> None:
        """Stop connecting, without a call of `connected` or `failed`."""
        self._closed = True
        self._abandon()

    def _try(self, addresses: list[Address]) -> None:
        if self._closed:
            return None
        (family, address), *others = addresses
        try:
            self._sock = sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(address)
        except OSError as error:
            return self._refused(others, error)
        self._set_timer(others)
        self._loop.watch(sock, WRITE, lambda mask: self._answered(sock, others))
        return None

    def _set_timer(self, others: list[Address]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        late = TimeoutError("it does not answer")
        self._timer = self._loop.at(time.monotonic() + self._timeout, self._refused, others, late)

    def _answered(self, sock: socket.socket, others: list[Address]) -> None:
        # A socket becomes writable when the attempt is over, in either way; SO_ERROR says in which. The timer for this
        # address has kept an address that drops all packets from holding up the others for minutes.
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            return self._refused(others, OSError(number, os.strerror(number)))
        if is_own_end(sock):
            return self._refused(others, ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)))
        if self._proxy is None:
            return self._done(sock)
        steps = tunnel(self._proxy, self._netloc, sock.sendall)
        try:
            wanted = next(steps)
        except OSError as error:
            return self._refused(others, error)
        self._set_timer(others)
        self._loop.watch(sock, READ, lambda mask: self._converse(sock, others, steps, wanted))
        return None

    def _converse(self, sock: socket.socket, others: list[Address], steps: Tunnel, wanted: int) -> None:
        """Read what the proxy has answered so far, and say what follows."""
        try:
            while (received := _available(sock, wanted)) is not None:
                wanted = steps.send(received)
        except StopIteration:
            self._done(sock)
        except OSError as error:
            self._refused(others, error)
        else:
            self._loop.watch(sock, READ, lambda mask: self._converse(sock, others, steps, wanted))

    def _done(self, sock: socket.socket) -> None:
        self._loop.forget(sock)
        self._sock = None
        self._abandon()
        self._connected(sock)

    def _refused(self, others: list[Address], error: OSError) -> None:
        self._abandon()
        if self._closed:
            return
        if others:
            self._try(others)
        else:
            self._failed(error if self._proxy is None else at_proxy(self._proxy, error))

    def _abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sock is not None:
            self._loop.forget(self._sock)
            self._sock.close()
            self._sock = None


def _available(sock: socket.socket, most: int) -> bytes | None:
    """Return bytes that have come; none at the end, and None if they are still to come."""
    with contextlib.suppress(BlockingIOError):
        return sock.recv(most)
    return None


def address(netloc: NetworkLocation, proxy: Proxy | None) -> str:
    """Return the address of a server, and of the proxy on the way to it, for log lines."""
    return "{}:{}".format(*netloc) + ("" if proxy is None else f" through {proxy}")


def at_proxy(proxy: Proxy, error: Exception) -> OSError:
    """Return the error of an attempt that ended at the proxy, with its name."""
    return ConnectionError(f"the proxy {proxy}: {error}")


def check_no_proxy(options: CommunicatorOptions, why: str) -> None:
    """Raise InvalidOption if a proxy is given where none is of use."""
    if options.proxy not in (ENVIRONMENT, NONE):
        raise InvalidOption(f'CommunicatorOptions.proxy: {options.proxy!r}; {why}; expected "environment" or "none"')


def is_own_end(sock: socket.socket) -> bool:
    """Return whether the socket is connected to itself (RFC 9293, 3.5).

    That happens if nothing listens, and the system chose the port it connects to as its own.
    """
    with contextlib.suppress(OSError):
        return bool(sock.getsockname() == sock.getpeername())
    return False


def check(netloc: NetworkLocation) -> None:
    """Raise InvalidOption for what is no host, and for the port that only a server can have."""
    if not _is_host(netloc.host):
        raise InvalidOption(f"CommunicatorOptions.netloc: {netloc.host!r}; {_NO_HOST}")
    if netloc.port == 0:
        expected = "expected the port that the server, or the broker, listens at"
        raise InvalidOption(f"CommunicatorOptions.netloc: {netloc.host}:0; {expected}")


def look_up(host: str, port: int, *, numeric: bool) -> list[Address]:
    """Return the addresses of a host. A name may take seconds; with `numeric` it raises OSError instead."""
    return _getaddrinfo(host, port, socket.AI_NUMERICHOST if numeric else 0)


def _getaddrinfo(host: str, port: int, flags: int) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICSERV | flags)
    except UnicodeError as error:  # an empty label, or one of more than 63 bytes
        raise socket.gaierror(socket.EAI_NONAME, f"no name of a host ({error})") from error
    return [(family, address) for family, _, _, _, address in found]


def _is_host(host: str) -> bool:
    """Return whether this may be a name or an address: no path, no URL, no port behind it."""
    if ":" not in host:
        return "/" not in host
    with contextlib.suppress(ValueError):
        return bool(ipaddress.IPv6Address(host))
    return False


def look_up_in_thread(
    host: str, port: int, found: Callable[[list[Address]], object], failed: Callable[[OSError], object]
) -> None:
    """Resolve a name in a thread of its own, which calls `found` or `failed`."""

    def look() -> None:
        try:
            addresses = look_up(host, port, numeric=False)
        except OSError as error:
            failed(OSError(f"the name cannot be resolved: {error.strerror}"))
        else:
            found(addresses)

    # The system's lookup cannot be cancelled, and may wait for a dead name server for half a minute. A daemon thread
    # does not keep the process from ending meanwhile; an answer that comes too late is ignored (`_try`, `_refused`).
    try:
        threading.Thread(target=look, name="netq-resolve", daemon=True).start()
    except RuntimeError as error:  # the system has no thread left, or the interpreter is ending
        failed(OSError(f"the name cannot be resolved: {error}"))


def bind(netloc: NetworkLocation, backlog: int | None = None) -> socket.socket:
    """Return a non-blocking socket at an address of this machine; with `backlog` it listens.

    Raises AddressError.
    """
    sock = None
    try:
        family, address = _getaddrinfo(*netloc, socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
        if backlog is not None:
            sock.listen(backlog)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise cannot_listen(netloc, error) from error
    return sock


def cannot_listen(netloc: NetworkLocation, error: OSError) -> AddressError:
    """Return the error of a server that cannot listen, with the system's reason and what to do."""
    advice = "choose another port, or 0 for a free one"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        advice = "choose an address of this machine, or 0.0.0.0 for all" if _is_host(netloc.host) else _NO_HOST
    why = error.strerror or str(error)
    return AddressError(f"cannot listen at {netloc.host}:{netloc.port} (netloc): {why}; {advice}")
