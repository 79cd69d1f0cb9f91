"""Several clients at once: they start together, their figures are summed, and an error of one ends all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from netq.bench import streaming
from netq.bench.client import Client, ClientGroup, Sides, Transfer
from netq.bench.plan import Plan
from netq.bench.protocol import BenchError, Counted
from netq.bench.resources import Usage
from netq.testing.fixtures import LIMIT

PLAN = Plan(((8, 5),))
WHOLE, NOTHING = Counted(5, 40), Counted(0, 0)
MIB = 2**20


class Fake:
    """A client whose transfer is a function of what it is asked, and of the number of this client."""

    def __init__(self, number: int, transfer: Callable[[int, Callable[[], object]], Transfer]) -> None:
        self.asked: list[Any] = []
        self._number = number
        self._transfer = transfer

    def transfer(
        self, direction: str, plan: Plan, show: streaming.Show, delay: float, wait: Callable[[], object]
    ) -> Transfer:
        self.asked.append((direction, plan, delay))
        show(self._number)
        return self._transfer(self._number, wait)


def group(count: int, transfer: Callable[[int, Callable[[], object]], Transfer]) -> tuple[ClientGroup, list[Fake]]:
    fakes = [Fake(number, transfer) for number in range(count)]
    return ClientGroup(cast(list[Client], fakes), []), fakes


def passed(number: int) -> Transfer:
    """Return a transfer that begins and ends later than that of the client before."""
    ours = Usage(100 + number, (50 + number) * MIB, (20 - number) * MIB)
    theirs = Usage(7, None, None)
    return Transfer(10 + number, 1000 + number, WHOLE, NOTHING, Sides(ours, theirs))


def test_sum_lasts_from_first_start_to_last_end() -> None:
    ready: list[int] = []

    def transfer(number: int, wait: Callable[[], object]) -> Transfer:
        ready.append(number)
        wait()
        assert sorted(ready) == [0, 1, 2]  # all of them are, before any begins
        return passed(number)

    clients, fakes = group(3, transfer)
    shown: list[int] = []
    done = clients.transfer("up", PLAN, shown.append, 0.5)
    assert [fake.asked for fake in fakes] == [[("up", PLAN, 0.5)]] * 3
    assert shown == [0]  # the progress of the first client alone
    assert (done.begin, done.end, done.seconds) == (10, 1002, 992 / 1e9)
    assert (done.up, done.down) == (Counted(15, 120), NOTHING)
    assert done.used == Sides(Usage(102, 52 * MIB, 18 * MIB), Usage(7, None, None))


def test_error_before_the_start_ends_the_other_clients() -> None:
    def transfer(number: int, wait: Callable[[], object]) -> Transfer:
        if number == 1:
            raise BenchError("the server refuses")
        wait()
        raise AssertionError("it has begun without the others")

    clients, _ = group(3, transfer)
    with pytest.raises(BenchError, match="the server refuses"):
        clients.transfer("up", PLAN, streaming.show_nothing)


def test_error_is_raised_while_other_clients_wait() -> None:
    release = threading.Event()

    def transfer(number: int, wait: Callable[[], object]) -> Transfer:
        wait()
        if number == 1:
            raise BenchError("it is gone")
        assert release.wait(LIMIT)
        return passed(number)

    clients, _ = group(2, transfer)
    try:
        with pytest.raises(BenchError, match="it is gone"):
            clients.transfer("up", PLAN, streaming.show_nothing)
    finally:
        release.set()
