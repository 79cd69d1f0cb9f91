"""The users of a run: they put messages all the time, in both directions, on a few lanes, and cancel some.

Runs in a thread of tests/soak/run.py; the nemesis calls `burst` and `cancel`. It never waits for a message: it checks
how many are in transit.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

from tests.soak import content
from tests.soak.life import Life, Side

TICK = 0.02  # seconds between two rounds over all clients
BOUND = 12  # messages in transit, for each client and direction
BURST = 8  # messages
_PROBABILITY = 0.3  # that a direction puts messages in a tick
_MAX_BURST = 4  # messages put at once, at most


class Traffic:
    """Puts all messages, in one thread at a time."""

    def __init__(self, server: Side, clients: dict[int, Side], seed: int) -> None:
        self._server = server
        self._clients = clients
        self._rng = random.Random(seed)
        self._turn = threading.Lock()

    def run(self, stop: threading.Event) -> None:
        """Put messages until `stop` is set."""
        while not stop.wait(TICK):
            for client in self._clients:
                self._tick(client)

    def burst(self, client: int) -> None:
        """Put messages both ways at once, so that a fault finds some in transit. 0: to and from all clients."""
        for each in [client] if client else self._clients:
            for life in self._lives(each):
                self._put(life, each, BURST)

    def cancel(self, client: int) -> None:
        """Cancel every second message that is in transit."""
        for life in self._lives(client):
            for delivery in life.in_transit(client)[::2]:
                delivery.cancel()

    def _tick(self, client: int) -> None:
        for life in self._lives(client):
            if self._rng.random() < _PROBABILITY:
                room = BOUND - len(life.in_transit(client))
                self._put(life, client, min(room, self._rng.randint(1, _MAX_BURST)))

    def _put(self, life: Life, client: int, count: int) -> None:
        with self._turn:
            for _ in range(count):
                life.put(client, self._rng.randrange(content.LANES), content.size(self._rng))

    def _lives(self, client: int) -> Iterator[Life]:
        """Yield both directions: the client's life, and the server's if it knows the client."""
        up, down = self._clients[client].life, self._server.life
        if not up.closed:
            yield up
        if client in down.known_clients and not down.closed:
            yield down
