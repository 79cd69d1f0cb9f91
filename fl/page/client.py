"""`fl status`: where the clients of a federation stand, on a terminal, from its server's page."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from netq.errors import AddressError, InvalidOption, SecurityError
from netq.options import SecurityOptions
from netq.security import standard
from netq.text import format_netloc, parse_netloc, printable

_SECONDS = 10.0  # for an answer
_SIZE = 2**24  # bytes of an answer
_MOST = 10_000  # clients that are shown


def show(
    address: str,
    stage: str,
    authority: Path | None,
    key: Path | None,
    certificate: Path | None,
    password_file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Do `fl status`. Raises InvalidOption, SecurityError and AddressError."""
    try:
        host, port = parse_netloc(address.removeprefix("https://").removeprefix("http://").rstrip("/"))
    except ValueError as error:
        raise InvalidOption(f"HOST:PORT: {error}") from error
    if (key is None) != (certificate is None) or (key is not None and authority is None):
        raise InvalidOption("--key: a certificate of this side needs --authority, --key and --certificate")
    security = None if authority is None else SecurityOptions(key, certificate, authority)
    password = None if password_file is None else _password(password_file)
    status = fetch(host, port, "/status.json", password, security)
    clients, number = [], 0
    while True:
        query = urlencode({"stage": stage, "page": number})
        found = fetch(host, port, f"/clients.json?{query}", password, security)
        clients += found["clients"]
        number += 1
        if not found["clients"] or len(clients) >= min(found["total"], _MOST):
            break
    if as_json:
        print(json.dumps({**status, "table": clients}))
        return
    for line in lines(status, clients):
        print(line)


def _password(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"--password-file: {str(path)!r} cannot be read ({error}); expected a text file") from None


def fetch(
    host: str, port: int, path: str, password: str | None = None, security: SecurityOptions | None = None
) -> dict[str, Any]:
    """Return the JSON object at a path of a page.

    security: TLS, with `authority`; and `key` and `certificate`, if the page wants a certificate.

    Raises AddressError if there is no page, SecurityError for certificates, and InvalidOption for the password.
    """
    where = format_netloc(host, port)
    connection = _connection(host, port, security)
    headers = {}
    if password is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(f":{password}".encode()).decode()
    try:
        connection.request("GET", path, headers=headers)
        with connection.getresponse() as answer:
            content = answer.read(_SIZE)
    except ssl.SSLError as error:
        hint = "does the page use TLS, and is this side's certificate signed by its authority?"
        raise SecurityError(f"{where}: {error.reason or error}; {hint}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        hint = "expected the page of a server: fl.Page, or [callbacks] page"
        if security is None and isinstance(error, http.client.RemoteDisconnected | ConnectionResetError):
            hint = "if the page uses TLS, give its authority with --authority"
        raise AddressError(f"{where}: no answer ({printable(reason)}); {hint}") from error
    finally:
        connection.close()
    if answer.status == http.client.UNAUTHORIZED:
        raise InvalidOption(f"{where}: the page wants a password, or another one; give it with --password-file")
    try:
        found = json.loads(content)
        if answer.status == http.client.OK and isinstance(found, dict):
            return found
    except ValueError:
        pass
    text = printable(content[:80].decode(errors="replace"))
    raise AddressError(f"{where}: no page of a federation: it answers {answer.status} {text}")


def _connection(host: str, port: int, security: SecurityOptions | None) -> http.client.HTTPConnection:
    if security is None:
        return http.client.HTTPConnection(host, port, timeout=_SECONDS)
    context = standard.client_context(security.authority, "authority", security.key, security.certificate)
    return http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)


def lines(status: Mapping[str, Any], clients: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines to show: the federation, then each client. All texts are escaped: a page may be anybody's."""
    total = f" of {status['rounds']}" if status.get("rounds") else ""
    running = f"; round {status['round']} runs" if status.get("round") else ""
    if status.get("waits"):
        running = f"; waiting for clients: {status['waits']} are connected"
    left = f"; about {_duration(status['left'])} left" if status.get("left") else ""
    done = f"{status.get('strategy', '')}: {status['done']}{total} rounds are done"
    yield printable(f"{done if status.get('strategy') else 'no round has begun'}{running}{left}")
    stages = ", ".join(f"{count} {stage}" for stage, count in status["stages"].items())
    clients_of = f"{status['clients']} client{'s' * (status['clients'] != 1)}"
    yield printable(f"{clients_of}: {stages}" if stages else "no client has connected")
    if clients:
        rows = [
            ("client", "stage", "since", "updates", "failed", "certificate", "address", "why"),
            *map(_cells, clients),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    for each in status["refused"][:5]:
        when = time.strftime("%H:%M:%S", time.localtime(each["time"]))
        yield printable(f"turned away {when} {each['address']}: {each['reason']}")


def _cells(client: Mapping[str, Any]) -> tuple[str, ...]:
    end, since = client["certificate_end"], client["since"]
    why = "; ".join([each for each in client["warnings"] if each != client["stage"]] + [client["reason"]]).strip("; ")
    cells = (
        client["name"],
        client["stage"],
        _duration(max(0.0, time.time() - since)) if since else "",
        client["updates"],
        client["failures"],
        "" if end is None else time.strftime("%Y-%m-%d", time.gmtime(end)),
        client["address"],
        why,
    )
    return tuple(printable(str(cell), 80) for cell in cells)


def _duration(seconds: float) -> str:
    for size, unit in ((172800, "d"), (7200, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds / {'d': 86400, 'h': 3600, 'min': 60}[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"
