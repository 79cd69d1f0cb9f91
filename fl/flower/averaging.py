"""A strategy of Flower that folds replies as they come with a kernel of ours, under whatever grid it runs.

Called by Flower: under fl.flower.Grid, under a SuperLink, or in its simulation. Of FedAvg it replaces `aggregate_train`
alone, and tells a grid of ours that it wants each reply as it comes: sampling, configs, evaluation and metrics are
Flower's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fl.aggregate import WeightedMean
from fl.flower.records import arrays
from fl.flower.replies import Streamed
from fl.model import InvalidUpdate, Model, Spec, sources
from netq.errors import InvalidOption

log = logging.getLogger("netq.fl")


class Kernel(Protocol):
    """What folds models into one, as fl.aggregate.WeightedMean does."""

    count: int  # of the models folded since the last `finish` or `reset`

    def fold(self, model: Model, weight: float) -> None:
        """Fold a model in; raise InvalidUpdate, with nothing changed, for one that does not fit."""

    def finish(self) -> dict[str, Any]:
        """Return the result, and begin anew."""

    def reset(self) -> None:
        """Begin anew."""


def strategy(kernel: Callable[[Model], Kernel] = WeightedMean, **options: Any) -> FedAvg:
    """Return Flower's FedAvg with a kernel of ours: `options` are FedAvg's.

    kernel: given a model, returns what folds models like it. Default: their mean by `weighted_by_key`. Raises
            InvalidOption for what cannot be called.

    Each reply is folded when it is given, and its arrays are dropped; fl.flower.Grid gives it when it comes, so there a
    round costs two models beside the replies that are just coming in, however many nodes there are. Dtypes stay what
    they are: whole numbers are rounded, where FedAvg makes float64 of them. A reply that does not fit counts as that
    node's failure, and the run goes on. What `train_metrics_aggr_fn` is given has no arrays any more.

    What fits is what has the names, shapes and dtypes of the arrays that the nodes were sent, whoever answers first.
    But FedAvg takes whatever its nodes agree on, and there are apps that answer with something else: with the layers
    alone that are not each node's own (FedPer, FedBN), or in another dtype. So until a reply is like what was sent,
    those like the first are folded; when one is, they are left out.
    """
    if not callable(kernel):
        raise InvalidOption(
            f"strategy.kernel: {kernel!r}; expected what is called with a model, as fl.aggregate.WeightedMean is"
        )
    return KernelFedAvg(kernel, **options)


class _Folded(NamedTuple):
    """What is left of a reply that was folded."""

    node: int
    content: RecordDict  # without the arrays
    misfit: str  # why its arrays are not like those that were sent; empty if they are


class KernelFedAvg(FedAvg):
    """FedAvg whose mean is a kernel's."""

    def __init__(self, kernel: Callable[[Model], Kernel], **options: Any) -> None:
        super().__init__(**options)
        self._make = kernel
        self._kernel: Kernel | None = None
        self._sent: dict[str, Spec] = {}  # of the arrays that nodes were sent
        self._is_met = False  # whether a reply had arrays like those

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return FedAvg's messages, streamed."""
        sent = {name: Spec(tuple(array.shape), array.dtype, None) for name, array in arrays.items()}
        if server_round == 1 or sent != self._sent:  # another run, another model
            self._sent, self._is_met, self._kernel = sent, False, None
        return Streamed(super().configure_train(server_round, arrays, config, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies; return the new arrays, and the metrics' means."""
        if self._kernel is not None:
            self._kernel.reset()  # of a round that was broken off
        folded: list[_Folded] = []
        came = 0
        for reply in replies:
            came += 1
            try:
                self._fold(server_round, reply, folded)
            except InvalidUpdate as error:
                _leave_out(server_round, reply.metadata.src_node_id, str(error))
        log.info("round %d: %d results, %d failures", server_round, len(folded), came - len(folded))
        if self._kernel is None or not folded:
            return None, None
        if why := folded[0].misfit:
            text = "round %d: no reply is like the arrays that were sent; those like node %d's are taken: %s"
            log.warning(text, server_round, folded[0].node, why)
        metrics = self.train_metrics_aggr_fn([each.content for each in folded], self.weighted_by_key)
        return arrays(self._kernel.finish()), metrics

    def _fold(self, server_round: int, reply: Message, folded: list[_Folded]) -> None:
        """Fold a reply in. With the first that is like what was sent, what was folded before it is left out."""
        model, metrics = self._read(reply)
        misfit = self._misfit(model)
        if misfit and self._is_met:
            raise InvalidUpdate(misfit)
        if not (misfit or self._is_met):
            self._is_met, self._kernel = True, None
            for each in folded:
                _leave_out(server_round, each.node, each.misfit)
            folded.clear()
        if folded and metrics.keys() != _the_one(folded[0].content, MetricRecord).keys():
            raise InvalidUpdate(f"its metrics are {sorted(metrics)}; expected those of the others")
        kernel = self._kernel or self._make(model)
        kernel.fold(model, metrics[self.weighted_by_key])
        self._kernel = kernel
        folded.append(_Folded(reply.metadata.src_node_id, reply.content, misfit))

    def _read(self, reply: Message) -> tuple[Model, MetricRecord]:
        """Return the arrays of a reply, which it has no more, and its metrics, with a weight."""
        if reply.has_error():
            raise InvalidUpdate(reply.error.reason or f"error {reply.error.code}")
        record = _the_one(reply.content, ArrayRecord)
        model = {name: record.pop(name).numpy() for name in list(record)}
        metrics = _the_one(reply.content, MetricRecord)
        weight = metrics.get(self.weighted_by_key)
        if not isinstance(weight, (int, float)):
            raise InvalidUpdate(f"its metrics have no number {self.weighted_by_key!r}")
        if not 0 < weight < math.inf:
            raise InvalidUpdate(f"its {self.weighted_by_key!r} is {weight}; expected a finite number above 0")
        return model, metrics

    def _misfit(self, model: Model) -> str:
        """Why a model is not like the arrays that were sent; empty if it is. The error itself would keep the model."""
        try:
            for _ in sources(model, self._sent):
                pass
        except InvalidUpdate as error:
            return str(error)
        return ""


def _leave_out(server_round: int, node: int, why: str) -> None:
    log.warning("round %d: node %d is left out: %s", server_round, node, why)


def _the_one(content: RecordDict, kind: type) -> Any:
    found = [record for record in content.values() if isinstance(record, kind)]
    if len(found) != 1:
        raise InvalidUpdate(f"it has {len(found)} records of type {kind.__name__}; expected one")
    return found[0]
