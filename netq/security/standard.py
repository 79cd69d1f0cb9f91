"""TLS by Python's ssl: for machines without pyOpenSSL, and for `post_quantum="off"`."""

from __future__ import annotations

import contextlib
import math
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from netq.buffers import Buffer
from netq.errors import InvalidSecurity, SecurityError
from netq.identity import Protection, certificate_of, negotiated
from netq.security.engine import RECORD, Broken, Cut, Ended, WantInput
from netq.security.files import ENCRYPTED, read, read_key


def server(key: Path, certificate: Path, authority: Path | None) -> Callable[[], StandardEngine]:
    """Return a factory of engines for a server. Raises SecurityError."""
    context = server_context(key, certificate, authority)
    return lambda: StandardEngine(context, None)


def server_context(key: Path, certificate: Path, authority: Path | None) -> ssl.SSLContext:
    """Return the settings of a server. With an authority, clients need a certificate. Raises SecurityError."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # netq resumes sessions by itself, and a ticket is one more secret to keep
    _load_identity(context, key, certificate)
    if authority is not None:
        _load_trusted(context, "authority", authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client(
    host: str, trusted: Path | None, option: str, key: Path | None, certificate: Path | None
) -> Callable[[], StandardEngine]:
    """Return a factory of engines for a client. `option` is the one that names `trusted`. Raises SecurityError."""
    context = client_context(trusted, option, key, certificate)
    try:
        StandardEngine(context, host)
    except (ValueError, TypeError) as error:
        raise InvalidSecurity(f"{host!r} is no name that a certificate could be checked for: {error}") from error
    return lambda: StandardEngine(context, host)


def client_context(trusted: Path | None, option: str, key: Path | None, certificate: Path | None) -> ssl.SSLContext:
    """Return the settings of a client. `option` is the one that names `trusted`. Raises SecurityError."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)  # verifies the chain and the host
    context.hostname_checks_common_name = False
    if trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_trusted(context, option, trusted)
    if key is not None and certificate is not None:
        _load_identity(context, key, certificate)
    return context


def library() -> str:
    """Return the name and version of the library that does the work."""
    return ssl.OPENSSL_VERSION


class StandardEngine:
    """An Engine. `host` is the server's name; None on the server's side."""

    def __init__(self, context: ssl.SSLContext, host: str | None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=host is None, server_hostname=host)

    def feed(self, data: Buffer) -> None:
        """See Engine."""
        self._incoming.write(data)

    def feed_eof(self) -> None:
        """See Engine."""
        self._incoming.write_eof()

    def handshake(self) -> None:
        """See Engine."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLError as error:
            raise _translated(error) from error

    def read(self, buffer: memoryview) -> int:
        """See Engine."""
        if not (self._incoming.pending or self._ssl.pending() or self._incoming.eof):
            raise WantInput  # ssl would raise an error of its own, which takes longer
        try:
            count: int = self._ssl.read(RECORD, buffer)  # type: ignore[assignment]
        except ssl.SSLError as error:
            raise _translated(error) from error
        if count == 0 and buffer:
            raise Ended  # ssl itself raises an error only after both sides have closed
        return count

    def write(self, data: Buffer) -> int:
        """See Engine."""
        try:
            return self._ssl.write(data)
        except ssl.SSLError as error:
            raise _translated(error) from error

    def output(self) -> bytes:
        """See Engine."""
        return self._outgoing.read()

    def close(self) -> None:
        """See Engine."""
        with contextlib.suppress(ssl.SSLError):  # the peer's close_notify is missing, and netq does not wait for it
            self._ssl.unwrap()

    def protection(self) -> Protection:
        """See Engine."""
        name, version, _ = self._ssl.cipher() or ("", "", 0)
        certificate = None
        if der := self._ssl.getpeercert(binary_form=True):
            fields: dict[str, Any] = {}
            not_after = math.inf
            with contextlib.suppress(ValueError):  # a name that is no text; the certificate then names no client
                fields.update(self._ssl.getpeercert() or {})
                not_after = ssl.cert_time_to_seconds(fields["notAfter"])
            uris = [value for kind, value in fields.get("subjectAltName", ()) if kind == "URI"]
            subject = dict(pair for names in fields.get("subject", ()) for pair in names)
            serial = int(fields.get("serialNumber", "0"), 16)
            certificate = certificate_of(der, serial, not_after, uris, subject.get("commonName"))
        # Python has no method that tells the group before 3.15.
        group = self._ssl.group() if hasattr(self._ssl, "group") else None
        return negotiated(version, name, group, certificate)


def _translated(error: ssl.SSLError) -> Exception:
    if isinstance(error, ssl.SSLWantReadError):
        return WantInput()
    if isinstance(error, ssl.SSLZeroReturnError):
        return Ended()
    if isinstance(error, ssl.SSLEOFError):
        return Cut()
    if isinstance(error, ssl.SSLCertVerificationError):
        return Broken(error.reason or "", error.verify_message, error.verify_code)
    return Broken(error.reason or str(error))


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # it has neither compression nor renegotiation
    return context


def _load_trusted(context: ssl.SSLContext, option: str, path: Path) -> None:
    read(f"SecurityOptions.{option}", path)  # only a check, with better errors
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise SecurityError(f"SecurityOptions.{option}: {path}: no certificate in PEM") from error
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # trust what is in the file, be it a root or not


def _load_identity(context: ssl.SSLContext, key: Path, certificate: Path) -> None:
    # Only a check, with a better error than that of load_cert_chain.
    _load_trusted(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "certificate", certificate)
    read_key("SecurityOptions.key", key)
    try:
        context.load_cert_chain(certificate, key, password=lambda: _refuse_encrypted(key))
    except ssl.SSLError as error:
        if error.reason in _ANOTHER_KEY:
            why = f"{key}: not the key of the certificate {certificate}"
        else:
            why = f"{key}: cannot be used with {certificate}: {error}"
        raise SecurityError(f"SecurityOptions.key: {why}") from error


def _refuse_encrypted(key: Path) -> str:
    raise SecurityError(f"SecurityOptions.key: {key}: {ENCRYPTED}")


# The first is for a key of the same kind, the last for one of another kind: OpenSSL has a slot for each kind.
_ANOTHER_KEY = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
