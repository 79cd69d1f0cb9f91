"""A smaller run of finalizers.py."""

from __future__ import annotations

import pytest

from tests.netq.exchange.finalizers import run


@pytest.mark.slow
def test_finalizers_may_use_a_client_on_top_of_any_code() -> None:
    found = run(3.0, seed=1)
    assert (found.hangs, found.lost) == (0, 0)
    assert found.done > found.failed
    assert found.by_finalizers
