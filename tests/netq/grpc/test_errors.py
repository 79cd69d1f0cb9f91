"""grpc's error texts and netq's errors for them. test_tls.py has more, produced by grpc itself."""

from __future__ import annotations

import pytest

from netq.errors import SecurityError
from netq.grpc.errors import translate

FAILED = "failed to connect to all addresses; last error: "
SSL = "SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal"


@pytest.mark.parametrize(
    ("details", "kind", "sentence"),
    [
        (
            "Cannot check peer: missing selected ALPN property.",
            SecurityError,
            "the server board speaks TLS, but not HTTP/2: is the same protocol set on both sides?",
        ),
        (
            f"{FAILED}UNKNOWN: ipv6:%5B::1%5D:1: Failed to connect to remote host: Connection refused",
            OSError,
            "Connection refused",
        ),
        (
            f"{FAILED}UNKNOWN: ipv4:10.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): "
            f"{SSL}:CERTIFICATE_VERIFY_FAILED: certificate has expired: OK",
            SecurityError,
            "the certificate of the server board is refused: certificate has expired; "
            "make a new one, or the clock of this machine is wrong",
        ),
        (
            f"{FAILED}UNKNOWN: ipv4:10.0.0.1:1: Ssl handshake failed: {SSL}:CERTIFICATE_VERIFY_FAILED",
            SecurityError,
            "the certificate of the server board is refused: not valid; if you trust it, give the certificate of its "
            "authority in SecurityOptions.certificate",
        ),
        (
            f"{FAILED}UNKNOWN: ipv4:10.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): "
            f"{SSL}:SSLV3_ALERT_HANDSHAKE_FAILURE: Invalid certificate verification context: OK",
            SecurityError,
            "the TLS handshake with the server board failed: sslv3 alert handshake failure",
        ),
        ("Received http2 header with status: 502", ConnectionRefusedError, "a proxy answers for it: HTTP status 502"),
        (
            "Received RST_STREAM with error code 0",
            ConnectionResetError,
            "the stream was cut by the peer, or by a proxy in between, whose log says more",
        ),
        ("Socket closed", ConnectionResetError, "the peer hung up"),
        ("GOAWAY received; Error code: 11; Debug Text: too_many_pings", ConnectionResetError, "the peer hung up"),
        (
            "SERVER: Received message larger than max (2097153 vs. 2097152)",
            ConnectionResetError,
            "it sent a packet that is larger than any of netq",
        ),
        (f"{FAILED}UNKNOWN: ipv4:10.0.0.1:1: something new", ConnectionResetError, "something new"),
        ("red \x1b[31m", ConnectionResetError, r"red \x1b[31m"),
        ("", ConnectionResetError, "the peer hung up"),
    ],
)
def test_translate(details: str, kind: type[Exception], sentence: str) -> None:
    error = translate(details, "board")
    assert (type(error), str(error)) == (kind, sentence)
