"""Bare TLS sockets of pyOpenSSL, whose TLS netq uses if it is installed. See raw.py.

https://www.pyopenssl.org/en/latest/api/ssl.html#connection-objects
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, cast

from OpenSSL import SSL

from benchmarks.peers.raw import Wire
from benchmarks.task import Place


def listen(place: Place, ready: Callable[[], None]) -> Wire:
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.use_certificate_chain_file(str(place.folder / "server.pem"))
    context.use_privatekey_file(str(place.folder / "server-key.pem"))
    with socket.create_server((place.host, place.port)) as listener:
        ready()
        connection = SSL.Connection(context, listener.accept()[0])
        connection.set_accept_state()
        return _wire(connection)


def connect(place: Place) -> Wire:
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.load_verify_locations(str(place.folder / "authority.pem"))
    context.set_verify(SSL.VERIFY_PEER)
    connection = SSL.Connection(context, socket.create_connection((place.host, place.port)))
    connection.set_connect_state()
    return _wire(connection)


def _wire(connection: SSL.Connection) -> Wire:
    connection.do_handshake()
    return OpenSslWire(cast(Any, connection))


class OpenSslWire(Wire):
    """A connection of pyOpenSSL has the methods of a socket, but reports the end by an error."""

    def close(self) -> None:
        connection = cast(Any, self._sock)
        connection.shutdown()
        connection.close()
