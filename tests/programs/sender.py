"""A client that has delivered one message, and puts a large one at each command. Tests kill it during the transfer."""

from __future__ import annotations

from pickle import PickleBuffer

from tests.programs.command_line import communicator, facts, next_command, report

with communicator() as client:
    client.put("whole").result(30)
    report(ready=True)
    while next_command():
        client.put(PickleBuffer(bytearray(facts()["size"]))).result(30)
        report(ready=True)
