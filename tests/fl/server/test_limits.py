"""What clients can make a server hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fl
import netq
from fl.server.limits import limits
from tests.fl.federation import SOON, A, B, Federation, at, gives

MB = 10**6


def test_bounds_without_a_limit() -> None:
    assert limits(10 * MB, None) == (70 * MB, 41 * MB, 11 * MB)


def test_bounds_with_a_limit() -> None:
    assert limits(10 * MB, 40 * MB) == (20 * MB, 20 * MB, 11 * MB)
    assert limits(10 * MB, 200 * MB) == (180 * MB, 41 * MB, 11 * MB)


def test_the_users_smaller_bounds_stay() -> None:
    connection = netq.ConnectionOptions(message_size=1000, memory=2000, queue_bytes=10**12)
    options = netq.CommunicatorOptions(connection=connection)
    assert limits(10 * MB, None).applied_to(options) == options


def test_wider_bounds_become_those_of_the_model() -> None:
    found = limits(200 * MB, 600 * MB).applied_to(netq.CommunicatorOptions()).connection
    assert (found.message_size, found.memory, found.queue_bytes) == (201 * MB, 201 * MB, 402 * MB)
    assert replace(found, message_size=2**40, memory=2**30, queue_bytes=2**62) == netq.ConnectionOptions()


def test_a_client_that_sends_too_much_hears_why() -> None:
    """Its reason reaches the server's report, and the server has not received the arrays."""

    def greedy(model: object, config: object) -> fl.Update:
        return fl.Update({"w": np.zeros(3, np.float32)}, 1, extra={"more": np.zeros(10 * MB, np.uint8)})

    with Federation(min_clients=1, memory_limit=5 * MB) as federation:
        federation.join(A, gives(2))
        federation.join(B, greedy)
        report = federation.round(2)
        assert report.clients == (A,)
        assert str(report.failures[B]) == "it offers 10000012 bytes; expected 1000048 at most"
        assert report.bytes_in < MB


def test_a_message_that_no_update_needs_does_not_arrive() -> None:
    with (
        Federation(min_clients=1, memory_limit=5 * MB) as federation,
        netq.new(purpose=netq.Purpose.CLIENT, options=at(federation.server.netloc, A)) as queue,
    ):
        federation.server.wait(1, SOON)
        with pytest.raises(netq.MessageTooLarge, match="it takes at most 2000048"):
            queue.put(bytes(3 * MB)).result(SOON)
