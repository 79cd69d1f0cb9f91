"""Tells systemd, or another supervisor with its protocol, that the agent is ready, alive, and what it does.

The protocol: datagrams with lines NAME=VALUE to the socket in $NOTIFY_SOCKET (man sd_notify, man sd_watchdog_enabled).
Owned by edge/agent.py. Without a supervisor every call does nothing. A supervisor that cannot be reached is no error of
the agent's: if it misses the watchdog's messages, it starts the agent again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from netq.security.files import state

log = logging.getLogger("edge")


class Supervisor:
    """The supervisor of this process.

    address:  of its socket; None: there is no supervisor. One that begins with @ is abstract.
    interval: seconds within which it wants a sign of life, again and again; None: it wants none.
    """

    def __init__(self, address: str | None = None, interval: float | None = None) -> None:
        self._address = address
        self._interval = None if address is None or interval is None else interval / 2
        self._next = 0.0  # when the next sign of life is due, by time.monotonic()
        self._status = ""
        self._copied: dict[Path, tuple[int, ...] | None] = {}  # the state of files of which this process has copies

    @classmethod
    def from_environment(cls) -> Self:
        """Return the supervisor that the environment names. Removes it from there: child processes have none."""
        address, interval, pid = [
            os.environ.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
        ]
        is_meant = interval.isdigit() and pid in ("", str(os.getpid()))
        return cls(address or None, int(interval) / 1e6 if is_meant else None)

    def ready(self) -> None:
        """Tell that the agent has started."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Tell what the agent does, in one line, if that has changed."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={' '.join(text.split())}")

    def alive(self) -> float | None:
        """Give a sign of life if it is due. Return after how many seconds to call this again; None: never."""
        if self._interval is None:
            return None
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval
            self._send("WATCHDOG=1")
        return self._next - now

    def has_copied(self, paths: Iterable[Path]) -> None:
        """Note the files of which the supervisor has made copies for this process: private keys (LoadCredential)."""
        self._copied = {path: state(path) for path in paths}

    def check_copies(self) -> None:
        """End the process if such a file has changed, as SIGTERM does: the next start has a new copy."""
        for path, seen in self._copied.items():
            if state(path) != seen:
                log.warning("%s has changed, and this service has a copy: ending, to be started with the new one", path)
                raise SystemExit(0)

    def stopping(self) -> None:
        """Tell that the agent ends."""
        self._send("STOPPING=1")

    def _send(self, line: str) -> None:
        if self._address is None:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(line.encode(errors="replace"), address)
