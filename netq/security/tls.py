"""TLS 1.3 as a layer without I/O: ciphertext in and plaintext out, and the reverse.

    network ── received ──► ┌─────┐ ── read_into ──► link
                            │ Tls │
    network ◄── to_send ─── └─────┘ ◄──── write ──── link

A link owns one `Tls` for each connection. Only one thread may use it at a time: two threads in one TLS object break it.
This module opens no socket, starts no thread and reads no clock. It bounds what a peer can cost, and makes the errors
that users read. An `Engine` (netq/security/engine.py) does the cryptography: pyOpenSSL's if that is installed, because
its OpenSSL has post-quantum key exchange, else the standard library's.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType

from netq.buffers import Buffer
from netq.errors import InvalidSecurity, SecurityError
from netq.identity import Protection, is_post_quantum
from netq.options import CommunicatorOptions, SecurityOptions
from netq.security.engine import OVERHEAD, RECORD, Broken, Cut, Ended, Engine, WantInput
from netq.security.files import own_id
from netq.security.renewal import Renewed
from netq.version import DISTRIBUTION

_PYOPENSSL = 26  # major version, at least
_HEADER = 5  # bytes before a record's ciphertext
MAX_PENDING = 256 * 1024  # bytes of ciphertext that wait for to_send; 1 MiB does not fit the cache and is 1/8 slower
# Bytes from a peer without authentication. A handshake with a certificate of P-256 has 3 KiB, with a chain of ML-DSA-65
# 32 KiB; that of a client which shows no certificate is one message of some 2 KiB and an end.
MAX_HANDSHAKE = 64 * 1024
MAX_HANDSHAKE_ANONYMOUS = 16 * 1024
MAX_EMPTY = 32 * 1024  # bytes of consecutive records without data (new keys, tickets, padding): two of the largest


class Tls:
    """The TLS of one connection. The handshake advances by itself as bytes are exchanged.

    peer:    the name of the other side in errors.
    require: whether to refuse a key exchange that is not post-quantum.
    most:    the bytes of the peer's handshake, at most.
    """

    def __init__(self, engine: Engine, peer: str, *, require: bool = False, most: int = MAX_HANDSHAKE) -> None:
        self._engine = engine
        self._peer = peer
        self._require = require
        self._most = most
        self.protection: Protection | None = None  # from the end of the handshake on
        self._handshake_bytes = 0  # bytes received before the end of the handshake
        self._empty_bytes = 0  # bytes received after it, since the last data
        self._unread = False  # there may be ciphertext that was not decrypted
        self._one_record = False  # that ciphertext is exactly one record
        self._to_header = 0  # bytes of the current record that have not come yet
        self._header = b""  # the begin of a record's header, if it was cut there
        self._output: list[bytes] = []  # ciphertext that the engine has handed over before `to_send` asked for it
        self._output_size = 0
        self._written = 0  # bytes of ciphertext made by `write` since the last `to_send`
        self._unchecked = 0  # bytes received since the engine's answers to the peer were measured
        self._end: tuple[type[Exception], str] | None = None
        self._handshake()  # produces the client's first message

    @property
    def handshaken(self) -> bool:
        """Whether the handshake has succeeded. The peer is then authenticated, if it has to be."""
        return self.protection is not None

    @property
    def ended(self) -> bool:
        """Whether `read_into` raises after it has returned all valid bytes. There may be no more network event then."""
        return self._end is not None

    def received(self, data: Buffer) -> None:
        """Copy ciphertext from the network. Errors of the peer are raised later, by `read_into`.

        Call `read_into` until it returns 0 before the next call: otherwise ciphertext accumulates here.
        """
        if self._end is not None:
            return
        size = len(data)
        if size:
            # After one small record, the usual case, there is nothing more to decrypt. Knowing that saves the call that
            # would only say so, which costs more than decrypting.
            self._one_record = self._is_one_record(data) and not self._unread
            self._engine.feed(data)
            self._unread = True
        if self.protection is not None:
            self._empty_bytes += size
            self._unchecked += size
        else:
            self._handshake_bytes += size
            self._handshake()

    def received_eof(self) -> None:
        """Note the end of the network's bytes."""
        self._engine.feed_eof()
        self._unread = True
        if self.protection is None and self._end is None:
            self._handshake()

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt into `buffer` as much as there is; return the count of bytes. 0: more ciphertext is needed.

        After all valid bytes were returned, each call raises:
        EOFError if the peer has ended the connection (close_notify, authenticated);
        ConnectionResetError if the network has ended it: by a failure, or by an attacker;
        SecurityError in all other cases. There may be an alert for the peer: send `to_send` before hanging up.
        """
        filled = self._read(buffer) if self._unread and self.protection is not None and self._end is None else 0
        if filled == 0:
            self._raise_end()
        return filled

    def write(self, buffers: Sequence[memoryview], most: int = MAX_PENDING) -> int:
        """Encrypt from the start of `buffers` (of bytes, contiguous), `most` bytes; return how many were taken.

        0 before the end of the handshake, and while MAX_PENDING bytes wait for `to_send`: send these, then call again
        with the rest. Raises as `read_into` does.
        """
        self._raise_end()
        taken = 0
        if self.protection is not None:
            try:
                for piece in _pieces(buffers, min(most, MAX_PENDING - self._written)):
                    count = self._engine.write(piece)
                    taken += count
                    self._written += count + OVERHEAD * (count // RECORD + 1)
            except (WantInput, Ended, Cut, Broken) as error:
                self._record_end(error)
        return taken

    def to_send(self) -> bytes:
        """Return ciphertext for the network, b"" for none. The caller must send all of it.

        Every other call may produce some, because handshake messages and alerts are ciphertext, too. Call again only
        after the last result is sent: the bytes that wait here are bounded, and above twice MAX_PENDING the peer is
        given up.
        """
        self._written = 0
        if self._output:
            output, self._output, self._output_size = [*self._output, self._engine.output()], [], 0
            return b"".join(output)
        return self._engine.output()

    def close(self) -> None:
        """Queue a close_notify, so that the peer can distinguish this end from a cut. Write nothing after it.

        Bytes from the peer that were not read may be lost: agree on the end first.
        """
        self._engine.close()

    def _handshake(self) -> None:
        try:
            self._engine.handshake()
            protection = self._engine.protection()
        except (WantInput, Ended, Cut, Broken) as error:
            self._record_end(error)
        else:
            # The check comes before `protection` is set, so that no byte is read or written without it.
            if self._require and not is_post_quantum(protection.security.group):
                self._end = SecurityError, _classical(self._peer, protection.security.group)
                self._engine.close()
            else:
                self.protection = protection
        if self.protection is None and self._handshake_bytes > self._most and self._end is None:
            self._end = SecurityError, f"{self._peer} sent {self._handshake_bytes} bytes and no end of a TLS handshake"

    def _read(self, buffer: memoryview) -> int:
        # Each record is decrypted into the caller's buffer. Three limits stop a peer that costs much and sends no data:
        # bytes before the end of the handshake, answers that it does not read, and records without data.
        engine, filled, size = self._engine, 0, buffer.nbytes
        try:
            while filled < size:
                filled += engine.read(buffer[filled : filled + RECORD])
                if self._one_record and filled < size:
                    self._unread = False
                    break
        except (WantInput, Ended, Cut, Broken) as error:
            self._unread = False
            self._record_end(error)
        self._empty_bytes = 0 if filled else self._empty_bytes
        if self._end is None:
            if self._unchecked > MAX_PENDING and self._answers_wait():
                self._end = SecurityError, f"{self._peer} asks for ever new keys and does not take the answers"
            elif self._empty_bytes > MAX_EMPTY:
                self._end = (
                    SecurityError,
                    f"{self._peer} sent {self._empty_bytes} bytes of TLS without any data in them",
                )
        return filled

    def _is_one_record(self, data: Buffer) -> bool:
        """Whether `data` begins and ends with the same record (RFC 8446, 5.1: the length is in bytes 3 and 4)."""
        view = memoryview(data)
        size = len(view)
        at, header = self._to_header, self._header
        if not at and not header and size >= _HEADER and _HEADER + (view[3] << 8 | view[4]) == size:
            return True
        if header:
            view = memoryview(header + bytes(view))
            size = len(view)
        while at + _HEADER <= size:
            at += _HEADER + (view[at + 3] << 8 | view[at + 4])
        self._to_header, self._header = max(0, at - size), bytes(view[at:])
        return False

    def _answers_wait(self) -> bool:
        """Whether too much waits for `to_send`. `write` leaves less: the rest are answers to the peer."""
        # An answer is not longer than its request, so measuring after every MAX_PENDING received bytes is enough.
        self._unchecked = 0
        if output := self._engine.output():
            self._output.append(output)
            self._output_size += len(output)
        return self._output_size > 2 * MAX_PENDING

    def _record_end(self, error: WantInput | Ended | Cut | Broken) -> None:
        """Keep the reason of the end, for `read_into` and `write` to raise."""
        peer, handshaken = self._peer, self.protection is not None
        match error:
            case Broken():
                self._end = SecurityError, _explanation(error, peer, handshaken)
            case Ended() | Cut() if not handshaken:
                why = f"{peer} hung up during the TLS handshake; is there TLS at both ends?"
                self._end = ConnectionResetError, why
            case Ended():
                self._end = EOFError, f"{peer} ended the connection"
            case Cut():
                why = f"the connection to {peer} was cut off: no close_notify of TLS came before"
                self._end = ConnectionResetError, why

    def _raise_end(self) -> None:
        if self._end is not None:
            kind, why = self._end
            raise kind(why)


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


def server_side(options: SecurityOptions) -> Callable[[], Tls]:
    """Return a factory of the server's `Tls` objects, one for each connection.

    The files are read now, and when they change. With `authority` each client must present a certificate of it. Raises
    SecurityError, which names the option and the file.
    """
    if options.key is None:
        raise InvalidSecurity("SecurityOptions.key: None; a server needs its private key, a PEM file")
    if options.certificate is None:
        raise InvalidSecurity("SecurityOptions.certificate: None; a server needs its certificate chain, a PEM file")
    if options.revoked is not None and options.authority is None:
        raise InvalidSecurity(
            f"SecurityOptions.revoked: {options.revoked}; without `authority` clients show no certificate; give both"
        )
    files = options.key, options.certificate, options.authority
    accept = Renewed(partial(_backend(options).server, *files), files)
    most = MAX_HANDSHAKE_ANONYMOUS if options.authority is None else MAX_HANDSHAKE
    return lambda: Tls(accept.current()(), "a client", require=options.post_quantum == "require", most=most)


def client_side(options: SecurityOptions, host: str) -> Callable[[], Tls]:
    """Return a factory of the client's `Tls` objects for connections to `host`, a DNS name or an IP address.

    The server must present a certificate for this host, with a chain to an authority in options.authority, or
    options.certificate (both None: to one that the system trusts). Raises SecurityError, which names the option and the
    file.
    """
    key, certificate, trusted = options.key, None, options.certificate
    if options.authority is not None:
        certificate, trusted = options.certificate, options.authority
    elif key is not None:
        raise InvalidSecurity(
            f"SecurityOptions.key: {key}; a client with a key of its own needs `authority`, too: the authority that "
            "signed the server's certificate. Without it leave out `key`, and give that authority as `certificate`"
        )
    if (key is None) != (certificate is None):
        name = "key" if key is None else "certificate"
        raise InvalidSecurity(f"SecurityOptions.{name}: None; a client has both a key and a certificate, or neither")
    if options.revoked is not None:
        raise InvalidSecurity(f"SecurityOptions.revoked: {options.revoked}; only a server has it; leave it out")
    name = host.partition("%")[0]  # the zone of a link-local address is in no certificate
    option = "certificate" if options.authority is None else "authority"
    make = partial(_backend(options).client, name, trusted, option, key, certificate)
    connect = Renewed(make, (trusted, key, certificate))
    return lambda: Tls(connect.current()(), f"the server {name}", require=options.post_quantum == "require")


def with_own_id(options: CommunicatorOptions | None) -> CommunicatorOptions | None:
    """Return the options of a client with the id of its own certificate, if it has one. Raises SecurityError."""
    security = options.security if isinstance(options, CommunicatorOptions) else None
    if options is None or security is None or security.authority is None or security.certificate is None:
        return options
    return replace(options, id=own_id("SecurityOptions", security.certificate))


def _backend(options: SecurityOptions) -> ModuleType:
    """Return the module of the TLS library to use. Raises SecurityError if that is not installed and must be."""
    installed = all(importlib.util.find_spec(name) is not None for name in ("OpenSSL", "service_identity"))
    if not installed and options.post_quantum == "require":
        raise InvalidSecurity(
            f"SecurityOptions.post_quantum: 'require' needs pyOpenSSL: pip install '{DISTRIBUTION}[security]'"
        )
    if not installed or options.post_quantum == "off":
        return importlib.import_module("netq.security.standard")
    try:
        found = importlib.import_module("OpenSSL").__version__
        if int(found.partition(".")[0]) < _PYOPENSSL:
            raise ImportError(f"pyOpenSSL is {found}; expected {_PYOPENSSL} or later")
        return importlib.import_module("netq.security.openssl")
    except (ImportError, AttributeError) as error:  # an old pyOpenSSL does not find what it looks for in cryptography
        raise InvalidSecurity(
            f"SecurityOptions.post_quantum: {options.post_quantum!r} cannot be had: {error}; pip install --upgrade "
            f"'{DISTRIBUTION}[security]', or say 'off'"
        ) from error


# OpenSSL's reasons, where "the handshake failed" would leave the user without a hint.
_NOT_TLS = {
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "WRONG_VERSION_NUMBER",
    "PACKET_LENGTH_TOO_LONG",
    "DATA_LENGTH_TOO_LONG",
}
_OLD_TLS = {"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION"}
_CLOCK = "or the clock of this machine is wrong"
_ADVICE = {  # by the verify codes of OpenSSL's x509_vfy.h
    1: "make a new one",
    9: f"make a new one, {_CLOCK}",
    10: f"make a new one, {_CLOCK}",
    26: "make one with the extended key usage serverAuth for a server, clientAuth for a client",
    62: "connect by a name that is in it, or make one for this name",
    64: "connect by an address that is in it, or make one for this address",
}
_TRUST = (
    "if you trust it, give the certificate of its authority in SecurityOptions.authority, or, at a client without a "
    "certificate of its own, in SecurityOptions.certificate"
)


def _explanation(error: Broken, peer: str, handshaken: bool) -> str:
    """Return what went wrong, with which peer, and what to do."""
    reason = error.reason
    alert = reason.partition("_ALERT_")[2].lower().replace("_", " ")
    if error.verified:
        advice = _ADVICE.get(error.code, _TRUST)
        return f"the certificate of {peer} is refused: {error.verified.rstrip('.')}; {advice}"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return (
            f"{peer} shows no certificate; give it SecurityOptions.key, .certificate and .authority, as made by "
            "`netq certs issue`"
        )
    if reason in _OLD_TLS:
        return f"{peer} does not speak TLS 1.3, and netq nothing older; update its TLS library"
    if alert == "certificate required":
        return (
            f"{peer} refused this side of the TLS connection: {alert}; give SecurityOptions.key, .certificate and "
            ".authority, as made by `netq certs issue`"
        )
    if alert:
        doubt = ", most often because of the name in the certificate" if alert == "internal error" else ""
        return f"{peer} refused this side of the TLS connection: {alert}{doubt}; its own log says more"
    if handshaken:
        return f"the TLS connection to {peer} is broken: {_words(reason)}; something changed bytes on the way"
    if reason in _NOT_TLS:
        return f"what {peer} sent is not TLS ({_words(reason)}); set SecurityOptions on both sides, or on neither"
    return f"the TLS handshake with {peer} failed: {_words(reason)}; is there TLS 1.3 at both ends?"


def _classical(peer: str, group: str | None) -> str:
    exchange = f"with {group}" if group else "with a group that the TLS library does not tell"
    return (
        f"{peer} exchanges keys {exchange}, which is not post-quantum, and SecurityOptions.post_quantum is 'require'; "
        f"install the extra `security` there (pip install '{DISTRIBUTION}[security]'), or allow 'prefer' here"
    )


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")
