"""How far a round is, on a terminal: who is training, waiting, sending, done or failed, and with how many bytes.

Made by users and by fl/__main__.py; called by the server's thread, which only notes what it is told: a thread of
rich's draws, a few times a second. Where stderr is no terminal there is a line a round, and no drawing. Where nobody
reads stderr any more there is nothing, and the rounds go on.
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
from fl.report import RoundReport
from fl.tensors.spec import Model

if TYPE_CHECKING:
    from rich.console import Console, Group

_PER_SECOND = 4.0  # drawings, at most
_BAR = 20  # columns of all clients
_NAMED = 8  # clients of a state that are named, if the line is long enough
_COLOURS = {
    ClientState.TRAINING: "cyan",
    ClientState.WAITING: "yellow",
    ClientState.SENDING: "blue",
    ClientState.DONE: "green",
    ClientState.FAILED: "red",
}


class Progress(Callback):
    """Shows how a round goes, a line for each state of clients, as many as they are. A context manager.

    console: where to; stderr. One of your own does what it does when its reader goes away: rich's ends the process.
    Without the `with` statement it shows the line a round only.
    """

    def __init__(self, console: Console | None = None) -> None:
        try:
            from rich.live import Live

            self._console = console or _stderr()
        except ImportError as error:
            raise missing("fl.Progress", "rich", "rich", error) from error
        self._lock = threading.Lock()  # of the rest, which the drawing thread reads
        self._clients: dict[uuid.UUID, tuple[ClientState, int]] = {}
        self._title = "waiting for clients"
        self._begin = time.monotonic()
        self._live: Any = Live(
            console=self._console, get_renderable=self._draw, refresh_per_second=_PER_SECOND, transient=True
        )

    def round_begins(self, number: int, clients: Sequence[uuid.UUID]) -> None:
        """Forget who is done; who is still at work on an older round is so in this one."""
        with self._lock:
            self._clients = {
                peer: (state, size)
                for peer, (state, size) in self._clients.items()
                if peer in clients and state not in (ClientState.DONE, ClientState.FAILED)
            }
            self._title = f"round {number}, {len(clients)} clients connected"
            self._begin = time.monotonic()

    def client_is(self, client: uuid.UUID, state: ClientState, size: int) -> None:
        """Note it."""
        with self._lock:
            self._clients[client] = state, size

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Write the report's line, above what is drawn."""
        with self._lock:
            self._title = f"round {report.number} has ended; waiting for clients"
            self._begin = time.monotonic()
        self._console.print(str(report), highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # of a terminal that has gone, there is nothing to tidy up
            self._live.stop()

    def _draw(self) -> Group:
        """Return what there is to see: in the drawing thread."""
        from rich.console import Group
        from rich.text import Text

        with self._lock:
            clients, title, seconds = dict(self._clients), self._title, time.monotonic() - self._begin
        lines = {
            f"{title}, {seconds:.0f} s": "bold",
            **{_line(state, clients): _COLOURS[state] for state in ClientState},
        }
        return Group(*[Text(line, style, no_wrap=True, overflow="ellipsis") for line, style in lines.items()])


def _stderr() -> Console:
    """Return a console that falls silent when its reader goes away, as that of `… 2>&1 | head` does."""
    from rich.console import Console

    class Stderr(Console):
        def on_broken_pipe(self) -> None:  # rich's raises SystemExit
            self.quiet = True

    return Stderr(stderr=True)


def _line(state: ClientState, clients: dict[uuid.UUID, tuple[ClientState, int]]) -> str:
    """Return a state's name, its clients' number, a bar of them, their bytes, and the ids of some."""
    sizes = {peer: size for peer, (theirs, size) in clients.items() if theirs is state}
    bar = "█" * -(-_BAR * len(sizes) // max(1, len(clients)))  # rounded up: one of 400 is to be seen too
    nbytes = sum(sizes.values())
    size = f"{nbytes / 1e6:.2f} MB" if nbytes else ""
    ids = " ".join([str(peer)[:8] for peer in list(sizes)[:_NAMED]]) + (" …" if len(sizes) > _NAMED else "")
    return f"{state.value:<9}{len(sizes):>5}  {bar:<{_BAR}}  {size:>11}  {ids}".rstrip()
