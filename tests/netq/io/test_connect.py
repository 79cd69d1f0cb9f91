"""A socket that connected to itself."""

from __future__ import annotations

import socket

from netq.io.connect import is_own_end


def test_socket_that_connected_to_itself_is_detected() -> None:
    """A client that retries a port of the ephemeral range is given that very port sooner or later."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        assert is_own_end(sock)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as near,
        listener.accept()[0] as far,
    ):
        assert not is_own_end(near)
        assert not is_own_end(far)
