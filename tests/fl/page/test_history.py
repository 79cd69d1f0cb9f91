"""What a page keeps of rounds, and what it says of the time left."""

from __future__ import annotations

from typing import Any

import pytest

from fl.page import history
from fl.page.history import History, reduced


def record(number: int, seconds: float = 2.0, **others: Any) -> dict[str, Any]:
    """A round as fl.callbacks.jsonl.record returns it."""
    values = {"round": number, "clients": ["a", "b"], "metrics": {}, "evaluation": {}, "bytes_in": 10, "bytes_out": 20}
    return {**values, "seconds": seconds, **others}


def test_rounds_come_in_order_and_after_a_known_one() -> None:
    found = History()
    for number in range(1, 5):
        found.round_ends(record(number), float(number))
    rounds, count = found.rounds(2)
    assert [each["round"] for each in rounds] == [3, 4]
    assert count == 4


def test_old_rounds_are_dropped_and_new_ones_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_ROUNDS", 3)
    found = History()
    for number in range(1, 8):
        found.round_ends(record(number), 0.0)
    assert [each["round"] for each in found.rounds()[0]] == [5, 6, 7]
    assert [each["round"] for each in found.rounds(6)[0]] == [7]
    assert [each["round"] for each in found.rounds(1)[0]] == [5, 6, 7]
    assert found.rounds(7) == ([], 7)


def test_time_left_is_that_of_the_last_rounds() -> None:
    found = History()
    found.begin({"rounds": 10})
    for number, seconds in enumerate([100.0, 1.0, 2.0, 3.0, 2.0, 900.0], 1):
        found.round_ends(record(number, seconds), 0.0)
    assert found.summary(running=True)["left"] == 2.0 * 4
    assert found.summary(running=False)["left"] is None


def test_rounds_that_do_not_count_are_not_done() -> None:
    found = History()
    found.begin({"rounds": 10})
    found.round_ends(record(1), 0.0)
    found.round_ends(record(2, clients=[]), 0.0)
    assert found.summary(running=True)["done"] == 1


def test_total_that_is_passed_is_none() -> None:
    found = History()
    found.begin({"rounds": 1})
    for number in (1, 2):
        found.round_ends(record(number), 0.0)
    assert found.summary(running=True)["rounds"] is None


def test_spread_has_quartiles_over_clients() -> None:
    metrics = {str(index): {"loss": float(index)} for index in range(5)}
    found = reduced(record(1, client_metrics=metrics), 0.0)
    assert found["spread"] == {"metrics/loss": [0.0, 1.0, 2.0, 3.0, 4.0]}


def test_failures_have_names_and_reasons() -> None:
    failures = {"id-1": {"why": "FAILED", "reason": "no disk"}, "id-2": {"why": "LATE", "reason": "late"}}
    found = reduced(record(1, failures=failures, names={"id-1": "board-3"}), 0.0)
    assert found["failures"] == {"board-3": "no disk", "id-2": "late"}
    assert found["failed"] == 2


def test_names_of_metrics_are_bounded_and_printable() -> None:
    metrics = {f"m{index}\x1b[2J": 1.0 for index in range(500)}
    found = reduced(record(1, metrics=metrics), 0.0)["metrics"]
    assert len(found) == history._NAMES
    assert all(name.isprintable() for name in found)


def test_array_and_nan_have_no_curve() -> None:
    found = reduced(record(1, metrics={"matrix": [[1, 2], [3, 4]], "loss": None}), 0.0)["metrics"]
    assert found == {"loss": None}


@pytest.mark.parametrize("name", ["failures", "names", "staleness", "client_metrics", "skipped"])
@pytest.mark.parametrize("value", [None, [], 3, "text", {"a": None}, {"a": [1]}])
def test_round_of_a_strange_file_is_shown(name: str, value: object) -> None:
    assert reduced({**record(1), name: value}, 0.0)["round"] == 1


def test_lines_are_bounded_and_escaped() -> None:
    found = History()
    for number in range(1000):
        found.log("info", f"{number}\n\x1b[31m", 0.0)
    lines = found.summary(running=True)["log"]
    assert len(lines) == history._LINES
    assert lines[0]["text"] == "999\\n\\x1b[31m"
