"""The threads of gRPC: one for all communicators, and none left by attempts that were given up."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from netq import NetworkLocation
from netq.testing.fixtures import Communicators, introduce


def test_client_closed_during_an_attempt_leaves_no_grpc_thread(communicators: Communicators) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # which accepts, and sends nothing
        for _ in range(10):
            client = communicators.client(NetworkLocation(*listener.getsockname()))
            with pytest.raises(TimeoutError):
                client.get(timeout=0.02)
            assert client.close() == 0
        deadline = time.monotonic() + 2.0
        while grpc_threads() and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert not grpc_threads()


def grpc_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "_poll_wrapper" in thread.name]


def test_all_communicators_share_one_thread_for_grpc(communicators: Communicators) -> None:
    server = communicators.server()
    introduce(server, *[communicators.client(server.netloc) for _ in range(5)])
    assert [thread.name for thread in threading.enumerate()].count("netq-grpc") == 1
