"""Whether a socket's queue has run empty: a link that comes late to an empty queue is not slow itself."""

from __future__ import annotations

import socket
import sys

import pytest

from netq.io.sockets import PlainSocket


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_a_queue_is_empty_when_the_system_has_sent_all() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        peer, _ = listener.accept()
        sock.setblocking(False)
        stream = PlainSocket(sock)
        assert stream.ran_empty()
        sent = 0
        while not stream.blocked:
            sent += stream.send([memoryview(bytes(2**16))])
        assert not stream.ran_empty()
        while sent:
            sent -= len(peer.recv(2**20))
        assert stream.ran_empty()
        peer.close()
