"""The base class: selection of clients, config, compression, weights of late updates, checks of options."""

from __future__ import annotations

import sys
import uuid
from typing import Any, ClassVar

import pytest

from fl.client import Client
from fl.messages import Update
from fl.strategies.asynchronous import FedBuff
from fl.strategies.base import hinge, polynomial
from fl.strategies.fedavg import FedAdam, FedAvg, FedProx
from fl.strategies.robust import Krum
from tests.fl.federation import A, B, Federation, gives

IDS = [uuid.UUID(int=n) for n in range(1, 21)]


@pytest.mark.parametrize(
    ("fraction", "clients", "expected"), [(1.0, 20, 20), (0.5, 20, 10), (0.1, 20, 2), (0.01, 20, 1), (0.3, 1, 1)]
)
def test_select_returns_the_fraction(fraction: float, clients: int, expected: int) -> None:
    drawn = FedAvg(fraction=fraction).select(1, IDS[:clients])
    assert len(drawn) == len(set(drawn)) == expected
    assert set(drawn) <= set(IDS[:clients])


def test_selection_depends_on_seed_and_round_only() -> None:
    def draws(seed: int, clients: list[uuid.UUID]) -> list[Any]:
        strategy = FedAvg(fraction=0.25, seed=seed)
        return [strategy.select(number, clients) for number in range(1, 50)]

    assert draws(1, IDS) == draws(1, IDS[::-1])
    assert draws(1, IDS) != draws(2, IDS)
    assert {id for draw in draws(1, IDS) for id in draw} == set(IDS)  # each client is selected at some time
    assert FedAvg(fraction=0.25, seed=1).select(7, IDS) == draws(1, IDS)[6]  # independent of earlier calls


@pytest.mark.parametrize("fraction", [0, -0.5, 1.01, float("nan"), float("inf"), True, "1"])
def test_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"FedAvg\.fraction: .*expected more than 0, and 1 at most"):
        FedAvg(fraction=fraction)


def test_config_is_copied_and_equal_in_every_round() -> None:
    config = {"rate": 0.1}
    strategy = FedAvg(config=config)
    config["rate"] = 99
    assert strategy.config(1) == strategy.config(2) == {"rate": 0.1}
    assert FedAvg().config(1) == {}


@pytest.mark.parametrize(
    ("fraction", "oversample", "asked", "enough"),
    [(1.0, 0.0, 20, 20), (0.5, 0.3, 13, 10), (0.5, 2.0, 20, 10), (0.1, 0.01, 3, 2)],
)
def test_oversample_asks_more_clients_than_needed(fraction: float, oversample: float, asked: int, enough: int) -> None:
    strategy = FedAvg(fraction=fraction, oversample=oversample)
    assert len(strategy.select(1, IDS)) == asked
    assert strategy.enough(len(IDS)) == enough


def test_fold_gets_the_client_and_finish_the_round() -> None:
    class Records(FedAvg):
        calls: ClassVar[list[Any]] = []

        def fold(self, model: Any, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
            self.calls.append((client, update.num_examples))
            super().fold(model, update, client=client, staleness=staleness)

        def finish(self, model: Any, *, number: int) -> Any:
            self.calls.append(number)
            return super().finish(model, number=number)

    with Federation(strategy=Records()) as federation:
        federation.join(A, gives(2, 5))
        federation.join(B, gives(4, 7))
        federation.round(2)
        federation.round(2)
    assert set(Records.calls[:2]) == set(Records.calls[3:5]) == {(A, 5), (B, 7)}
    assert Records.calls[2::3] == [1, 2]


def test_discount_follows_staleness() -> None:
    assert [polynomial(0.5)(late) for late in (0, 3, 8)] == [1, 0.5, 1 / 3]
    assert [hinge(10, 4)(late) for late in (0, 4, 5, 6)] == [1, 1, 1 / 11, 1 / 21]
    assert FedAvg().discount(0) == FedAvg(staleness=lambda late: 0.1).discount(0) == 1
    assert FedAvg(staleness=polynomial(1)).discount(3) == 0.25


@pytest.mark.parametrize("exponent", [-1, float("nan"), "1"])
def test_negative_exponent_is_refused(exponent: Any) -> None:
    with pytest.raises(ValueError, match=r"exponent: .*expected 0 or more"):
        polynomial(exponent)


@pytest.mark.parametrize(
    ("text", "late", "weight"), [("polynomial", 3, 0.5), (" polynomial( 1.0 ) ", 3, 0.25), ("hinge(10, 4)", 5, 1 / 11)]
)
def test_staleness_may_be_a_text(text: str, late: int, weight: float) -> None:
    assert FedAvg(staleness=text).discount(late) == weight
    assert FedBuff(staleness=text).discount(late) == weight


WRONG: list[tuple[Any, str]] = [
    (0.5, '0.5; expected "polynomial'),
    (polynomial, "<function polynomial at .*or a function, such as fl.polynomial"),
    ("exponential(2)", "'exponential\\(2\\)'; expected \"polynomial"),
    ("polynomial(-1)", "'polynomial\\(-1\\)': exponent: -1.0; expected 0 or more; see fl.polynomial"),
    ("hinge(1, 2, 3)", "takes from 0 to 2 positional arguments but 3 were given; see fl.hinge"),
]


@pytest.mark.parametrize(("staleness", "said"), WRONG, ids=["number", "maker", "name", "exponent", "count"])
def test_wrong_staleness_is_refused_at_construction(staleness: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^staleness: .*{said}"):
        FedAvg(staleness=staleness)


def test_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"^FedProx has no option 'penalty'; expected one of mu, optimizer, fraction"):
        FedProx(penalty=0.1)
    with pytest.raises(TypeError, match=r"^Krum has no option 'keep'; expected one of byzantine, folder, fraction"):
        Krum(keep=2)
    with pytest.raises(TypeError, match=r"^FedAdam has no option 'learning_rat'; did you mean learning_rate\?"):
        FedAdam(learning_rat=0.1)


@pytest.mark.parametrize(
    ("kind", "option", "said"),
    [
        (FedProx, "proximal_mu", "is mu here"),
        (FedAdam, "eta", "is learning_rate here"),
        (FedAdam, "tau", "is adaptivity here"),
        (FedAdam, "eta_l", "is the learning rate of your clients"),
        (FedAvg, "fraction_fit", "is fraction here"),
        (FedAvg, "fraction_train", "is fraction here"),
        (FedAvg, "min_available_nodes", "is the argument `min_clients` of the server"),
        (Krum, "num_malicious_nodes", "is byzantine here"),
    ],
)
def test_options_of_flower_are_translated(kind: Any, option: str, said: str) -> None:
    with pytest.raises(TypeError, match=f"has no option '{option}'; what Flower calls {option} {said}"):
        kind(**{option: 1})


def test_name_that_flower_has_and_this_strategy_has_not_is_no_translation() -> None:
    with pytest.raises(TypeError, match=r"^FedAvg has no option 'tau'; expected one of "):
        FedAvg(tau=1)


@pytest.mark.parametrize(
    ("options", "said"), [({"seed": "a"}, "seed: 'a'; expected"), ({"config": 3}, "config: 3; exp")]
)
def test_wrong_option_value_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=rf"^FedAvg\.{said}"):
        FedAvg(**options)


def test_zstd_without_its_library_is_refused_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ImportError, match="zstd needs zstandard"):
        FedAvg(compression="int8, zstd=3")
    with pytest.raises(ImportError, match="zstd needs zstandard"):
        Client(lambda model, config: Update(model, 1), compression="int8, zstd=3")
