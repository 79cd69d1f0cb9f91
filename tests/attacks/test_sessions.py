"""A server without an authority, whose strangers choose ids of one hash: few of them get a session."""

from __future__ import annotations

import pytest

from tests.attacks.sessions import run


@pytest.mark.slow
def test_few_sessions_have_ids_of_one_hash() -> None:
    found = run(200)
    assert found.begun <= 8
    assert all(map(len, (*found.before, *found.after)))
