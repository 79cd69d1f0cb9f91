"""A client that sends numbers, each one after the server has the last one, and collects the messages that it gets.

After the message "enough" it sends its last number and closes. It reports the messages and the count of connections.
"""

from __future__ import annotations

import itertools

from netq.testing.log import LogRecorder
from tests.programs.command_line import communicator, report

received: list[object] = []
with LogRecorder() as log, communicator() as client:
    for number in itertools.count():
        client.put(number).result()
        try:
            received.append(client.get(timeout=0).data)
        except TimeoutError:
            continue
        if received[-1] == "enough":
            break
    client.put(("last", number)).result()
    report(received=received, connected=len(log.having("connected")))
