"""Bare TLS sockets of the standard library, whose TLS netq uses too. See raw.py.

https://docs.python.org/3/library/ssl.html#ssl-sockets
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

from benchmarks.peers.raw import Wire
from benchmarks.task import Place


def listen(place: Place, ready: Callable[[], None]) -> Wire:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(place.folder / "server.pem", place.folder / "server-key.pem")
    with socket.create_server((place.host, place.port)) as listener:
        ready()
        return Wire(context.wrap_socket(listener.accept()[0], server_side=True))


def connect(place: Place) -> Wire:
    context = ssl.create_default_context(cafile=place.folder / "authority.pem")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return Wire(context.wrap_socket(socket.create_connection((place.host, place.port)), server_hostname=place.host))
