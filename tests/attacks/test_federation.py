"""The corpus of pickles, sent to a server and to a client of a federation, which go on."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import fl
import netq
from fl.messages import MESSAGES, Reply, Task, Update
from netq.utils.stream import Stream
from tests.attacks import classes
from tests.attacks.pickles import MIB, PAYLOADS
from tests.fl.federation import SOON, A, B, C, Federation, gives
from tests.fl.test_client import serving

pytestmark = pytest.mark.slow
SENT = [payload.message for payload in PAYLOADS.values() if len(payload.opcodes) < 3 * MIB]


def test_server_completes_its_rounds_under_attack() -> None:
    before = classes.state()

    def attack(task: Task) -> list[bytes | Reply]:
        return [bytes(message) for message in SENT]

    with Federation() as federation:
        federation.join(A, gives(2))
        federation.join(B, gives(4))
        federation.join_raw(C, attack)
        report = federation.round(3)
        assert "its message cannot be read" in str(report.failures[C])
        for _ in range(3):  # the attacker is cut off, and comes back
            assert set(report.clients) == {A, B}
            assert federation.w == [3] * 3
            report = federation.round(2)
        until = time.monotonic() + 6 * SOON
        # So that it hears of the end. Nobody reads here, so it is not cut off again.
        while C not in federation.server.clients:
            assert time.monotonic() < until
            threading.Event().wait(0.01)
    assert classes.state() == before


def test_messages_of_a_federation_are_no_pickles() -> None:
    before = classes.state()
    for message in SENT:
        with pytest.raises(netq.Unreadable):
            MESSAGES.load(Stream([message]))
    assert classes.state() == before


def test_client_trains_under_attack(caplog: pytest.LogCaptureFixture) -> None:
    before = classes.state()
    with serving(fl.Client(lambda model, config: Update(model, 5))) as server:
        for message in SENT:
            server.put(Stream([message]))
        answer = server()
        np.testing.assert_array_equal(answer.model["w"], np.arange(4.0))
    assert caplog.text.count("a message of the server cannot be read") == 1, "one line a session"
    assert classes.state() == before
