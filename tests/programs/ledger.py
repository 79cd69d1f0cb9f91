"""A server that writes down each message that it takes, before it takes the next. SIGTERM closes it."""

from __future__ import annotations

import os
import signal
import sys
import time
import zlib
from pathlib import Path

from tests.programs.told import communicator, say


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with communicator() as server:
    say(netloc=server.netloc)
    while True:
        peer, data = server.get()
        what = data if isinstance(data, str) else (len(data), zlib.crc32(data))
        say(peer=str(peer), data=what, at=time.monotonic(), resident=resident())
        del data
