"""The pause before a client tries again."""

from __future__ import annotations

import random

from netq.options import ConnectionOptions
from netq.runtime.link import backoff

OPTIONS = ConnectionOptions(retry_min=0.1, retry_max=2.0)


def test_backoff_is_below_a_bound_that_doubles_to_the_maximum() -> None:
    for attempt, bound in [(0, 0.1), (1, 0.2), (2, 0.4), (4, 1.6), (5, 2.0), (1000, 2.0), (10**6, 2.0)]:
        pauses = [backoff(attempt, OPTIONS) for _ in range(300)]
        assert 0.0 <= min(pauses) < bound / 4, "jitter over all of it: 300 times above a quarter is no chance"
        assert bound * 3 / 4 < max(pauses) <= bound


def test_backoff_neither_follows_nor_moves_the_programs_random_state() -> None:
    random.seed(1)
    state = random.getstate()
    pauses = {backoff(5, OPTIONS), backoff(5, OPTIONS)}
    assert random.getstate() == state
    random.seed(1)
    assert backoff(5, OPTIONS) not in pauses
