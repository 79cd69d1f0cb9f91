"""Partitions of a data set among clients, for simulations and tests. Each example goes to exactly one client.

A partition is a list with one array of indices per client. It depends on the arguments only, so each process that
calls the function gets the same partition, and no example needs to travel.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netq.validate import expect, is_number, whole

Parts = list[NDArray[np.intp]]


def iid(examples: int, clients: int, seed: int = 0) -> Parts:
    """Split so many examples at random into parts of equal size, give or take one. Raises InvalidOption."""
    _check_clients(clients, whole("examples", examples, 0))
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(examples), clients)]


def dirichlet(labels: ArrayLike, clients: int, alpha: float, seed: int = 0) -> Parts:
    """Split examples by label into parts of equal size, give or take one, whose mixtures of labels differ.

    labels: the label of each example: whole numbers or texts, in one dimension.
    alpha:  concentration, above 0. A large value gives each client the mixture of the whole data set; a small one gives
            each client few labels. The mixture of a client is drawn from Dir(alpha * p), where p is the share of each
            label in the whole data set.

    Source: Hsu, Qi and Brown, 2019, "Measuring the effects of non-identical data distribution for federated visual
    classification", section 3. A client whose labels are used up gets the labels that are left, in proportion to its
    mixture. Raises InvalidOption, also if there are fewer examples than clients.
    """
    given = np.asarray(labels)
    expect(
        given.ndim == 1, "labels", f"an array of shape {given.shape}", "one label for each example, in one dimension"
    )
    _check_clients(clients, len(given))
    expect(is_number(alpha, 0) and 0 < alpha < math.inf, "alpha", alpha, "a finite number above 0")
    rng = np.random.default_rng(seed)
    _, codes, left = np.unique(given, return_inverse=True, return_counts=True)
    by_label = [rng.permutation(np.flatnonzero(codes == code)) for code in range(len(left))]
    prior = left / len(given)
    parts: Parts = [np.empty(0, np.intp)] * clients
    # The last clients in this order get what the others have left. The order is random, so that this bias belongs to no
    # client number.
    for turn, client in enumerate(rng.permutation(clients)):
        size = len(given) // clients + (turn < len(given) % clients)
        counts = _draw(rng, size, rng.dirichlet(alpha * prior), left)
        left = left - counts
        parts[client] = np.sort(
            np.concatenate([by_label[code][left[code] : left[code] + count] for code, count in enumerate(counts)])
        )
    return parts


def _draw(rng: np.random.Generator, size: int, mixture: NDArray[Any], left: NDArray[Any]) -> NDArray[Any]:
    """Return how many examples of each label a client gets: `size` in all, and of no label more than are left."""
    counts = np.zeros_like(left)
    while missing := size - counts.sum():  # each pass but the last uses up a label
        weights = np.where(left > counts, mixture, 0.0)
        if not weights.sum() > 0:  # none of the client's labels is left
            weights = (left - counts).astype(float)
        counts += np.minimum(rng.multinomial(missing, weights / weights.sum()), left - counts)
    return counts


def _check_clients(clients: int, examples: int) -> None:
    whole("clients", clients, 1)
    expect(examples >= clients, "clients", clients, f"at most one for each of the {examples} examples")
