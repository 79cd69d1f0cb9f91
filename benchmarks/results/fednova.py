"""FedNova's case study: where FedAvg and FedNova converge if clients take different numbers of local steps.

Client i minimises |x - e_i|**2 / 2, by gradient descent from the round's model. So tau steps with a learning rate eta
move it from x to e_i by the fraction 1 - (1 - eta)**tau of the way, and each fixed point is a weighted mean of the e_i.

Source: Wang et al., 2020, "Tackling the objective inconsistency problem in heterogeneous federated optimization",
section 3 (equation 3, lemma 1, figure 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fl

CLIENTS, DIMENSIONS = 30, 10
STRATEGIES = {"FedAvg": fl.FedAvg, "FedNova": fl.FedNova, "FedNova, by progress": fl.FedNova}

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """The clients: their optima, one a row, their numbers of local steps, and their learning rates."""

    optima: Vector
    steps: NDArray[np.int64]
    rates: Vector

    @property
    def moved(self) -> Vector:
        """The fraction of the way to its optimum that each client moves in a round."""
        return 1 - (1 - self.rates) ** self.steps

    def divisors(self, name: str) -> Vector:
        """Return by what the strategy of this name divides each client's change: the metric `steps`."""
        if name == "FedAvg":
            return np.ones(len(self.steps))
        return self.steps.astype(float) if name == "FedNova" else self.moved / self.rates.min()

    def fixed_point(self, name: str) -> Vector:
        """Return the exact fixed point: x = mean(w * e) / mean(w), with w the change for each unit of distance."""
        return _mean(self.optima, self.moved / self.divisors(name))

    def limit(self, name: str) -> Vector:
        """Return the fixed point for learning rates near 0: that of lemma 1, if the name is FedAvg."""
        progress = self.rates * self.steps
        weights = {"FedAvg": progress, "FedNova": progress / self.steps}
        return _mean(self.optima, weights.get(name, np.ones(len(self.steps))))

    def optimum(self) -> Vector:
        """Return the minimum of the global objective, the mean of the clients' objectives."""
        return _mean(self.optima, np.ones(len(self.steps)))

    def rounds(self, name: str) -> int:
        """Return the rounds after which the distance to the fixed point is 1e-14 of the first one."""
        divisors = self.divisors(name)
        contraction = abs(1 - divisors.mean() * (self.moved / divisors).mean())
        return math.ceil(math.log(1e-14) / math.log(contraction))


def _mean(vectors: Vector, weights: Vector) -> Vector:
    return np.asarray(weights @ vectors / weights.sum())


def problem(rates: tuple[float, ...], seed: int = 0) -> Problem:
    """Return the paper's clients: optima from N(0, 0.01 I), and 1 to 96 local steps, 30 in the mean.

    rates: the clients have them in turn.
    """
    rng = np.random.default_rng(seed)
    steps = np.rint(1 + 95 * np.linspace(0, 1, CLIENTS) ** 2.345).astype(np.int64)
    return Problem(rng.normal(0, 0.1, (CLIENTS, DIMENSIONS)), rng.permutation(steps), np.resize(rates, CLIENTS))


def converge(given: Problem, name: str) -> Vector:
    """Run the federation until it has converged, and return its model."""
    divisors = given.divisors(name)

    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        client, x = config["partition"], model["x"]
        for _ in range(given.steps[client]):
            x -= given.rates[client] * (x - given.optima[client])
        return fl.Update({"x": x}, 1, {"steps": float(divisors[client])})

    model = {"x": np.zeros(DIMENSIONS)}
    result = fl.simulate(model, [train] * CLIENTS, given.rounds(name), strategy=STRATEGIES[name](), seed=0)
    return np.asarray(result.model["x"])


def main() -> None:
    """Print the table."""
    print("learning rates | strategy | rounds | to the minimum: lemma 1 | closed form | here | difference")
    for rates in ((0.05,), (0.005,), (0.01, 0.05)):
        given = problem(rates)
        for name in STRATEGIES:
            point, found = given.fixed_point(name), converge(given, name)
            distances = (np.linalg.norm(each - given.optimum()) for each in (given.limit(name), point, found))
            cells = (*(f"{distance:.5f}" for distance in distances), f"{np.abs(found - point).max():.0e}")
            print(" and ".join(map(str, rates)), name, given.rounds(name), *cells, sep=" | ", flush=True)
    print(f"local steps: {given.steps.min()} to {given.steps.max()}, {given.steps.mean():.1f} in the mean")
