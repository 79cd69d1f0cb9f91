"""Between two ends on one machine there is no congestion and no pacing; elsewhere the system's choice stays."""

from __future__ import annotations

import socket
import sys

import pytest

from netq.io.sockets import tune

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a socket choose")


def control(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


@pytest.mark.parametrize(("source", "ours"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_a_connection_within_one_machine_has_no_pacing(source: str, ours: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), source_address=(source, 0))
        far = listener.accept()[0]
    with near, far:
        before = control(near)
        for sock in (near, far):
            tune(sock)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert control(near) == control(far) == (b"reno" if ours else before)


def test_a_socket_that_is_gone_is_an_error_of_the_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
    near.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        tune(near)
