"""TLS 1.3 as a layer without I/O: ciphertext in, plaintext out, and the other way round.

    network ── received ──► ┌─────┐ ── read_into ──► link
                            │ Tls │
    network ◄── to_send ─── └─────┘ ◄──── write ──── link

A link owns one `Tls` for each connection and is the only one to call it, in the loop's thread: two threads in
one TLS object break it. This module opens no socket, starts no thread and reads no clock. No error of the
standard library's ssl gets out of it: see `Tls.read_into` for what does. `Tls` is the face of any other backend.
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
WAITING = 256 * 1024  # bytes of ciphertext that may wait for to_send; 1 MiB is slower by an eighth: it leaves the cache
HANDSHAKE = 64 * 1024  # bytes that a peer may send before it has proved anything; a long chain has some 20 KiB
IDLE = 32 * 1024  # bytes of records without data (new keys, tickets, padding) in a row: twice the largest record


class Tls(Protocol):
    """One connection's TLS. The handshake goes on by itself, as bytes are carried to and fro."""

    @property
    def handshaken(self) -> bool:
        """Whether the handshake is over and has succeeded: for a client, the server is who it should be."""

    @property
    def ended(self) -> bool:
        """Whether `read_into` raises as soon as all good bytes are returned: no network event may announce that."""

    def received(self, data: Buffer) -> None:
        """Take ciphertext from the network; copied. Never raises for what the peer did: `read_into` tells.

        Call `read_into` until it returns 0 before the next, or the ciphertext piles up here.
        """

    def received_eof(self) -> None:
        """Learn that the network brings no more."""

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt into `buffer`, filling as much as there is; return the bytes. 0: more ciphertext is needed.

        Raises, each time from then on and after all good bytes were returned,
        EOFError when the peer has ended the connection (close_notify, authenticated);
        ConnectionResetError when the network ended it instead: perhaps cut off, perhaps by an attacker;
        SecurityError for all else. There may then be an alert for the peer: send `to_send` before hanging up.
        """

    def write(self, buffers: Sequence[memoryview]) -> int:
        """Encrypt from the start of `buffers` (of bytes, contiguous); return how many bytes were taken.

        0 before the handshake is over, and while WAITING bytes wait for `to_send`: send these, then call again
        with the rest. Raises as `read_into` does.
        """

    def to_send(self) -> bytes:
        """Hand over the ciphertext for the network, b"" for none. It is the caller's now, to send whole.

        Each of the other calls may have left some: answers of the handshake and alerts come this way too. Ask again
        only once the last is sent: what waits is bounded here, by WAITING, and twice that is the end of the peer.
        """

    def close(self) -> None:
        """Queue a close_notify, so that the peer can tell this end from a cut. Write nothing after it.

        What the peer had sent and was not yet read may be lost: agree on the end first.
        """


def server_side(options: SecurityOptions) -> Callable[[], Tls]:
    """Return what makes the server's `Tls` of each connection. Reads the files now, once.

    Raises SecurityError that names the option and the file that cannot be used.
    """
    if options.key is None:
        raise SecurityError("SecurityOptions.key: None; a server needs its private key, a PEM file")
    if options.certificate is None:
        raise SecurityError("SecurityOptions.certificate: None; a server needs its certificate chain, a PEM file")
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # netq resumes sessions by itself; a ticket is a secret more to keep
    _load_identity(context, options.key, options.certificate)
    return lambda: _StandardTls(context, None)


def client_side(options: SecurityOptions, host: str) -> Callable[[], Tls]:
    """Return what makes the client's `Tls` of each connection to `host`, a DNS name or an IP address.

    The server must show a chain to an authority in options.certificate (None: to one that the system trusts), for this
    very host. Raises SecurityError that names the option and the file that cannot be used.
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
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # what is in that file is trusted as it is
    name = host.partition("%")[0]  # the zone of a link-local address is no part of who it is
    try:
        _StandardTls(context, name)
    except (ValueError, TypeError) as error:
        raise SecurityError(f"{host!r} is no name that a certificate could be checked for: {error}") from error
    return lambda: _StandardTls(context, name)


class _StandardTls:
    """`Tls` by the standard library. `host` is the server's name; None on the server's side."""

    def __init__(self, context: ssl.SSLContext, host: str | None) -> None:
        self._peer = "a client" if host is None else f"the server {host}"
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=host is None, server_hostname=host)
        self._handshaken = False
        self._early = 0  # bytes received before the handshake was over
        self._idle = 0  # bytes received after it, since there was data in them
        self._end: tuple[type[Exception], str] | None = None
        self._handshake()  # the client's first words

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
            self._idle += size
        else:
            self._early += size
            self._handshake()

    def received_eof(self) -> None:
        self._incoming.write_eof()
        if not self._handshaken and self._end is None:
            self._handshake()

    def read_into(self, buffer: memoryview) -> int:
        filled = self._read(buffer) if self._handshaken and self._end is None else 0
        if filled == 0:
            self._tell_end()
        return filled

    def write(self, buffers: Sequence[memoryview]) -> int:
        self._tell_end()
        taken = 0
        if self._handshaken:
            try:
                for piece in _pieces(buffers, WAITING - self._outgoing.pending):
                    taken += self._ssl.write(piece)
            except ssl.SSLError as error:
                self._keep(error)
        return taken

    def to_send(self) -> bytes:
        return self._outgoing.read()

    def close(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # it wants the peer's too, which nobody waits for
            self._ssl.unwrap()

    def _handshake(self) -> None:
        try:
            self._ssl.do_handshake()
            self._handshaken = True
        except ssl.SSLError as error:
            self._keep(error)
        if not self._handshaken and self._early > HANDSHAKE and self._end is None:
            self._end = SecurityError, f"{self._peer} sent {self._early} bytes and no end of a TLS handshake"

    def _read(self, buffer: memoryview) -> int:
        tls, incoming, filled, size = self._ssl, self._incoming, 0, buffer.nbytes
        try:
            while filled < size and (incoming.pending or incoming.eof or tls.pending()):  # else it would only raise
                count: int = tls.read(RECORD, buffer[filled : filled + RECORD])  # type: ignore[assignment]
                if count == 0:
                    raise ssl.SSLZeroReturnError  # what ssl says only where both sides have closed
                filled += count
        except ssl.SSLError as error:
            self._keep(error)
        self._idle = 0 if filled else self._idle
        if self._end is None and self._outgoing.pending > 2 * WAITING:  # more than `write` ever leaves
            self._end = SecurityError, f"{self._peer} asks for ever new keys and does not take the answers"
        if self._end is None and self._idle > IDLE:
            self._end = SecurityError, f"{self._peer} sent {self._idle} bytes of TLS without any data in them"
        return filled

    def _keep(self, error: ssl.SSLError) -> None:
        """What ssl raises `read_into` and `write` tell when it is its turn."""
        if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            self._end = self._end_by(error)
        elif not isinstance(error, ssl.SSLWantReadError):
            self._end = SecurityError, _sentence(error, self._peer, self._handshaken)

    def _tell_end(self) -> None:
        if self._end is not None:
            kind, why = self._end
            raise kind(why)

    def _end_by(self, error: ssl.SSLError) -> tuple[type[Exception], str]:
        if not self._handshaken:
            return ConnectionResetError, f"{self._peer} hung up during the TLS handshake; is there TLS at both ends?"
        if isinstance(error, ssl.SSLZeroReturnError):
            return EOFError, f"{self._peer} ended the connection"
        return ConnectionResetError, f"the connection to {self._peer} was cut off: no close_notify of TLS came before"


def _pieces(buffers: Sequence[memoryview], room: int) -> Iterator[Buffer]:
    """The first `room` bytes, in pieces to be encrypted each for itself; a small message is one record."""
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
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # which knows neither compression nor renegotiation
    return context


def _load_trusted(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:  # ssl.SSLError is one
        why = "no certificate in PEM" if isinstance(error, ssl.SSLError) else f"not readable: {error.strerror}"
        raise SecurityError(f"SecurityOptions.certificate: {path}: {why}") from error


def _load_identity(context: ssl.SSLContext, key: Path, certificate: Path) -> None:
    _load_trusted(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate)  # only to see that it could be
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


# The first for a key of the same kind, the last for one of another: OpenSSL keeps a place for each kind.
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


def _sentence(error: ssl.SSLError, peer: str, handshaken: bool) -> str:
    """What went wrong, with whom, and what to do."""
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
