"""The seed decides the faults of a run, and each kind is frequent enough."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.soak.schedule import BROKERED, LOCAL, PROXIED, QUIET, Kind, schedule, steps

SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_same_seed_gives_the_same_faults(seed: int) -> None:
    assert schedule(seed, 60, 20) == schedule(seed, 60, 20)


def test_another_seed_gives_other_faults() -> None:
    assert schedule(1, 60, 20) != schedule(2, 60, 20)


@pytest.mark.parametrize("kinds", [PROXIED, BROKERED, LOCAL])
@pytest.mark.parametrize("seed", SEEDS)
def test_five_minutes_have_hundreds_of_faults_of_every_kind(seed: int, kinds: frozenset[Kind]) -> None:
    faults = schedule(seed, 300, 20, kinds=kinds)
    counts = Counter(fault.kind for fault in faults)
    assert 400 <= len(faults) <= 900
    assert set(counts) == kinds
    assert min(counts.values()) >= 6


@pytest.mark.parametrize("seed", SEEDS)
def test_broker_restarts_are_20_seconds_apart(seed: int) -> None:
    times = [fault.time for fault in schedule(seed, 300, 20, kinds=BROKERED) if fault.kind is Kind.BROKER]
    assert min(later - time for time, later in itertools.pairwise(times)) >= 20


def test_some_clients_are_silent_before_a_server_restart() -> None:
    for kinds, silence in ((PROXIED, Kind.LONG_HOLE), (LOCAL, Kind.STOP)):
        faults = schedule(1, 300, 20, kinds=kinds)
        restarts = [fault.time for fault in faults if fault.kind is Kind.SERVER]
        before = [sum(f.time + 0.1 == time and f.kind is silence for f in faults) for time in restarts]
        assert max(before) == 4
        assert min(before) >= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_are_in_order_and_in_range(seed: int) -> None:
    faults = schedule(seed, 60, 5, kinds=BROKERED)
    assert [fault.time for fault in faults] == sorted(fault.time for fault in faults)
    assert faults[0].time >= QUIET
    assert faults[-1].time < 60
    assert {fault.client for fault in faults if fault.kind not in (Kind.SERVER, Kind.BROKER)} == {1, 2, 3, 4, 5}
    assert {fault.client for fault in faults if fault.kind in (Kind.SERVER, Kind.BROKER)} == {0}


@pytest.mark.parametrize("seed", SEEDS)
def test_one_client_has_one_fault_of_a_kind_at_a_time(seed: int) -> None:
    until: dict[tuple[Kind, int], float] = {}
    for fault in schedule(seed, 300, 2, rate=20):
        kind = Kind.HOLE if fault.kind is Kind.LONG_HOLE else fault.kind
        assert until.get((kind, fault.client), 0.0) <= fault.time
        until[kind, fault.client] = fault.time + fault.seconds


def test_one_client_has_different_faults_at_a_time() -> None:
    lasting = [fault for fault in schedule(1, 300, 2) if fault.seconds]
    overlaps = [
        (one.kind, other.kind)
        for one in lasting
        for other in lasting
        if one.client == other.client and one.time < other.time < one.time + one.seconds
    ]
    assert len(set(overlaps)) > 10


def test_each_fault_begins_and_each_lasting_one_ends_once() -> None:
    faults = schedule(1, 60, 20)
    timeline = steps(faults)
    assert [step.time for step in timeline] == sorted(step.time for step in timeline)
    assert [step.fault for step in timeline if step.begins] == faults
    ended = [step for step in timeline if not step.begins]
    assert sorted(step.time for step in ended) == sorted(f.time + f.seconds for f in faults if f.seconds)
    assert all(step.fault.seconds for step in ended)


def test_holes_are_shorter_and_longer_than_the_silence_limit() -> None:
    faults = schedule(1, 300, 20)
    assert max(fault.seconds for fault in faults if fault.kind is Kind.HOLE) < 1.5
    assert min(fault.seconds for fault in faults if fault.kind is Kind.LONG_HOLE) > 1.5
