"""A server of a crowd: answers each client's first word, and tells the test on request what it costs to have it."""

from __future__ import annotations

import threading
import uuid

from netq import Closed, EventOptions
from netq.core import Communicator
from tests.programs.cost import cost, lift_limit
from tests.programs.told import communicator, hear, say

began: list[uuid.UUID] = []


def answer(server: Communicator) -> None:
    while True:
        try:
            peer, data = server.get()
        except Closed:
            return
        server.put(data, peer)


lift_limit()
with communicator(events=EventOptions(ini=began.append)) as server:
    thread = threading.Thread(target=answer, args=(server,))
    thread.start()
    say(netloc=server.netloc)
    while word := hear():
        if word == "cost":
            say(began=len(began), **cost())
        elif word == "reach all":
            server.put("are you there?").result(60)
            say(reached=len(server.statistics()))
thread.join()
