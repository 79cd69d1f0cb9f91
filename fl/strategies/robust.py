"""Strategies that some clients may lie to: medians, trimmed means, Krum and what was made of it, the geometric median.

Each needs all updates of a round at once, and reads them block by block from disk (fl/aggregation/update_store.py):
the server's memory does not grow with its clients. All but GeometricMedian ignore num_examples, because a client may
claim any number.

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

Kernel = Callable[[NDArray[Any]], NDArray[Any]]  # of real numbers [updates, elements] to [elements]


class RobustStrategy(Strategy):
    """A strategy that sees all updates of a round at once. Subclass it, and write `finish`.

    `folder`: on whose disk they are kept, with room for all of a round; see UpdateStore.
    """

    def __init__(self, *, folder: str | os.PathLike[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        if self.staleness is not None:
            raise InvalidOption(f"{type(self).__name__}.staleness: {_NO_STALENESS}")
        self._folder = folder

    def begin(self, model: Model) -> None:
        """Make the memory of the result, and see to the folder; raises SpoolError if it cannot be written to."""
        self._updates, self._result = UpdateStore(model, self._folder), Accumulator(model)

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Put the update on disk. Raises SpoolError, too, and has changed nothing then, if there is no room for it."""
        self._updates.add(update.model)

    def abandon(self) -> None:
        """Forget the updates, and give the disk back."""
        self._updates.reset()

    def _require_count(self, count: int, why: str) -> None:
        if len(self._updates) < count:
            came = f"{len(self._updates)} updates came; {type(self).__name__} needs {count} ({why})"
            raise TooFewUpdates(f"{came}; set min_clients to so many, or expect fewer liars")

    def _combine(self, kernel: Kernel, updates: Sequence[int] | None = None) -> Model:
        """Return the model that a kernel makes of the updates, or of some. The next round begins."""
        for stack in self._updates.blocks(updates):
            reals(self._result[stack.name][stack.start : stack.stop])[:] = kernel(reals(stack.matrix))
        self.abandon()
        return self._result.finish()


class FedMedian(RobustStrategy):
    """The median of each coordinate; of an even number of updates, the mean of the two in the middle.

    Source: Yin et al., 2018, "Byzantine-robust distributed learning: towards optimal statistical rates", algorithm 1,
    option I. Of 2f + 1 updates or more, f can move no coordinate out of the range of the others. Takes one update or
    more. Whole numbers are the rounded median, bools what more than half say.
    """

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the median."""
        self._require_count(1, "for a median")
        return self._combine(median)


class FedTrimmedAvg(RobustStrategy):
    """The mean of each coordinate without the largest and the smallest, a share of `beta` each, 0 to 0.5.

    Source: Yin et al., 2018, "Byzantine-robust distributed learning: towards optimal statistical rates", algorithm 1,
    option II. So many are dropped at each end as are whole in beta * updates, and 0.5 leaves the median; against f
    liars, f / beta updates are needed. Takes one update or more. Whole numbers and bools are trimmed as all else, then
    rounded.
    """

    def __init__(self, beta: float = 0.2, **options: Any) -> None:
        super().__init__(**options)
        self._beta = within("beta", beta, 0, 0.5, include_low=True)

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the trimmed mean."""
        self._require_count(1, "for a mean")
        count = len(self._updates)
        cut = int(self._beta * count + 1e-9)  # 0.29 * 100 is 28.999999999999996
        return self._combine(functools.partial(trimmed_mean, cut=min(cut, (count - 1) // 2)))


class KrumSelection(RobustStrategy):
    """What Krum and MultiKrum have in common: `_keep` of the updates, those that are closest to their neighbours."""

    def __init__(self, byzantine: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self._byzantine = whole("byzantine", byzantine, 0)
        self._keep: int | None = None  # all but the byzantine

    @property
    def least(self) -> int:  # type: ignore[override]
        """2f + 3, and f + keep."""
        return max(2 * self._byzantine + 3, (self._keep or 0) + self._byzantine)

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the mean of the best."""
        self._require_count(2 * self._byzantine + 3, f"2f + 3, with f = {self._byzantine} byzantine")
        keep = len(self._updates) - self._byzantine if self._keep is None else self._keep
        self._require_count(keep + self._byzantine, f"{keep} to keep, and {self._byzantine} byzantine")
        best = np.argsort(scores(squared_distances(self._updates), self._byzantine), kind="stable")
        return self._combine(mean, best[:keep].tolist())


class MultiKrum(KrumSelection):
    """The mean of the `keep` updates that are closest to their neighbours; None: of all but `byzantine`.

    Source: Blanchard et al., 2017, "Machine learning with adversaries: Byzantine tolerant gradient descent" (Krum and
    Multi-Krum). Against f liars (`byzantine`), 2f + 3 updates are needed, and f + keep. Score: the sum of the squared
    distances to the n - f - 2 closest others; of equal scores the earlier arrival is first. Whole numbers and bools
    count in no distance, and are the rounded mean of the same updates. Time grows with the square of the updates.
    """

    def __init__(self, byzantine: int = 1, keep: int | None = None, **options: Any) -> None:
        super().__init__(byzantine, **options)
        self._keep = None if keep is None else whole("keep", keep, 1)


class Krum(KrumSelection):
    """The one update that is closest to its neighbours: see MultiKrum. Against f liars, 2f + 3 updates are needed."""

    def __init__(self, byzantine: int = 1, **options: Any) -> None:
        super().__init__(byzantine, **options)
        self._keep = 1


class Bulyan(RobustStrategy):
    """Of the updates that Krum chooses one after the other, the mean of the values around each coordinate's median.

    Source: El Mhamdi et al., 2018, "The hidden vulnerability of distributed learning in Byzantium". Against f liars
    (`byzantine`), 4f + 3 updates are needed: n - 2f are chosen, each by its score among those that are left (see
    MultiKrum; at least one neighbour counts), and n - 4f of their values are kept, the lower of two that are as far
    from the median. Whole numbers and bools count in no distance; they are kept as all else, then rounded.
    """

    def __init__(self, byzantine: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self._byzantine = whole("byzantine", byzantine, 0)

    @property
    def least(self) -> int:  # type: ignore[override]
        """4f + 3."""
        return 4 * self._byzantine + 3

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the mean around the median of those that are chosen."""
        self._require_count(self.least, f"4f + 3, with f = {self._byzantine} byzantine")
        count, distances = len(self._updates), squared_distances(self._updates)
        left, chosen = list(range(count)), list[int]()
        while len(chosen) < count - 2 * self._byzantine:
            best = np.argmin(scores(distances[np.ix_(left, left)], self._byzantine))
            chosen.append(left.pop(int(best)))
        return self._combine(functools.partial(mean_around_median, keep=count - 4 * self._byzantine), chosen)


class GeometricMedian(RobustStrategy):
    """The point whose distances from all updates, by their numbers of examples, have the smallest sum (RFA).

    Source: Pillutla et al., 2022, "Robust aggregation for federated learning", the smoothed Weiszfeld algorithm.
    `iterations`: of it, each of which reads all updates; they begin at each coordinate's median. `smoothing`: the least
    distance, the paper's nu. It withstands liars who send less than half of the updates, 2f + 1 against f, and claim
    less than half of the examples: what is claimed is believed. Takes one update or more. Whole numbers and bools count
    in no distance; they are the rounded mean by the last weights.
    """

    def __init__(self, iterations: int = 8, smoothing: float = 1e-6, **options: Any) -> None:
        super().__init__(**options)
        self._iterations = whole("iterations", iterations, 1)
        self._smoothing = within("smoothing", smoothing, 0, np.inf)

    def begin(self, model: Model) -> None:
        """Make the memory of the result, and begin with no weights."""
        super().begin(model)
        self._weights: list[float] = []

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Put the update on disk, and remember its number of examples."""
        weight = checked_weight(update.num_examples)
        super().fold(model, update, client=client, staleness=staleness)
        self._weights.append(weight)

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the point after the last iteration."""
        self._require_count(1, "for a median")
        weights, point = np.array(self._weights) / max(self._weights), median
        for _ in range(self._iterations):
            distances = np.maximum(self._distances(point), self._smoothing)
            shares = weights * (distances.min() / distances)
            point = functools.partial(np.matmul, shares / shares.sum())
        return self._combine(point)

    def abandon(self) -> None:
        """Forget the updates and their weights."""
        super().abandon()
        self._weights.clear()

    def _distances(self, point: Kernel) -> NDArray[np.float64]:
        """Return how far each update is from what the kernel makes of all."""
        squares = np.zeros(len(self._updates))
        with np.errstate(over="ignore"):  # infinitely far is as far as a float goes
            for stack in self._updates.blocks(exact=False):
                rows = reals(stack.matrix).astype(np.float64)
                squares += squared_norms(rows - point(rows))
        return np.minimum(np.sqrt(squares), np.finfo(np.float64).max)


def squared_distances(spool: UpdateStore) -> NDArray[np.float64]:
    """Return the squares of the distances of all from all, without whole numbers and bools; [updates, updates].

    Of differences, some nanosecond for each element of a pair. Products (|a|² + |b|² - 2ab) are quicker by far for many
    updates; but this way nothing is lost however near two are and however far a third, and equal updates have equal
    distances to the last bit.
    """
    count = len(spool)
    squares = np.zeros((count, count))
    with np.errstate(over="ignore"):  # infinitely far is far enough
        for stack in spool.blocks(exact=False):
            rows = reals(stack.matrix).astype(np.float64)
            for at in range(count - 1):
                squares[at, at + 1 :] += squared_norms(rows[at + 1 :] - rows[at])
    return squares + squares.T
