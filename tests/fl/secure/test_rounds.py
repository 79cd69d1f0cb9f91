"""Masked rounds with clients that are lost at each stage: the sum is exact, or the round is void."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest

from fl.errors import InvalidUpdate
from fl.messages import Masked, Update
from fl.secure.options import SecureAggregation
from fl.server.federation import Void
from tests.fl.secure.circle import Circle, fails_at, trained

SIZES = [3, 5, 10]
LOST = {3: 0, 5: 1, 10: 3}  # that a round can do without


def opened(circle: Circle, without: Collection[str] = ()) -> None:
    """Run a round, and compare its sum with that of plain integers."""
    task, summing, _ = circle.begin()
    circle.report(task, summing, without)
    found = circle.open(summing)
    assert sorted(summing.present) == sorted(set(summing.terms.clients) - set(without) - circle.lost)
    assert np.array_equal(summing._words.memory, circle.plain(summing).memory)
    numbers = [circle.ids.index(each) for each in summing.present]
    means = [trained(each, circle.model)["w"] for each in numbers]
    assert found.model["w"] == pytest.approx(np.mean(means, axis=0), abs=1e-4)
    assert found.examples == len(numbers)
    assert circle.masks.liars == {}


@pytest.mark.parametrize("clients", SIZES)
def test_rounds_without_losses(clients: int) -> None:
    circle = Circle(clients)
    for _ in range(3):
        opened(circle)


@pytest.mark.parametrize("step", ["keys", "nonces", "boxes", "tags", "check"])
@pytest.mark.parametrize("clients", SIZES[1:])
def test_clients_that_are_lost_in_the_set_up_are_left_out(clients: int, step: str) -> None:
    circle = Circle(clients)
    gone = circle.ids[1 : 1 + LOST[clients]]
    fails_at(circle, step, gone)
    task, summing, failures = circle.begin()
    assert failures == dict.fromkeys(gone, "it is lost")
    circle.report(task, summing)
    circle.open(summing)
    assert np.array_equal(summing._words.memory, circle.plain(summing).memory)


@pytest.mark.parametrize("clients", SIZES[1:])
def test_clients_that_send_no_vector(clients: int) -> None:
    circle = Circle(clients)
    opened(circle)
    opened(circle, without=circle.ids[: LOST[clients]])
    opened(circle)  # and are there again


@pytest.mark.parametrize("clients", SIZES[1:])
def test_clients_that_are_lost_before_the_vector_and_for_good(clients: int) -> None:
    circle = Circle(clients)
    opened(circle)
    circle.lost |= set(circle.ids[: LOST[clients]])
    opened(circle)
    opened(circle)


@pytest.mark.parametrize("step", ["agree", "open"])
@pytest.mark.parametrize("clients", SIZES[1:])
def test_keepers_that_are_lost_in_the_opening(clients: int, step: str) -> None:
    circle = Circle(clients)
    task, summing, _ = circle.begin()
    circle.report(task, summing)
    fails_at(circle, step, summing.roster.committee[: LOST[clients]])
    circle.open(summing)
    assert len(summing.present) == clients
    assert np.array_equal(summing._words.memory, circle.plain(summing).memory)


@pytest.mark.parametrize("clients", SIZES)
@pytest.mark.parametrize("step", ["agree", "open"])
def test_with_one_keeper_too_few_the_round_is_void(clients: int, step: str) -> None:
    circle = Circle(clients)
    task, summing, _ = circle.begin()
    circle.report(task, summing)
    before = summing._words.memory.copy()
    keepers = summing.roster.committee
    fails_at(circle, step, keepers[: len(keepers) - summing.roster.threshold + 1])
    with pytest.raises(InvalidUpdate, match=f"needs {summing.roster.threshold} of {len(keepers)} clients"):
        circle.open(summing)
    assert np.array_equal(summing._words.memory, before)  # no mask is off


@pytest.mark.slow
def test_a_hundred_clients_with_losses_at_each_stage() -> None:
    """A ring of neighbours, and 45 keepers of which 34 open the sum. One session: it takes seconds."""
    circle = Circle(100)
    fails_at(circle, "tags", circle.ids[:3])
    task, summing, failures = circle.begin()
    assert len(failures) == 3
    without = [each for each in summing.roster.order if each not in summing.roster.committee][::10]
    circle.report(task, summing, without)
    fails_at(circle, "open", summing.roster.committee[:5])
    circle.open(summing)
    assert sorted(summing.absent) == sorted(without)
    assert np.array_equal(summing._words.memory, circle.plain(summing).memory)
    circle.ids, session = [each for each in circle.ids if each not in circle.lost], summing.terms.session
    task, summing, _ = circle.begin()
    assert summing.terms.session == session
    circle.report(task, summing)
    assert summing.absent == []
    fails_at(circle, "open", summing.roster.committee[5:12])
    with pytest.raises(InvalidUpdate, match="needs 34 of 45 clients"):
        circle.open(summing)


def test_with_three_clients_and_one_lost_the_round_is_void_and_the_next_one_counts() -> None:
    circle = Circle(3)
    task, summing, _ = circle.begin()
    circle.report(task, summing, without=circle.ids[:1])
    with pytest.raises(InvalidUpdate, match="a sum of 2 clients; expected 3 at least"):
        circle.open(summing)
    opened(circle)


def test_without_recovery_all_have_to_be_there() -> None:
    circle = Circle(4, SecureAggregation(recovers=False))
    opened(circle)
    task, summing, _ = circle.begin()
    circle.report(task, summing, without=circle.ids[2:3])
    with pytest.raises(InvalidUpdate, match=f"{circle.ids[2]} sent no vector"):
        circle.open(summing)
    opened(circle)


@pytest.mark.parametrize(("clients", "kept"), [(5, False), (20, True)])
def test_a_session_serves_nine_tenths_of_its_clients(clients: int, kept: bool) -> None:
    circle = Circle(clients)
    everyone, sessions = circle.ids, []
    for ids in (everyone[1:], everyone, everyone[1:]):  # one is new, and has gone
        circle.ids = ids
        task, summing, _ = circle.begin()
        sessions.append(summing.terms.session)
        circle.ids = everyone
        circle.report(task, summing)
        circle.open(summing)
    assert sessions[0] != sessions[1]
    assert (sessions[1] == sessions[2]) is kept


def test_a_client_that_began_anew_has_no_keys_and_the_others_go_on_without_it() -> None:
    circle = Circle(5)
    opened(circle)
    other = Circle(5)
    anew = circle.ids[0]
    circle.people[anew] = other.people[anew]
    task, summing, _ = circle.begin()
    with pytest.raises(ValueError, match="no keys for the session"):
        circle.update(anew, task)
    circle.report(task, summing, without=[anew])
    circle.open(summing)
    assert anew not in summing.present


def test_no_session_of_two() -> None:
    circle = Circle(2)
    with pytest.raises(Void, match="2 clients can take part in secure aggregation; expected 3 at least"):
        circle.begin(needed=2)


def test_nothing_of_one_client_can_be_told_from_its_vector() -> None:
    """Of an update of zeros the vector has bytes of all values alike: 255 degrees of freedom, one in a million."""
    circle = Circle(3)
    circle.model = {"w": np.zeros(250_000, np.float32)}
    task, _, _ = circle.begin()
    masking = circle.people[circle.ids[0]].begin(task)
    masked = masking.mask(Update(dict(circle.model), 1))
    assert isinstance(masked, Masked)
    vector = masked.vector
    counts = np.bincount(vector, minlength=256)
    expected = vector.size / 256
    assert ((counts - expected) ** 2 / expected).sum() < 377


@pytest.mark.parametrize(
    ("most", "examples", "warns"), [(1, 1, False), (10_000, 100, False), (10**6, 100, True), (10**9, 10**9, False)]
)
def test_a_bound_of_examples_far_above_what_clients_have_is_warned_of_once(
    most: int, examples: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    circle = Circle(10)
    for _ in range(2):
        task, summing, _ = circle.begin(most)
        for client in circle.ids:
            masked = circle.people[client].begin(task).mask(Update(dict(circle.model), examples))
            assert isinstance(masked, Masked)
            summing.add(client, masked)
        circle.open(summing)
    found = [each for each in caplog.messages if "max_examples" in each]
    assert len(found) == warns
    assert all("a client has 100 examples on average, and may have 1000000" in each for each in found)
