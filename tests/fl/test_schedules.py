"""Values that change from round to round."""

from __future__ import annotations

import math
from typing import Any

import pytest

import fl
from fl.schedules import SCHEDULES, from_table
from netq.errors import InvalidOption
from tests.fl.federation import A, Federation, filled


def values(schedule: Any, rounds: int) -> list[float]:
    return [schedule(number) for number in range(1, rounds + 1)]


def test_step() -> None:
    assert values(fl.schedules.step(8.0, 0.5, every=2), 6) == [8, 8, 4, 4, 2, 2]


def test_linear() -> None:
    assert values(fl.schedules.linear(1.0, 0.0, 5), 7) == pytest.approx([1, 0.75, 0.5, 0.25, 0, 0, 0])
    assert values(fl.schedules.linear(0.0, 1.0, 3), 3) == pytest.approx([0, 0.5, 1])  # to warm up


def test_cosine() -> None:
    expected = [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0, 0]
    assert values(fl.schedules.cosine(1.0, 0.0, 5), 6) == pytest.approx(expected)
    assert values(fl.schedules.cosine(0.5, 0.1, 1), 2) == pytest.approx([0.5, 0.1])


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_table_makes_the_schedule(name: str) -> None:
    options = {"start": 0.1, "end": 0.01, "rounds": 20} if name != "step" else {"start": 0.1, "every": 3}
    assert values(from_table({"schedule": name, **options}), 20) == values(SCHEDULES[name](**options), 20)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"schedule": "cosinus"}, "schedule: 'cosinus'; did you mean cosine"),
        ({"schedule": 3}, "schedule: 3; "),
        ({"schedule": "linear", "start": 1.0}, "schedule: linear: missing a required argument: 'end'"),
        ({"schedule": "step", "start": 1.0, "each": 2}, "schedule: step: got an unexpected keyword argument 'each'"),
        ({"schedule": "step", "start": "much"}, "step.start: 'much'; expected a finite number"),
        ({"schedule": "linear", "start": 1.0, "end": 0.0, "rounds": 0}, "linear.rounds: 0; expected a whole number"),
    ],
)
def test_a_wrong_table_says_what_is_wrong(table: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        from_table(table)
    assert message in str(caught.value)


def test_clients_get_the_values_of_the_round() -> None:
    seen: list[Any] = []

    def train(model: Any, config: Any) -> fl.Update:
        seen.append((config["round"], config["lr"], config["momentum"], config["epochs"]))
        return fl.Update(filled(1), 1)

    strategy = fl.FedAvg(config={"momentum": fl.schedules.linear(0.0, 1.0, 3)})
    config = {"lr": fl.schedules.step(8.0, 0.5, every=1), "epochs": 2}
    with Federation(strategy=strategy, config=config, min_clients=1) as federation:
        federation.join(A, train)
        for _ in range(3):
            federation.round(1)
    assert seen == [(1, 8, 0, 2), (2, 4, 0.5, 2), (3, 2, 1, 2)]


def test_a_schedule_of_a_value_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"Server\.config"):
        Federation(config={"lr": lambda number: object()})
