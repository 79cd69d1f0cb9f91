"""Random numbers of simulated clients: independent between clients and calls, equal for any number of processes.

The table of deviations: `python -m pytest tests/fl/simulation/test_calls.py -k deviation -s`.
"""

from __future__ import annotations

import functools
import gc
import pickle
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fl
import netq
from fl.messages import Report, Update
from fl.simulation import calls
from fl.simulation.calls import Calls
from fl.simulation.simulate import Result, simulate

SIZE = 10_000
SEED = 31

generator, legacy, python = np.random.default_rng(), np.random.RandomState(), random.Random()
of_torch = {"cpu": torch.Generator()}  # the garbage collector tracks neither the dict nor the generator
children = np.random.default_rng()
Draw = Callable[[], Any]
find = calls._generators


@pytest.fixture(autouse=True, scope="module")
def found_once() -> Iterator[None]:
    """Look for this module's generators once: among the objects of a process with all tests that takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "_generators", functools.cache(find))
        yield


def normal_of(source: random.Random) -> list[float]:
    return [source.normalvariate(0, 1) for _ in range(SIZE)]


def normal_of_torch(generator: torch.Generator = torch.Generator()) -> NDArray[np.float32]:  # noqa: B008
    drawn: NDArray[np.float32] = torch.randn(SIZE, generator=generator).numpy()
    return drawn


DRAWS: dict[str, Draw] = {
    "np.random": lambda: np.random.normal(size=SIZE),
    "torch": lambda: torch.randn(SIZE).numpy(),
    "random": lambda: [random.gauss(0, 1) for _ in range(SIZE)],
    "np.random.Generator": lambda: generator.normal(size=SIZE),
    "np.random.Generator.spawn": lambda: children.spawn(1)[0].normal(size=SIZE),
    "np.random.RandomState": lambda: legacy.normal(size=SIZE),
    "random.Random": lambda: normal_of(python),
    "torch.Generator": lambda: torch.randn(SIZE, generator=of_torch["cpu"]).numpy(),
    "torch.Generator as default": normal_of_torch,
}


def zeros(size: int) -> dict[str, NDArray[np.float32]]:
    return {"w": np.zeros(size, np.float32)}


def of_sources() -> dict[str, NDArray[np.float32]]:
    """A model with a tensor for each source of noise."""
    return {name: np.zeros(SIZE, np.float32) for name in DRAWS}


def adds_noises(model: Any, config: Mapping[str, Any]) -> Update:
    return Update({name: model[name] + np.array(draw(), np.float32) for name, draw in DRAWS.items()}, 1)


def draws_from_all(model: Any, config: Mapping[str, Any]) -> Update:
    """An odd number of normal values: numpy and Python keep the second of a pair for the next call."""
    drawn = [
        *(np.random.normal(), random.gauss(0, 1), torch.randn(1).item()),
        *(generator.normal(), legacy.normal(), python.gauss(0, 1), torch.rand(1, generator=of_torch["cpu"]).item()),
    ]
    return Update({"w": model["w"] + np.array(drawn, np.float32)}, 1 + config["partition"])


def draws_from_globals(model: Any, config: Mapping[str, Any]) -> Update:
    drawn = [np.random.normal(), random.gauss(0, 1), torch.randn(1).item()]
    return Update({"w": model["w"] + np.array(drawn, np.float32)}, 1)


def w(result: Result) -> list[float]:
    found: list[float] = result.model["w"].tolist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_deviation_of_a_mean_of_four_noises_is_a_half(processes: int) -> None:
    for source, mean in simulate(of_sources(), [adds_noises] * 4, 1, processes=processes).model.items():
        print(f"{source:26} {processes} processes: {mean.std():.3f}")
        assert float(mean.std()) == pytest.approx(0.5, abs=0.03), source


def test_noises_of_two_rounds_are_independent() -> None:
    for source, sum in simulate(of_sources(), [adds_noises] * 2, 2, processes=2).model.items():
        assert float(sum.std()) == pytest.approx(1, abs=0.06), source


@pytest.mark.slow
def test_equal_seeds_give_equal_models_for_any_number_of_processes() -> None:
    runs = [simulate(zeros(7), [draws_from_all] * 4, 3, processes=count, seed=SEED) for count in (1, 2, 4)]
    assert w(runs[0]) == w(runs[1]) == w(runs[2])
    assert runs[0].seed == SEED


def test_repeated_calls_differ_and_the_result_has_the_seed() -> None:
    one, other = (simulate(zeros(7), [draws_from_all] * 2, 1, processes=2) for _ in range(2))
    assert all(a != b for a, b in zip(w(one), w(other), strict=True))
    assert w(simulate(zeros(7), [draws_from_all] * 2, 1, processes=1, seed=one.seed)) == w(one)


@pytest.mark.slow
def test_global_generators_are_seeded_alike_by_fork_and_spawn() -> None:
    found = simulate(zeros(3), [draws_from_globals] * 2, 2, processes=1, seed=SEED, start="spawn")
    assert w(found) == w(simulate(zeros(3), [draws_from_globals] * 2, 2, processes=2, seed=SEED))


@pytest.mark.slow
def test_evaluation_changes_no_training() -> None:
    def evaluate(model: Any, config: Mapping[str, Any]) -> Report:
        return Report(1, {"drawn": np.random.normal()})

    clients = [fl.Client(draws_from_all, evaluate) for _ in range(2)]
    evaluated = simulate(zeros(7), clients, 3, evaluate=True, seed=SEED)
    assert w(evaluated) == w(simulate(zeros(7), [draws_from_all] * 2, 3, seed=SEED))
    assert len({report.evaluation["drawn"] for report in evaluated.reports}) == 3


def test_second_training_of_a_round_draws_other_numbers() -> None:
    calls, drawn = Calls(SEED), []
    for count in (1, 2):
        with calls.alone(0, "train", count):
            drawn.append(generator.normal())
    assert drawn[0] != drawn[1]


def test_a_generator_of_a_module_draws_alike_whatever_others_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    others, found, drawn = [random.Random(), np.random.RandomState(), np.random.PCG64()], calls._generators(), []
    for older in ([], others):
        monkeypatch.setattr(calls, "_generators", lambda older=older: [*older, *found])
        with Calls(SEED).alone(0, "train", 1):
            drawn.append([generator.normal(), legacy.normal(), python.random()])
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("is_frozen", [True, False])
def test_what_the_program_has_frozen_stays_so(is_frozen: bool) -> None:
    gc.unfreeze()
    generator = random.Random(7)
    if is_frozen:
        gc.freeze()
    try:
        assert generator in find()
        assert (gc.get_freeze_count() > 0) is is_frozen
    finally:
        gc.freeze()  # as tests/conftest.py leaves it


def test_generators_of_a_subclass_and_of_the_system_are_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(random.Random):
        def seed(self, a: Any = None, version: int = 2) -> None:
            assert a is None, "called by Random.__init__ only"

    kept = Own(), random.SystemRandom(), np.random.RandomState(np.random.PCG64())
    monkeypatch.setattr(calls, "_generators", functools.cache(find))
    drawn = []
    for _ in range(2):
        with Calls(SEED).alone(0, "train", 1):
            drawn.append(kept[0].random())
    assert drawn[0] == drawn[1]


def test_calls_that_are_pickled_keep_the_seed() -> None:
    calls: Calls = pickle.loads(pickle.dumps(Calls(SEED)))
    assert calls.rounding_seed(1) == Calls(SEED).rounding_seed(1) != Calls(SEED).rounding_seed(2)


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True])
def test_wrong_seed_is_refused(seed: Any) -> None:
    with pytest.raises(netq.InvalidOption, match=r"simulate\.seed: .*; expected a whole number, 0 or more, or None"):
        simulate(zeros(7), [draws_from_all], seed=seed)


def cost(repeats: int = 1000) -> float:
    """Return the seconds that seeding adds to a call, with all the generators of this module."""
    calls = Calls(SEED)
    begin = time.process_time()
    for _ in range(repeats):
        with calls.alone(0, "train", 1):
            pass
    return (time.process_time() - begin) / repeats


if __name__ == "__main__":
    print(f"{len(Calls(SEED)._generators)} generators: {1e3 * cost():.3f} ms a call")
