"""A TCP proxy that fails on demand, for tests of links. Its terms are those of toxiproxy.

It owns one thread with an asyncio loop for all links, so that hundreds of links cost little. A test makes it, sets its
attributes from any thread at any time, and gives its `netloc` to clients. It does not interpret the bytes. Of each link
it buffers a few pieces only, so a slow receiver slows the sender down.

proxy = Proxy(server.netloc)    # clients connect to proxy.netloc
proxy.latency = 0.2             # toxics are attributes: they apply to bytes that are read from then on
proxy.cut()                     # hang up on both ends of every link
proxy.hold()                    # a black hole: links stay up, new links are accepted, no byte passes
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
from typing import Self

from netq.options import NetworkLocation

_PIECE = 64 * 1024  # bytes read at once
_PIECES = 64  # pieces in transit in each direction of a link; then nothing more is read
_UNREAD = 256 * 1024  # bytes of a link that wait in the kernel, in each direction; Linux itself would take up to 32 MiB
_BURST = 0.05  # seconds of bandwidth that pass at once
_BEHIND = 1.0  # seconds that a link makes up for, at most, if a busy machine has passed its bytes too late
_BACKLOG = 1024  # clients that connect at one instant
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close discards what is unsent, and sends RST

_Pieces = asyncio.Queue[tuple[float, bytes]]  # when it is due, and the bytes; b"" is the end


class Proxy:
    """Passes bytes between clients and `upstream`, which may be changed; the change applies to new links."""

    def __init__(self, upstream: NetworkLocation, seed: int = 0) -> None:
        # What a test may change at any time.
        self.upstream = upstream
        self.refusing = False  # close each new connection at once
        self.latency = 0.0  # seconds
        self.jitter = 0.0  # seconds by which the latency varies; bytes keep their order
        self.slice = math.inf  # bytes that pass at once, at most
        self.bandwidth = math.inf  # bytes a second, of each direction of each link
        self.slow_close = 0.0  # seconds by which the end of a link is delayed
        # How many bytes have passed, and what happens at which number of them.
        self.passed = 0  # bytes, both ways, of all links
        self._random = random.Random(seed)
        self._hold_at = self._cut_at = math.inf  # values of `passed` at which they begin
        self._cut_resets = False
        self._changed = threading.Condition()  # notified when `passed` has
        self._released = asyncio.Event()
        # The links, and the thread that carries them.
        self._links: dict[asyncio.Task[None], _Link] = {}  # by the task that carries it
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD)  # its links inherit it
        self._listener.setblocking(False)
        self.netloc = NetworkLocation(*self._listener.getsockname())
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name="netq-proxy", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Hang up on both ends of every link."""
        self._ask(self._end(resets=False))

    def cut_after(self, count: int) -> None:
        """Do the same when `count` more bytes have passed."""
        self._ask(self._arm(count, resets=False))

    def reset(self) -> None:
        """Reset both ends of every link, as a router without their state does: bytes in transit are lost."""
        self._ask(self._end(resets=True))

    def reset_after(self, count: int) -> None:
        """Do the same when `count` more bytes have passed."""
        self._ask(self._arm(count, resets=True))

    def hold(self, after: int = 0) -> None:
        """Pass nothing, not even the end of a link, once `after` more bytes have passed."""
        self._ask(self._hold(after))

    def release(self) -> None:
        """Pass bytes again, the held ones first."""
        self._ask(self._release())

    def wait(self, count: int, timeout: float) -> None:
        """Wait until `count` bytes have passed in all; raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.passed >= count, timeout):
                raise TimeoutError(f"{self.passed} bytes have passed, expected {count}")

    def close(self) -> None:
        """Cut all links, and end the thread. Closing again is harmless."""
        if self._thread.is_alive():
            self.cut()
            self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, verb: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(verb, self._loop).result()

    # In the loop's thread.

    def _run(self) -> None:
        with contextlib.closing(self._loop), self._listener, contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serving)

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:  # a bug in one link ends the proxy with its error
            # Not by `sock_accept`: if that is cancelled in the turn in which a connection comes, that one stays open.
            self._loop.add_reader(self._listener, self._accept, tasks)
            try:
                await self._loop.create_future()
            finally:
                self._loop.remove_reader(self._listener)

    def _accept(self, tasks: asyncio.TaskGroup) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):  # the client has hung up
            near, _ = self._listener.accept()
            link = _Link(self, near)
            task = tasks.create_task(link.carry(self.upstream))
            self._links[task] = link
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._links.pop(task).close()

    async def _end(self, *, resets: bool) -> None:
        if tasks := self._hang_up(resets):
            await asyncio.wait(tasks)

    async def _arm(self, count: int, *, resets: bool) -> None:
        self._cut_at, self._cut_resets = self.passed + count, resets

    async def _hold(self, after: int) -> None:
        self._hold_at = self.passed + after
        self._released.clear()

    async def _release(self) -> None:
        self._hold_at = math.inf
        self._released.set()

    def _hang_up(self, resets: bool) -> list[asyncio.Task[None]]:
        for task, link in self._links.items():
            link.hang_up(resets)
            task.cancel()
        return list(self._links)

    # Called by links.

    def delay(self) -> float:
        """Return the delay of bytes that are read now, in seconds."""
        return self.latency + self._random.uniform(-self.jitter, self.jitter)

    async def held(self) -> None:
        """Wait while bytes are held."""
        while self.passed >= self._hold_at:
            await self._released.wait()

    def admit(self, size: int) -> int:
        """Count and return how many of `size` bytes pass now: at least one, as bytes are neither held nor to be cut."""
        count = min(size, self.slice, max(1, self.bandwidth * _BURST), self._hold_at - self.passed)
        count = int(min(count, self._cut_at - self.passed))
        with self._changed:
            self.passed += count
            self._changed.notify_all()
        return count

    def cut_if_due(self) -> None:
        """Cut, if `cut_after` or `reset_after` asked for it and it is due."""
        if self.passed >= self._cut_at:
            self._cut_at = math.inf
            self._hang_up(self._cut_resets)


class _Link:
    """Two sockets, and the bytes between them. One task carries it; when that is done, the proxy closes both.

    The task does not close them itself: one that is cancelled before it begins would leave them open.
    """

    def __init__(self, proxy: Proxy, near: socket.socket) -> None:
        self._proxy = proxy
        far = socket.socket()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD)
        self._ends = (near, far)
        self._over = False  # cut: bytes in transit are dropped
        for end in self._ends:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def carry(self, upstream: NetworkLocation) -> None:
        near, far = self._ends
        with contextlib.suppress(OSError):  # upstream does not listen
            if self._proxy.refusing:
                return
            await asyncio.get_running_loop().sock_connect(far, upstream)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._way(near, far))
                ways.create_task(self._way(far, near))

    def hang_up(self, resets: bool) -> None:
        self._over = True
        for end in self._ends:
            if resets:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            else:
                _shut(end, socket.SHUT_RDWR)

    def close(self) -> None:
        for end in self._ends:
            end.close()

    async def _way(self, source: socket.socket, target: socket.socket) -> None:
        pieces = _Pieces(_PIECES)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(source, pieces))
            with contextlib.suppress(OSError):  # the target has ended; the other direction passes that on
                await self._write(pieces, target)
            reading.cancel()

    async def _read(self, source: socket.socket, pieces: _Pieces) -> None:
        loop = asyncio.get_running_loop()
        due, data = 0.0, b"?"
        while data:
            try:
                data = await loop.sock_recv(source, _PIECE)
            except OSError:
                data = b""
            due = max(due, loop.time() + self._proxy.delay())
            await pieces.put((due, data))

    async def _write(self, pieces: _Pieces, target: socket.socket) -> None:
        free, data = 0.0, b"?"  # when the bytes before have passed
        while data:
            due, data = await pieces.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            free = await self._pass(memoryview(data), target, max(free, due))
        await asyncio.sleep(self._proxy.slow_close)
        await self._proxy.held()
        _shut(target, socket.SHUT_WR)

    async def _pass(self, data: memoryview, target: socket.socket, free: float) -> float:
        """Pass bytes from the time `free` on; return when the link is free again."""
        loop, proxy = asyncio.get_running_loop(), self._proxy
        while data:
            await proxy.held()
            proxy.cut_if_due()
            if self._over:
                raise ConnectionAbortedError
            count = proxy.admit(len(data))
            await loop.sock_sendall(target, data[:count])
            data = data[count:]
            proxy.cut_if_due()
            free = max(free, loop.time() - _BEHIND) + count / proxy.bandwidth
            await asyncio.sleep(free - loop.time())
        return free


def _shut(sock: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(how)
