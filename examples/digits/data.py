"""The digits: what the server tests on, and which part of the rest each client has.

scikit-learn's 1797 images of 8 x 8 pixels. Everything here is a function of seeds, so that each process comes
to the same split by itself; no example ever travels.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TEST_SHARE = 0.2
TEST_SEED = 0  # the test never changes, so that runs of different seeds can be compared
SKEW = 0.5  # of the Dirichlet distribution: the smaller, the more the clients differ in what they have seen
LEAST = 16  # examples that every client has
EPOCHS = 2
BATCH_SIZE = 32


class Examples(NamedTuple):
    """Images of shape (n, 64), from 0 to 1, and labels of shape (n,), from 0 to 9."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def take(self, indices: NDArray[np.intp]) -> Examples:
        """Return the examples at `indices`."""
        return Examples(self.images[indices], self.labels[indices])


@functools.cache
def load() -> tuple[Examples, Examples]:
    """Return what the clients share among themselves, and what the server keeps for its test."""
    table = np.loadtxt(_file(), np.uint8, delimiter=",")  # a row: 64 pixels from 0 to 16, and the label
    digits = Examples((table[:, :64] / 16).astype(np.float32), table[:, 64].astype(np.int64))
    order = np.random.default_rng(TEST_SEED).permutation(len(table))
    start = round(len(table) * TEST_SHARE)
    return digits.take(order[start:]), digits.take(order[:start])


def _file() -> str:
    """Return the path of scikit-learn's file of the digits: importing scikit-learn takes seconds, in each process."""
    return str(metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz"))


def held_out() -> Examples:
    """Return the examples that no client has."""
    return load()[1]


def partition(config: Mapping[str, Any]) -> Examples:
    """Return the examples of one client: part `partition` of `partitions`, dealt out by `seed`."""
    examples, _ = load()
    return examples.take(split(examples.labels, config["partitions"], config["seed"])[config["partition"]])


def split(labels: NDArray[np.int64], partitions: int, seed: int) -> list[NDArray[np.intp]]:
    """Deal the indices of `labels` out, each to one partition, with every partition seeing other labels more often.

    For each label the partitions' shares are drawn from a Dirichlet distribution (Yurochkin et al. 2019,
    arXiv:1905.12022, section 4). A partition that is left with too few examples gets some of the largest one's.
    """
    if len(labels) < partitions:
        raise ValueError(f"{len(labels)} examples cannot be dealt out to {partitions} partitions")
    rng = np.random.default_rng(seed)
    dealt: list[list[int]] = [[] for _ in range(partitions)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(partitions, SKEW))
        cuts = (np.cumsum(shares[:-1]) * len(members)).astype(int)
        for part, piece in zip(dealt, np.split(members, cuts), strict=True):
            part.extend(piece.tolist())
    least = min(LEAST, len(labels) // partitions)
    while len(poorest := min(dealt, key=len)) < least:
        poorest.append(max(dealt, key=len).pop())
    return [np.array(sorted(part), dtype=np.intp) for part in dealt]


def batches(examples: Examples, config: Mapping[str, Any]) -> Iterator[Examples]:
    """Yield the minibatches of one client's round, in an order that only seed, partition and round decide."""
    rng = np.random.default_rng([config["seed"], config["partition"], config["round"]])
    for _ in range(EPOCHS):
        order = rng.permutation(len(examples.labels))
        for start in range(0, len(order), BATCH_SIZE):
            yield examples.take(order[start : start + BATCH_SIZE])
