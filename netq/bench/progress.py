"""How far it is: a bar on stderr, if that is a terminal and rich is installed; else nothing.

Draws only when it is told something, in the thread that tells it, and once a second at most: a bar that drew itself
would take the interpreter from what is measured.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

_PAUSE = 1_000_000_000  # nanoseconds between two drawings


class Progress:
    """What works tell how far they are; without bars it shows nothing."""

    def __init__(self, bars: Bars | None = None) -> None:
        self._bars = bars
        self._next = 0

    def bar(self, name: str, total: int) -> Callable[[int], None]:
        """Return what is called with how many of `total` are done."""
        if self._bars is None:
            return lambda done: None
        bars, task = self._bars, self._bars.add_task(name, total=total)

        def show(done: int) -> None:
            now = time.perf_counter_ns()
            if now >= self._next or done == total:
                self._next = now + _PAUSE
                bars.update(task, completed=done, refresh=True)

        return show

    def say(self, what: str) -> None:
        """Show a line, about what is done next."""
        if self._bars is not None:
            self._bars.console.print(what, highlight=False, markup=False)


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """Show progress within a with statement, where a user can see it."""
    try:
        from rich.console import Console
        from rich.progress import Progress as Bars
    except ImportError:
        yield Progress()
        return
    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield Progress()
        return
    with Bars(console=console, auto_refresh=False, transient=True) as bars:
        yield Progress(bars)
