"""Waiting for clients or nodes: the result, the log lines and their levels, and the end of the wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace

import pytest

import netq
from fl.server.waiting import pause_after, until_connected


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    caplog.set_level(logging.INFO, "netq.fl")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "netq.fl"]


def coming(*counts: int) -> tuple[Callable[[], str], threading.Event]:
    """The first count has so many peers connected, the next so many. Each count follows at once."""
    looks: Iterator[int] = iter(counts)
    changed = threading.Event()

    def connected() -> str:
        changed.set()
        return "x" * next(looks)

    return connected, changed


def test_enough_peers_are_returned_without_a_log_line(logged: Callable[[], list[tuple[str, str]]]) -> None:
    assert until_connected(2, "nodes", *coming(3)) == "xxx"
    assert logged() == []


def test_each_change_of_the_count_is_logged_once(logged: Callable[[], list[tuple[str, str]]]) -> None:
    assert until_connected(3, "clients", *coming(0, 0, 1, 1, 0, 3, 3)) == "xxx"
    assert logged() == [("INFO", f"waiting for clients: {count} of 3 are connected") for count in (0, 1, 0)]


def test_too_few_peers_for_long_log_one_warning(logged: Callable[[], list[tuple[str, str]]]) -> None:
    until_connected(3, "clients", *coming(1, 1, 2, 3, 3), patience=0)
    assert logged() == [
        ("WARNING", "waiting for clients: only 1 of 3 are connected after 0 s"),
        ("INFO", "waiting for clients: 2 of 3 are connected"),
    ]


def test_thousands_of_peers_take_few_log_lines(logged: Callable[[], list[tuple[str, str]]]) -> None:
    until_connected(1000, "clients", *coming(*range(1000), 1000, 1000))
    assert 50 < len(logged()) < 120


def test_counts_that_take_long_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = [0.0], list[float]()

    def connected() -> str:
        looks.append(now[0])
        now[0] += 0.01
        changed.set()
        return "x" if len(looks) < 5 else "xx"

    def sleep(seconds: float) -> None:
        now[0] += seconds

    changed = threading.Event()
    monkeypatch.setattr("fl.server.waiting.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    until_connected(2, "nodes", connected, changed)
    assert [round(after - before, 2) for before, after in pairwise(looks[:4])] == [0.21, 0.21, 0.21]


def test_a_peer_that_says_at_once_that_it_only_looks_ends_no_wait() -> None:
    assert until_connected(3, "clients", *coming(2, 3, 2, 4, 4)) == "xxxx"


def test_the_wait_ends_by_timeout() -> None:
    with pytest.raises(TimeoutError, match=r"^1 of 2 nodes are connected after 0 s$"):
        until_connected(2, "nodes", *coming(1), timeout=0)


def test_the_wait_ends_by_closed() -> None:
    def connected() -> str:
        raise netq.Closed(None, "this server is closed")

    with pytest.raises(netq.Closed, match="this server is closed"):
        until_connected(2, "nodes", connected, threading.Event())


def test_pauses_between_attempts_grow_up_to_a_minute() -> None:
    assert [pause_after(attempts, 1.0) for attempts in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert pause_after(10**6, 0.0) == 0
    assert pause_after(1, 300.0) == 60
