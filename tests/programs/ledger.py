"""A server that reports each message before it takes the next one. SIGTERM closes it."""

from __future__ import annotations

import os
import signal
import sys
import time
import zlib
from pathlib import Path

import netq
from tests.programs.command_line import communicator, report


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


signal.signal(signal.SIGTERM, netq.outside_steps(lambda *_: sys.exit(0)))
with communicator() as server:
    report(netloc=server.netloc)
    while True:
        peer, data = server.get()
        what = data if isinstance(data, str) else (len(data), zlib.crc32(data))
        report(peer=str(peer), data=what, at=time.monotonic(), resident=resident())
        del data
