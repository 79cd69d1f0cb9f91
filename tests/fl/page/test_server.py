"""The HTTP server of a page: what it serves, to whom, and what hostile readers cannot do."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fl.page import server
from fl.page.history import History
from fl.page.overview import Clients, Overview
from fl.page.server import PageServer
from netq import InvalidOption, SecurityOptions
from netq.errors import AddressError
from netq.security import certificates
from tests.fl.federation import SOON

RECORD = {"round": 1, "clients": ["a"], "metrics": {"=cmd": 1.0}, "evaluation": {}, "bytes_in": 1, "bytes_out": 1}


class Pages:
    """Makes pages that are closed with the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.history = History()

    def new(self, **options: Any) -> PageServer:
        pages = PageServer(self.history, Overview(self.history, Clients), 0, **options)
        self._stack.callback(pages.close)
        return pages


@pytest.fixture
def pages() -> Iterator[Pages]:
    with ExitStack() as stack:
        yield Pages(stack)


def get(pages: PageServer, path: str, context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, bytes, Any]:
    made: http.client.HTTPConnection = (
        http.client.HTTPConnection("127.0.0.1", pages.port, timeout=SOON)
        if context is None
        else http.client.HTTPSConnection("127.0.0.1", pages.port, timeout=SOON, context=context)
    )
    try:
        made.request("GET", path, headers=headers)
        answer = made.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        made.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/static/page.js", "text/javascript; charset=utf-8"),
        ("/static/page.css", "text/css; charset=utf-8"),
        ("/static/uPlot.iife.min.js", "text/javascript; charset=utf-8"),
        ("/status.json", "application/json"),
        ("/clients.json?stage=late&page=3", "application/json"),
        ("/clients.json?page=-1", "application/json"),
        ("/rounds.json", "application/json"),
        ("/rounds.csv", "text/csv; charset=utf-8"),
        ("/clients.csv", "text/csv; charset=utf-8"),
    ],
)
def test_everything_is_served_with_a_strict_policy(pages: Pages, path: str, kind: str) -> None:
    pages.history.round_ends(RECORD, 0.0)
    status, content, headers = get(pages.new(), path)
    assert (status, headers["Content-Type"]) == (200, kind)
    assert content
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/uPlot.md", "/..%2f..", "/x", "/static/", "//etc/passwd"]
)
def test_nothing_else_is_served(pages: Pages, path: str) -> None:
    assert get(pages.new(), path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_page_is_read_only(pages: Pages, method: str) -> None:
    made = http.client.HTTPConnection("127.0.0.1", pages.new().port, timeout=SOON)
    made.request(method, "/status.json")
    assert made.getresponse().status == 501
    made.close()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_another_name_is_refused(pages: Pages, host: str) -> None:
    """DNS rebinding: a site's own name is made to lead here."""
    assert get(pages.new(), "/status.json", Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:80"])
def test_names_of_this_machine_are_right(pages: Pages, host: str) -> None:
    assert get(pages.new(), "/status.json", Host=host)[0] == 200


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Basic OnNlY3JldA==", 200),  # ":secret"
        ("basic YW55Ym9keTpzZWNyZXQ=", 200),  # "anybody:secret"
        ("Basic Ondyb25n", 401),
        ("Basic ???", 401),
        ("Bearer secret", 401),
        ("", 401),
        ("Basic /////w==", 401),
    ],
)
def test_password(pages: Pages, authorization: str, status: int) -> None:
    made = pages.new(password="secret")
    found, content, headers = get(made, "/status.json", Authorization=authorization)
    assert found == status
    if status == 401:
        assert headers["WWW-Authenticate"].startswith("Basic")
        assert b"federation" not in content


def test_another_machine_needs_a_password_or_a_certificate(pages: Pages, files: certificates.Files) -> None:
    with pytest.raises(InvalidOption, match="others can reach it"):
        pages.new(host="0.0.0.0")
    with pytest.raises(InvalidOption, match="others can reach it"):
        pages.new(host="0.0.0.0", security=SecurityOptions(files.key, files.certificate))
    assert get(pages.new(host="0.0.0.0", password="secret"), "/")[0] == 401


def test_tls_with_certificates_of_readers(pages: Pages, files: certificates.Files) -> None:
    security = SecurityOptions(files.key, files.certificate, files.authority)
    made = pages.new(security=security)
    context = ssl.create_default_context(cafile=str(files.authority))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        get(made, "/status.json", context)
    own = certificates.issue(files.authority.parent, "reader")
    context.load_cert_chain(own.certificate, own.key)
    assert get(made, "/status.json", context)[0] == 200


def test_port_that_is_taken_is_named(pages: Pages) -> None:
    first = pages.new()
    with pytest.raises(AddressError, match=f"127.0.0.1:{first.port} .*give another port"):
        PageServer(History(), Overview(History()), first.port)


def test_csv_has_no_formulas(pages: Pages) -> None:
    pages.history.round_ends(RECORD, 0.0)
    content = get(pages.new(), "/rounds.csv")[1].decode()
    assert content.splitlines()[0].split(",")[:2] == ["round", "attempt"]
    assert "metrics/=cmd" in content


def test_hundred_hostile_readers_do_not_keep_others_out(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some send nothing, some half a request, some read nothing. They are dropped, and the page goes on."""
    monkeypatch.setattr(server._Handler, "timeout", 0.3)
    made = pages.new()
    socks = [socket.create_connection(("127.0.0.1", made.port), SOON) for _ in range(100)]
    for index, sock in enumerate(socks):
        sock.sendall([b"", b"GET /status.json HT", b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"][index % 3])
    assert get(made, "/status.json")[0] == 200
    for sock in socks:
        sock.close()


def test_too_many_connections_are_dropped(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_CONNECTIONS", 2)
    made = pages.new()
    socks = [socket.create_connection(("127.0.0.1", made.port), SOON) for _ in range(4)]
    assert any(sock.recv(1) == b"" for sock in socks[2:])
    for sock in socks:
        sock.close()
    end = time.monotonic() + SOON
    while True:
        try:
            assert get(made, "/status.json")[0] == 200
            break
        except (ConnectionError, http.client.HTTPException):
            assert time.monotonic() < end


@pytest.mark.parametrize("request_", [b"\x16\x03\x01\x02", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n", b"G" * 70_000])
def test_garbage_gets_no_page(pages: Pages, request_: bytes) -> None:
    made = pages.new()
    with socket.create_connection(("127.0.0.1", made.port), SOON) as sock:
        sock.sendall(request_)
        sock.shutdown(socket.SHUT_WR)
        assert b"200" not in sock.recv(100)
    assert get(made, "/status.json")[0] == 200


def test_events_are_a_stream(pages: Pages) -> None:
    made = pages.new()
    with socket.create_connection(("127.0.0.1", made.port), SOON) as sock:
        sock.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        file = sock.makefile("rb")
        head = b"".join(iter(file.readline, b"\r\n"))
        assert b"text/event-stream" in head
        assert b"Content-Length" not in head
        lines = iter(file.readline, b"")
        data = next(line for line in lines if line.startswith(b"data: "))
        assert json.loads(data[6:])["clients"] == 0
        file.close()
