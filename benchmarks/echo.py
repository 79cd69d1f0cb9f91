"""The server of the benchmarks, in its own process: sends back what it gets, and tells of its memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import netq


class MemoryPeak:
    """How far the resident memory of this process rises meanwhile, in bytes: `extra`. Linux only."""

    def __enter__(self) -> Self:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, at what is resident now
        self._before = _status("VmHWM")
        self.extra = 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.extra = _status("VmHWM") - self._before


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def pin(core: int) -> None:
    """Stay on one core, if the system lets us choose."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})


def main() -> None:
    pin(1)
    security = netq.SecurityOptions(*map(Path, sys.argv[1:])) if len(sys.argv) > 1 else None
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), security=security)
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as queue:
        print(queue.netloc.port, flush=True)
        serve(queue)


def serve(queue: netq.Communicator) -> None:
    """Echo until the client has closed."""
    peak = MemoryPeak()
    peer, data = queue.get()
    while True:
        if isinstance(data, str) and data.startswith("watch"):
            peak.__enter__()
        if isinstance(data, str) and data.startswith("how much"):
            peak.__exit__(None, None, None)
            data = peak.extra
        queue.put(data, peer)
        del data
        try:
            _, data = queue.get(peer)
        except netq.Closed:
            return


if __name__ == "__main__":
    main()
