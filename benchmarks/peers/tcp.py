"""A connected TCP socket, for the peers that take one. Not a peer itself."""

from __future__ import annotations

import socket

from benchmarks.task import Place


def tcp_socket(place: Place) -> socket.socket:
    """Return a connection between the two processes, without Nagle's delay."""
    if place.is_server:
        with socket.create_server((place.host, place.port)) as listener:
            place.ready()
            sock = listener.accept()[0]
    else:
        sock = socket.create_connection((place.host, place.port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
