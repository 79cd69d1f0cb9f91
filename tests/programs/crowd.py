"""Many clients in one process. Each says a word and has it echoed; it notes when a link of theirs is up again."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid

from netq.testing.fixtures import LIMIT
from tests.programs.cost import cost, lift_limit
from tests.programs.told import communicator, hear, say, told


class Returns(logging.Handler):
    """When links came up, by what the clients log."""

    def __init__(self, count: int) -> None:
        super().__init__(logging.INFO)
        self.times: list[float] = []
        self.all = threading.Event()
        self._count = count

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().endswith(": connected"):
            self.times.append(time.monotonic())
            if len(self.times) == self._count:
                self.all.set()

    def clear(self) -> None:
        self.times = []
        self.all.clear()


lift_limit()
count = told()["count"]
returns = Returns(count)
logging.getLogger("netq").addHandler(returns)
logging.getLogger("netq").setLevel(logging.INFO)
say(**cost())
with contextlib.ExitStack() as stack:
    clients = [stack.enter_context(communicator(id=uuid.uuid4())) for _ in range(count)]
    for client in clients:
        client.put("hello")
    answers = {client.get(timeout=2 * LIMIT).data for client in clients}
    say(answers=list(answers), threads=threading.active_count(), **cost())
    while word := hear():
        if word == "watch":
            returns.clear()
            say(watching=True)
        elif word == "returns":
            returns.all.wait(2 * LIMIT)
            say(returns=sorted(returns.times))
        elif word == "reached":
            say(reached=[client.get(timeout=LIMIT).data for client in clients].count("are you there?"))
