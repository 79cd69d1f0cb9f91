"""Sums under masks with noise of the clients: what they say, and what a client refuses."""

from __future__ import annotations

import math
import random
import uuid
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fl.envelope import Job
from fl.errors import InvalidUpdate
from fl.messages import Masked, Task, Update
from fl.privacy.bounded import Clipping
from fl.secure.noised import NoisedLayout
from fl.secure.options import SecurePolicy
from fl.secure.participant import Participant
from fl.secure.words import Words
from fl.tensors.spec import specs_of
from tests.fl.secure.circle import Circle

START: dict[str, Any] = {"w": np.zeros((40, 25), np.float32), "v": np.zeros(7)}
CLIP = Clipping(1.0, 1.0, False)


def layout(clients: int = 10, honest: int = 4, clipping: Clipping = CLIP) -> NoisedLayout:
    return NoisedLayout(specs_of(START), clipping, clients, honest)


def trained(number: int, start: Any = START, scale: float = 0.01) -> dict[str, Any]:
    numbers = np.random.default_rng(number)
    return {name: (each + scale * numbers.normal(size=each.shape)).astype(each.dtype) for name, each in start.items()}


def joined(form: NoisedLayout, vectors: list[Words]) -> Words:
    total = Words.zeros(form.small, form.large)
    for each in vectors:
        total.add(each)
    return total


def test_the_noise_of_the_honest_is_the_noise_that_is_wanted() -> None:
    form, source = layout(10, 4), random.Random(1).randbytes
    sums = []
    for _ in range(20):
        vectors = [form.encode(START, START, 1, {}, source) for _ in range(4)]
        found = form.decode(START, joined(form, vectors))
        sums.append(found.model["w"].ravel() * 10)
        assert found.examples == 4
    assert np.concatenate(sums).std() == pytest.approx(1.0, rel=0.05)  # the multiplier times the clip


def test_the_sum_is_that_of_the_clipped_changes() -> None:
    form = layout(3, 3, Clipping(1.0, 0.01, False))
    vectors = [form.encode(START, trained(number, scale=1e-3 if number else 10.0), 1, {}) for number in range(3)]
    found = form.decode(START, joined(form, vectors)).model
    changes = [np.concatenate([trained(each, scale=1e-3)[name].ravel() for name in START]) for each in (1, 2)]
    long = np.concatenate([trained(0, scale=10.0)[name].ravel() for name in START])
    expected = (sum(changes) + long / np.linalg.norm(long)) / 3
    assert np.concatenate([found[name].ravel() for name in START]) == pytest.approx(expected, abs=12 * 0.01 / 3)


def test_nothing_but_noised_numbers_is_in_a_vector() -> None:
    form = layout()
    words = form.encode(START, trained(1), 77, {"loss": 0.125})
    assert words.large[0] == 1
    again = form.encode(START, trained(1), 78, {"loss": 0.25})
    assert not np.array_equal(words.small, again.small)  # the noise
    assert words.large.size == 2


def test_a_damaged_sum_is_refused() -> None:
    form = layout()
    words = form.encode(START, trained(1), 1, {})
    words.small[3] ^= 1
    with pytest.raises(InvalidUpdate, match="no valid sum"):
        form.decode(START, words)


def test_the_clients_within_the_clip_are_counted_with_noise() -> None:
    form = layout(40, 30, Clipping(1.0, 0.5, True))
    vectors = [form.encode(START, trained(each, scale=1e-6 if each < 30 else 1.0), 1, {}) for each in range(40)]
    within = form.decode(START, joined(form, vectors)).within
    assert within is not None
    assert within == pytest.approx(0.75, abs=12 / 20)


@pytest.mark.parametrize(
    ("start", "honest", "match"),
    [({"n": np.zeros(3, np.int64)}, 3, "no tensor of floats"), (START, 0, "0 clients add noise for certain")],
)
def test_what_noise_cannot_cover_is_refused(start: Any, honest: int, match: str) -> None:
    with pytest.raises(InvalidUpdate, match=match):
        NoisedLayout(specs_of(start), CLIP, 5, honest)


def test_noise_of_a_few_steps_is_refused() -> None:
    with pytest.raises(InvalidUpdate, match="larger noise_multiplier"):
        NoisedLayout(specs_of({"w": np.zeros(1)}), Clipping(1.0, 1e-3, False), 3, 3)


# In a round


def circle(clients: int = 5, multiplier: float = 0.01, **options: Any) -> Circle:
    found = Circle(clients, **options)
    found.model = dict(START)
    found.clipping = Clipping(1.0, multiplier, False)
    return found


def vectors_of(found: Circle, task: Task, summing: Any, without: tuple[str, ...] = ()) -> None:
    for client in summing.terms.clients:
        if client not in without:
            update = Update(trained(found.ids.index(client)), 9, {"loss": 1.0})
            masked = found.people[client].begin(task).mask(update)
            assert isinstance(masked, Masked)
            summing.add(client, masked)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_round_with_noise(lost: int) -> None:
    found = circle()
    task, summing, _ = found.begin(most=1000)
    assert summing.terms.most == 1
    assert summing.terms.ranges == {}
    gone = tuple(found.ids[:lost])
    vectors_of(found, task, summing, gone)
    opened = found.open(summing)
    assert opened.examples == 5 - lost
    assert opened.clipped is None
    expected = sum(trained(each)["w"] for each in range(lost, 5)) / 5
    assert opened.model["w"] == pytest.approx(expected, abs=12 * 0.01 * math.sqrt(5 / 3) / 5)


def test_server_and_clients_work_out_the_same_noise() -> None:
    found = circle(10, 1.0)
    task, summing, _ = found.begin()
    client = found.people[found.ids[3]].begin(task)
    assert client._layout._deviation == summing._layout._deviation  # type: ignore[union-attr]
    assert summing._layout._deviation == pytest.approx(  # type: ignore[union-attr]
        summing._layout._bounded.deviation / math.sqrt(7 - 3)  # type: ignore[union-attr]
    )


def test_a_client_that_wants_more_noise_takes_no_part() -> None:
    found = circle(5, 0.5)
    strict = found.ids[2]
    found.people[strict]._noise = 1.0
    task, _, _ = found.begin()
    with pytest.raises(InvalidUpdate, match=r"a noise multiplier of 0.5; this client wants 1 or more"):
        found.people[strict].begin(task)
    found.clipping = None
    task, _, _ = found.begin()
    with pytest.raises(InvalidUpdate, match=r"a noise multiplier of 0; this client wants 1 or more"):
        found.people[strict].begin(task)


LIES: dict[str, dict[str, Any]] = {
    "other names": {"clip": 1.0},
    "no clip": {"clip": 0.0, "multiplier": 1.0, "follows": False},
    "no noise": {"clip": 1.0, "multiplier": 0.0, "follows": False},
    "text": {"clip": "1", "multiplier": 1.0, "follows": False},
    "infinite": {"clip": math.inf, "multiplier": 1.0, "follows": False},
    "NaN": {"clip": 1.0, "multiplier": math.nan, "follows": False},
}


@pytest.mark.parametrize("lie", LIES)
def test_terms_with_wrong_noise_are_refused(lie: str) -> None:
    found = circle()
    task, _, _ = found.begin()
    wrong = replace(task, secure={**task.secure, "noise": LIES[lie]})
    with pytest.raises(InvalidUpdate):
        found.people[found.ids[0]].begin(wrong)


@pytest.mark.parametrize("field", [{"most": 2}, {"metrics": ["loss"]}])
def test_noise_with_weights_or_metrics_is_refused(field: dict[str, Any]) -> None:
    found = circle()
    task, _, _ = found.begin()
    with pytest.raises(InvalidUpdate, match=r"most|metrics"):
        found.people[found.ids[0]].begin(replace(task, secure={**task.secure, **field}))


def test_one_client_that_gets_other_noise_has_no_masks_in_common() -> None:
    found = circle()
    task, summing, _ = found.begin()
    other = replace(task, secure={**task.secure, "noise": {"clip": 1.0, "multiplier": 0.02, "follows": False}})
    for client in summing.terms.clients:
        update = Update(trained(found.ids.index(client)), 1)
        masked = found.people[client].begin(other if client == found.ids[0] else task).mask(update)
        assert isinstance(masked, Masked)
        summing.add(client, masked)
    with pytest.raises(InvalidUpdate):
        found.open(summing)


def test_a_policy_with_noise_needs_masks() -> None:
    with pytest.raises(InvalidUpdate, match="secure aggregation only"):
        SecurePolicy(noise_multiplier=1.0).check_unmasked()


def test_a_task_without_a_session_is_refused() -> None:
    person = Participant(str(uuid.UUID(int=1)), lambda entry, session: entry, None, 3, 1.0)
    with pytest.raises(InvalidUpdate, match="no keys"):
        person.begin(Task(Job(1, 1, "train"), {}, {}, secure=dict(circle().begin()[0].secure)))
