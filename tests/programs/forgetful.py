"""A client that puts messages and ends without `close`."""

from __future__ import annotations

import time

from tests.programs.told import communicator, say, told

client = communicator()
for number in range(told()["count"]):
    client.put((number, bytearray(100_000)))
say(ends=time.monotonic())
