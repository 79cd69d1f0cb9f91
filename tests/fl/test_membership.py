"""The pauses between the sessions of a client whose federation goes on."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import SimpleNamespace

import pytest

import fl.membership
import netq

STEADY = 61.0  # seconds of a session after which the pause is short again


def test_short_sessions_follow_one_another_in_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that refuses each session of a client has the client's next one seldom."""
    now, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    lengths = iter([0.0] * 8 + [STEADY, 0.0, 0.0])

    def attempt(session: Callable[[], None]) -> None:
        length = next(lengths, None)
        if length is None:
            session()
        else:
            now[0] += length

    def serve(queue: netq.Communicator, membership: fl.membership.Membership) -> None:
        membership.over = True

    monkeypatch.setattr(fl.membership, "time", SimpleNamespace(monotonic=lambda: now[0]))
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 9))
    fl.membership.take_part(options, netq.Protocol.TCP, "federation", serve, attempt=attempt, sleep=sleep)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 1, 2, 4]


def test_a_client_without_a_task_joins_the_next_server_after_statistics() -> None:
    first, second, third = (uuid.UUID(int=number) for number in range(3))
    found = fl.membership.Membership("federation", None, [netq.NetworkLocation("127.0.0.1", 9)])
    found.connected(first)
    found.surveyed()
    assert found.ended(first)  # of a script that asks, and ends
    found.connected(second)
    assert not found.ended(first)
    found.asked(second)
    found.surveyed()
    found.connected(third)
    assert not found.ended(third)
    assert found.ended(second)
