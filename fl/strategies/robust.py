"""Byzantine-robust strategies: they limit the effect of faulty or hostile clients on the model.

Each needs all updates of a round at once. RobustStrategy stores them on disk and reads them block by block
(fl/aggregation/update_store.py), so the server's memory does not grow with the number of clients. The calculations on a
block are in fl/aggregation/robust.py. All but GeometricMedian ignore num_examples, because a client may claim any
number.

Each refuses the option `staleness`. The guarantees hold for updates that began at the same model; a late update began
at an older one, so its distance from the others says nothing about its client.
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.aggregation import integers
from fl.aggregation.mean import Accumulator, checked_weight
from fl.aggregation.robust import mean, mean_around_median, median, reals, scores, squared_norms, trimmed_mean
from fl.aggregation.update_store import UpdateStore
from fl.errors import TooFewUpdates
from fl.messages import Update
from fl.strategies.base import Strategy, within
from fl.tensors.spec import Model
from netq.errors import InvalidOption
from netq.validate import whole

_NO_STALENESS = (
    "expected None; the strategy compares the updates of one round, and a late update began at an older model: leave "
    "the option out, so that late updates are refused"
)

Kernel = Callable[[NDArray[Any]], NDArray[Any]]  # real numbers [updates, elements] -> [elements]


class RobustStrategy(Strategy):
    """A strategy that needs all updates of a round at once. Subclasses write `finish`, and `least` if it is not 1.

    `finish` calls `_require_count`, then `_combine_and_reset` with a kernel of fl/aggregation/robust.py. Before this it
    may read `self._updates`, an UpdateStore, block by block: for distances between updates, for example.

    folder: where the updates of a round are stored; see UpdateStore.
    """

    roles = ("trained", "averaged", "unit")  # one client could move a plain mean of the statistics anywhere

    def __init__(self, *, folder: str | os.PathLike[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        if self.staleness is not None:
            raise InvalidOption(f"{type(self).__name__}.staleness: {_NO_STALENESS}")
        self._folder = folder

    def begin(self, model: Model) -> None:
        """Allocate the memory of the result. Raises UpdateStoreError if the folder cannot be written to."""
        self._updates, self._result = UpdateStore(model, self._folder), Accumulator(model)

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Store the update on disk. Raises UpdateStoreError, with nothing changed, if there is no room."""
        self._updates.add(update.model)

    def abandon(self) -> None:
        """Discard the updates, and free the disk space."""
        self._updates.reset()

    def _require_count(self, count: int, why: str) -> None:
        """Raise TooFewUpdates, and keep the updates, if there are fewer than `count`."""
        if len(self._updates) < count:
            came = f"{len(self._updates)} updates came; {type(self).__name__} needs {count} ({why})"
            raise TooFewUpdates(f"{came}; set min_clients to so many, or expect fewer liars")

    def _combine_and_reset(self, kernel: Kernel, updates: Sequence[int] | None = None) -> Model:
        """Apply a kernel to all updates, or to some of them. Return the model, and reset for the next round.

        updates: indices by order of arrival, which are also the order of the kernel's rows; None: all.
        """
        for stack in self._updates.blocks(updates):
            where, rows = slice(stack.start, stack.stop), stack.matrix
            if self._result.specs[stack.name].is_long:
                base = self._result.base(stack.name)[where] = rows[0]
                rows = integers.difference(rows, base)
            reals(self._result[stack.name][where])[:] = kernel(reals(rows))
        self.abandon()
        return self._result.finish()


class FedMedian(RobustStrategy):
    """The median of each coordinate; of an even number of updates, the mean of the two in the middle.

    With 2f + 1 updates or more, f of them cannot move a coordinate out of the range of the others. It works with one
    update or more. Integers are the rounded median; a bool is the majority.

    Source: Yin et al., 2018, "Byzantine-robust distributed learning: towards optimal statistical rates", algorithm 1,
    option I.
    """

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the median."""
        self._require_count(1, "for a median")
        return self._combine_and_reset(median)


class FedTrimmedAvg(RobustStrategy):
    """The mean of each coordinate without its largest and smallest values.

    beta: fraction of the updates that is dropped at each end, rounded down; 0 to 0.5. 0.5 leaves the median.

    Against f byzantine clients it needs f / beta updates, and 2f + 1. It works with one update or more. Integers and
    bools are trimmed too, then rounded.

    Source: Yin et al., 2018, "Byzantine-robust distributed learning: towards optimal statistical rates", algorithm 1,
    option II.
    """

    def __init__(self, beta: float = 0.2, **options: Any) -> None:
        super().__init__(**options)
        self._beta = within("beta", beta, 0, 0.5, include_low=True)

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the trimmed mean."""
        self._require_count(1, "for a mean")
        count = len(self._updates)
        cut = int(self._beta * count + 1e-9)  # 0.29 * 100 is 28.999999999999996
        return self._combine_and_reset(functools.partial(trimmed_mean, cut=min(cut, (count - 1) // 2)))


class KrumSelection(RobustStrategy):
    """The selection of Krum and MultiKrum: the `_keep` updates with the lowest scores."""

    def __init__(self, byzantine: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self._byzantine = whole("byzantine", byzantine, 0)
        self._keep: int | None = None  # None: all but `byzantine`

    @property
    def least(self) -> int:  # type: ignore[override]
        """Return max(2f + 3, f + keep)."""
        return max(2 * self._byzantine + 3, (self._keep or 0) + self._byzantine)

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the mean of the updates with the lowest scores."""
        self._require_count(2 * self._byzantine + 3, f"2f + 3, with f = {self._byzantine} byzantine")
        keep = len(self._updates) - self._byzantine if self._keep is None else self._keep
        self._require_count(keep + self._byzantine, f"{keep} to keep, and {self._byzantine} byzantine")
        best = np.argsort(scores(squared_distances(self._updates), self._byzantine), kind="stable")
        return self._combine_and_reset(mean, best[:keep].tolist())


class MultiKrum(KrumSelection):
    """The mean of the updates that are closest to their neighbours.

    byzantine: number of byzantine clients, the paper's f. 2f + 3 updates are needed, and f + keep.
    keep:      number of updates in the mean; None: all but `byzantine`.

    The score of an update is the sum of the squared distances to its n - f - 2 nearest others. Of equal scores the
    earlier arrival comes first. Integers and bools count in no distance; they are the rounded mean of the same updates.
    The time grows with the square of the number of updates.

    Source: Blanchard et al., 2017, "Machine learning with adversaries: Byzantine tolerant gradient descent" (Krum and
    Multi-Krum).
    """

    def __init__(self, byzantine: int = 1, keep: int | None = None, **options: Any) -> None:
        super().__init__(byzantine, **options)
        self._keep = None if keep is None else whole("keep", keep, 1)


class Krum(KrumSelection):
    """The update that is closest to its neighbours; see MultiKrum.

    byzantine: number of byzantine clients, the paper's f. 2f + 3 updates are needed.
    """

    def __init__(self, byzantine: int = 1, **options: Any) -> None:
        super().__init__(byzantine, **options)
        self._keep = 1


class Bulyan(RobustStrategy):
    """Selects updates by Krum, one after the other, and takes the mean of the values around each coordinate's median.

    byzantine: number of byzantine clients, the paper's f. 4f + 3 updates are needed.

    Of n updates, n - 2f are selected, each by its score among the updates that are left (see MultiKrum; at least one
    neighbour counts). For each coordinate n - 4f of their values go into the mean: those nearest to the median, and the
    lower of two at the same distance. Integers and bools count in no distance; they are selected too, then rounded.

    Source: El Mhamdi et al., 2018, "The hidden vulnerability of distributed learning in Byzantium".
    """

    def __init__(self, byzantine: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self._byzantine = whole("byzantine", byzantine, 0)

    @property
    def least(self) -> int:  # type: ignore[override]
        """Return 4f + 3."""
        return 4 * self._byzantine + 3

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the mean around the median of the selected updates."""
        self._require_count(self.least, f"4f + 3, with f = {self._byzantine} byzantine")
        count, distances = len(self._updates), squared_distances(self._updates)
        # A selected update is no neighbour of the others any more, so each step computes all scores again.
        remaining, selected = list(range(count)), list[int]()
        while len(selected) < count - 2 * self._byzantine:
            best = np.argmin(scores(distances[np.ix_(remaining, remaining)], self._byzantine))
            selected.append(remaining.pop(int(best)))
        return self._combine_and_reset(
            functools.partial(mean_around_median, keep=count - 4 * self._byzantine), selected
        )


class GeometricMedian(RobustStrategy):
    """The point with the smallest sum of distances to all updates, weighted by numbers of examples (RFA).

    iterations: of the smoothed Weiszfeld algorithm. Each reads all updates; the start is each coordinate's median.
    smoothing:  lower bound of a distance, the paper's nu.

    It tolerates f byzantine clients among 2f + 1 if they also claim less than half of the examples: the server cannot
    verify num_examples. It works with one update or more. Integers and bools count in no distance; they are the rounded
    mean with the last weights.

    Source: Pillutla et al., 2022, "Robust aggregation for federated learning".
    """

    def __init__(self, iterations: int = 8, smoothing: float = 1e-6, **options: Any) -> None:
        super().__init__(**options)
        self._iterations = whole("iterations", iterations, 1)
        self._smoothing = within("smoothing", smoothing, 0, np.inf)

    def begin(self, model: Model) -> None:
        """Allocate the memory of the result, and start without weights."""
        super().begin(model)
        self._weights: list[float] = []

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Store the update on disk, and its number of examples in memory."""
        weight = checked_weight(update.num_examples)
        super().fold(model, update, client=client, staleness=staleness)
        self._weights.append(weight)

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the point after the last iteration."""
        self._require_count(1, "for a median")
        # `point` is a kernel, not an array, which would need the memory of a model: each iteration computes the point
        # again, block by block. Only the ratios of the weights count; the divisions keep them in the range of floats.
        weights, point = np.array(self._weights) / max(self._weights), median
        for _ in range(self._iterations):
            distances = np.maximum(distances_from(point, self._updates), self._smoothing)
            shares = weights * (distances.min() / distances)
            point = functools.partial(np.matmul, shares / shares.sum())
        return self._combine_and_reset(point)

    def abandon(self) -> None:
        """Discard the updates and their weights."""
        super().abandon()
        self._weights.clear()


def squared_distances(updates: UpdateStore) -> NDArray[np.float64]:
    """Return the squared distances between all updates, [updates, updates], without integers and bools.

    They are computed from differences, at about a nanosecond per element of a pair. Products (|a|² + |b|² - 2ab) are
    much faster for many updates, but lose all digits for two near updates when a third is far away. With differences,
    equal updates also have distances that are equal to the last bit.
    """
    count = len(updates)
    squares = np.zeros((count, count))
    with np.errstate(over="ignore"):  # an infinite distance sorts last, as it should
        for stack in updates.blocks(exact=False):
            rows = reals(stack.matrix).astype(np.float64)
            for at in range(count - 1):
                squares[at, at + 1 :] += squared_norms(rows[at + 1 :] - rows[at])
    return squares + squares.T


def distances_from(point: Kernel, updates: UpdateStore) -> NDArray[np.float64]:
    """Return the distance of each update from the point that the kernel computes, without integers and bools.

    A distance may be infinite. Give such an update a weight of 0: a finite number in its place, even the largest float,
    is less than the true distance, and with the weight of that one client could move the model anywhere. If all are
    infinite, none is nearer than another, and the distances are 1.
    """
    squares = np.zeros(len(updates))
    with np.errstate(over="ignore"):
        for stack in updates.blocks(exact=False):
            rows = reals(stack.matrix).astype(np.float64)
            squares += squared_norms(rows - point(rows))
    distances = np.sqrt(squares)
    return distances if np.isfinite(distances).any() else np.ones_like(distances)
