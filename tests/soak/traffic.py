"""What the users of a run do: put messages all the time, in both directions, on a few lanes, and take some back.

Driven by a thread of tests/soak/run.py; `burst` and `cancel` are for the nemesis. Never waits for a message: it only
looks how many are on their way.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

from tests.soak import content
from tests.soak.life import Life, Side

TICK = 0.02  # seconds between two looks at everybody
BOUND = 12  # messages on their way, each client and direction
BURST = 8  # messages
_OFTEN = 0.3  # of the ticks, at which a direction has something to say
_MOST = 4  # messages said at once


class Traffic:
    """All that is put. One thread at a time puts."""

    def __init__(self, server: Side, clients: dict[int, Side], seed: int) -> None:
        self._server = server
        self._clients = clients
        self._rng = random.Random(seed)
        self._turn = threading.Lock()

    def run(self, stop: threading.Event) -> None:
        """Put until told to stop."""
        while not stop.wait(TICK):
            for client in self._clients:
                self._tick(client)

    def burst(self, client: int) -> None:
        """Put some more both ways, at once: so that a fault finds something on its way. 0: to and from all."""
        for each in [client] if client else self._clients:
            for life in self._lives(each):
                self._put(life, each, BURST)

    def cancel(self, client: int) -> None:
        """Take every second message back of those that are on their way."""
        for life in self._lives(client):
            for delivery in life.flying(client)[::2]:
                delivery.cancel()

    def _tick(self, client: int) -> None:
        for life in self._lives(client):
            if self._rng.random() < _OFTEN:
                room = BOUND - len(life.flying(client))
                self._put(life, client, min(room, self._rng.randint(1, _MOST)))

    def _put(self, life: Life, client: int, count: int) -> None:
        with self._turn:
            for _ in range(count):
                life.put(client, self._rng.randrange(content.LANES), content.size(self._rng))

    def _lives(self, client: int) -> Iterator[Life]:
        """The two directions: a client's, and the server's if it has heard of the client."""
        up, down = self._clients[client].life, self._server.life
        if not up.over:
            yield up
        if client in down.heard and not down.over:
            yield down
