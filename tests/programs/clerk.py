"""A server that answers each small message with its delay, and a large message with None.

A message begins with its time.monotonic(), which is the same clock in all processes of a machine. "enough" ends it.
"""

from __future__ import annotations

import struct
import time

from tests.programs.command_line import communicator, report

with communicator() as queue:
    report(netloc=queue.netloc)
    while (message := queue.get()).data != "enough":
        now = time.monotonic()
        small = len(message.data) == 64
        queue.put(now - struct.unpack_from("<d", message.data)[0] if small else None, message.peer, lane=1)
