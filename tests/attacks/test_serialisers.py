"""Hostile messages for the serialisers cost little time, and never keep the interpreter's lock for long."""

from __future__ import annotations

import pytest

from tests.attacks.serialisers import ATTACKS, Attack, measure

SECONDS = 2.0  # each takes less than a fifth of a second on a quiet machine
HELD = 500.0  # milliseconds; each takes less than fifty


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_message_costs_little(attack: Attack) -> None:
    cost = measure(attack)
    assert cost.seconds < SECONDS
    assert cost.held < HELD
    assert cost.mib < 20
    wanted = attack.error
    assert cost.found == "loaded" if wanted is None else wanted in cost.found
