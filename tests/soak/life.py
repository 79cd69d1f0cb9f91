"""The server and the clients of a run, through all restarts. A restart is a new communicator with the old id.

Made by tests/soak/run.py, restarted by the nemesis, used by the traffic. A life reports each message to the recorder;
it does not judge.
"""

from __future__ import annotations

import functools
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor, Future

from netq import Closed, Delivery, Message, NetworkLocation, Unreadable
from netq.core import Communicator
from tests.soak import content
from tests.soak.history import Key, What
from tests.soak.recorder import Recorder

LIMIT = 60.0  # seconds for steps that take few
Make = Callable[[NetworkLocation, uuid.UUID], Communicator]


def client_id(number: int) -> uuid.UUID:
    """Return the id of a client in all its lives, which shows its number."""
    return uuid.UUID(int=number)


def server_id(life: int) -> uuid.UUID:
    """Return the id of the server: it changes at every second restart, so that both cases occur."""
    return uuid.UUID(int=2**64 + life // 2)


class Life:
    """One communicator from its creation to its close, and the thread that gets its messages."""

    def __init__(self, communicator: Communicator, number: int, way: str, recorder: Recorder, pool: Executor) -> None:
        self.communicator = communicator
        self.known_clients: set[int] = set()  # clients with delivered messages
        self.closed = False
        self.moving = threading.Event()  # not set: the loop is blocked, in a callback of a future
        self.moving.set()
        self._number = number
        self._way = way
        self._recorder = recorder
        self._numbers: defaultdict[tuple[int, int], int] = defaultdict(int)  # by client and lane
        self._in_transit: defaultdict[int, dict[Key, Delivery]] = defaultdict(dict)
        self._lock = threading.Lock()
        self._putting = 0  # the thread that is in `put`
        self._reader = pool.submit(self._read)

    def put(self, client: int, lane: int, size: int) -> None:
        """Put the next message of a lane. Only one thread at a time may do so."""
        number = self._numbers[client, lane] = self._numbers[client, lane] + 1
        key = Key(client, self._number, self._way, lane, number)
        self._recorder.record(What.PUT, key, size)  # before the message can be delivered
        peers = [client_id(client)] if self._way == "down" else []
        self._putting = threading.get_ident()
        delivery = self.communicator.put(content.message(key, size), *peers, lane=lane)
        with self._lock:
            self._in_transit[client][key] = delivery
        delivery.add_done_callback(functools.partial(self._done, key))
        self._putting = 0

    def in_transit(self, client: int) -> list[Delivery]:
        """Return the futures of messages to or from a client that are not done, oldest first."""
        with self._lock:
            return list(self._in_transit[client].values())

    def close(self, timeout: float) -> int:
        """Close, and get all messages that arrived; return the number of undelivered ones."""
        self.closed = True
        failed = self.communicator._endpoint.undelivered.count
        undelivered = self.communicator.close(timeout) - failed
        self._reader.result(LIMIT)
        return undelivered

    def _done(self, key: Key, future: Future[None]) -> None:
        with self._lock:
            del self._in_transit[key.client][key]
        error = None if future.cancelled() else future.exception()
        if future.cancelled():
            self._recorder.record(What.CANCELLED, key)
        elif error is None:
            self._recorder.record(What.ACKED, key)
        else:
            self._recorder.record(What.FAILED, key, note=str(error))
            if not isinstance(error, Closed):
                self._recorder.error(f"{key} failed with {error!r}")
        # A thread of the test must not block: that of a cancel, and that of a put whose future is done already.
        if not future.cancelled() and threading.get_ident() != self._putting:
            self.moving.wait(LIMIT)

    def _read(self) -> None:
        while True:
            try:
                self._took(self.communicator.get())
            except Unreadable as error:
                self._recorder.error(f"a message cannot be read: {error!r}")
            except Closed as error:
                if not self.closed:
                    self._recorder.error(f"life {self._number} of {self.communicator.id} has ended: {error}")
                return

    def _took(self, message: Message) -> None:
        key, size, wrong = content.judge(message.data)
        sender = client_id(key.client) if key.way == "up" else server_id(key.life)
        if message.peer != sender:
            wrong = f"{wrong} from {message.peer}, expected {sender}"
        self._recorder.record(What.DELIVERED, key, size, wrong.strip())
        self.known_clients.add(key.client)


class Side:
    """A client or the server: its present life, and a factory of the next."""

    def __init__(self, netloc: NetworkLocation, make: Callable[[NetworkLocation, int], Life]) -> None:
        self._make = make
        self._number = 0
        self._restarting = threading.Lock()
        self.life = make(netloc, 0)

    def stop(self) -> None:
        """Block the loop, from the next future that it completes."""
        self.life.moving.clear()

    def resume(self) -> None:
        """Continue the loop."""
        self.life.moving.set()

    def restart(self) -> None:
        """End at once, and begin the next life at the same address."""
        with self._restarting:
            netloc = self.life.communicator.netloc
            self.life.close(timeout=0)
            self._number += 1
            self.life = self._make(netloc, self._number)
