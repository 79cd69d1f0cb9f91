"""A client that has delivered one message, and begins a large one when it is told to: tests kill it in the middle."""

from __future__ import annotations

import numpy as np

from tests.faults.programs.told import communicator, hear, say, told

with communicator() as client:
    client.put("whole").result(30)
    say(ready=True)
    hear()
    client.put(np.zeros(told()["size"], np.uint8)).result(30)
