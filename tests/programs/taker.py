"""A server in a memory cgroup that takes one message at a time, checks it and drops it."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from tests.programs.command_line import communicator, facts, report

Path(facts()["cgroup"], "cgroup.procs").write_text(str(os.getpid()))  # before the process uses memory
with communicator() as server:
    report(netloc=server.netloc)
    for _ in range(facts()["count"]):
        number, data = server.get(timeout=60).data
        report(number=number, size=len(data), crc=zlib.crc32(data))
        del data
