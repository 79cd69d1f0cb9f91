"""The reference of strategies and the how-to page: they are complete, and their code does what they say."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

import fl
from fl.config.strategy import STRATEGIES
from fl.strategies.robust import RobustStrategy
from tests.fl.federation import A, B, C, Federation, filled, gives
from tests.pages import Page

PAGE = Page("docs/reference/strategies.md")
PROX, SCAFFOLD = PAGE.blocks("python")
HOW_TO = Page("docs/how-to/strategy.md")
UNIFORM, MERGING, BOUNDED = HOW_TO.blocks("python")


def test_tables_show_each_strategy_with_its_own_options() -> None:
    rows = [row for table in PAGE.tables("strategy", "what it does") for row in table[1:]]
    assert sorted(row[0] for row in rows) == sorted(f"`{call(STRATEGIES[name])}`" for name in STRATEGIES)


def call(kind: type) -> str:
    """The call with the defaults of a strategy's own options, as the page shows it."""
    common = {*options(fl.Strategy), *options(RobustStrategy)}
    own = [f"{name}={default!r}" for name, default in options(kind).items() if name not in common]
    return f"{kind.__name__}({', '.join(own)})".replace("'", '"')


def options(kind: type) -> dict[str, Any]:
    found = inspect.signature(kind).parameters.values()
    return {each.name: each.default for each in found if each.kind is not each.VAR_KEYWORD}


def test_options_of_every_strategy_are_shown_with_their_defaults() -> None:
    rows = PAGE.section("Options of every strategy").rows("option", "meaning")
    assert [row[0] for row in rows] == [f"`{name}={default}`" for name, default in options(fl.Strategy).items()]
    assert options(RobustStrategy).keys() - options(fl.Strategy).keys() == {"folder"}
    assert "`folder=None`" in PAGE.text


def test_options_of_compression_are_shown_with_their_defaults() -> None:
    rows = PAGE.section("Compression").rows("option of `fl.Compression`")
    assert [row[0] for row in rows] == [f"`{name}={default}`" for name, default in options(fl.Compression).items()]


def test_how_to_shows_each_public_member() -> None:
    required, others = HOW_TO.rows("method", "called"), HOW_TO.rows("method, attribute", "purpose")
    members = {name for name in vars(fl.Strategy) if not name.startswith("_")}  # without the options `__init__` sets
    assert shown(required) == fl.Strategy.__abstractmethods__
    assert shown(others) == members - fl.Strategy.__abstractmethods__


def shown(rows: list[list[str]]) -> set[str]:
    return set(re.findall(r"`(\w+)", " ".join(row[0] for row in rows)))


@pytest.mark.parametrize("code", [UNIFORM, BOUNDED])
def test_how_to_has_the_signatures_of_the_code(code: str) -> None:
    names: dict[str, Any] = {}
    exec(code, names)
    (kind,) = [each for each in names.values() if isinstance(each, type) and issubclass(each, fl.Strategy)]
    for name in fl.Strategy.__abstractmethods__:
        assert arguments(kind, name) == arguments(fl.Strategy, name)


def arguments(kind: type, method: str) -> list[tuple[Any, ...]]:
    found = inspect.signature(getattr(kind, method)).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


@pytest.mark.parametrize("name", STRATEGIES)
def test_api_page_lists_each_strategy(name: str) -> None:
    assert f".. autoclass:: fl.{name}\n" in Page("docs/reference/python/strategies.md").text


def test_fedprox_clients_get_mu_in_their_config() -> None:
    assert fl.FedProx(mu=0.3).config(1) == {"proximal_mu": 0.3}


def test_how_to_example_refuses_a_distant_update() -> None:
    names: dict[str, Any] = {}
    exec(BOUNDED, names)
    assert len(BOUNDED.splitlines()) <= 36
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


def test_fedprox_example_pulls_towards_the_start() -> None:
    assert local(PROX, {"proximal_mu": 0.0})["model"]["w"].tolist() == [2.5] * 3
    assert local(PROX, {"proximal_mu": 1.0})["model"]["w"].tolist() == [2.0] * 3  # 1 + 1, then +0.5 - 0.5


def test_scaffold_example_corrects_and_returns_its_change() -> None:
    config = {"control": filled(0.5)}
    names = local(SCAFFOLD, config, control=fl.ControlVariate({}), num_examples=4)
    assert names["model"]["w"].tolist() == pytest.approx([1.75 + (3 - 1.75) * 0.5 - 0.25] * 3)
    moved = (1 - names["model"]["w"]) / (2 * 0.5)  # option II: the mean gradient, as it was used
    np.testing.assert_allclose(names["update"].extra["w"], moved - 0.5)
    assert names["update"].num_examples == 4


def test_strategy_of_the_page_merges() -> None:
    names: dict[str, Any] = {}
    exec(MERGING, names)
    model = {"w": np.zeros(2)}
    worker, here = names["Uniform"](), names["Uniform"]()
    for each in (worker, here):
        each.begin(model)
        each.fold(model, fl.Update({"w": np.full(2, 3.0)}, 5), client=None)
    here.merge(worker.partial())
    here.merge(worker.partial())  # nothing
    assert here.merges
    assert here.finish(model, number=1)["w"].tolist() == [3, 3]
