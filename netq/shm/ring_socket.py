"""A stream socket whose bytes travel in two rings of shared memory: for two processes of one user on one Linux machine.

    with listen("/run/user/1000/ring") as listener, listener.accept() as sock:
        n = sock.recv_into(buffer)             # 0 at the end of the stream

    with connect("/run/user/1000/ring") as sock:
        sock.sendall(b"any bytes")

It has those calls of `socket.socket` that RingSocket and Listener list here, with their exceptions; and no messages: a
stream of bytes each way. The peer may be in the same process. docs/reference/ring.md has the facts,
docs/explanation/ring.md the reasons.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
import warnings
import weakref
from typing import Self

from netq.buffers import Buffer
from netq.errors import ProtocolError
from netq.io.interrupts import suppress
from netq.shm import rendezvous
from netq.shm.control import ControlSocket
from netq.shm.refusals import RefusalLog
from netq.shm.ring_options import SIZE, SPIN, Address, check_size, check_timeout, read_address, read_spin
from netq.shm.socket_handshake import Arrival, Parts, offer
from netq.shm.waiting import Line, WaitingReader, WaitingWriter
from netq.text import format_netloc

_MAX_ARRIVING = 64  # connections that have not brought their rings; clients send them with the connection


def listen(address: Address, *, spin: float = SPIN) -> Listener:
    """Listen at the path of a socket, or at a host of this machine and a port: 0 chooses one.

    `spin`: how long each wait of an accepted socket checks the ring before it sleeps, in seconds. Raises AddressError
    and InvalidOption.
    """
    netloc, spin = read_address(address, least_port=0), read_spin(spin)
    epoll = select.epoll()
    try:
        return Listener(rendezvous.listen(netloc, "address"), epoll, spin)
    except BaseException:
        epoll.close()
        raise


def connect(address: Address, timeout: float | None = None, *, size: int = SIZE, spin: float = SPIN) -> RingSocket:
    """Connect to a listener of the same user; that succeeds at once or fails.

    `timeout`: of later calls, see RingSocket.settimeout. `size`: bytes of each of the two rings, a multiple of 4096
    up to 1 MiB. `spin`: as in `listen`. Raises ConnectionRefusedError and FileNotFoundError (no server is there),
    PermissionError (it is of another user), InvalidOption, other OSErrors.
    """
    netloc = read_address(address, least_port=1)
    check_size(size)
    spin = read_spin(spin)
    check_timeout(timeout)
    try:
        control = ControlSocket(rendezvous.connect(netloc))
    except OSError as error:
        is_absent = isinstance(error, (ConnectionRefusedError, FileNotFoundError))
        advice = "; a server must listen and accept there" if is_absent else ""
        where = format_netloc(*netloc)
        raise OSError(error.errno, f"cannot connect to the ring socket {where}: {error.strerror}{advice}") from error
    try:
        parts = offer(control, size)
    except ConnectionError as error:
        line = Line(control)
        line.end()
        control.sock.close()
        line.check_refusal()
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"the server at {format_netloc(*netloc)} hung up") from error
    except BaseException:
        control.sock.close()
        raise
    return RingSocket(parts, timeout, spin)


class RingSocket:
    """A connected stream socket. One thread may send while another one receives; `close` may be called in any thread.

    It belongs to the process that made it: after a fork the child's copy is closed.
    """

    def __init__(self, parts: Parts, timeout: float | None, spin: float) -> None:
        line = Line(parts.control)
        self._parts = parts
        try:
            self._reader = WaitingReader(parts.rings.reader, line, parts.own, spin)
        except OSError:  # no descriptor is left
            parts.close()
            raise
        self._writer = WaitingWriter(parts.rings.writer, line, parts.other, spin)
        self._timeout = timeout
        self._closed = False
        # Each direction belongs to one thread at a time. `close` takes both locks before it releases the memory; they
        # are reentrant so that a signal handler may call it on top of a call that waits.
        self._receiving, self._sending = threading.RLock(), threading.RLock()
        _open.add(self)

    def send(self, data: Buffer) -> int:
        """Send a first part of `data`, as much as there is room for; return the count of its bytes.

        Waits while there is no room. Raises BrokenPipeError if the peer has closed or died, TimeoutError,
        BlockingIOError if the timeout is 0, RingError if the peer has written an impossible number.
        """
        with self._sending:
            return self._send(_bytes_of(data), self._timeout)

    def sendall(self, data: Buffer) -> None:
        """Send all of `data`. After an error it is unknown how much was sent. Raises what `send` raises."""
        view = _bytes_of(data)
        with self._sending:
            timeout = self._timeout
            deadline = time.monotonic() + timeout if timeout else None
            n = self._send(view, timeout)
            while n < len(view):
                n += self._send(view[n:], timeout if deadline is None else _left(deadline))

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Receive into `buffer` what is there; return the count of bytes, 0 at the end of the stream.

        Waits for the first byte. The stream ends when the peer has closed or died and everything that it sent is
        received. Raises TimeoutError, BlockingIOError if the timeout is 0, ConnectionRefusedError if the server has
        refused this connection, RingError if the peer has written an impossible number.
        """
        view = _bytes_of(buffer)
        if view.readonly:
            raise TypeError("recv_into: a read-only buffer; expected a writable one, such as a bytearray")
        if not view:
            return 0
        with self._receiving:
            self._check_open()
            n = self._reader.read_into(view, self._timeout)
            if not n:
                self._check_open()  # perhaps it was this side that ended the wait
            return n

    def recv(self, size: int) -> bytes:
        """Receive up to `size` bytes; b"" at the end of the stream. Raises what `recv_into` raises."""
        buffer = bytearray(min(size, self._parts.rings.reader.size))
        n = self.recv_into(buffer)
        return bytes(memoryview(buffer)[:n])

    def settimeout(self, timeout: float | None) -> None:
        """Set how many seconds each later call may wait. None: without limit; 0: not at all (BlockingIOError)."""
        check_timeout(timeout)
        self._timeout = timeout

    def gettimeout(self) -> float | None:
        """Return the timeout."""
        return self._timeout

    def fileno(self) -> int:
        """Return a descriptor for `select`: readable while there are bytes, or the stream has ended. Never writable.

        From the first call on, each receipt costs two or three system calls more.
        """
        with self._receiving:
            self._check_open()
            return self._reader.fileno()

    def close(self) -> None:
        """Close. The peer still receives everything that was sent. Calls that wait in other threads raise OSError."""
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):  # the peer has gone
            self._parts.control.sock.shutdown(socket.SHUT_RDWR)
        with self._receiving, self._sending:
            self._parts.rings.reader.leave()  # so that the peer's next `send` asks whether this side is there
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn("unclosed ring socket", ResourceWarning, source=self, stacklevel=1)
            self.close()

    def _send(self, view: memoryview, timeout: float | None) -> int:
        self._check_open()
        if not view:  # no byte that the peer should be woken for
            return 0
        try:
            return self._writer.write(view, timeout)
        except BrokenPipeError:
            self._check_open()  # perhaps it was this side that ended the wait
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the ring socket is closed; connect anew")

    def _release(self) -> None:
        _open.discard(self)
        self._reader.close()
        self._parts.close()

    def _abandon(self) -> None:
        """Close the copies of a forked child. The memory and the connection are the parent's."""
        self._closed = True
        self._release()


class Listener:
    """A listening ring socket. `accept` may be called in several threads, `close` in any."""

    def __init__(self, listening: rendezvous.ListeningSocket, epoll: select.epoll, spin: float) -> None:
        self._listening = listening
        self._spin = spin
        self._arriving: dict[int, Arrival] = {}  # by descriptor, the oldest first
        self._refusals = RefusalLog()
        self._closed = False
        self._lock = threading.RLock()
        self._epoll = epoll
        epoll.register(listening.sock, select.EPOLLIN)
        _open.add(self)

    @property
    def address(self) -> str | tuple[str, int]:
        """The path, or the host and the port."""
        host, port = self._listening.netloc
        return host if host.startswith("/") else (host, port)

    def accept(self, timeout: float | None = None) -> RingSocket:
        """Wait for a connection of a process of the same user; others are refused, with a warning in the log.

        `timeout` in seconds; None: without limit. Raises TimeoutError; BlockingIOError if the timeout is 0; OSError.
        """
        check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise _no_connection(timeout)
        try:
            while True:
                events = self._epoll_wait(None if deadline is None else _left(deadline))
                for fd, _ in events:
                    if fd == self._listening.sock.fileno():
                        self._begin()
                    elif fd in self._arriving and (parts := self._go_on(fd)):
                        return RingSocket(parts, None, self._spin)
                if not events:
                    raise _no_connection(timeout)
        finally:
            self._lock.release()

    def fileno(self) -> int:
        """Return a descriptor for `select`: readable when `accept` has something to do."""
        self._check_open()
        return self._epoll.fileno()

    def close(self) -> None:
        """Stop listening. Connections that were not accepted end; `accept` in another thread raises OSError."""
        if self._closed:
            return
        self._closed = True
        self._listening.sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._listening.close()
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the listener is closed")

    def _epoll_wait(self, timeout: float | None) -> list[tuple[int, int]]:
        self._check_open()
        events = self._epoll.poll(timeout)
        self._check_open()
        return events

    def _begin(self) -> None:
        """Accept a connection, and watch it until it has brought its rings."""
        with suppress(BlockingIOError):  # it has gone
            sock, _ = self._listening.sock.accept()
            try:
                rendezvous.check_user(sock)
            except OSError as error:
                self._refusals.warn(format_netloc(*self._listening.netloc), sock, str(error.strerror))
                sock.close()
                return
            if len(self._arriving) >= _MAX_ARRIVING:
                self._arriving.pop(next(iter(self._arriving))).close()
            self._arriving[sock.fileno()] = Arrival(sock)
            self._epoll.register(sock, select.EPOLLIN)

    def _go_on(self, fd: int) -> Parts | None:
        """Read what a connection has brought; return its parts when it is complete."""
        arrival = self._arriving[fd]
        try:
            if (parts := arrival.take()) is None:
                return None
        except (OSError, ProtocolError) as error:
            if not isinstance(error, ConnectionError):
                self._refusals.warn(format_netloc(*self._listening.netloc), arrival.control.sock, str(error))
            del self._arriving[fd]
            arrival.refuse(str(error))
            return None
        self._epoll.unregister(fd)
        del self._arriving[fd]
        return parts

    def _release(self) -> None:
        _open.discard(self)
        for arrival in self._arriving.values():
            arrival.close()
        self._epoll.close()

    def _abandon(self) -> None:
        """Close the copies of a forked child. The socket's file is the parent's."""
        self._closed = True
        self._listening.sock.close()
        self._release()


def _no_connection(timeout: float | None) -> OSError:
    if timeout:
        return TimeoutError(errno.ETIMEDOUT, f"no connection came within {timeout:g} s")
    return BlockingIOError(errno.EAGAIN, "no connection is there")


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)


def _bytes_of(data: Buffer) -> memoryview:
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("a buffer whose bytes are not contiguous; expected a contiguous one: copy it by bytes(…)")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


_open: weakref.WeakSet[RingSocket | Listener] = weakref.WeakSet()


def _abandon_all() -> None:
    for each in list(_open):
        with contextlib.suppress(OSError, BufferError):
            each._abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
