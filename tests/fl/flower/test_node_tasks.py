"""Replies to a grid's messages that came as bytes; and a context that another process goes on with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from fl.envelope import Finished
from fl.flower.envelope import ENVELOPES
from fl.flower.messages import MESSAGES, Ask, read
from fl.flower.node_tasks import NodeTasks
from fl.flower.record_codec import arrays
from netq.utils.stream import Stream

NODE = 12


def counts(message: Message, context: Context) -> Message:
    """Count the messages of the run, in records of each kind; fail, or return another thing, if the group says so."""
    state = context.state
    count = state["m"]["count"] + 1 if "m" in state else 1
    state["m"] = MetricRecord({"count": count})
    state["a"] = arrays({"w": np.full(3, count)})
    state["c"] = ConfigRecord({"bytes": b"\0", "texts": ["x"]})
    if message.metadata.group_id == "fails":
        raise OSError("the sensor does not answer")
    if message.metadata.group_id == "error":
        return Message(Error(7, "no data"), reply_to=message)
    lr = float(context.run_config["lr"])
    return Message(RecordDict({"m": MetricRecord({"count": count, "lr": lr})}), reply_to=message)


def tasks(app: Any = counts, **settings: Any) -> NodeTasks:
    return NodeTasks(app, NODE, {"partition-id": 1}, **settings)


def answer(node: NodeTasks, batch: int = 1, run: int = 7, group: str = "", lr: float = 0.5) -> Finished | str:
    return node.answer(enveloped(Ask(batch, run, {"lr": lr}, "query", group, 0.0, 60.0, "", RecordDict())))


def enveloped(plain: Any) -> Any:
    return ENVELOPES.load(arrived(MESSAGES.dump(plain)))


def arrived(stream: Stream) -> Stream:
    return Stream([bytearray(bytes(stream))])


def reply_of(finished: Finished | str) -> Any:
    assert isinstance(finished, Finished), finished
    return read(MESSAGES.load(arrived(finished.message)))


def count_of(finished: Finished | str) -> Any:
    content: Any = reply_of(finished).content
    return content["m"]["count"]


def restored(node: NodeTasks, app: Any = counts) -> NodeTasks:
    """Return another node, with the state of this one."""
    other = tasks(app)
    other.restore(MESSAGES.load(arrived(MESSAGES.dump(node.save()))))
    return other


def test_reply_has_the_job_and_what_it_has_cost() -> None:
    finished = answer(tasks(usage=lambda: {"usage.cpu_seconds": 0.5}), batch=9)
    assert isinstance(finished, Finished)
    assert finished.job == (7, 9)
    reply = reply_of(finished)
    assert (reply.batch, reply.usage) == (9, {"usage.cpu_seconds": 0.5})


def test_restored_node_goes_on_with_state_and_config() -> None:
    first = tasks()
    assert [count_of(answer(first)) for _ in range(2)] == [1, 2]
    second = restored(first)
    content: Any = reply_of(answer(second, lr=9.0)).content
    assert dict(content["m"]) == {"count": 3, "lr": 0.5}
    assert second.save()["run"] == 7


def test_restored_state_is_not_that_of_another_run() -> None:
    first = tasks()
    count_of(answer(first))
    assert count_of(answer(restored(first), run=8)) == 1


def test_restored_arrays_are_copied_for_the_app() -> None:
    def changes(message: Message, context: Context) -> Message:
        record: Any = context.state["a"]
        record["w"].numpy()[:] = 0
        return Message(RecordDict({"a": ArrayRecord(record.to_numpy_ndarrays())}), reply_to=message)

    first = tasks()
    count_of(answer(first))
    content: Any = reply_of(answer(restored(first, changes))).content
    assert content["a"]["0"].numpy().tolist() == [1, 1, 1]


def test_failure_leaves_the_state_unchanged() -> None:
    node = tasks()
    assert count_of(answer(node)) == 1
    assert answer(node, group="fails") == "<class 'OSError'>:<'the sensor does not answer'>"
    assert count_of(answer(restored(node))) == 2


def test_state_that_cannot_be_loaded_again_is_a_failure() -> None:
    def remembers(message: Message, context: Context) -> Message:
        context.state["big"] = ConfigRecord({"count": 2**70})
        return Message(RecordDict(), reply_to=message)

    node = tasks(remembers)
    reason = answer(node)
    assert isinstance(reason, str)
    assert "its state not be kept: a whole number of 71 bits in a record; expected 64 at most" in reason
    assert count_of(answer(restored(node))) == 1


def test_error_of_the_app_is_a_reply() -> None:
    node = tasks()
    reply = reply_of(answer(node, group="error"))
    assert (reply.code, reply.reason) == (7, "no data")
    assert count_of(answer(node)) == 2


def test_message_that_cannot_be_read_is_answered_with_the_reason() -> None:
    plain = MESSAGES.load(arrived(MESSAGES.dump(Ask(1, 7, {}, "query", "", 0.0, 60.0, "", RecordDict()))))
    reason = tasks().answer(enveloped({**plain, "run_config": {"lr": None}}))
    assert isinstance(reason, str)
    assert reason.startswith("the message cannot be read: the config's 'lr': expected one of bool")


@pytest.mark.parametrize(
    "saved", [{}, {"state": [], "run": 1}, {"state": {}, "run": 1, "config": {}}, {"state": {"w": 1}}, "text", None]
)
def test_other_values_are_no_state(saved: Any) -> None:
    with pytest.raises(ValueError, match="these are no values of a node"):
        tasks().restore(saved)
