"""TLS by pyOpenSSL: the OpenSSL that the package `cryptography` brings, with post-quantum key exchange.

Its first group is X25519MLKEM768 (draft-ietf-tls-ecdhe-mlkem), which both sides use if both have it. It takes
certificates of ML-DSA, too. pyOpenSSL checks no host name; this module does, by service_identity (RFC 6125), during the
verification of the chain, so that a server with another name is refused before the end of the handshake.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any

import OpenSSL
from cryptography import x509
from cryptography.hazmat.bindings.openssl.binding import Binding
from OpenSSL import SSL, crypto
from service_identity import CertificateError, VerificationError
from service_identity.hazmat import DNS_ID, DNSPattern, IPAddress_ID, IPAddressPattern, verify_service_identity

from netq.buffers import Buffer
from netq.errors import InvalidSecurity, SecurityError
from netq.identity import Protection, negotiated
from netq.security.engine import OVERHEAD, RECORD, Broken, Cut, Ended, WantInput
from netq.security.files import describe, load_certificates, load_identity
from netq.security.processor import has_aes

# Bytes that OpenSSL encrypts into its memory before they are taken out: that memory keeps the largest size that it has
# had. With 256 KiB each of 1,000 clients cost 0.25 MB more (python -m benchmarks.federation.many).
_PART = 32 * 1024
_OUTPUT = 16 * 1024  # bytes of ciphertext taken at once, beyond what `write` has made: handshakes and alerts
_PARTIAL_WRITE = 1  # SSL_MODE_ENABLE_PARTIAL_WRITE: one record for each call
_CHACHA, _AES = b"TLS_CHACHA20_POLY1305_SHA256", b"TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256"
_UNSPECIFIED, _HOST_MISMATCH, _ADDRESS_MISMATCH = 1, 62, 64  # verify codes of OpenSSL's x509_vfy.h


def server(key: Path, certificate: Path, authority: Path | None) -> Callable[[], OpenSslEngine]:
    """Return a factory of engines for a server. Raises SecurityError."""
    context = _context(SSL.TLS_SERVER_METHOD)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)  # netq resumes sessions by itself
    context.set_options(SSL.OP_NO_TICKET)
    _use_identity(context, key, certificate)
    if authority is not None:
        _trust(context, "authority", authority)
        context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _verify)
    return lambda: OpenSslEngine(context, None)


def client(
    host: str, trusted: Path | None, option: str, key: Path | None, certificate: Path | None
) -> Callable[[], OpenSslEngine]:
    """Return a factory of engines for a client. `option` is the one that names `trusted`. Raises SecurityError."""
    context = _context(SSL.TLS_CLIENT_METHOD)
    if trusted is None:
        context.set_default_verify_paths()
    else:
        _trust(context, option, trusted)
    if key is not None and certificate is not None:
        _use_identity(context, key, certificate)
    context.set_verify(SSL.VERIFY_PEER, _verify)
    name = _Host(host)
    return lambda: OpenSslEngine(context, name)


def library() -> str:
    """Return the names and versions of the libraries that do the work."""
    return f"pyOpenSSL {OpenSSL.__version__}, {SSL.OpenSSL_version(SSL.OPENSSL_VERSION).decode()}"


class _Host:
    """The name of a server, as it must be in its certificate. Raises SecurityError."""

    def __init__(self, host: str) -> None:
        self.server_name = b""  # for SNI (RFC 6066, section 3), which has no addresses
        try:
            self._address = str(ipaddress.ip_address(host))
        except ValueError:
            self._address = ""
            try:
                self.server_name = host.encode("idna")
            except UnicodeError as error:
                raise _no_name(host, error) from error
            if not self.server_name or host.startswith(".") or b"\0" in self.server_name:
                raise _no_name(host, "empty, or with a leading dot or NUL") from None
        self._name = self.server_name.decode().removesuffix(".")

    def mismatch(self, certificate: Any) -> tuple[str, int] | None:
        """Return what is wrong with the names of a certificate, and OpenSSL's code of that; None if nothing is."""
        try:
            name = IPAddress_ID(self._address) if self._address else DNS_ID(self._name)
            verify_service_identity(_names(certificate), [name], [])
        except (VerificationError, CertificateError, ValueError):
            if self._address:
                what = f"IP address mismatch, certificate is not valid for '{self._address}'"
                return what, _ADDRESS_MISMATCH
            return f"Hostname mismatch, certificate is not valid for '{self._name}'", _HOST_MISMATCH
        return None


def _names(certificate: x509.Certificate) -> list[DNSPattern | IPAddressPattern]:
    """Return the host names and addresses of a server's certificate.

    service_identity has a function for this, which raises ValueError for a certificate that has a name urn:uuid:….
    """
    try:
        names: Any = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    hosts = [DNSPattern.from_bytes(host.encode()) for host in names.get_values_for_type(x509.DNSName)]
    return [*hosts, *(IPAddressPattern(address) for address in names.get_values_for_type(x509.IPAddress))]


def _no_name(host: str, why: object) -> InvalidSecurity:
    return InvalidSecurity(f"{host!r} is no name that a certificate could be checked for: {why}")


class OpenSslEngine:
    """An Engine. `host` is the server's name; None on the server's side."""

    def __init__(self, context: SSL.Context, host: _Host | None) -> None:
        self._ssl = SSL.Connection(context)
        self._checks = _Checks(host)
        self._ssl.set_app_data(self._checks)  # for `_verify`
        self._output: list[bytes] = []  # ciphertext that `output` will return
        self._written = 0  # bytes of ciphertext that OpenSSL has, of what `write` has made, at most
        self._has_output = True  # there may be ciphertext; asking OpenSSL for it costs an exception if there is none
        if host is None:
            self._ssl.set_accept_state()
        else:
            self._ssl.set_connect_state()
            if host.server_name:
                self._ssl.set_tlsext_host_name(host.server_name)

    def feed(self, data: Buffer) -> None:
        """See Engine."""
        self._ssl.bio_write(data)

    def feed_eof(self) -> None:
        """See Engine."""
        self._ssl.bio_shutdown()

    def handshake(self) -> None:
        """See Engine."""
        self._has_output = True
        try:
            self._ssl.do_handshake()
        except SSL.Error as error:
            raise self._translated(error) from error

    def read(self, buffer: memoryview) -> int:
        """See Engine."""
        self._has_output = True  # an alert, or the answer to a record without data
        try:
            return self._ssl.recv_into(buffer)
        except SSL.Error as error:
            raise self._translated(error) from error

    def write(self, data: Buffer) -> int:
        """See Engine."""
        view, taken = memoryview(data), 0
        try:
            for start in range(0, view.nbytes, _PART):
                if start:
                    self._read_output()
                count = self._ssl.send(view[start : start + _PART])
                self._written += count + OVERHEAD * (count // RECORD + 1)
                self._has_output = True
                taken += count
        except SSL.Error as error:
            raise self._translated(error) from error
        return taken

    def output(self) -> bytes:
        """See Engine."""
        if not (self._has_output or self._output):
            return b""
        if self._has_output:
            self._read_output()
        pieces, self._output = self._output, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_output(self) -> None:
        """Move the ciphertext out of OpenSSL's memory, which keeps the largest size that it has had."""
        size = self._written + _OUTPUT
        self._written, self._has_output = 0, False
        with contextlib.suppress(SSL.WantReadError):
            while True:
                self._output.append(self._ssl.bio_read(size))
                if len(self._output[-1]) < size:
                    break

    def close(self) -> None:
        """See Engine."""
        self._has_output = True
        with contextlib.suppress(SSL.Error):  # there is nothing to end before the end of the handshake
            self._ssl.shutdown()

    def protection(self) -> Protection:
        """See Engine."""
        tls, certificate = self._ssl, None
        if (shown := tls.get_peer_certificate(as_cryptography=True)) is not None:
            certificate = describe(shown)
        group = tls.get_group_name()
        # OpenSSL writes "x25519" and "X25519MLKEM768". One spelling, of the IANA registry, for both backends.
        name = _GROUPS.get(group or "", group)
        return negotiated(tls.get_protocol_version_name(), tls.get_cipher_name() or "", name, certificate)

    def _translated(self, error: SSL.Error) -> Exception:
        if isinstance(error, SSL.WantReadError):
            return WantInput()
        if isinstance(error, SSL.ZeroReturnError):
            return Ended()
        if isinstance(error, SSL.SysCallError):
            return Cut()
        reasons = error.args[0] if error.args and isinstance(error.args[0], list) else []
        reason = reasons[0][2].upper().replace(" ", "_") if reasons else "UNKNOWN_ERROR"
        what, code = self._checks.refusal
        return Broken(reason, what, code)


_GROUPS = {"x25519": "X25519", "x448": "X448", "prime256v1": "secp256r1"}


class _Checks:
    """What `_verify` checks for one connection, and what it has found wrong."""

    def __init__(self, host: _Host | None) -> None:
        self.host = host
        self.refusal = ("", 0)


def _verify(connection: SSL.Connection, certificate: crypto.X509, code: int, depth: int, valid: int) -> bool:
    """Accept a certificate that OpenSSL accepts, if the peer's own can be read, and the server's names the host."""
    checks: _Checks = connection.get_app_data()
    if not valid:
        checks.refusal = _words(code), code
    elif depth == 0:
        checks.refusal = _objection(certificate, checks.host) or checks.refusal
    return not checks.refusal[0]


def _words(code: int) -> str:
    """Return OpenSSL's own words for a verify code."""
    text: bytes = Binding.ffi.string(Binding.lib.X509_verify_cert_error_string(code))
    return text.decode()


def _objection(certificate: crypto.X509, host: _Host | None) -> tuple[str, int] | None:
    """Return what is wrong with a peer's own certificate, and OpenSSL's code of that; None if nothing is."""
    # The parser of `cryptography` is stricter than OpenSSL's. It raises errors of many kinds, not only ValueError: for
    # a version, a text or an extension that it does not know. None of them may end more than the link.
    try:
        parsed = certificate.to_cryptography()
        parsed.extensions  # noqa: B018  # parses them
    except Exception as error:
        return f"it cannot be read: {error!r}", _UNSPECIFIED
    return None if host is None else host.mismatch(parsed)


def _context(method: int) -> SSL.Context:
    context = SSL.Context(method)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)  # it has neither compression nor renegotiation
    context.clear_mode(_PARTIAL_WRITE)  # `send` into memory takes all
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # an idle link has 27 KiB less; a busy one is 5 % slower
    # A processor without AES instructions computes ChaCha20 several times faster. The client's order counts.
    context.set_tls13_ciphersuites(b":".join([_AES, _CHACHA] if has_aes() else [_CHACHA, _AES]))
    return context


def _trust(context: SSL.Context, option: str, path: Path) -> None:
    store = context.get_cert_store()
    assert store is not None
    for certificate in load_certificates(f"SecurityOptions.{option}", path):
        store.add_cert(crypto.X509.from_cryptography(certificate))
    store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)  # trust what is in the file, be it a root or not


def _use_identity(context: SSL.Context, key: Path, certificate: Path) -> None:
    load_identity("SecurityOptions", key, certificate)  # a check, with better errors
    try:
        context.use_certificate_chain_file(str(certificate))
        context.use_privatekey_file(str(key))  # use_privatekey() does not take a key of ML-DSA
    except SSL.Error as error:
        why = ", ".join(reason for _, _, reason in error.args[0]) if error.args else "unknown"
        raise SecurityError(f"SecurityOptions.key: {key}: cannot be used with {certificate}: {why}") from error
