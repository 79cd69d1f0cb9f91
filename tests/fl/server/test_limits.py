"""What clients can make a server hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fl
import netq
from fl.compression.compressor import Compression, Compressor
from fl.envelope import Job
from fl.messages import MESSAGES, Reply
from fl.server.limits import limits
from fl.tensors.json_format import MAX_BUFFERS, MAX_TEXT, _values
from netq.protocol.flow_control import CREDIT
from netq.utils.stream import parts
from tests.fl.federation import SOON, A, B, Federation, at, gives

MB = 10**6


def model(megabytes: int, tensors: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    return {f"{number:03}": np.broadcast_to(np.int8(0), megabytes * MB // tensors) for number in range(tensors)}


def named(count: int, length: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return this number of tensors of one element, with names of this length."""
    return {f"{number:0{length}}": np.zeros(1, np.float32) for number in range(count)}


def test_bounds_without_a_limit() -> None:
    text = 500_000 + 4 * (len('"000"') + 2 * len("(10000000,)") + 200)
    assert limits(model(10), None) == (70 * MB, 41 * MB, 10 * MB + text + 500_000, text, 120)


def test_bounds_with_a_limit() -> None:
    assert limits(model(10), 40 * MB)[:2] == (20 * MB, 20 * MB)
    assert limits(model(10), 200 * MB)[:2] == (180 * MB, 41 * MB)


def test_bounds_with_vectors_under_masks() -> None:
    """A vector has 4 bytes for a number, 8 for a bool; the sum of all is there while one arrives."""
    assert limits(model(10), None, vector=80 * MB)[:2] == (140 * MB, 100 * MB)
    assert limits(model(10), None, vector=80 * MB, relays=True)[1::3] == (140 * MB, 120 + 2**15)
    assert limits(model(10), None, carries_masks=True)[1::3] == (60 * MB, 120)
    assert limits(model(10), None, carries_masks=True, relays=True)[1::3] == (220 * MB, 120 + 2**15)
    assert limits(model(10), 190 * MB, vector=80 * MB)[:2] == (100 * MB, 100 * MB)
    assert limits(model(10), 60 * MB, vector=5 * MB)[:2] == (40 * MB, 25 * MB)
    with pytest.raises(netq.InvalidOption, match="190000000 bytes, the model, two vectors under masks, and their shar"):
        limits(model(10), 190 * MB - 1, vector=80 * MB)


def test_text_and_buffers_follow_from_the_tensors() -> None:
    assert limits(model(10, 100), None)[3:] == (500_000 + 4 * 100 * (5 + 2 * len("(100000,)") + 200), 116 + 4 * 100)
    assert limits(named(100_000, 200), None)[3:] == (MAX_TEXT, MAX_BUFFERS)


@pytest.mark.parametrize(
    ("count", "name", "said"),
    [
        (180_000, 200, "74300000 bytes of names and shapes; expected 67108864 at most"),
        (230_000, 6, "4370000 values in them; expected 4194304 at most"),
        (1, 67_000_000, "67500210 bytes of names and shapes; expected 67108864 at most"),
    ],
)
def test_a_model_that_no_round_could_send_is_refused(count: int, name: int, said: str) -> None:
    with pytest.raises(netq.InvalidOption, match=rf"^Server\.model: {count} tensors, whose update would have {said}"):
        limits(named(count, name), None)


def test_an_update_has_no_more_than_its_limits_say() -> None:
    start = {**named(1000, 50), "wide": np.zeros((1,) * 64, np.float32), "é\x01": np.zeros((3, 1, 3, 3), np.float64)}
    end = {name: each + 1 for name, each in start.items()}
    bounds = limits(start, None)
    for compression in (Compression("bfloat16", top_k=0.5), Compression("int4"), None):
        update = end if compression is None else Compressor(compression).pack(end, start)
        stream = MESSAGES.dump(Reply(Job(2**63 - 1, 1, "train"), fl.Update(update, 1)))
        text = next(parts(stream.contiguous()))
        assert stream.nbytes < (bounds.text - 500_000) / 4 + 1000
        assert _values(str(text, "utf-8")) < 17 * len(start) + 2 * (1000 + 64 + 4) + 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_5_000_tensors_train(kind: str) -> None:
    """Their names alone are longer than a message may be for a small model, and they are forty times its buffers."""

    def train(model: Any, config: object) -> fl.Update:
        return fl.Update({name: each + 1 for name, each in model.items()}, 1)

    model = named(5_000, 110)
    start: Any = model if kind == "numpy" else {name: torch.zeros(1) for name in model}
    with Federation(start, min_clients=1) as federation:
        federation.join(A, train)
        federation.server.wait(1, SOON)
        report = federation.server.round()
        assert (report.clients, report.failures) == ((A,), {})
        assert all(each == 1 for each in federation.server.model.values())


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
        with pytest.raises(netq.MessageTooLarge, match="it takes at most 1500892"):
            queue.put(bytes(3 * MB)).result(SOON)
