"""`fl.Page`: a live page of a federation, as a callback of its server."""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Self

from fl.callbacks.base import Callback, Observed
from fl.callbacks.jsonl import record
from fl.page.history import History
from fl.page.overview import Clients, Overview
from fl.page.server import PageServer
from fl.report import RoundReport
from fl.tensors.spec import Model
from netq.errors import AddressError
from netq.options import SecurityOptions
from netq.text import format_netloc, text_of

log = logging.getLogger("netq.fl")

_LOGGERS = ("netq", "fl")  # whose lines the page shows; netq.fl is in the first


class Page(Callback):
    """Shows a federation in a browser: rounds, clients, metrics, the log. A context manager.

    port:     0 lets the system choose a free one; the property `port` returns it.
    host:     the address to listen on. Others than this machine's own need a password, or certificates of readers.
    password: that readers give, with any name.
    security: TLS: key and certificate; with `authority` readers need a certificate.

    Whatever readers do, and also if the port is taken, the federation goes on: a warning says so. Raises InvalidOption
    and SecurityError.
    """

    def __init__(
        self,
        port: int = 8080,
        host: str = "127.0.0.1",
        *,
        password: str | None = None,
        security: SecurityOptions | None = None,
    ) -> None:
        self._history = History()
        self._server: Observed | None = None
        self._pages: PageServer | None = None
        try:
            overview = Overview(self._history, self._clients)
            self._pages = PageServer(self._history, overview, port, host, password, security)
        except AddressError as error:
            log.warning("there is no page: it cannot be served at %s", error)
            return
        self._handler = _Lines(self._history)
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self._handler)
        name = socket.gethostname() if host in ("0.0.0.0", "::") else host
        self._url = f"{'http' if security is None else 'https'}://{format_netloc(name, self.port)}/"

    @property
    def port(self) -> int:
        """The port that it listens on; 0 if it is taken by another."""
        return 0 if self._pages is None else self._pages.port

    def listens(self, server: Observed) -> None:
        """Show what this server is, and its clients."""
        self._server = server
        self._history.begin(server.about)
        if self._pages is not None:
            log.info("the page of this server is at %s", self._url)

    def federation_begins(self, details: Mapping[str, Any]) -> None:
        """Show what it is."""
        self._history.begin(details)

    def round_begins(self, number: int, clients: Sequence[uuid.UUID]) -> None:
        """Show that it runs."""
        self._history.round_begins(number)

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Add it."""
        self._history.round_ends(record(report, client_metrics=True), time.time())

    def close(self) -> None:
        """Stop serving."""
        pages, self._pages = self._pages, None
        if pages is not None:
            for name in _LOGGERS:
                logging.getLogger(name).removeHandler(self._handler)
            pages.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _clients(self) -> Clients:
        server = self._server
        return Clients() if server is None else Clients(server.members(), server.refusals)


class _Lines(logging.Handler):
    """Adds the log's lines to a page."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.INFO)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        """Add a line. One whose arguments do not fit shows that."""
        try:
            text = record.getMessage()
        except Exception as error:  # of an argument's __str__
            text = f"{record.msg} ({text_of(error)})"
        self._history.log(record.levelname.lower(), text, record.created)
