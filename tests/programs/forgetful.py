"""A client that puts messages and ends without `close`."""

from __future__ import annotations

import time

from tests.programs.command_line import communicator, facts, report

client = communicator()
for number in range(facts()["count"]):
    client.put((number, bytearray(100_000)))
report(ends=time.monotonic())
