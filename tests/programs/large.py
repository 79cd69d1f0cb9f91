"""Sends a large array from the client to the server and back, and reports the peak growth of its own memory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from tests.programs.command_line import communicator, facts, report

SECONDS = 90.0


def memory(figure: str) -> int:
    """Return a figure of this process, in bytes: VmRSS now, VmHWM at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(figure))


def digest(array: np.ndarray) -> str:
    """Return a checksum, which is compared instead of a second copy."""
    return hashlib.sha256(array.data).hexdigest()


size = facts()["size"]
if facts()["cgroup"]:
    Path(facts()["cgroup"], "cgroup.procs").write_text(str(os.getpid()))
with communicator() as queue:
    if facts()["purpose"] == "server":
        report(netloc=queue.netloc)
        assert queue.get(timeout=SECONDS).data == "hello"
        before = memory("VmRSS")
        peer, array = queue.get(timeout=SECONDS)
        one_way = memory("VmHWM") - before
        assert digest(array) == queue.get(timeout=SECONDS).data
        queue.put(array, peer).result(SECONDS)
    else:
        queue.put("hello").result(SECONDS)
        before = memory("VmRSS")
        array = np.arange(size // 4, dtype=np.float32)
        queue.put(array).result(SECONDS)
        one_way = memory("VmHWM") - before
        sent = digest(array)
        del array
        queue.put(sent)  # the server answers after that, so the array is gone here
        array = queue.get(timeout=SECONDS).data
        assert array.dtype == np.float32
        assert digest(array) == sent
    report(growth=(one_way / size, (memory("VmHWM") - before) / size))
