from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.handshakes import ATTEMPTS, Attempt, perform


@pytest.mark.slow
@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_peer_is_refused_before_a_byte_of_a_message_is_parsed(attempt: Attempt, tmp_path: Path) -> None:
    _, parsed = perform(attempt, tmp_path)
    assert parsed.messages == 0
    assert (parsed.frames > 0) == (attempt.parsed != "nothing")
