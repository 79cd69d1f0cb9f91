"""A server or a client that sends back what it gets, with the wall clock; a client says the first word."""

from __future__ import annotations

import time

from netq import Closed
from netq.testing.log import LogRecorder
from tests.programs.told import communicator, say, told

with LogRecorder() as log, communicator() as queue:
    say(netloc=queue.netloc)
    if told()["purpose"] == "client":
        queue.put("hello").result(30)
    while True:
        try:
            peer, data = queue.get()
        except Closed:
            break
        if data == "enough":
            break
        queue.put((data, time.time()), peer)
say(connected=len(log.having("connected")), lost=log.having("lost") + log.having("heard"))
