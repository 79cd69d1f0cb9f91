"""The server and the clients of a run, each through all its lives: a restart is a new communicator under the old id.

Made by tests/soak/run.py; restarted by the nemesis; put by the traffic. Tells the recorder of each message, and never
decides what should have become of it.
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

LIMIT = 60.0  # seconds for what should take few
Make = Callable[[NetworkLocation, uuid.UUID], Communicator]


def client_id(number: int) -> uuid.UUID:
    """Return the id that a client has in all its lives; the number can be read in it."""
    return uuid.UUID(int=number)


def server_id(life: int) -> uuid.UUID:
    """Return the id of the server: every second restart gives it another one, for both happen."""
    return uuid.UUID(int=2**64 + life // 2)


class Life:
    """One communicator, from its making to its close, and the thread that takes what comes."""

    def __init__(self, communicator: Communicator, number: int, way: str, recorder: Recorder, pool: Executor) -> None:
        self.communicator = communicator
        self.heard: set[int] = set()  # clients whose messages it has taken
        self.over = False
        self.moving = threading.Event()  # not set: its loop stands still, in what it calls when a future is done
        self.moving.set()
        self._number = number
        self._way = way
        self._recorder = recorder
        self._numbers: defaultdict[tuple[int, int], int] = defaultdict(int)  # by client and lane
        self._flying: defaultdict[int, dict[Key, Delivery]] = defaultdict(dict)
        self._lock = threading.Lock()
        self._reader = pool.submit(self._read)

    def put(self, client: int, lane: int, size: int) -> None:
        """Put the next message of a lane. Only one thread does so at a time."""
        number = self._numbers[client, lane] = self._numbers[client, lane] + 1
        key = Key(client, self._number, self._way, lane, number)
        self._recorder.happened(What.PUT, key, size)  # before it can be delivered
        peers = [client_id(client)] if self._way == "down" else []
        delivery = self.communicator.put(content.message(key, size), *peers, lane=lane)
        with self._lock:
            self._flying[client][key] = delivery
        delivery.add_done_callback(functools.partial(self._done, key))

    def flying(self, client: int) -> list[Delivery]:
        """Return the futures to or from a client that are not done, the oldest first."""
        with self._lock:
            return list(self._flying[client].values())

    def close(self, timeout: float) -> int:
        """Close, and take all that had come; return how many messages were not delivered."""
        self.over = True
        undelivered = self.communicator.close(timeout)
        self._reader.result(LIMIT)
        return undelivered

    def _done(self, key: Key, future: Future[None]) -> None:
        with self._lock:
            del self._flying[key.client][key]
        error = None if future.cancelled() else future.exception()
        if future.cancelled():
            self._recorder.happened(What.CANCELLED, key)
        elif error is None:
            self._recorder.happened(What.ACKED, key)
        else:
            self._recorder.happened(What.FAILED, key, note=str(error))
            if not isinstance(error, Closed):
                self._recorder.trouble(f"{key} failed with {error!r}")
        if not future.cancelled():  # by another thread, which is not to be stopped
            self.moving.wait(LIMIT)

    def _read(self) -> None:
        while True:
            try:
                self._took(self.communicator.get())
            except Unreadable as error:
                self._recorder.trouble(f"a message cannot be read: {error!r}")
            except Closed as error:
                if not self.over:
                    self._recorder.trouble(f"life {self._number} of {self.communicator.id} has ended: {error}")
                return

    def _took(self, message: Message) -> None:
        key, size, wrong = content.judge(message.data)
        sender = client_id(key.client) if key.way == "up" else server_id(key.life)
        if message.peer != sender:
            wrong = f"{wrong} from {message.peer}, expected {sender}"
        self._recorder.happened(What.DELIVERED, key, size, wrong.strip())
        self.heard.add(key.client)


class Side:
    """A client or the server: the life of the moment, and how the next begins."""

    def __init__(self, netloc: NetworkLocation, make: Callable[[NetworkLocation, int], Life]) -> None:
        self._make = make
        self._number = 0
        self._restarting = threading.Lock()
        self.life = make(netloc, 0)

    def stop(self) -> None:
        """Let its loop stand still, as soon as it has a future to settle."""
        self.life.moving.clear()

    def resume(self) -> None:
        """Let it go on."""
        self.life.moving.set()

    def restart(self) -> None:
        """End at once, and come back at the same address."""
        with self._restarting:
            netloc = self.life.communicator.netloc
            self.life.close(timeout=0)
            self._number += 1
            self.life = self._make(netloc, self._number)
