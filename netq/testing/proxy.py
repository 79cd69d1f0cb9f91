"""A TCP proxy that fails on demand, for tests of what happens to a link on its way. Its words are toxiproxy's.

    proxy = Proxy(server.netloc)    # clients connect to proxy.netloc
    proxy.latency = 0.2             # for what comes from now on
    proxy.cut()                     # hang up on both ends of every link
    proxy.hold()                    # a black hole: links stay up, new ones are accepted, no byte passes

Owns one thread, in which asyncio carries all links; any thread may call it, and set what it has no underscore for. A
link that cannot deliver is read no further. Never changes a byte, or the order of bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from netq.options import NetworkLocation

_CONNECT = 10.0  # seconds
_PIECE = 64 * 1024  # bytes
_PIECES = 64  # of a direction on their way, at most
_TICK = 0.02  # seconds of the bandwidth that are one piece
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a RST

_Queue = asyncio.Queue[tuple[float, bytes]]  # when it is due, and what; b"" is the end


class Proxy:
    """Passes bytes between whoever connects and `upstream`, which may be changed: it counts for new links."""

    def __init__(self, upstream: NetworkLocation, *, seed: int = 0) -> None:
        self.upstream = upstream
        self.refusing = False  # hang up on whoever connects
        self.latency = 0.0  # seconds
        self.jitter = 0.0  # seconds by which the latency is more or less
        self.slice = _PIECE  # bytes passed at once, at most
        self.bandwidth = math.inf  # bytes a second, of each direction of each link
        self.slow_close = 0.0  # seconds by which the end of a link is passed on late
        self.passed = 0  # bytes, both ways, of all links
        self._random = random.Random(seed)
        self._hold_at = self._cut_at = math.inf
        self._cut_by_reset = False
        self._changed = threading.Condition()  # guards the four above
        self._gate = asyncio.Event()  # set when something may pass again
        self._links: set[_Link] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self.netloc = NetworkLocation(*self._listener.getsockname())
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="netq-proxy", daemon=True)
        self._thread.start()
        self._acceptor = asyncio.run_coroutine_threadsafe(self._accept(), self._loop)

    def cut(self) -> None:
        """Hang up on both ends of every link; what has passed still arrives."""
        self._wait_for(self._sever(by_reset=False))

    def reset(self) -> None:
        """Send both ends of every link a RST."""
        self._wait_for(self._sever(by_reset=True))

    def cut_after(self, count: int) -> None:
        """Cut when `count` more bytes have passed: one at least."""
        self._cut_after(count, by_reset=False)

    def reset_after(self, count: int) -> None:
        """Reset when `count` more bytes have passed: one at least."""
        self._cut_after(count, by_reset=True)

    def hold(self, after: int = 0) -> None:
        """Pass nothing any more, not even the end of a link, when `after` more bytes have passed."""
        with self._changed:
            self._hold_at = self.passed + after

    def release(self) -> None:
        """Pass again, and first what was held."""
        with self._changed:
            self._hold_at = math.inf
        self._loop.call_soon_threadsafe(self._gate.set)

    def wait(self, count: int, timeout: float) -> None:
        """Wait until `count` bytes have passed in all; raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.passed >= count, timeout):
                raise TimeoutError(f"{self.passed} bytes have passed, expected {count}")

    def close(self) -> None:
        """Cut all, and end the thread."""
        if self._loop.is_closed():
            return
        self._acceptor.cancel()
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wait_for(self, step: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result()

    def _cut_after(self, count: int, *, by_reset: bool) -> None:
        with self._changed:
            self._cut_at, self._cut_by_reset = self.passed + count, by_reset
        self._loop.call_soon_threadsafe(self._gate.set)

    # In the thread: links.

    async def _accept(self) -> None:
        while True:
            try:
                near, _ = await self._loop.sock_accept(self._listener)
            except OSError:  # whoever it was has gone, or there is no descriptor left for now
                await asyncio.sleep(_TICK)
                continue
            if self.refusing:
                near.close()
            else:
                self._begin(_Link(near))

    def _begin(self, link: _Link) -> None:
        link.task = self._loop.create_task(self._carry(link))
        link.task.add_done_callback(lambda _: self._end(link))
        self._links.add(link)

    def _end(self, link: _Link) -> None:
        self._links.discard(link)
        link.close()

    async def _sever(self, *, by_reset: bool) -> None:
        links = self._condemn(by_reset=by_reset)
        await asyncio.gather(*(link.task for link in links if link.task), return_exceptions=True)

    def _condemn(self, *, by_reset: bool) -> list[_Link]:
        """Let no byte of the present links pass any more, and end them."""
        links = list(self._links)
        for link in links:
            link.cancel(by_reset=by_reset)
        return links

    async def _carry(self, link: _Link) -> None:
        try:
            near, far = link.near, link.far
            async with asyncio.timeout(_CONNECT):
                await self._loop.sock_connect(far, self.upstream)
            there, back = _Queue(_PIECES), _Queue(_PIECES)
            async with asyncio.TaskGroup() as group:
                for step in (self._read(near, there), self._write(link, there, far)):
                    group.create_task(step)
                for step in (self._read(far, back), self._write(link, back, near)):
                    group.create_task(step)
        except* OSError:  # it is not there, or an end that is to be written to has gone
            pass

    # In the thread: bytes.

    async def _read(self, source: socket.socket, queue: _Queue) -> None:
        due, data = 0.0, b"-"
        while data:
            try:
                data = await self._loop.sock_recv(source, self._size)
            except OSError:  # a reset is an end too
                data = b""
            delay = self.latency + self._random.uniform(-self.jitter, self.jitter)
            due = max(due, self._loop.time() + delay)
            await queue.put((due, data))
            await asyncio.sleep(len(data) / self.bandwidth)

    @property
    def _size(self) -> int:
        return max(1, int(min(self.slice, self.bandwidth * _TICK)))

    async def _write(self, link: _Link, queue: _Queue, target: socket.socket) -> None:
        data = b"-"
        while data:
            due, data = await queue.get()
            if (seconds := due - self._loop.time()) > 0:
                await asyncio.sleep(seconds)
            await self._pass(link, data, target)
        await asyncio.sleep(self.slow_close)
        await self._admit(link, 0)
        target.shutdown(socket.SHUT_WR)

    async def _pass(self, link: _Link, data: bytes, target: socket.socket) -> None:
        rest = memoryview(data)
        while rest:
            count = await self._admit(link, len(rest))
            await self._loop.sock_sendall(target, rest[:count])
            rest = rest[count:]
            self._cut_if_due()

    async def _admit(self, link: _Link, count: int) -> int:
        """Wait until something may pass; return how many of `count` bytes may, which have passed then."""
        while not link.condemned:
            with self._changed:
                room = min(self._hold_at, self._cut_at) - self.passed
                if room > 0:
                    count = int(min(count, room))
                    self.passed += count
                    self._changed.notify_all()
                    return count
            self._gate.clear()
            await self._gate.wait()
        raise ConnectionAbortedError

    def _cut_if_due(self) -> None:
        with self._changed:
            if self.passed < self._cut_at:
                return
            self._cut_at = math.inf
            by_reset = self._cut_by_reset
        self._condemn(by_reset=by_reset)
        self._gate.set()


class _Link:
    """The two sockets of a link, and the task that carries it."""

    def __init__(self, near: socket.socket) -> None:
        self.near = near
        self.far = socket.socket()
        self.task: asyncio.Task[None] | None = None
        self.condemned = False
        self._by_reset = False
        for sock in (self.near, self.far):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a slice is a segment

    def cancel(self, *, by_reset: bool) -> None:
        """End the task; the end of the task closes the link."""
        self.condemned, self._by_reset = True, by_reset
        if self.task is not None:
            self.task.cancel()

    def close(self) -> None:
        """Close both sockets."""
        for sock in (self.near, self.far):
            with contextlib.suppress(OSError):
                _reset(sock) if self._by_reset else _drain(sock)
            sock.close()


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _drain(sock: socket.socket) -> None:
    """Say that it is the end, and read what is there: unread bytes would make the system send a RST instead."""
    sock.shutdown(socket.SHUT_WR)
    for _ in range(_PIECES):
        if not sock.recv(_PIECE):
            return
