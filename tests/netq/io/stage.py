"""A loop for tests."""

from __future__ import annotations

import queue
from collections.abc import Callable

from netq.io.loop import Loop

LIMIT = 20.0


class Stage:
    """A loop, and the errors that it reported."""

    def __init__(self, make: Callable[..., Loop] = Loop, **options: bool) -> None:
        self.crashes: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.loop = make("test", self.crashes.put, **options)

    def rest(self) -> None:
        """Wait until all calls have run, and let the loop go to sleep."""
        self.loop.ask(lambda: None)
