"""What clients can make a server hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fl
import netq
from fl.server.limits import limits
from fl.tensors.json_format import MAX_BUFFERS, MAX_TEXT
from netq.protocol.flow_control import CREDIT
from tests.fl.federation import SOON, A, B, Federation, at, gives

MB = 10**6


def model(megabytes: int, tensors: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    return {f"{number:03}": np.broadcast_to(np.int8(0), megabytes * MB // tensors) for number in range(tensors)}


def test_bounds_without_a_limit() -> None:
    assert limits(model(10), None) == (70 * MB, 41 * MB, 11 * MB + 1212, 501212, 128)


def test_bounds_with_a_limit() -> None:
    assert limits(model(10), 40 * MB)[:2] == (20 * MB, 20 * MB)
    assert limits(model(10), 200 * MB)[:2] == (180 * MB, 41 * MB)


def test_text_and_buffers_follow_from_the_tensors() -> None:
    assert limits(model(10, 100), None)[3:] == (500_000 + 4 * 100 * 303, 116 + 12 * 100)
    assert limits({str(number): np.zeros(1) for number in range(30_000)}, None)[3:] == (MAX_TEXT, MAX_BUFFERS)


def test_the_users_smaller_bounds_stay() -> None:
    connection = netq.ConnectionOptions(message_size=1000, memory=2000, window=100, queue_bytes=10**12)
    options = netq.CommunicatorOptions(connection=connection)
    assert limits(model(10), None).applied_to(options) == options


def test_wider_bounds_become_those_of_the_model() -> None:
    bounds = limits(model(200), 600 * MB)
    found = bounds.applied_to(netq.CommunicatorOptions()).connection
    assert (found.message_size, found.queue_bytes) == (200 * MB + bounds.text, 2 * bounds.task)
    assert (found.memory, found.window) == (2 * (200 * MB + bounds.text), CREDIT)
    assert replace(found, message_size=2**40, memory=2**30, queue_bytes=2**62, window=2**26) == netq.ConnectionOptions()


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
        with pytest.raises(netq.MessageTooLarge, match="it takes at most 1501252"):
            queue.put(bytes(3 * MB)).result(SOON)
