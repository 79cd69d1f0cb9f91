"""Asks a proxy for a tunnel to a server: HTTP CONNECT (RFC 9110, section 9.3.6), or SOCKS5 (RFC 1928, RFC 1929).

A generator for each, which opens no socket: it sends by a function, yields how many bytes it wants at most, and is sent
what has come. It never wants a byte behind the proxy's answer, because those are the server's. It returns when the
tunnel is there, and raises OSError with a sentence when there is none.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Callable, Generator

from netq.options import NetworkLocation
from netq.proxy import Proxy
from netq.text import format_netloc, printable

Tunnel = Generator[int, bytes, None]
Send = Callable[[bytes], object]

_MOST = 16 * 1024  # bytes of the head of a proxy's answer
_INTERIM = 10  # interim responses before the answer, at most (RFC 9110, section 15.2)
_LONGEST = 200  # characters of what a proxy says, in an error
_LOGIN = "the proxy asks for a user and a password: write them into its URL, as in {scheme}://USER:PASSWORD@HOST:PORT"
_WRONG_LOGIN = "it does not accept the user and the password of its URL"
_RULES = "do its rules allow a tunnel to this server and port? Many allow port 443 only"
_LENGTHS = {1: 4, 4: 16, 3: 0}  # bytes of an address by its kind; a name says its length
_SOCKS = {
    1: "it failed",
    2: f"its rules do not allow it; {_RULES}",
    3: "it has no route to the network of the server",
    4: "it cannot reach the server; is its name right, and does it run?",
    5: "the server refuses the connection; does it run, and at this port?",
    6: "the server is too far away (TTL)",
    7: "it does not know the command CONNECT",
    8: "it does not know this kind of address",
}


def tunnel(proxy: Proxy, netloc: NetworkLocation, send: Send) -> Tunnel:
    """Return the generator for this proxy. `netloc` is the server, whose name the proxy resolves."""
    return (_http if proxy.scheme == "http" else _socks)(proxy, netloc, send)


def authorization(proxy: Proxy) -> str:
    """Return the line that tells an HTTP proxy user and password (RFC 7617), "" without any."""
    if proxy.user is None:
        return ""
    token = base64.b64encode(f"{proxy.user}:{proxy.password}".encode()).decode()
    return f"Proxy-Authorization: Basic {token}"


class ProxyRefused(ConnectionRefusedError):
    """The proxy makes no tunnel."""


def refusal(proxy: Proxy, status: int, reason: str = "", offered: str = "") -> ProxyRefused:
    """Return the error for an HTTP status. `offered`: the kinds of login that the proxy accepts, as it says."""
    said = f"{status} {reason}".strip()
    if status < 200:  # of grpc's own reader: this one reads on
        return ProxyRefused(f"{said}: an interim answer, which gRPC does not understand; use Protocol.TCP")
    if status in (401, 407):
        if offered and "basic" not in offered.lower():
            return ProxyRefused(f"{said}: it offers {offered}; netq has Basic only: ask for an account of that kind")
        return ProxyRefused(f"{said}: {_login(proxy)}")
    if status >= 500:
        return ProxyRefused(f"{said}: it cannot reach the server; is its name right, and does it run?")
    return ProxyRefused(f"it refuses: {said}; {_RULES}")


def _login(proxy: Proxy) -> str:
    return _LOGIN.format(scheme=proxy.scheme) if proxy.user is None else _WRONG_LOGIN


def _http(proxy: Proxy, netloc: NetworkLocation, send: Send) -> Tunnel:
    target = format_netloc(server_name(netloc).decode(), netloc.port)
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", authorization(proxy)]
    send("".join([f"{line}\r\n" for line in lines if line]).encode() + b"\r\n")
    for _ in range(_INTERIM):
        status, reason, kinds = yield from _response()
        if status >= 300:
            raise refusal(proxy, status, reason, kinds)
        if status >= 200:
            return
    raise ProxyRefused(f"it sends more than {_INTERIM} interim responses")


def _response() -> Generator[int, bytes, tuple[int, str, str]]:
    """Read the head of a response. Return its status, the reason, and the kinds of login that it offers."""
    head = yield from _exactly(len(b"HTTP/1."))
    if head != b"HTTP/1.":
        raise ProxyRefused(f"what it answers is not HTTP ({head!r}); is it a SOCKS5 proxy, or another server?")
    while not head.endswith((b"\r\n\r\n", b"\n\n")):
        if len(head) > _MOST:
            raise ProxyRefused(f"the head of its answer has more than {_MOST} bytes; is it an HTTP proxy?")
        head += yield from _exactly(1)
    first, *fields = head.decode("latin-1").splitlines()
    status, _, reason = first.partition(" ")[2].partition(" ")
    if not re.fullmatch("[1-9][0-9][0-9]", status):
        raise ProxyRefused(f"what it answers is not HTTP ({printable(first, _LONGEST)})")
    kinds = [field.partition(":")[2].strip() for field in fields if field.lower().startswith("proxy-authenticate:")]
    return int(status), printable(reason, _LONGEST), printable(", ".join(kinds), _LONGEST)


def _socks(proxy: Proxy, netloc: NetworkLocation, send: Send) -> Tunnel:
    name = server_name(netloc)
    methods = b"\x00" if proxy.user is None else b"\x00\x02"
    send(bytes([5, len(methods)]) + methods)
    version, method = yield from _exactly(2)
    if version != 5:
        raise ProxyRefused(f"what it answers is not SOCKS5 (version {version}); is it an HTTP proxy?")
    if method == 2 and proxy.user is not None:
        user, password = proxy.user.encode(), proxy.password.encode()
        send(bytes([1, len(user)]) + user + bytes([len(password)]) + password)
        version, failed = yield from _exactly(2)
        if version != 1 or failed:
            raise ProxyRefused(_WRONG_LOGIN)
    elif method != 0:
        raise ProxyRefused(_login(proxy))
    send(b"\x05\x01\x00" + _address(name) + netloc.port.to_bytes(2, "big"))
    version, failed, _, kind = yield from _exactly(4)
    if version == 5 and failed:
        raise ProxyRefused(_SOCKS.get(failed, f"it refuses (code {failed})"))
    if version != 5 or kind not in _LENGTHS:
        raise ProxyRefused(f"what it answers is not SOCKS5 (version {version}, kind of address {kind})")
    length = _LENGTHS[kind]
    if not length:
        (length,) = yield from _exactly(1)
    yield from _exactly(length + 2)  # the address and the port of the proxy's own end


def _address(name: bytes) -> bytes:
    try:
        address = ipaddress.ip_address(name.decode())
    except ValueError:
        return bytes([3, len(name)]) + name
    return (b"\x01" if address.version == 4 else b"\x04") + address.packed


def server_name(netloc: NetworkLocation) -> bytes:
    """Return the name of a server as it travels. Raises OSError for what is no name."""
    try:
        name = netloc.host.encode("idna")
    except UnicodeError:
        name = b""
    if not 1 <= len(name) <= 255 or any(not 33 <= byte <= 126 for byte in name):
        raise OSError(f"{netloc.host!r} is no name of a host")
    return name


def _exactly(count: int) -> Generator[int, bytes, bytes]:
    data = b""
    while len(data) < count:
        received = yield count - len(data)
        if not received:
            raise ConnectionResetError("it hung up before it had answered")
        data += received
    return data
