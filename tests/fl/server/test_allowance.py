"""How much of a server's time the messages take that it did not ask for."""

from __future__ import annotations

import uuid

import pytest

from fl.server.allowance import Allowance
from tests.fl.federation import A, B


def spend(allowance: Allowance, count: int, now: float, *, seconds: float = 0.0, readable: bool = True) -> float:
    """Send some messages at once, and return the pause after the last of them; those before have none."""
    pauses = [allowance.spend(A, seconds, now, readable=readable) for _ in range(count)]
    assert not any(pauses[:-1])
    return pauses[-1]


@pytest.mark.parametrize(("count", "seconds", "readable"), [(100, 0.0, True), (4, 0.0, False), (10, 0.0105, True)])
def test_a_client_is_cut_off_after_some_messages(count: int, seconds: float, readable: bool) -> None:
    allowance = Allowance()
    assert spend(allowance, count, 100.0, seconds=seconds, readable=readable) == 1.0
    assert spend(allowance, 10, 100.5) == 0.0, "these were sent before"
    assert allowance.spend(B, 0.05, 100.5) == 0.0


def test_pauses_double() -> None:
    allowance, now, pauses = Allowance(), 0.0, []
    for _ in range(12):
        while not (pause := allowance.spend(A, 0.02, now)):
            pass
        pauses.append(pause)
        now += pause
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]
    now += 2 * 3600
    assert spend(allowance, 4, now, readable=False) == 1.0, "it was quiet for long"


def test_an_account_fills_up_slowly() -> None:
    allowance = Allowance()
    assert spend(allowance, 3, 0.0, readable=False) == 0.0
    assert allowance.spend(A, 0.0, 6.0, readable=False) == 0.0
    assert allowance.spend(A, 0.0, 6.0, readable=False) == 1.0


def test_a_client_that_never_stops_gets_a_small_share_of_the_time() -> None:
    allowance, now, spent = Allowance(), 0.0, 0.0
    while now < 1000.0:
        pause = allowance.spend(A, 0.02, now)
        spent += 0.02
        now += max(0.02, pause)
    assert spent < 0.005 * 1000 + 0.1


def test_the_clients_that_are_remembered_are_bounded() -> None:
    allowance = Allowance()
    for number in range(10_000):
        allowance.spend(uuid.UUID(int=number), 0.0, 0.0)
    assert len(allowance._accounts) == 4096
