"""A server or a client that sends each message back with the wall-clock time; a client sends the first message."""

from __future__ import annotations

import time

from netq import Closed
from netq.testing.log import LogRecorder
from tests.programs.command_line import communicator, facts, report

with LogRecorder() as log, communicator() as queue:
    report(netloc=queue.netloc)
    if facts()["purpose"] == "client":
        queue.put("hello").result(30)
    while True:
        try:
            peer, data = queue.get()
        except Closed:
            break
        if data == "enough":
            break
        queue.put((data, time.time()), peer)
report(connected=len(log.having("connected")), lost=log.having("lost") + log.having("heard"))
