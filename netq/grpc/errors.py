"""Translates grpc's errors to netq's: why a stream has ended, or could not begin. Pure.

grpc reports a status and a text for developers; only the text has the reason. Errors that are not in the table keep
grpc's text, without the address in front of it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from netq.errors import SecurityError
from netq.io.tunnel import refusal
from netq.proxy import Proxy
from netq.text import printable


class _Rule(NamedTuple):
    pattern: str  # searched in grpc's text
    kind: type[Exception]
    sentence: str  # with {peer}, and {why}: the group of the pattern


_TRUST = "if you trust it, give the certificate of its authority in SecurityOptions.certificate"
_CLOCK = "make a new one, or the clock of this machine is wrong"
_REFUSED = "the certificate of the server {peer} is refused: "
_SAME = "is the same protocol set on both sides, and SecurityOptions on both or on neither?"
_RULES = (
    _Rule(
        "CERTIFICATE_VERIFY_FAILED: (certificate (?:has expired|is not yet valid))",
        SecurityError,
        _REFUSED + "{why}; " + _CLOCK,
    ),
    _Rule("CERTIFICATE_VERIFY_FAILED(?:: ([^:]+))?", SecurityError, _REFUSED + "{why}; " + _TRUST),
    _Rule(
        "Hostname Verification Check failed|is not in peer certificate|does not match SSL server name",
        SecurityError,
        _REFUSED + "it is for another name; connect by a name that is in it, or make one for this name",
    ),
    _Rule(
        "WRONG_VERSION_NUMBER|HTTP_REQUEST|PACKET_LENGTH_TOO_LONG",
        SecurityError,
        "what the server {peer} sent is not TLS; set SecurityOptions on both sides, or on neither",
    ),
    _Rule(
        "handshake failed.*OPENSSL_internal:([A-Z0-9_]+)",
        SecurityError,
        "the TLS handshake with the server {peer} failed: {why}",
    ),
    _Rule(
        "ALPN", SecurityError, "the server {peer} speaks TLS, but not HTTP/2: is the same protocol set on both sides?"
    ),
    _Rule(
        "http1\\.x server|parsing HTTP/2|Method not found",
        ConnectionRefusedError,
        "it does not speak netq over gRPC; " + _SAME,
    ),
    _Rule(
        "[Hh]ttp2? (?:header with )?status:? (\\d+)",
        ConnectionRefusedError,
        "a proxy answers for it: HTTP status {why}",
    ),
    _Rule("(Connection refused|No route to host|Network is unreachable|Connection timed out)", OSError, "{why}"),
    _Rule(
        "last error.*(?:Socket closed|Connection reset|Broken pipe|GOAWAY|End of file)",
        ConnectionResetError,
        "it hung up before it had answered; " + _SAME,
    ),
    _Rule(
        "RST_STREAM with error code 0|Internal error from Core",
        ConnectionResetError,
        "the stream was cut by the peer, or by a proxy in between, whose log says more",
    ),
    _Rule(
        "Socket closed|Transport closed|Connection reset|Broken pipe|GOAWAY|RST_STREAM|Stream removed",
        ConnectionResetError,
        "the peer hung up",
    ),
    _Rule("message larger than max", ConnectionResetError, "it sent a packet that is larger than any of netq"),
)
_PROXY = re.compile(r"HTTP proxy returned response code (\d+)")
_WRAPPING = re.compile(r".*last error: [A-Z_]+: (?:ipv[46]|unix):\S+: ")


def translate(details: str, peer: str, proxy: Proxy | None = None) -> Exception:
    """Return netq's error for the text that grpc reports of `peer`, and of the proxy on the way to it."""
    if proxy is not None and (found := _PROXY.search(details)):
        return refusal(proxy, int(found[1]))
    for rule in _RULES:
        if found := re.search(rule.pattern, details):
            return rule.kind(rule.sentence.format(peer=peer, why=_words(found)))
    return ConnectionResetError(printable(_WRAPPING.sub("", details)) or "the peer hung up")


def _words(found: re.Match[str]) -> str:
    why = found[1] if found.re.groups and found[1] else "not valid"
    return why.lower().replace("_", " ") if why.isupper() else why
