"""A TCP proxy that fails on demand, for tests of what happens to a link on its way. Waits in threads of its own.

proxy = Proxy(server.netloc)    # clients connect to proxy.netloc
proxy.cut()                     # hang up on both ends of every link
proxy.hold()                    # a black hole: links stay up, new ones are accepted, no byte passes
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from netq.options import NetworkLocation

_CONNECT = 10.0  # seconds
_PIECE = 64 * 1024


class Proxy:
    """Passes bytes between whoever connects and `upstream`, which may be changed: it counts for new links."""

    def __init__(self, upstream: NetworkLocation) -> None:
        self.upstream = upstream
        self.refusing = False  # hang up on whoever connects
        self.passed = 0  # bytes, both ways, of all links
        self._hold_at = self._cut_at = math.inf
        self._changed = threading.Condition()
        self._closed = False
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.netloc = NetworkLocation(*self._listener.getsockname())
        self._spawn(self._accept)

    def cut(self) -> None:
        """Hang up on both ends of every link."""
        with self._changed:
            for sock in self._sockets:
                _shut(sock, socket.SHUT_RDWR)

    def cut_after(self, count: int) -> None:
        """Do so when `count` more bytes have passed."""
        with self._changed:
            self._cut_at = self.passed + count

    def hold(self, after: int = 0) -> None:
        """Pass nothing any more, not even the end of a link, when `after` more bytes have passed."""
        with self._changed:
            self._hold_at = self.passed + after

    def release(self) -> None:
        """Pass again, and first what was held."""
        with self._changed:
            self._hold_at = math.inf
            self._changed.notify_all()

    def wait(self, count: int, timeout: float) -> None:
        """Wait until `count` bytes have passed in all; raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.passed >= count, timeout):
                raise TimeoutError(f"{self.passed} bytes have passed, expected {count}")

    def close(self) -> None:
        """Cut all, and end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        _shut(self._listener, socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _spawn(self, function: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=function, args=args, name="netq-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            with contextlib.suppress(OSError):  # the listener is shut, or upstream is not there
                near, _ = self._listener.accept()
                self._join(near)

    def _join(self, near: socket.socket) -> None:
        try:
            if self.refusing:
                raise ConnectionRefusedError
            far = socket.create_connection(self.upstream, _CONNECT)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        with self._changed:
            self._sockets |= {near, far}
        self._spawn(self._carry, near, far)

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=self._pump, args=(far, near), name="netq-proxy", daemon=True)
        back.start()
        self._pump(near, far)
        back.join()
        with self._changed:
            self._sockets -= {near, far}
        near.close()
        far.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            data = memoryview(b"")
            while data or (data := memoryview(source.recv(_PIECE))):
                count = self._pass(len(data))
                target.sendall(data[:count])
                data = data[count:]
                if self.passed >= self._cut_at:
                    self._cut_at = math.inf
                    self.cut()
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.passed < self._hold_at)
        _shut(target, socket.SHUT_WR)
        _shut(source, socket.SHUT_RD)

    def _pass(self, count: int) -> int:
        """Wait until some of `count` bytes may pass; return how many."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.passed < self._hold_at)
            count = int(min(count, self._hold_at - self.passed, self._cut_at - self.passed))
            if self._closed or count <= 0:
                raise ConnectionAbortedError
            self.passed += count
            self._changed.notify_all()
            return count


def _shut(sock: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(how)
