"""A Flower strategy that folds replies with a kernel of fl, as they arrive.

Called by Flower: under fl.flower.Grid, under a SuperLink, or in Flower's simulation. It replaces FedAvg's aggregation,
and asks fl.flower.Grid for each reply as it arrives. Sampling, configs and the means of metrics stay Flower's.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import flwr.serverapp.strategy
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fl.aggregation.mean import WeightedMean
from fl.errors import InvalidUpdate
from fl.flower.record_codec import arrays
from fl.flower.replies import Streamed
from fl.tensors.blocks import sources
from fl.tensors.spec import Model, Spec
from netq.errors import InvalidOption

log = logging.getLogger("flwr")  # with the lines of Flower's own strategies


class Kernel(Protocol):
    """Folds models into one, as fl.aggregation.mean.WeightedMean does."""

    count: int  # models folded since the last `finish` or `reset`

    def fold(self, model: Model, weight: float) -> None:
        """Fold a model in. For a model that does not fit, raise InvalidUpdate and change nothing."""

    def finish(self) -> dict[str, Any]:
        """Return the result, and start again."""

    def reset(self) -> None:
        """Drop what was folded, and start again."""


class _Folded(NamedTuple):
    """A reply that was folded."""

    reply: Message  # without the arrays
    misfit: str  # how its arrays differ from those that were sent; empty if they do not


class FedAvg(flwr.serverapp.strategy.FedAvg):
    """Flower's FedAvg with a kernel of fl. It has Flower's arguments and methods, and can be subclassed like Flower's.

    kernel: called with a model, returns the Kernel that folds models like it. Default: their mean, weighted by
            `weighted_by_key`. Raises InvalidOption for an object that cannot be called.

    Each reply is folded, then its arrays are dropped. fl.flower.Grid returns each reply as it arrives, so a round needs
    the memory of two models and of the replies that are arriving, for any number of nodes. Arrays keep their dtype:
    integers are rounded, where Flower's makes float64 of them. A reply that does not fit counts as that node's failure,
    and the run goes on. `train_metrics_aggr_fn` gets replies without arrays. It and `evaluate_metrics_aggr_fn` get the
    replies whose metrics have the names, and whose lists have the lengths, that most replies have.

    A reply fits if it has the names, shapes and dtypes of the arrays that the nodes were sent. But Flower's accepts any
    arrays on which its nodes agree, and some apps use that: their nodes send only the shared layers (FedPer, FedBN), or
    another dtype. So as long as no reply is like the sent arrays, the replies like the first one are folded. When one
    is, they are left out.
    """

    def __init__(self, *arguments: Any, kernel: Callable[[Model], Kernel] = WeightedMean, **options: Any) -> None:
        if not callable(kernel):
            form = "what is called with a model, as fl.aggregation.mean.WeightedMean is"
            raise InvalidOption(f"FedAvg.kernel: {kernel!r}; expected {form}")
        super().__init__(*arguments, **options)
        self.kernel = kernel
        self._kernel: Kernel | None = None
        self._sent: dict[str, Spec] = {}  # of the arrays that nodes were sent
        self._has_match = False  # whether a reply had such arrays

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return FedAvg's messages, marked for streaming."""
        sent = {name: Spec(tuple(array.shape), array.dtype, None) for name, array in arrays.items()}
        if server_round == 1 or sent != self._sent:  # another run, another model
            self._sent, self._has_match, self._kernel = sent, False, None
        return Streamed(super().configure_train(server_round, arrays, config, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies. Return the new arrays, and the means of the metrics."""
        if self._kernel is not None:
            self._kernel.reset()  # after a round that was interrupted
        folded: list[_Folded] = []
        count = 0
        for reply in replies:
            count += 1
            try:
                self._fold(server_round, reply, folded)
            except InvalidUpdate as error:
                _leave_out(server_round, reply.metadata.src_node_id, str(error))
                _drop_arrays(reply)
        log.info("aggregate_train: Received %d results and %d failures", len(folded), count - len(folded))
        return self._finish(server_round, folded)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the means of the metrics of valid replies."""
        fitting: list[Message] = []
        count = 0
        for reply in replies:
            count += 1
            try:
                self._weight(_content(reply))
                fitting.append(reply)
            except InvalidUpdate as error:
                _leave_out(server_round, reply.metadata.src_node_id, str(error))
        log.info("aggregate_evaluate: Received %d results and %d failures", len(fitting), count - len(fitting))
        if not fitting:
            return None
        return self.evaluate_metrics_aggr_fn(_alike(server_round, fitting), self.weighted_by_key)

    def _finish(self, server_round: int, folded: list[_Folded]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the kernel's result, and the means of the metrics."""
        if self._kernel is None or not folded:
            return None, None
        if why := folded[0].misfit:
            text = "round %d: no reply is like the arrays that were sent; those like node %d's are taken: %s"
            log.warning(text, server_round, folded[0].reply.metadata.src_node_id, why)
        contents = _alike(server_round, [each.reply for each in folded])
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        return arrays(self._kernel.finish()), metrics

    def _fold(self, server_round: int, reply: Message, folded: list[_Folded]) -> None:
        """Fold a reply in. The first reply that is like the sent arrays discards those folded before it."""
        model, weight = self._read(reply)
        misfit = self._misfit(model)
        if misfit and self._has_match:
            raise InvalidUpdate(misfit)
        if not (misfit or self._has_match):
            self._has_match, self._kernel = True, None
            for each in folded:
                _leave_out(server_round, each.reply.metadata.src_node_id, each.misfit)
            folded.clear()
        kernel = self._kernel or self.kernel(model)
        kernel.fold(model, weight)
        self._kernel = kernel
        folded.append(_Folded(reply, misfit))

    def _read(self, reply: Message) -> tuple[Model, float]:
        """Take the arrays out of a reply. Return them and the reply's weight."""
        content = _content(reply)
        record = _the_one(content, ArrayRecord)
        model = {name: _numpy(name, record.pop(name)) for name in list(record)}
        return model, self._weight(content)

    def _weight(self, content: RecordDict) -> float:
        """Return the weight of a reply."""
        weight = _the_one(content, MetricRecord).get(self.weighted_by_key)
        if not isinstance(weight, (int, float)):
            raise InvalidUpdate(f"its metrics have no number {self.weighted_by_key!r}")
        if not 0 < weight < math.inf:
            raise InvalidUpdate(f"its {self.weighted_by_key!r} is {weight}; expected a finite number above 0")
        return weight

    def _misfit(self, model: Model) -> str:
        """Return how a model differs from the sent arrays, as text: the error itself would keep the model alive."""
        try:
            for _ in sources(model, self._sent):
                pass
        except InvalidUpdate as error:
            return str(error)
        return ""


def _leave_out(server_round: int, node: int, why: str) -> None:
    log.warning("round %d: node %d is left out: %s", server_round, node, why)


def _drop_arrays(reply: Message) -> None:
    """Free the arrays of a reply that was left out: the replies are kept until the round ends."""
    if reply.has_content():
        for record in reply.content.array_records.values():
            record.clear()


def _content(reply: Message) -> RecordDict:
    if reply.has_error():
        raise InvalidUpdate(reply.error.reason or f"error {reply.error.code}")
    return reply.content


def _numpy(name: str, array: Array) -> Any:
    try:
        return array.numpy()
    except Exception as error:  # another serialisation; numpy may raise anything for damaged data
        raise InvalidUpdate(f"{name!r} cannot be read: {error}; expected an array of numpy's") from error


def _alike(server_round: int, replies: list[Message]) -> list[RecordDict]:
    """Return the contents whose metrics have the most common form. Others would have no mean."""
    forms = [_form(reply.content) for reply in replies]
    common = Counter(forms).most_common(1)[0][0]
    for reply, form in zip(replies, forms, strict=True):
        if form != common:
            text = "round %d: the metrics of node %d are left out: they are %.300s; most nodes' are %.300s"
            log.warning(text, server_round, reply.metadata.src_node_id, form, common)
    return [reply.content for reply, form in zip(replies, forms, strict=True) if form == common]


def _form(content: RecordDict) -> str:
    """Return the names of the record and of its metrics, with the lengths of lists."""
    ((record, metrics),) = content.metric_records.items()
    lengths = {name: f"[{len(value)}]" if isinstance(value, list) else "" for name, value in metrics.items()}
    return f"{record!r} with " + ", ".join(f"{name!r}{lengths[name]}" for name in sorted(lengths))


def _the_one(content: RecordDict, kind: type) -> Any:
    found = [record for record in content.values() if isinstance(record, kind)]
    if len(found) != 1:
        raise InvalidUpdate(f"it has {len(found)} records of type {kind.__name__}; expected one")
    return found[0]
