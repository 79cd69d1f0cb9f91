"""What a reply of the training process has, by name, and a new reply of only that which the policy lets leave.

`of_federation` reads fl's replies and `of_flower` those of a Flower app, as plain values: tensors pass as they came. A
reply is made anew from the fields that are known, so that nothing else travels with it. Needs neither numpy nor Flower.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from edge.policy import Policy
from fl.flower.envelope import RAISED, VERSION
from fl.tensors.json_format import JsonSerializer
from fl.tensors.storage import Passed
from netq.errors import Unreadable
from netq.utils.stream import Stream
from netq.validate import is_whole

STAYS = "its reason stays in the log of the device, as the device's policy says"
FAILED = f"the training has failed; {STAYS}"
_COLUMN = "columns."  # before the name of a column, where it counts as a tensor
WITHHELD = "policy.withheld"  # the metric that says that others were withheld
_ONE_EXAMPLE = ["metrics", "metrics", [["num-examples", 1]]]  # Flower's weight of a reply with noise

PASSED = JsonSerializer(lambda value: value.identifier if isinstance(value, Passed) else None, Passed)


class Withheld(Exception):
    """A reply may not leave; the text, for the server, says why. `names`: of what may not, for the audit log."""

    def __init__(self, why: str, names: Collection[str] = ()) -> None:
        super().__init__(why)
        self.names = names


class Allowed(NamedTuple):
    """A reply that may leave. `said`: the text of the training that stays here."""

    message: Stream
    size: int  # of its arrays; 0 if it has none
    tensors: list[str]
    metrics: list[str]
    withheld: list[str]
    said: str = ""


class _Names:
    """Sorts the values of a reply. `known`: names that the server has sent, and may read in a reason."""

    def __init__(self, policy: Policy, known: Collection[str]) -> None:
        self._policy = policy
        self._known = known
        self.tensors: list[str] = []
        self.metrics: list[str] = []
        self.withheld: list[str] = []
        self._refused: list[str] = []

    def tensor(self, name: str, *, is_noised: bool = True) -> None:
        self.tensors.append(name)
        if not self._policy.lets_tensor(name) or (self._policy.noises and not is_noised):
            self._refused.append(name)

    def lets(self, name: str, value: Any) -> bool:
        """Return whether a value of metrics or of a config stays in the reply."""
        if type(value) not in (bool, int, float):
            self.tensor(name, is_noised=False)
            return True
        lets = self._policy.lets_metric(name)
        (self.metrics if lets else self.withheld).append(name)
        return lets

    def allowed(self, reply: Any, said: str = "") -> Allowed:
        """Return the reply. Raises Withheld, Unreadable."""
        if self._refused:
            names = [repr(name) for name in self._refused if name in self._known] or ["what the task does not have"]
            rule = "its noise covers the tensors of the task only" if self._policy.noises else "see policy.tensors"
            others = " and more" if len(self._refused) > 1 else ""
            raise Withheld(
                f"the policy of this device withholds {names[0]}{others} ({rule}): train without, or ask its owner",
                self._refused,
            )
        message = PASSED.dump(reply)
        size = message.nbytes if self.tensors else 0
        return Allowed(message, size, self.tensors, self.metrics, self.withheld, said)


def of_federation(policy: Policy, task: Any, reply: Stream, known: Collection[str]) -> Allowed:
    """Return what may leave of a reply of fl's functions. Raises Withheld, Unreadable."""
    names, content = _Names(policy, known), _fields(PASSED.load(reply), "Reply").get("content")
    job = [task.job.run, task.job.round, task.job.purpose]

    def replied(content: Any, said: str = "") -> Allowed:
        return names.allowed({"type": "Reply", "job": job, "content": content}, said)

    if isinstance(content, str):
        return replied(FAILED if policy.restricts else content, content)
    if _dict(content).get("type") == "Skip":
        reason = str(_dict(content).get("reason"))
        told = f"the training skips it; {STAYS}" if policy.restricts else reason
        return replied({"type": "Skip", "reason": told}, reason)
    if task.job.purpose == "statistics":
        return replied(_statistics(names, policy, _fields(content, "Answered"), known))._replace(size=0)
    content = _fields(content, "Update" if task.job.purpose == "train" else "Report")
    examples, metrics = content.get("num_examples"), _dict(content.get("metrics", {}))
    if not is_whole(examples, 0):
        raise Unreadable("num_examples: expected a whole number")
    kept = {name: value for name, value in metrics.items() if names.lets(name, _summed(value))}
    if names.withheld or policy.noises:
        kept[WITHHELD] = 1.0
    made = {"type": content["type"], "num_examples": 1 if policy.noises else examples, "metrics": kept}
    if content["type"] == "Update":
        model, extra = _dict(content.get("model")), _dict(content.get("extra", {}))
        made |= {"model": model, "extra": extra}
        for name in model:
            names.tensor(name)
        for name in extra:
            names.tensor(f"extra.{name}", is_noised=False)
    return replied(made)


def _statistics(names: _Names, policy: Policy, content: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the statistics of columns, which are one vector. `known`: their names, as those of tensors."""
    values = _dict(content.get("values"))
    if not known:  # then no name would bound the vector
        raise Unreadable("expected statistics of the columns that the task names, and it names none")
    for name in known:
        names.tensor(name, is_noised=False)
    withheld = {name: why for name, why in _dict(values.get("withheld", {})).items() if _COLUMN + name in known}
    if policy.restricts:
        withheld = dict.fromkeys(withheld, STAYS)
    return {"type": "Answered", "values": {"vector": values.get("vector"), "withheld": withheld}}


def of_flower(policy: Policy, task: Any, reply: Stream, known: Collection[str]) -> Allowed:
    """Return what may leave of a reply of a Flower app. Raises Withheld, Unreadable."""
    names, found = _Names(policy, known), PASSED.load(reply)
    begin = {"batch": task.job[1], "protocol": VERSION}
    if isinstance(found, dict) and found.get("type") == "Failure":
        reason, code = str(found.get("reason")), found.get("code")
        told = (FAILED, RAISED) if policy.restricts else (reason, code)
        return names.allowed({"type": "Failure", **begin, "reason": told[0], "code": told[1]}, reason)
    found = _fields(found, "Reply")
    records = []
    for name, kind, items in _items(found.get("content"), 3):
        if kind not in ("arrays", "metrics", "config"):
            raise Unreadable("expected records of arrays, metrics or config")
        kept = [item for item in _items(items, 2) if _lets(names, name, kind, item)]
        if kept or not policy.restricts:  # the name of an empty record says something, too
            records.append([name, kind, kept])
    if policy.noises:
        records.append(_ONE_EXAMPLE)
    usage = {name: value for name, value in _dict(found.get("usage", {})).items() if names.lets(name, value)}
    if names.withheld or policy.noises:
        usage[WITHHELD] = 1.0
    if len({*names.tensors, *names.metrics}) < len(names.tensors) + len(names.metrics):
        raise Unreadable("two values have one name")
    return names.allowed({"type": "Reply", **begin, "content": records, "usage": usage})


def _lets(names: _Names, record: str, kind: str, item: list[Any]) -> bool:
    """Return whether an item of a record stays in the reply."""
    key, value = item
    if kind != "arrays":
        return names.lets(f"{record}.{key}", value)
    names.tensor(f"{record}.{key}")
    return True


def names_of(task: Mapping[str, Any]) -> list[str]:
    """Return the names of the tensors in a task of fl, or in an Ask of a Flower grid. Raises Unreadable.

    Those of a question for statistics are its columns.
    """
    if "model" in task and task["job"][2] == "statistics":
        return [_COLUMN + name for name in _dict(task["config"].get("columns"))]
    if "model" in task:
        return list(_dict(task["model"]))
    arrays = [(name, items) for name, kind, items in _items(task.get("content"), 3) if kind == "arrays"]
    return [f"{name}.{key}" for name, items in arrays for key, _ in _items(items, 2)]


def _fields(value: Any, kind: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("type") != kind:
        raise Unreadable(f"expected a {kind}")
    return value


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unreadable("expected values by name")
    return value


def _items(value: Any, size: int) -> list[list[Any]]:
    right = isinstance(value, list) and all(isinstance(each, list) and len(each) == size for each in value)
    if not right or not all(isinstance(text, str) for each in value for text in each[: size - 1]):
        raise Unreadable(f"expected a list of lists of {size}, which begin with names")
    items: list[list[Any]] = value
    return items


def _summed(value: Any) -> Any:
    """Return the value of a sum (fl.Sum), or another value as it is."""
    return value["sum"] if isinstance(value, dict) and list(value) == ["sum"] else value
