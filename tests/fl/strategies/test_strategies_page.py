"""docs/reference/strategies.md: its code does what the page says."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import fl
from fl.config.strategy import STRATEGIES
from tests.fl.federation import A, B, C, Federation, filled, gives
from tests.pages import Page

PAGE = Page("docs/reference/strategies.md")
PROX, SCAFFOLD, OWN = PAGE.blocks("python")


def test_the_strategies_of_the_table_are_those_that_there_are() -> None:
    named = set(re.findall(r"`([A-Z]\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE.text, re.MULTILINE))))
    assert named == set(STRATEGIES)


def test_one_of_your_own_refuses_what_is_too_far_away() -> None:
    names: dict[str, Any] = {}
    exec(OWN, names)
    assert len(OWN.splitlines()) <= 36
    with Federation(strategy=names["Bounded"](10.0, fraction=1.0)) as federation:
        federation.join(A, gives(2))
        federation.join(B, gives(4))
        federation.join(C, gives(100))
        report = federation.round(3)
        assert set(report.clients) == {A, B}
        assert report.failures == {
            C: fl.ClientFailure(fl.FailureKind.INVALID, "it is 173 away from the model; expected 10 at most")
        }
        assert federation.w == [3] * 3


def local(code: str, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Run a client's code of the page on a loss of (w - 3) ** 2 / 2."""
    names = {"fl": fl, "model": filled(1), "config": config, "steps": 2, "rate": 0.5, **more}
    names["gradient"] = lambda model: {name: array - 3 for name, array in model.items()}
    exec(code, names)
    return names


def test_fedprox_pulls_back_to_where_the_round_began() -> None:
    assert local(PROX, {"proximal_mu": 0.0})["model"]["w"].tolist() == [2.5] * 3
    assert local(PROX, {"proximal_mu": 1.0})["model"]["w"].tolist() == [2.0] * 3  # 1 + 1, then +0.5 - 0.5


def test_scaffold_corrects_and_says_how_its_variate_changed() -> None:
    config = {"control": filled(0.5)}
    names = local(SCAFFOLD, config, control=fl.ControlVariate(), num_examples=4)
    assert names["model"]["w"].tolist() == pytest.approx([1.75 + (3 - 1.75) * 0.5 - 0.25] * 3)
    moved = (1 - names["model"]["w"]) / (2 * 0.5)  # option II: the mean gradient, as it was used
    np.testing.assert_allclose(names["update"].extra["w"], moved - 0.5)
    assert names["update"].num_examples == 4
