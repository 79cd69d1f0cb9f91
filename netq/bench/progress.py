"""A progress bar on stderr, if stderr is a terminal and rich is installed; otherwise nothing.

Draws only when it is called, in the caller's thread, and once a second at most. A bar with a thread of its own would
take the interpreter from the measured code.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

_INTERVAL = 1_000_000_000  # nanoseconds between two drawings


class Progress:
    """Shows the progress of a workload; without `bars` it shows nothing."""

    def __init__(self, bars: Bars | None = None) -> None:
        self._bars = bars
        self._next = 0

    def bar(self, name: str, total: int) -> Callable[[int], None]:
        """Return a function to call with the number of messages done, of `total`."""
        if self._bars is None:
            return lambda done: None
        bars, task = self._bars, self._bars.add_task(name, total=total)

        def show(done: int) -> None:
            now = time.perf_counter_ns()
            if now >= self._next or done == total:
                self._next = now + _INTERVAL
                bars.update(task, completed=done, refresh=True)

        return show

    def say(self, what: str) -> None:
        """Show a line about the next step."""
        if self._bars is not None:
            self._bars.console.print(what, highlight=False, markup=False)


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """Yield a Progress for a with statement; one without bars where no user would see them."""
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
