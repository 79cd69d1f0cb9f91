from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks import negotiated


@pytest.mark.slow
def test_the_table_has_a_row_for_each_end(tmp_path: Path) -> None:
    rows = list(negotiated.rows(tmp_path))
    assert len(rows) == 2 * sum(map(len, negotiated.CHOICES.values()))
    assert all(row[3] == "TLSv1.3" for row in rows)
    assert all(row[5] == "X25519MLKEM768" for row in rows if row[0] != "mqtt" and row[1] != "off")
