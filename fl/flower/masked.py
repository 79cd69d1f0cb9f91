"""Flower's messages as tasks and updates of fl, so that secure aggregation (fl/secure) covers them.

Used by a grid, by a node, and by edge's agent, which has no Flower: reads and writes the plain values of messages. Both
sides make the same task of an Ask, so that its digest finds a server that gives nodes different models. Pure.

    Ask, "train" or "evaluate" ─► a Task: the arrays are its model, all else is its config
    Reply                      ─► an Update: the arrays, "num-examples" as its weight, and the other metrics
    Ask with a step            ─► a Task that no app sees
    Masked, Answered           ─► Secured, in place of a Reply
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fl.checks import expect
from fl.envelope import PURPOSES, Finished, Job, check_number, values
from fl.errors import InvalidUpdate
from fl.flower.envelope import VERSION
from fl.messages import Answered, Masked, Skip, Task, Update
from fl.tensors.roles import assign
from fl.tensors.serialization import messages
from netq.utils.stream import Stream
from netq.validate import is_whole

WEIGHT = "num-examples"  # Flower's name of the metric by which a reply counts
_PLAIN = messages()
_KINDS = ("arrays", "metrics", "config")


@dataclass(frozen=True)
class Secured:
    """A node's reply under masks, or its answer to a step. Raises InvalidUpdate."""

    batch: int
    content: Masked | Answered
    protocol: str = VERSION

    def __post_init__(self) -> None:
        check_number("the batch of a reply", self.batch)
        expect(isinstance(self.content, Masked | Answered), "content", self.content, "a Masked or an Answered")

    def plain(self) -> dict[str, Any]:
        """Return the values of the message."""
        return {**values(self), "content": values(self.content)}


def task_of(ask: Mapping[str, Any]) -> Task:
    """Return the task that the values of an Ask are. Raises InvalidUpdate: masks do not cover such a message."""
    try:
        secure, run, batch = dict(ask["secure"]), ask["run"], ask["batch"]
        if "step" in secure:
            return Task(Job(run, batch, "secure"), {}, {}, secure=secure)
        purpose, records = ask["message_type"].partition(".")[0], ask["content"]
        expect(purpose in PURPOSES, "the type of a message", ask["message_type"], " or ".join(PURPOSES))
        _, items = _the_one("arrays", records)
        model = {name: _array(name, value) for name, value in items}
        config = {name: value for name, value in ask.items() if name not in ("type", "secure", "content")}
        config["records"] = [[name, kind, [] if kind == "arrays" else items] for name, kind, items in records]
        # BatchNorm's statistics, by their names, have a wider range. Masks are for whatever an app gives besides.
        roles = {name: role for name, role in assign(model, None).items() if role == "averaged"}
        return Task(Job(run, batch, purpose), model, config, roles=roles, secure=secure)
    except InvalidUpdate:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidUpdate(f"the message is not valid: {error}") from error


def update_of(reply: Any, start: Mapping[str, Any]) -> Update | str:
    """Return a node's reply as an update; a text: why there is none. Raises InvalidUpdate: masks do not cover it.

    start: the arrays of the message, if it was to train. Arrays get their dtypes: Flower makes floats of whole numbers.
    """
    match reply:
        case {"type": "Failure", "reason": str(reason)}:
            return reason
        case {"type": "Reply", "content": list(records)}:
            try:
                return _update(records, start)
            except InvalidUpdate:
                raise
            except (TypeError, ValueError) as error:  # edge's training process may write anything
                raise InvalidUpdate(f"the reply is not valid: {error}") from error
        case _:
            raise InvalidUpdate("the app has left no reply")


def _update(records: list[Any], start: Mapping[str, Any]) -> Update:
    others = [name for name, kind, items in records if kind == "config" and items]
    if others:
        raise InvalidUpdate(f"the reply has the ConfigRecord {others[0]!r}; masks cover arrays and metrics only")
    _, metrics = _the_one("metrics", records)
    numbers = {name: value for name, value in metrics if not isinstance(value, list)}  # lists stay here, as in fl
    examples = numbers.pop(WEIGHT, None)
    if not is_whole(examples, 1, 2**53):
        raise InvalidUpdate(f"the metric {WEIGHT!r} of the reply is {examples!r:.40}; expected a whole number above 0")
    has_arrays = any(kind == "arrays" and items for _, kind, items in records)
    arrays = _the_one("arrays", records)[1] if start or has_arrays else []
    model = {name: _like(name, _array(name, value), start) for name, value in arrays}
    return Update(model, examples, numbers)


def finished(job: tuple[int, int], content: Masked | Answered | Skip) -> Finished:
    """Return a vector, or the answer to a step, as the bytes of a Secured. job: run and batch."""
    assert isinstance(content, Masked | Answered)  # update_of makes nothing that is skipped
    return Finished(job, _PLAIN.dump(Secured(job[1], content).plain()), getattr(content, "nbytes", 0))


def load(stream: Stream) -> Any:
    """Return the plain values of a message. Raises Unreadable."""
    return _PLAIN.load(stream)


def _the_one(kind: str, records: Any) -> tuple[str, list[Any]]:
    found = [(name, items) for name, its, items in records if its == kind]
    if len(found) != 1:
        what = "ArrayRecord" if kind == "arrays" else "MetricRecord"
        raise InvalidUpdate(f"a message has {len(found)} records of type {what}; expected one under masks")
    return found[0]


def _array(name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        raise InvalidUpdate(f"the array {name!r} is none of numpy's numbers; masks cover these only")
    return value


def _like(name: str, array: Any, start: Mapping[str, Any]) -> Any:
    """Return an array in the dtype of the one that was sent, if that is as wide a kind: bool, whole, float, complex."""
    if name in start and np.can_cast(array.dtype, start[name].dtype, "same_kind"):
        return array.astype(start[name].dtype, copy=False)
    return array
