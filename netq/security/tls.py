"""TLS 1.3 as a layer without I/O: ciphertext in and plaintext out, and the reverse.

    network ── received ──► ┌─────┐ ── read_into ──► link
                            │ Tls │
    network ◄── to_send ─── └─────┘ ◄──── write ──── link

A link owns one `Tls` for each connection. Only one thread may use it at a time: two threads in one TLS object break it.
This module opens no socket, starts no thread and reads no clock. It translates all errors of the standard library's
ssl; `Tls.read_into` lists what it raises. Another backend would implement the protocol `Tls`.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from netq.buffers import Buffer
from netq.errors import SecurityError
from netq.options import SecurityOptions

RECORD = 16 * 1024  # bytes of plaintext in the largest TLS record (RFC 8446, 5.1)
OVERHEAD = 22  # bytes that a record adds to its plaintext: header, content type, tag
MAX_PENDING = 256 * 1024  # bytes of ciphertext that wait for to_send; 1 MiB does not fit the cache and is 1/8 slower
MAX_HANDSHAKE = 64 * 1024  # bytes from a peer without authentication; a long certificate chain has some 20 KiB
MAX_EMPTY = 32 * 1024  # bytes of consecutive records without data (new keys, tickets, padding): two of the largest


class Tls(Protocol):
    """The TLS of one connection. The handshake advances by itself as bytes are exchanged."""

    @property
    def handshaken(self) -> bool:
        """Whether the handshake has succeeded. For a client, the server is then authenticated."""

    @property
    def ended(self) -> bool:
        """Whether `read_into` raises after it has returned all valid bytes. There may be no more network event then."""

    def received(self, data: Buffer) -> None:
        """Copy ciphertext from the network. Errors of the peer are raised later, by `read_into`.

        Call `read_into` until it returns 0 before the next call: otherwise ciphertext accumulates here.
        """

    def received_eof(self) -> None:
        """Note the end of the network's bytes."""

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt into `buffer` as much as there is; return the count of bytes. 0: more ciphertext is needed.

        After all valid bytes were returned, each call raises:
        EOFError if the peer has ended the connection (close_notify, authenticated);
        ConnectionResetError if the network has ended it: by a failure, or by an attacker;
        SecurityError in all other cases. There may be an alert for the peer: send `to_send` before hanging up.
        """

    def write(self, buffers: Sequence[memoryview]) -> int:
        """Encrypt from the start of `buffers` (of bytes, contiguous); return how many bytes were taken.

        0 before the end of the handshake, and while MAX_PENDING bytes wait for `to_send`: send these, then call again
        with the rest. Raises as `read_into` does.
        """

    def to_send(self) -> bytes:
        """Return ciphertext for the network, b"" for none. The caller must send all of it.

        Every other call may produce some, because handshake messages and alerts are ciphertext, too. Call again only
        after the last result is sent: the bytes that wait here are bounded, and above twice MAX_PENDING the peer is
        given up.
        """

    def close(self) -> None:
        """Queue a close_notify, so that the peer can distinguish this end from a cut. Write nothing after it.

        Bytes from the peer that were not read may be lost: agree on the end first.
        """


def server_side(options: SecurityOptions) -> Callable[[], Tls]:
    """Return a factory of the server's `Tls` objects, one for each connection. Reads the files now, once.

    Raises SecurityError, which names the option and the file.
    """
    if options.key is None:
        raise SecurityError("SecurityOptions.key: None; a server needs its private key, a PEM file")
    if options.certificate is None:
        raise SecurityError("SecurityOptions.certificate: None; a server needs its certificate chain, a PEM file")
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # netq resumes sessions by itself, and a ticket is one more secret to keep
    _load_identity(context, options.key, options.certificate)
    return lambda: _StandardTls(context, None)


def client_side(options: SecurityOptions, host: str) -> Callable[[], Tls]:
    """Return a factory of the client's `Tls` objects for connections to `host`, a DNS name or an IP address.

    The server must present a certificate for this host, with a chain to an authority in options.certificate (None: to
    one that the system trusts). Raises SecurityError, which names the option and the file.
    """
    if options.key is not None:
        raise SecurityError(
            f"SecurityOptions.key: {options.key}; a client has no key of its own yet: leave out `key`, and give as "
            "`certificate` the authority that signed the server's certificate"
        )
    context = _context(ssl.PROTOCOL_TLS_CLIENT)  # verifies the chain and the host
    context.hostname_checks_common_name = False
    if options.certificate is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_trusted(context, options.certificate)
        context.verify_flags |= (
            ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        )  # trust what is in the file, be it a root or not
    name = host.partition("%")[0]  # the zone of a link-local address is in no certificate
    try:
        _StandardTls(context, name)
    except (ValueError, TypeError) as error:
        raise SecurityError(f"{host!r} is no name that a certificate could be checked for: {error}") from error
    return lambda: _StandardTls(context, name)


class _StandardTls:
    """`Tls` with the standard library's ssl. `host` is the server's name; None on the server's side."""

    def __init__(self, context: ssl.SSLContext, host: str | None) -> None:
        self._peer = "a client" if host is None else f"the server {host}"
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=host is None, server_hostname=host)
        self._handshaken = False
        self._handshake_bytes = 0  # bytes received before the end of the handshake
        self._empty_bytes = 0  # bytes received after it, since the last data
        self._end: tuple[type[Exception], str] | None = None
        self._handshake()  # produces the client's first message

    @property
    def handshaken(self) -> bool:
        return self._handshaken

    @property
    def ended(self) -> bool:
        return self._end is not None

    def received(self, data: Buffer) -> None:
        if self._end is not None:
            return
        size = self._incoming.write(data)
        if self._handshaken:
            self._empty_bytes += size
        else:
            self._handshake_bytes += size
            self._handshake()

    def received_eof(self) -> None:
        self._incoming.write_eof()
        if not self._handshaken and self._end is None:
            self._handshake()

    def read_into(self, buffer: memoryview) -> int:
        filled = self._read(buffer) if self._handshaken and self._end is None else 0
        if filled == 0:
            self._raise_end()
        return filled

    def write(self, buffers: Sequence[memoryview]) -> int:
        self._raise_end()
        taken = 0
        if self._handshaken:
            try:
                for piece in _pieces(buffers, MAX_PENDING - self._outgoing.pending):
                    taken += self._ssl.write(piece)
            except ssl.SSLError as error:
                self._record_end(error)
        return taken

    def to_send(self) -> bytes:
        return self._outgoing.read()

    def close(self) -> None:
        with contextlib.suppress(
            ssl.SSLError
        ):  # it reports that the peer's close_notify is missing; netq does not wait for it
            self._ssl.unwrap()

    def _handshake(self) -> None:
        try:
            self._ssl.do_handshake()
            self._handshaken = True
        except ssl.SSLError as error:
            self._record_end(error)
        if not self._handshaken and self._handshake_bytes > MAX_HANDSHAKE and self._end is None:
            self._end = SecurityError, f"{self._peer} sent {self._handshake_bytes} bytes and no end of a TLS handshake"

    def _read(self, buffer: memoryview) -> int:
        # Each record is decrypted into the caller's buffer. Three limits stop a peer that costs much and sends no data:
        # bytes before the end of the handshake, answers that it does not read, and records without data.
        tls, incoming, filled, size = self._ssl, self._incoming, 0, buffer.nbytes
        try:
            while filled < size and (
                incoming.pending or incoming.eof or tls.pending()
            ):  # otherwise read would only raise
                count: int = tls.read(RECORD, buffer[filled : filled + RECORD])  # type: ignore[assignment]
                if count == 0:
                    raise ssl.SSLZeroReturnError  # ssl itself raises it only after both sides have closed
                filled += count
        except ssl.SSLError as error:
            self._record_end(error)
        self._empty_bytes = 0 if filled else self._empty_bytes
        if (
            self._end is None and self._outgoing.pending > 2 * MAX_PENDING
        ):  # `write` leaves less: these are answers to the peer
            self._end = SecurityError, f"{self._peer} asks for ever new keys and does not take the answers"
        if self._end is None and self._empty_bytes > MAX_EMPTY:
            self._end = SecurityError, f"{self._peer} sent {self._empty_bytes} bytes of TLS without any data in them"
        return filled

    def _record_end(self, error: ssl.SSLError) -> None:
        """Keep the reason of the end, for `read_into` and `write` to raise."""
        if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            self._end = self._end_of(error)
        elif not isinstance(error, ssl.SSLWantReadError):
            self._end = SecurityError, _explanation(error, self._peer, self._handshaken)

    def _raise_end(self) -> None:
        if self._end is not None:
            kind, why = self._end
            raise kind(why)

    def _end_of(self, error: ssl.SSLError) -> tuple[type[Exception], str]:
        if not self._handshaken:
            return ConnectionResetError, f"{self._peer} hung up during the TLS handshake; is there TLS at both ends?"
        if isinstance(error, ssl.SSLZeroReturnError):
            return EOFError, f"{self._peer} ended the connection"
        return ConnectionResetError, f"the connection to {self._peer} was cut off: no close_notify of TLS came before"


def _pieces(buffers: Sequence[memoryview], room: int) -> Iterator[Buffer]:
    """Return the first `room` bytes, in pieces that are encrypted one by one. A small message is one record."""
    if len(buffers) > 1 and sum([buffer.nbytes for buffer in buffers]) <= RECORD:
        buffers = [memoryview(b"".join(buffers))]
    for buffer in buffers:
        if room <= 0:
            return
        if buffer.nbytes:
            yield buffer[:room]
            room -= buffer.nbytes + OVERHEAD


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # it has neither compression nor renegotiation
    return context


def _load_trusted(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:  # ssl.SSLError is one
        why = "no certificate in PEM" if isinstance(error, ssl.SSLError) else f"not readable: {error.strerror}"
        raise SecurityError(f"SecurityOptions.certificate: {path}: {why}") from error


def _load_identity(context: ssl.SSLContext, key: Path, certificate: Path) -> None:
    _load_trusted(
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate
    )  # a check only, with a better error than load_cert_chain
    try:
        if b"PRIVATE KEY-----" not in key.read_bytes():
            raise SecurityError(f"SecurityOptions.key: {key}: no private key in PEM")
        context.load_cert_chain(certificate, key, password=lambda: _refuse_encrypted(key))
    except ssl.SSLError as error:
        if error.reason in _ANOTHER_KEY:
            why = f"{key}: not the key of the certificate {certificate}"
        else:
            why = f"{key}: cannot be used with {certificate}: {error}"
        raise SecurityError(f"SecurityOptions.key: {why}") from error
    except OSError as error:
        raise SecurityError(f"SecurityOptions.key: {key}: not readable: {error.strerror}") from error


def _refuse_encrypted(key: Path) -> str:
    raise SecurityError(f"SecurityOptions.key: {key}: encrypted; netq asks for no password, give it a plain key")


# The first is for a key of the same kind, the last for one of another kind: OpenSSL has a slot for each kind.
_ANOTHER_KEY = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
_NOT_TLS = {"HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG"}
_OLD_TLS = {"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION"}
_CLOCK = "or the clock of this machine is wrong"
_ADVICE = {  # by the verify codes of OpenSSL's x509_vfy.h
    9: f"make a new one, {_CLOCK}",
    10: f"make a new one, {_CLOCK}",
    26: "make one with the extended key usage serverAuth",
    62: "connect by a name that is in it, or make one for this name",
    64: "connect by an address that is in it, or make one for this address",
}
_TRUST = "if you trust it, give the certificate of its authority in SecurityOptions.certificate"


def _explanation(error: ssl.SSLError, peer: str, handshaken: bool) -> str:
    """Return what went wrong, with which peer, and what to do."""
    reason = error.reason or str(error)
    alert = reason.partition("_ALERT_")[2].lower().replace("_", " ")
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = _ADVICE.get(error.verify_code, _TRUST)
        return f"the certificate of {peer} is refused: {error.verify_message.rstrip('.')}; {advice}"
    if reason in _OLD_TLS:
        return f"{peer} does not speak TLS 1.3, and netq nothing older; update its TLS library"
    if alert:
        return f"{peer} refused this side of the TLS connection: {alert}; its own log says more"
    if handshaken:
        return f"the TLS connection to {peer} is broken: {_words(reason)}; something changed bytes on the way"
    if reason in _NOT_TLS:
        return f"what {peer} sent is not TLS ({_words(reason)}); set SecurityOptions on both sides, or on neither"
    return f"the TLS handshake with {peer} failed: {_words(reason)}; is there TLS 1.3 at both ends?"


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")
