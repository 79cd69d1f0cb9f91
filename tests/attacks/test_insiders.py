"""Clients that send junk, all at once: the rounds of the good ones go on, and none of these is blamed."""

from __future__ import annotations

from multiprocessing import resource_tracker

import pytest

from tests.attacks import insiders

FLOODS = (
    *("4 MB of [[],[], …]", "3.5 MB of {}", "60,000 tensors without elements", "65,536 empty buffers"),
    *("24,000 shapes of one hash", "junk of 20 bytes", "Leave without end", "Offer without end", "Reply without end"),
    *("Describe without end", "small messages on all lanes", "1,000 metrics of its own", "damaged updates"),
)


@pytest.fixture(scope="module", autouse=True)
def tracker() -> None:
    """Start the process that multiprocessing keeps until the end."""
    resource_tracker.ensure_running()


@pytest.mark.slow
@pytest.mark.alone
def test_messages_that_are_begun_and_not_finished_hold_up_nobody() -> None:
    found = insiders.run("begins messages, goes on with none", rounds=2, size=10**6, good=3, deadline=10.0)
    assert (found.counted, found.blamed, found.end) == (2, 0, "")


@pytest.mark.slow
@pytest.mark.alone  # sixteen processes
def test_floods_of_insiders_spoil_no_round() -> None:
    # A round needs the good ones and the one with metrics of its own, and waits for none that has never answered.
    found = insiders.run(*FLOODS, rounds=10, size=10_000, good=3, min_clients=4, deadline=60.0, close_early=True)
    assert (found.counted, found.accuracies, found.blamed, found.end) == (10, 10, 0, "")
