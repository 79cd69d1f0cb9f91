"""An exchange whose clients take all they can: honest ones go on, and what is held is bounded and given back."""

from __future__ import annotations

import functools
import statistics

import pytest

from tests.attacks import exchange
from tests.attacks.exchange import Figures

pytestmark = pytest.mark.slow
run = functools.partial(exchange.run, pause=0.2)


def check(found: Figures) -> None:
    """No honest client was refused, and it was served before the attack, during and after it."""
    assert found.refused == 0
    assert min(map(len, (found.before, found.during, found.after))) > 0


@pytest.mark.parametrize(("attack", "more"), [("jobs", {}), ("ids", {"clients": 10})], ids=["jobs", "ids"])
def test_jobs_of_others_keep_no_client_from_its_own(attack: str, more: dict[str, int]) -> None:
    check(run(attack, {"count": 3000, **more}, jobs=2000))


def test_refusals_of_a_worker_take_no_memory() -> None:
    found = run("refusals", {"count": 30})
    check(found)
    assert found.mib < 150


def test_calls_that_are_never_answered_are_bounded() -> None:
    found = run("calls", {"count": 3000}, calls=10)
    check(found)
    assert found.taken <= 1100


def test_filters_of_many_places_of_wildcards_delay_no_publication() -> None:
    found = run("filters")
    check(found)
    assert statistics.median(found.during) < 0.1
    assert found.taken < 2000
