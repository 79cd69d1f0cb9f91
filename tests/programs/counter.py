"""A client that counts aloud, each number after the last is held by the server, and notes what it is told meanwhile.

Told "enough", it says its last number and closes; the test hears what it was told, and how often it had to connect.
"""

from __future__ import annotations

import itertools

from netq.testing.log import LogRecorder
from tests.programs.command_line import communicator, report

heard: list[object] = []
with LogRecorder() as log, communicator() as client:
    for number in itertools.count():
        client.put(number).result()
        try:
            heard.append(client.get(timeout=0).data)
        except TimeoutError:
            continue
        if heard[-1] == "enough":
            break
    client.put(("last", number)).result()
    report(heard=heard, connected=len(log.having("connected")))
