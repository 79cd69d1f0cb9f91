"""A strategy of Flower that folds replies as they come with a kernel of ours, under whatever grid it runs.

Called by Flower: under fl.flower.Grid, under a SuperLink, or in its simulation. Of FedAvg it replaces what is made of
replies, and tells a grid of ours that it wants each as it comes: sampling, configs and the means of metrics are
Flower's.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fl.aggregation.mean import WeightedMean
from fl.errors import InvalidUpdate
from fl.flower.record_codec import arrays
from fl.flower.replies import Streamed
from fl.tensors.blocks import sources
from fl.tensors.spec import Model, Spec
from netq.errors import InvalidOption

log = logging.getLogger("netq.fl")


class Kernel(Protocol):
    """What folds models into one, as fl.aggregation.mean.WeightedMean does."""

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
    node's failure, and the run goes on. What `train_metrics_aggr_fn` is given has no arrays any more. It and
    `evaluate_metrics_aggr_fn` are given the replies whose metrics have the names, and lists the lengths, of most.

    What fits is what has the names, shapes and dtypes of the arrays that the nodes were sent, whoever answers first.
    But FedAvg takes whatever its nodes agree on, and there are apps that answer with something else: with the layers
    alone that are not each node's own (FedPer, FedBN), or in another dtype. So until a reply is like what was sent,
    those like the first are folded; when one is, they are left out.
    """
    if not callable(kernel):
        raise InvalidOption(
            f"strategy.kernel: {kernel!r}; expected what is called with a model, as fl.aggregation.mean.WeightedMean is"
        )
    return KernelFedAvg(kernel, **options)


class _Folded(NamedTuple):
    """What is left of a reply that was folded."""

    reply: Message  # without the arrays
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
        return self._finish(server_round, folded)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the metrics' means, of the replies that fit."""
        fitting: list[Message] = []
        came = 0
        for reply in replies:
            came += 1
            try:
                self._weight(_content(reply))
                fitting.append(reply)
            except InvalidUpdate as error:
                _leave_out(server_round, reply.metadata.src_node_id, str(error))
        log.info("round %d: %d evaluations, %d failures", server_round, len(fitting), came - len(fitting))
        if not fitting:
            return None
        return self.evaluate_metrics_aggr_fn(_alike(server_round, fitting), self.weighted_by_key)

    def _finish(self, server_round: int, folded: list[_Folded]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return what was folded, and the metrics' means."""
        if self._kernel is None or not folded:
            return None, None
        if why := folded[0].misfit:
            text = "round %d: no reply is like the arrays that were sent; those like node %d's are taken: %s"
            log.warning(text, server_round, folded[0].reply.metadata.src_node_id, why)
        contents = _alike(server_round, [each.reply for each in folded])
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        return arrays(self._kernel.finish()), metrics

    def _fold(self, server_round: int, reply: Message, folded: list[_Folded]) -> None:
        """Fold a reply in. With the first that is like what was sent, what was folded before it is left out."""
        model, weight = self._read(reply)
        misfit = self._misfit(model)
        if misfit and self._is_met:
            raise InvalidUpdate(misfit)
        if not (misfit or self._is_met):
            self._is_met, self._kernel = True, None
            for each in folded:
                _leave_out(server_round, each.reply.metadata.src_node_id, each.misfit)
            folded.clear()
        kernel = self._kernel or self._make(model)
        kernel.fold(model, weight)
        self._kernel = kernel
        folded.append(_Folded(reply, misfit))

    def _read(self, reply: Message) -> tuple[Model, float]:
        """Return the arrays of a reply, which it has no more, and its weight."""
        content = _content(reply)
        record = _the_one(content, ArrayRecord)
        model = {name: _numpy(name, record.pop(name)) for name in list(record)}
        return model, self._weight(content)

    def _weight(self, content: RecordDict) -> float:
        """Return what a reply counts."""
        weight = _the_one(content, MetricRecord).get(self.weighted_by_key)
        if not isinstance(weight, (int, float)):
            raise InvalidUpdate(f"its metrics have no number {self.weighted_by_key!r}")
        if not 0 < weight < math.inf:
            raise InvalidUpdate(f"its {self.weighted_by_key!r} is {weight}; expected a finite number above 0")
        return weight

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


def _content(reply: Message) -> RecordDict:
    if reply.has_error():
        raise InvalidUpdate(reply.error.reason or f"error {reply.error.code}")
    return reply.content


def _numpy(name: str, array: Array) -> Any:
    try:
        return array.numpy()
    except Exception as error:  # of another serialisation; and numpy promises no more of damaged data
        raise InvalidUpdate(f"{name!r} cannot be read: {error}; expected an array of numpy's") from error


def _alike(server_round: int, replies: list[Message]) -> list[RecordDict]:
    """Return the contents whose metrics have the form that most have: of others there is no mean."""
    forms = [_form(reply.content) for reply in replies]
    usual = Counter(forms).most_common(1)[0][0]
    for reply, form in zip(replies, forms, strict=True):
        if form != usual:
            text = "round %d: the metrics of node %d are left out: they are %.300s; most nodes' are %.300s"
            log.warning(text, server_round, reply.metadata.src_node_id, form, usual)
    return [reply.content for reply, form in zip(replies, forms, strict=True) if form == usual]


def _form(content: RecordDict) -> str:
    """The record's name, and those of its metrics, with the lengths of lists."""
    ((record, metrics),) = content.metric_records.items()
    lengths = {name: f"[{len(value)}]" if isinstance(value, list) else "" for name, value in metrics.items()}
    return f"{record!r} with " + ", ".join(f"{name!r}{lengths[name]}" for name in sorted(lengths))


def _the_one(content: RecordDict, kind: type) -> Any:
    found = [record for record in content.values() if isinstance(record, kind)]
    if len(found) != 1:
        raise InvalidUpdate(f"it has {len(found)} records of type {kind.__name__}; expected one")
    return found[0]
