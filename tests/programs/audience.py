"""A server of a crowd. It answers the first message of each client, and reports its own costs on command."""

from __future__ import annotations

import threading
import time
import uuid

from netq import Closed, EventOptions
from netq.core import Communicator
from tests.programs.command_line import communicator, next_command, report
from tests.programs.cost import cost, lift_limit

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
    report(netloc=server.netloc)
    while word := next_command():
        if word == "cost":
            report(began=len(began), **cost())
        elif word == "cpu":
            report(cpu=time.process_time())
        elif word == "reach all":
            server.put("are you there?").result(60)
            report(reached=len(server.statistics()))
thread.join()
