"""A smaller run of killed_workers.py."""

from __future__ import annotations

import pytest

from tests.netq.exchange.killed_workers import run


@pytest.mark.slow
def test_no_job_is_lost_with_its_worker() -> None:
    found = run(1200, 3, seed=1)
    assert (found.done, found.lost) == (1200, 0)
    assert found.twice <= found.repeated
