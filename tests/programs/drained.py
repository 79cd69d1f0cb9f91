"""A client that puts messages, with a handler of SIGTERM that raises SystemExit, like edge/__main__.py's."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType

import netq
from tests.programs.command_line import communicator, facts, next_command, report


@netq.outside_steps
def stop(signum: int, frame: FrameType | None) -> None:
    report(at=time.monotonic())
    sys.exit(0)


signal.signal(signal.SIGTERM, netq.outside_steps(stop))
with communicator() as client:
    client.put("hello").result(30)
    report(ready=True)
    next_command()
    for number in range(facts()["count"]):
        client.put((number, bytearray(100_000)))
    report(put=True)
    client.get()
