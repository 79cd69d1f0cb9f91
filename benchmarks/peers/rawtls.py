"""Bare TLS 1.3 sockets: of the standard library, and as the variant "openssl" of pyOpenSSL. See raw.py.

netq's TLS is pyOpenSSL's if that is installed, and else that of the standard library.
https://docs.python.org/3/library/ssl.html#ssl-sockets
https://www.pyopenssl.org/en/latest/api/ssl.html#connection-objects
"""

from __future__ import annotations

import ssl
from typing import Any, cast

from benchmarks.peers.raw import Wire
from benchmarks.peers.tcp import tcp_socket
from benchmarks.task import Place


async def open(place: Place) -> Wire:
    if place.variant == "openssl":
        return OpenSslWire(_openssl(place))
    sock = tcp_socket(place)
    if place.is_server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(place.folder / "server.pem", place.folder / "server-key.pem")
    else:
        context = ssl.create_default_context(cafile=place.folder / "authority.pem")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    name = None if place.is_server else place.host
    return Wire(context.wrap_socket(sock, server_side=place.is_server, server_hostname=name))


def _openssl(place: Place) -> Any:
    from OpenSSL import SSL

    context = SSL.Context(SSL.TLS_SERVER_METHOD if place.is_server else SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    if place.is_server:
        context.use_certificate_chain_file(str(place.folder / "server.pem"))
        context.use_privatekey_file(str(place.folder / "server-key.pem"))
    else:
        context.load_verify_locations(str(place.folder / "authority.pem"))
        context.set_verify(SSL.VERIFY_PEER)
    connection = SSL.Connection(context, tcp_socket(place))
    (connection.set_accept_state if place.is_server else connection.set_connect_state)()
    connection.do_handshake()
    return connection


class OpenSslWire(Wire):
    """A connection of pyOpenSSL has the methods of a socket, but reports the end by an error."""

    async def close(self) -> None:
        connection = cast(Any, self._sock)
        connection.shutdown()
        connection.close()
