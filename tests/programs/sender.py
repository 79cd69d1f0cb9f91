"""A client that has delivered one message, and puts a large one whenever it is told to: tests kill it in the middle."""

from __future__ import annotations

import numpy as np

from tests.programs.told import communicator, hear, say, told

with communicator() as client:
    client.put("whole").result(30)
    say(ready=True)
    while hear():
        client.put(np.zeros(told()["size"], np.uint8)).result(30)
        say(ready=True)
