"""A server that says when each small message came, and that a large one did: the seconds since what it begins with.

On one machine time.monotonic() is the same clock in every process. Ends when it gets "enough".
"""

from __future__ import annotations

import struct
import time

from tests.programs.told import communicator, say

with communicator() as queue:
    say(netloc=queue.netloc)
    while (message := queue.get()).data != "enough":
        now = time.monotonic()
        small = len(message.data) == 64
        queue.put(now - struct.unpack_from("<d", message.data)[0] if small else None, message.peer, lane=1)
