"""Progress of a round on a terminal: how many clients are in each state, and the bytes of their updates.

Made by users and by fl/__main__.py. The server's thread only records states; a thread of rich draws a few times a
second. If stderr is not a terminal, there is one line a round and no drawing. If the reader of stderr goes away, output
stops and the rounds continue.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from fl.callbacks.base import Callback, ClientState
from fl.callbacks.jsonl import missing
from fl.properties import short_title
from fl.report import RoundReport
from fl.tensors.spec import Model

if TYPE_CHECKING:
    from rich.console import Console, Group

_REFRESH_RATE = 4.0  # drawings per second, at most
_BAR = 20  # columns of a bar that stands for all clients
_NAMED = 8  # clients named for each state; the terminal cuts a line that is too long
_COLOURS = {
    ClientState.TRAINING: "cyan",
    ClientState.WAITING: "yellow",
    ClientState.SENDING: "blue",
    ClientState.DONE: "green",
    ClientState.FAILED: "red",
    ClientState.SUSPENDED: "magenta",
}


class Progress(Callback):
    """Shows the progress of a round: one line for each client state. A context manager.

    `console`: default stderr. If the reader of a console of your own goes away, rich's default ends the process.
    Outside a `with` statement only the line for each round is shown.
    """

    def __init__(self, console: Console | None = None) -> None:
        try:
            from rich.live import Live

            self._console = console or _stderr()
        except ImportError as error:
            raise missing("fl.Progress", "rich", "rich", error) from error
        self._lock = threading.Lock()  # guards the fields below, which the drawing thread reads
        self._clients: dict[uuid.UUID, tuple[ClientState, int]] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._title = "waiting for clients"
        self._begin = time.monotonic()
        self._live: Any = Live(
            console=self._console, get_renderable=self._draw, refresh_per_second=_REFRESH_RATE, transient=True
        )

    def client_joins(self, client: uuid.UUID, name: str) -> None:
        """Note what it is called."""
        if name:
            with self._lock:
                self._names[client] = name

    def round_begins(self, number: int, clients: Sequence[uuid.UUID]) -> None:
        """Remove clients that are done. A client that still works on an older round keeps its state."""
        there = set(clients)
        with self._lock:
            self._clients = {
                peer: (state, size)
                for peer, (state, size) in self._clients.items()
                if peer in there and state not in (ClientState.DONE, ClientState.FAILED)
            }
            self._title = f"round {number}, {len(clients)} clients connected"
            self._begin = time.monotonic()

    def client_is(self, client: uuid.UUID, state: ClientState, size: int) -> None:
        """Record it."""
        with self._lock:
            self._clients[client] = state, size

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Print the report's line above the drawing."""
        with self._lock:
            self._title = f"round {report.number} has ended; waiting for clients"
            self._begin = time.monotonic()
        self._console.print(str(report), highlight=False, markup=False, emoji=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # the terminal is gone
            self._live.stop()

    def _draw(self) -> Group:
        """Return the lines to show. Runs in the drawing thread."""
        from rich.console import Group
        from rich.text import Text

        with self._lock:
            clients, names = dict(self._clients), dict(self._names)
            title, seconds = self._title, time.monotonic() - self._begin
        lines = {
            f"{title}, {seconds:.0f} s": "bold",
            **{_line(state, clients, names): _COLOURS[state] for state in ClientState},
        }
        return Group(*[Text(line, style, no_wrap=True, overflow="ellipsis") for line, style in lines.items()])


def _stderr() -> Console:
    """Return a console that becomes quiet when its reader goes away, as in `… 2>&1 | head`."""
    from rich.console import Console

    class Stderr(Console):
        def on_broken_pipe(self) -> None:  # rich's raises SystemExit
            self.quiet = True

    return Stderr(stderr=True)


def _line(state: ClientState, clients: dict[uuid.UUID, tuple[ClientState, int]], names: dict[uuid.UUID, str]) -> str:
    """Return the line of one state: the number of its clients, a bar, their bytes, and the names of some."""
    sizes = {peer: size for peer, (theirs, size) in clients.items() if theirs is state}
    bar = "█" * -(-_BAR * len(sizes) // max(1, len(clients)))  # rounded up: one of 400 clients is visible
    nbytes = sum(sizes.values())
    size = f"{nbytes / 1e6:.2f} MB" if nbytes else ""
    named = ", ".join([short_title(peer, names.get(peer, "")) for peer in list(sizes)[:_NAMED]])
    more = ", …" if len(sizes) > _NAMED else ""
    return f"{state.value:<9}{len(sizes):>5}  {bar:<{_BAR}}  {size:>11}  {named}{more}".rstrip()
