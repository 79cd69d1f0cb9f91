"""What is said to a proxy, and what each of its answers means; without a socket."""

from __future__ import annotations

import pytest

from netq import NetworkLocation
from netq.io.tunnel import tunnel
from netq.proxy import Proxy

HTTP = Proxy("http", "proxy", 3128)
SOCKS = Proxy("socks5", "proxy", 1080)
LOGIN = {"user": "me", "password": "pass"}
SERVER = NetworkLocation("server", 443)
OPENED = b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"


def converse(proxy: Proxy, answer: bytes, netloc: NetworkLocation = SERVER, *, most: int = 1000) -> tuple[bytes, bytes]:
    """Return what was sent, and what of the answer was not read. `most`: bytes that come at a time; then it ends."""
    sent: list[bytes] = []
    steps = tunnel(proxy, netloc, sent.append)
    try:
        wanted = next(steps)
        while True:
            received, answer = answer[: min(wanted, most)], answer[min(wanted, most) :]
            wanted = steps.send(received)
    except StopIteration:
        return b"".join(sent), answer


@pytest.mark.parametrize("most", [1, 3, 1000])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\nVia: x\n\n",
        b"HTTP/1.1 200 \r\nVia: x\r\nProxy-Agent: y\r\n\r\n",
        b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 201\r\nContent-Length: 5\r\n\r\n",
    ],
)
def test_http_tunnel_leaves_the_bytes_of_the_server(answer: bytes, most: int) -> None:
    sent, rest = converse(HTTP, answer + b"first bytes", most=most)
    assert sent == b"CONNECT server:443 HTTP/1.1\r\nHost: server:443\r\n\r\n"
    assert rest == b"first bytes"


def test_http_tunnel_with_a_password_and_an_address() -> None:
    sent, _ = converse(Proxy("http", "proxy", 1, **LOGIN), b"HTTP/1.1 200\r\n\r\n", NetworkLocation("::1", 9))
    assert sent.startswith(b"CONNECT [::1]:9 HTTP/1.1\r\n")
    assert b"\r\nProxy-Authorization: Basic bWU6cGFzcw==\r\n\r\n" in sent  # RFC 7617: base64 of "me:pass"


@pytest.mark.parametrize("most", [1, 1000])
@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("server", b"\x03\x06server"),
        ("192.0.2.1", b"\x01\xc0\x00\x02\x01"),
        ("2001:db8::1", b"\x04\x20\x01\x0d\xb8" + bytes(11) + b"\x01"),
        ("bücher.example", b"\x03\x15xn--bcher-kva.example"),
    ],
)
def test_socks_tunnel_leaves_the_bytes_of_the_server(host: str, address: bytes, most: int) -> None:
    sent, rest = converse(SOCKS, b"\x05\x00" + OPENED + b"first", NetworkLocation(host, 443), most=most)
    assert sent == b"\x05\x01\x00" + b"\x05\x01\x00" + address + b"\x01\xbb"  # RFC 1928, sections 3 to 5
    assert rest == b"first"


@pytest.mark.parametrize("own", [b"\x01" + bytes(4), b"\x04" + bytes(16), b"\x03\x05proxy"])
def test_socks_tunnel_with_a_password(own: bytes) -> None:
    answer = b"\x05\x02" + b"\x01\x00" + b"\x05\x00\x00" + own + b"\x00\x00"
    sent, rest = converse(Proxy("socks5", "proxy", 1, **LOGIN), answer + b"first")
    assert sent.startswith(b"\x05\x02\x00\x02" + b"\x01\x02me\x04pass" + b"\x05\x01\x00")  # RFC 1929, section 2
    assert rest == b"first"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", "hung up"),
        (b"HTTP/1.1 20", "hung up"),
        (b"\x05\xff\x00\x00\x00\x00\x00\x00", "not HTTP .*SOCKS5"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
        (b"HTTP/1.1 hello\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 " + bytes(20_000), "more than 16384 bytes"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, "more than 10 interim responses"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "it refuses: 403 Forbidden; do its rules allow .* 443 only"),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "503 Service Unavailable: it cannot reach the server"),
        (b"HTTP/1.1 407 Auth\r\n\r\n", "407 Auth: the proxy asks .* as in http://USER:PASSWORD@HOST:PORT"),
        (b"HTTP/1.1 407 A\r\nProxy-Authenticate: Basic realm=x\r\n\r\n", "USER:PASSWORD@HOST:PORT"),
        (b"HTTP/1.1 407 A\r\nProxy-Authenticate: NTLM\r\n\r\n", "offers NTLM; netq has Basic only"),
        (b"HTTP/1.1 400 \x1b[31m\r\n\r\n", r"it refuses: 400 \\x1b"),
    ],
)
def test_http_proxy_that_refuses(answer: bytes, expected: str) -> None:
    with pytest.raises(OSError, match=expected):
        converse(HTTP, answer)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", "hung up"),
        (b"HTTP/1.1 400 Bad Request", "not SOCKS5 .*HTTP proxy"),
        (b"\x05\xff", "asks for a user .* socks5://USER"),
        (b"\x05\x02", "asks for a user"),
        (b"\x05\x00\x05\x02\x00\x00", "rules do not allow it"),
        (b"\x05\x00\x05\x05\x00\x01", "server refuses the connection"),
        (b"\x05\x00\x05\x63\x00\x01", "code 99"),
        (b"\x05\x00\x04\x00\x00\x01", "not SOCKS5 .version 4"),
        (b"\x05\x00\x05\x00\x00\x09", "not SOCKS5 .version 5, kind of address 9"),
    ],
)
def test_socks_proxy_that_refuses(answer: bytes, expected: str) -> None:
    with pytest.raises(OSError, match=expected):
        converse(SOCKS, answer)


def test_wrong_password() -> None:
    for answer in (b"\x05\x02\x01\x01", b"\x05\x02\x05\x00"):
        with pytest.raises(OSError, match="does not accept"):
            converse(Proxy("socks5", "proxy", 1, **LOGIN), answer)
    with pytest.raises(OSError, match="does not accept"):
        converse(Proxy("http", "proxy", 1, **LOGIN), b"HTTP/1.1 407 Again\r\n\r\n")


@pytest.mark.parametrize("host", ["a b", "a\r\nX: y", "an..empty", "x" * 300])
def test_name_that_is_none(host: str) -> None:
    with pytest.raises(OSError, match="is no name of a host"):
        converse(HTTP, b"", NetworkLocation(host, 1))
