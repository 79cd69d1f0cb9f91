"""The HTTP server of a page: static files, JSON, server-sent events, CSV. Read-only; the standard library only.

Any process may connect, and may send or read as slowly as it likes. So connections and the time for a request are
bounded, and each connection has a thread of its own: none of them touches the federation.

    path                what
    /                   the page; its scripts and styles are at /static/…
    /status.json        the overview
    /clients.json       a page of the table of clients: stage=…, text=…, page=0
    /rounds.json, .csv  all rounds
    /clients.csv        all clients
    /events             server-sent events: the overview as it changes, and each round (WHATWG HTML, section 9.2)
"""

from __future__ import annotations

import base64
import csv
import hmac
import io
import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fl.page.history import History
from fl.page.overview import Overview
from netq.errors import AddressError, InvalidOption
from netq.options import SecurityOptions
from netq.security import standard
from netq.text import format_netloc
from netq.validate import expect, is_whole

log = logging.getLogger("netq.fl")

_CONNECTIONS = 128  # at a time
_SECONDS = 10.0  # for a request, and for a reader to take what it has asked for
_COMMENT = 15.0  # seconds between comments in a stream: they find readers that are gone
_LOCAL = ("127.0.0.1", "::1", "localhost")
_STATIC = {
    "index.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uPlot.min.css": "text/css; charset=utf-8",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class PageServer:
    """Serves a page until `close`. `port`: the one that it listens on.

    password: readers give it, with any name (RFC 7617, Basic).
    security: key and certificate for TLS; with `authority` readers need a certificate, too.

    Raises InvalidOption, SecurityError and AddressError.
    """

    def __init__(
        self,
        history: History,
        overview: Overview,
        port: int,
        host: str = "127.0.0.1",
        password: str | None = None,
        security: SecurityOptions | None = None,
    ) -> None:
        check(port, host, password, security)
        context = None if security is None else _context(security)
        self._overview = overview
        reader = _Reader(history, overview, password, host in _LOCAL)
        try:
            self._server = _Server((host, port), reader, context)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            hint = "give another port, or 0 for one that is free"
            raise AddressError(f"{format_netloc(host, port)} ({reason}); {hint}") from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="fl-page-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections."""
        self._server.shutdown()
        self._thread.join()
        self._overview.close()
        self._server.server_close()
        self._server.end_connections()


def check(port: object, host: object, password: object, security: Any) -> None:
    """Raise InvalidOption for arguments that are wrong, or that would open a page to strangers."""
    expect(is_whole(port, 0, 65535), "Page.port", port, "a whole number from 0 to 65535")
    expect(isinstance(host, str) and host != "", "Page.host", host, 'an address of this machine, as in "127.0.0.1"')
    expect(password is None or (isinstance(password, str) and password != ""), "Page.password", "…", "a text, or None")
    expect(isinstance(security, SecurityOptions | None), "Page.security", security, "netq.SecurityOptions, or None")
    guarded = password is not None or (security is not None and security.authority is not None)
    if host not in _LOCAL and not guarded:
        raise InvalidOption(
            f"Page.host: {host!r}: others can reach it; give a password, or security with an authority that has signed "
            'the certificates of readers; or use "127.0.0.1"'
        )


def _context(security: SecurityOptions) -> ssl.SSLContext:
    if security.key is None or security.certificate is None:
        raise InvalidOption("Page.security: a page needs a key and a certificate, PEM files")
    return standard.server_context(security.key, security.certificate, security.authority)


class _Server(ThreadingHTTPServer):
    """Bounds the connections. A handshake of TLS is in the thread of its connection."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], reader: _Reader, context: ssl.SSLContext | None) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._context = context
        self._open: dict[socket.socket, threading.Thread | None] = {}
        self._lock = threading.Lock()
        super().__init__(address, lambda *given: _Handler(*given, reader=reader))

    def get_request(self) -> tuple[socket.socket, Any]:
        sock, address = super().get_request()
        if self._context is not None:
            sock = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return sock, address

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._lock:
            if len(self._open) >= _CONNECTIONS:
                return False
            self._open[request] = None
            return True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = threading.current_thread()
        super().process_request_thread(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._lock:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a reader of the page at %s has gone", client_address, exc_info=True)

    def end_connections(self) -> None:
        """Drop the connections, and wait for their threads."""
        with self._lock:
            left = list(self._open.items())
        for sock, _ in left:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for _, thread in left:
            if thread is not None:
                thread.join(_SECONDS)


class _Reader:
    """What the handlers of all connections share."""

    def __init__(self, history: History, overview: Overview, password: str | None, is_local: bool) -> None:
        self.history = history
        self.overview = overview
        self._password = password
        self._is_local = is_local

    def knows(self, host: str) -> bool:
        """Return whether a request means this page: another site's name could lead a browser here (DNS rebinding)."""
        name = urlsplit(f"//{host}").hostname
        return not self._is_local or name in _LOCAL

    def admits(self, authorization: str) -> bool:
        """Return whether a request has the password, if there is one."""
        if self._password is None:
            return True
        kind, _, code = authorization.partition(" ")
        try:
            given = base64.b64decode(code, validate=True).decode().partition(":")[2]
        except ValueError:
            return False
        return kind.lower() == "basic" and hmac.compare_digest(given.encode(), self._password.encode())


class _Handler(BaseHTTPRequestHandler):
    timeout = _SECONDS
    server_version, sys_version = "netq", ""

    def __init__(self, *given: Any, reader: _Reader) -> None:
        self._reader = reader
        super().__init__(*given)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("page: %s", format % args)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if not self._reader.knows(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this page is for browsers of its own machine: use localhost")
        elif not self._reader.admits(self.headers.get("Authorization", "")):
            self._refuse(HTTPStatus.UNAUTHORIZED, "expected the password", {"WWW-Authenticate": 'Basic realm="netq"'})
        elif parts.path == "/events":
            self._stream()
        elif (found := self._found(parts.path, query)) is None:
            self._refuse(HTTPStatus.NOT_FOUND, "no such page")
        else:
            self._send(HTTPStatus.OK, *found)

    def _found(self, path: str, query: Mapping[str, str]) -> tuple[bytes, str] | None:
        """Return the content at a path, and its type; None: there is none."""
        history, overview = self._reader.history, self._reader.overview
        name = {"/": "index.html"}.get(path, path.removeprefix("/static/"))
        if name in _STATIC:
            return files("fl.page").joinpath("static", name).read_bytes(), _STATIC[name]
        page = query.get("page", "0")
        makers: dict[str, Callable[[], bytes]] = {
            "/status.json": overview.look,
            "/clients.json": lambda: overview.rows(
                query.get("stage", ""), query.get("text", ""), int(page) if page.isascii() and page.isdigit() else 0
            ),
            "/rounds.json": lambda: _rounds(history),
            "/rounds.csv": lambda: _csv(history.rounds()[0]),
            "/clients.csv": lambda: _csv(overview.all_rows()),
        }
        if path not in makers:
            return None
        return makers[path](), "text/csv; charset=utf-8" if path.endswith("csv") else "application/json"

    def _stream(self) -> None:
        last = self.headers.get("Last-Event-ID", "")
        query = parse_qs(urlsplit(self.path).query)
        known = last or query.get("after", [""])[-1]
        self._head(HTTPStatus.OK, {"Content-Type": "text/event-stream"})
        self.wfile.write(b"retry: 2000\n\n")
        after = int(known) if known.isascii() and known.isdigit() else None
        for event in self._reader.overview.follow(after, _COMMENT):
            self.wfile.write(event)

    def _refuse(self, status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None) -> None:
        self._send(status, f"{text}\n".encode(), "text/plain; charset=utf-8", headers)

    def _send(self, status: HTTPStatus, content: bytes, kind: str, headers: Mapping[str, str] | None = None) -> None:
        self._head(status, {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})})
        self.wfile.write(content)

    def _head(self, status: HTTPStatus, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()


def _rounds(history: History) -> bytes:
    rounds, count = history.rounds()
    return json.dumps({"count": count, "rounds": rounds}, allow_nan=False, separators=(",", ":")).encode()


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as a table. A text that a spreadsheet would take for a formula gets an apostrophe."""
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([_safe(name) for name in names])
    writer.writerows([_safe(row.get(name, "")) for name in names] for row in flat)
    return out.getvalue().encode()


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{key}": each for key, each in value.items() if not isinstance(each, list)}
        elif isinstance(value, list):
            found[name] = " ".join(map(str, value))
        else:
            found[name] = value
    return found


def _safe(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
