"""The JSON that a page's readers get: made once for all of them, and not more often than the server can afford.

After each look at the clients it rests for 40 times as long as the look took, whatever readers ask meanwhile. So the
looks cost the server some 2 % of a core at most, however many clients there are. A thread looks for those that follow.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fl.page.history import History
from fl.status import CLOCK, ClientStatus, Refusal, Stage
from netq.text import printable
from netq.version import VERSION

_REST, _LEAST, _MOST = 40, 0.25, 5.0  # times a look's own time, and its bounds in seconds
_ROWS = 50  # clients of a table
_SLOWEST = 10
_REFUSED = 20
_CERTIFICATE = 14 * 86400.0  # seconds before its end, in which a certificate needs a look
_BAD = (Stage.FAILED, Stage.LATE, Stage.LOST)
_AWAY = (Stage.CONNECTED, Stage.VISITOR, Stage.LEAVING, Stage.LOST, Stage.GONE)


class Clients(NamedTuple):
    """The clients of a federation, and the connections that were turned away."""

    members: Sequence[ClientStatus] = ()
    refusals: Sequence[Refusal] = ()


class Overview:
    """Looks at a federation for those that read its page.

    clients: returns the clients now; None: there are none, as of a file.
    """

    def __init__(self, history: History, clients: Callable[[], Clients] | None = None) -> None:
        self._history = history
        self._clients = clients
        self._looking = threading.Lock()  # guards the next two
        self._last_look = Clients()
        self._next_look = 0.0  # by time.monotonic()
        self._changed = threading.Condition()  # guards what follows
        self._number = 0  # of the last look
        self._event = b""  # of the last look: what readers of the stream get
        self._readers = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """End the streams and the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def look(self) -> bytes:
        """Return the overview now, as JSON, for one reader."""
        return self._made(self._found())

    def rows(self, stage: str, text: str, page: int) -> bytes:
        """Return a page of the table of clients, as JSON.

        stage: only clients of this stage; empty: all. text: only those whose title or reason contains it.
        """
        members = self._found().members
        wanted = [each for each in members if _fits(each, stage, text.casefold())]
        shown = sorted(wanted, key=_rank)[page * _ROWS : (page + 1) * _ROWS]
        return _dumped({"total": len(wanted), "page": page, "rows": _ROWS, "clients": list(map(_row, shown))})

    def all_rows(self) -> list[dict[str, Any]]:
        """Return all clients, for an export."""
        return list(map(_row, sorted(self._found().members, key=_rank)))

    def follow(self, after: int | None, wait: float) -> Iterable[bytes]:
        """Yield server-sent events (WHATWG HTML, 9.2): the overview, and each round; every `wait` seconds a comment.

        after: how many rounds the reader knows; None: it has those that are there now.

        Ends when the page is closed.
        """
        known = self._history.rounds()[1] if after is None else after
        with self._changed:
            self._readers += 1
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="fl-page", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        number = 0
        try:
            while True:
                with self._changed:
                    if self._number == number and not self._closed:
                        self._changed.wait(wait)
                    if self._closed:
                        return
                    is_new, number, event = self._number > number, self._number, self._event
                if not is_new:
                    yield b": still here\n\n"
                    continue
                rounds, known = self._history.rounds(known)
                for index, each in enumerate(rounds, known - len(rounds) + 1):
                    yield _event("round", each, index)
                yield event
        finally:
            with self._changed:
                self._readers -= 1

    def _run(self) -> None:
        """Look while there are readers."""
        seen = (-1, Clients())
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._readers)
                if self._closed:
                    return
            found = self._history.changes, self._found()
            if found != seen:
                seen = found
                event = b"event: status\ndata: " + self._made(found[1]) + b"\n\n"
                with self._changed:
                    self._number, self._event = self._number + 1, event
                    self._changed.notify_all()
            with self._changed:
                self._changed.wait_for(lambda: self._closed, max(_LEAST, self._next_look - time.monotonic()))

    def _found(self) -> Clients:
        """Return the clients, as they were a rest ago at most."""
        if self._clients is None:
            return Clients()
        with self._looking:
            if (begin := time.monotonic()) >= self._next_look:
                self._last_look = self._clients()
                took = time.monotonic() - begin
                self._next_look = begin + took + min(_MOST, max(_LEAST, _REST * took))
            return self._last_look

    def _made(self, found: Clients) -> bytes:
        members = found.members
        counts = Counter(each.stage.value for each in members)
        worst = sorted(members, key=_rank)[:_ROWS]
        timed = sorted((each for each in members if each.seconds is not None), key=lambda each: -(each.seconds or 0))
        refused = [
            {"time": each.time, "address": printable(each.address), "reason": each.reason} for each in found.refusals
        ]
        summary = self._history.summary(running=self._clients is not None)
        there = sum(each.stage not in _AWAY for each in members)
        waits = self._clients is not None and summary["round"] is None and there < summary["min_clients"]
        return _dumped(
            {
                **summary,
                "waits": f"{there} of {summary['min_clients']}" if waits else "",
                "left": None if waits else summary["left"],
                "time": time.time(),
                "version": VERSION,
                "live": self._clients is not None,
                "clients": len(members),
                "stages": {stage.value: counts[stage.value] for stage in Stage if counts[stage.value]},
                "attention": sum(bool(_warnings(each)) for each in members),
                "table": list(map(_row, worst)),
                "slowest": [{"client": each.short, "seconds": each.seconds} for each in timed[:_SLOWEST]],
                "refused": refused[::-1][:_REFUSED],
            }
        )


def _fits(client: ClientStatus, stage: str, text: str) -> bool:
    return (not stage or client.stage.value == stage) and text in f"{client} {client.reason}".casefold()


def _rank(client: ClientStatus) -> tuple[bool, list[str | int], int]:
    """Sort those that need a look first, then by name: board-2 before board-10."""
    parts = re.split("([0-9]+)", client.name.casefold())  # a text and a number in turn
    return not _warnings(client), [int(part) if index % 2 else part for index, part in enumerate(parts)], client.id.int


def _warnings(client: ClientStatus) -> list[str]:
    """Return what a person should look at."""
    found = [client.stage.value] if client.stage in _BAD else []
    if client.suspended:
        found.append("suspended")
    if client.certificate_end is not None and client.certificate_end - time.time() < _CERTIFICATE:
        found.append("certificate ends soon")
    if client.ahead is not None and abs(client.ahead) > CLOCK:
        found.append(f"clock {client.ahead:+.0f} s")
    if client.version not in ("", VERSION):
        found.append(f"version {client.version}")
    return found


def _row(client: ClientStatus) -> dict[str, Any]:
    return {
        "id": str(client.id),
        "name": client.short,
        "stage": client.stage.value,
        "reason": client.reason,
        "warnings": _warnings(client),
        "since": client.since,
        "address": printable(client.address),
        "version": client.version,
        "ahead": client.ahead,
        "check": client.check,
        "certificate_end": client.certificate_end,
        "absent": client.absent,
        "bytes_in": client.bytes_in,
        "bytes_out": client.bytes_out,
        "updates": client.updates,
        "failures": client.failures,
        "seconds": client.seconds,
        "properties": dict(client.properties),
    }


def _event(name: str, values: Mapping[str, Any], id: int) -> bytes:
    return b"event: %s\nid: %d\ndata: %s\n\n" % (name.encode(), id, _dumped(values))


def _dumped(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, allow_nan=False, separators=(",", ":")).encode()
