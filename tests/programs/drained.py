"""A client that puts messages, and whose handler of SIGTERM raises SystemExit, as edge/__main__.py's does."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType

from tests.programs.told import communicator, hear, say, told


def stop(signum: int, frame: FrameType | None) -> None:
    say(told=time.monotonic())
    sys.exit(0)


signal.signal(signal.SIGTERM, stop)
with communicator() as client:
    client.put("hello").result(30)
    say(ready=True)
    hear()
    for number in range(told()["count"]):
        client.put((number, bytearray(100_000)))
    say(put=True)
    client.get()
