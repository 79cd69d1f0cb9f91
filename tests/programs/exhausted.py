"""A server that may have 64 descriptors: it answers each client, and says whom, and each line of its log."""

from __future__ import annotations

import logging
import resource
import signal
import sys

from tests.programs.told import communicator, say

MOST = 64


class Aloud(logging.Handler):
    """Says each line."""

    def emit(self, record: logging.LogRecord) -> None:
        say(log=record.getMessage())


resource.setrlimit(resource.RLIMIT_NOFILE, (MOST, MOST))
logging.getLogger("netq").addHandler(Aloud())  # from WARNING on, as a user who sets nothing sees it
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with communicator() as server:
    say(netloc=server.netloc)
    while True:
        peer, data = server.get()
        server.put(data, peer)
        say(served=str(peer))
