"""A server limited to 64 descriptors. It answers each client, and reports the client and each line of its log."""

from __future__ import annotations

import logging
import resource
import signal
import sys

import netq
from tests.programs.command_line import communicator, report

MOST = 64


class ReportingHandler(logging.Handler):
    """Reports each line."""

    def emit(self, record: logging.LogRecord) -> None:
        report(log=record.getMessage())


resource.setrlimit(resource.RLIMIT_NOFILE, (MOST, MOST))
logging.getLogger("netq").addHandler(ReportingHandler())  # WARNING and above, as with the default configuration
signal.signal(signal.SIGTERM, netq.outside_steps(lambda *_: sys.exit(0)))
with communicator() as server:
    report(netloc=server.netloc)
    while True:
        peer, data = server.get()
        server.put(data, peer)
        report(served=str(peer))
