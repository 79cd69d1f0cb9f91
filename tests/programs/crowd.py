"""Many clients in one process. Each sends a message and gets it back, and the times of their new links are reported."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid

from netq.testing.fixtures import LIMIT
from tests.programs.command_line import communicator, facts, next_command, report
from tests.programs.cost import cost, lift_limit


class Returns(logging.Handler):
    """Records when links came up, from the log lines of the clients."""

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
count = facts()["count"]
returns = Returns(count)
logging.getLogger("netq").addHandler(returns)
logging.getLogger("netq").setLevel(logging.INFO)
report(**cost())
with contextlib.ExitStack() as stack:
    clients = [stack.enter_context(communicator(id=uuid.uuid4())) for _ in range(count)]
    for client in clients:
        client.put("hello")
    answers = {client.get(timeout=2 * LIMIT).data for client in clients}
    report(answers=list(answers), threads=threading.active_count(), **cost())
    while word := next_command():
        if word == "watch":
            returns.clear()
            report(watching=True)
        elif word == "returns":
            returns.all.wait(2 * LIMIT)
            report(returns=sorted(returns.times))
        elif word == "reached":
            report(reached=[client.get(timeout=LIMIT).data for client in clients].count("are you there?"))
