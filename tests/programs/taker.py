"""A server in a memory cgroup, whose user takes one message at a time, checks it and drops it."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from tests.programs.told import communicator, say, told

Path(told()["cgroup"], "cgroup.procs").write_text(str(os.getpid()))  # before there is anything to count
with communicator() as server:
    say(netloc=server.netloc)
    for _ in range(told()["count"]):
        number, data = server.get(timeout=60).data
        say(number=number, size=len(data), crc=zlib.crc32(data))
        del data
