"""Logging handlers that raise, block and put, while links are cut: `python -m tests.netq.handlers [SECONDS] [SEED]`.

Each client's messages are numbered, and so are those that the handler puts for lines of the log. Threads of a user log
and put meanwhile: they hold the handler's lock while they wait for a baton. Prints how many calls did not end (hangs),
and how many messages have not come (lost), came twice or out of order. Used by test_log.py, too.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import threading
import time
import uuid
from collections import Counter
from typing import NamedTuple

import netq
from netq import CommunicatorOptions, ConnectionOptions, NetworkLocation
from netq.testing.proxy import Proxy

LIMIT = 30.0  # seconds after which a call hangs
_CLIENTS = 3
_AHEAD = 200  # messages of a client that are not delivered, at most
_CUT = 0.05  # seconds between two cuts, on average
_QUICK = ConnectionOptions(retry_min=0.001, retry_max=0.01)


class Outcome(NamedTuple):
    """What became of what was put."""

    delivered: int
    by_handler: int
    hangs: int
    lost: int
    twice_or_disordered: int
    raised: int
    cuts: int


class Hostile(logging.Handler):
    """Raises, blocks, or puts the line on the queue of a client, with a lock of its own."""

    def __init__(self, clients: list[netq.Communicator], seed: int) -> None:
        super().__init__()
        self._clients = clients
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self.put = Counter[uuid.UUID]()  # lines, by client
        self.raised = 0
        self._has_ended = False

    def handle(self, record: logging.LogRecord) -> bool:
        """Do one of these, in the place of a filter, where nothing guards it."""
        with self._lock:
            if self._has_ended:
                return False
            match self._random.randrange(4):
                case 0:
                    self.raised += 1
                    raise LookupError("a handler's defect")
                case 1:
                    time.sleep(self._random.random() * 0.02)
                case _:
                    client = self._random.choice(self._clients)
                    client.put(("line", self.put[client.id]), lane=1)
                    self.put[client.id] += 1
        return True

    def end(self) -> None:
        """Wait for a line that a thread is at, then do nothing more: a client is closed after its last message."""
        with self._lock:
            self._has_ended = True


class Producer(threading.Thread):
    """Puts numbered messages, and logs."""

    def __init__(self, client: netq.Communicator, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._stop_event = stop
        self.sent = self.hangs = 0

    def run(self) -> None:
        """Put until it stops."""
        log, futures = logging.getLogger("netq.mine"), list[netq.Delivery]()
        while not self._stop_event.is_set():
            with contextlib.suppress(LookupError):
                log.warning("line %d", self.sent)
            futures.append(self._client.put(("own", self.sent, bytes(self.sent % 3 * 1000))))
            self.sent += 1
            if len(futures) >= _AHEAD:
                self._wait(futures.pop(0))
        for future in futures:
            self._wait(future)

    def _wait(self, future: netq.Delivery) -> None:
        try:
            future.result(LIMIT)
        except TimeoutError:
            self.hangs += 1


class Reader(threading.Thread):
    """Takes what the server gets, and checks the numbers."""

    def __init__(self, server: netq.Communicator) -> None:
        super().__init__(daemon=True)
        self._server = server
        self.got = Counter[tuple[uuid.UUID, str]]()  # how many came, so the number of the next one
        self.wrong = 0

    def run(self) -> None:
        """Take until the server is closed."""
        with contextlib.suppress(netq.Closed):
            while True:
                peer, (kind, number, *_) = self._server.get()
                self.wrong += number != self.got[peer, kind]
                self.got[peer, kind] += 1


def run(seconds: float, seed: int) -> Outcome:
    """Put for so many seconds, and count what becomes of it."""
    chance, stop, cuts = random.Random(seed), threading.Event(), 0
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0), connection=_QUICK)
    server = netq.new("tcp", "server", options)
    proxy = Proxy(server.netloc)
    clients = [netq.new(options=CommunicatorOptions(netloc=proxy.netloc, connection=_QUICK)) for _ in range(_CLIENTS)]
    logger, hostile = logging.getLogger("netq"), Hostile(clients, seed)
    level, raises, logging.raiseExceptions = logger.level, logging.raiseExceptions, False
    logger.setLevel(logging.INFO)
    logger.addHandler(hostile)
    reader, producers = Reader(server), [Producer(client, stop) for client in clients]
    try:
        for thread in (reader, *producers):
            thread.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            stop.wait(chance.random() * 2 * _CUT)
            proxy.cut()
            cuts += 1
        stop.set()
        for producer in producers:
            producer.join(LIMIT)
        hangs = sum(producer.hangs + producer.is_alive() for producer in producers)
    finally:
        logger.removeHandler(hostile)
        hostile.end()
        logger.setLevel(level)
        logging.raiseExceptions = raises
    left = 0 if hangs else sum(client.close(LIMIT) for client in clients)
    server.close(0 if hangs else LIMIT)
    reader.join(LIMIT)
    proxy.close()
    sent, lines = sum(producer.sent for producer in producers), sum(hostile.put.values())
    lost = sent + lines - sum(reader.got.values())
    return Outcome(sent, lines, hangs + reader.is_alive(), max(lost, left), reader.wrong, hostile.raised, cuts)


def main(seconds: str = "60", seed: str = "1") -> int:
    """Run, and print what became of it."""
    outcome = run(float(seconds), int(seed))
    print(f"seed {seed}:", ", ".join(f"{name} {value:,}" for name, value in outcome._asdict().items()))
    return int(bool(outcome.hangs or outcome.lost or outcome.twice_or_disordered))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
