"""Clips the change in an update and adds the device's own noise to it. Needs numpy; pure but for the random bytes.

The change becomes whole numbers before the noise is added (fl/privacy/bounded.py). What comes out is not packed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edge.outgoing import names_of
from edge.policy import Policy
from fl.compression.packed import Unpacked
from fl.errors import InvalidUpdate
from fl.messages import MESSAGES, Reply, Task, Update, with_fields
from fl.privacy.bounded import Bounded, Clipping
from fl.privacy.noise import normal
from fl.tensors.dtypes import DELTA_DTYPES
from fl.tensors.roles import SENT, equal, of_role
from fl.tensors.serialization import messages
from fl.tensors.spec import Model, specs_of, zeros_like
from netq.errors import Unreadable
from netq.utils.stream import Stream

_PLAIN = messages()


def of_federation(policy: Policy, task: Stream, reply: Stream) -> Stream:
    """Return the reply of a training with noise in its update. Raises InvalidUpdate, Unreadable."""
    asked, answer = MESSAGES.load(task), MESSAGES.load(reply)
    assert isinstance(asked, Task)
    assert isinstance(answer, Reply)
    assert isinstance(answer.content, Update)
    start = of_role(asked.model, asked.roles, *SENT)
    trained = Unpacked(answer.content.model, start, deltas=asked.deltas)
    if asked.deltas:  # the server adds what comes to its model
        specs = specs_of(start)
        changed = of_role(start, asked.roles, "trained")
        start |= zeros_like({name: each for name, each in changed.items() if specs[name].dtype in DELTA_DTYPES})
    content = with_fields(answer.content, model=noised(start, trained, _clipping(policy)))
    message: Stream = MESSAGES.dump(Reply(answer.job, content))
    return message


def of_flower(policy: Policy, task: Stream, reply: Stream) -> Stream:
    """Return the reply of an app with noise in its arrays. Raises InvalidUpdate, Unreadable."""
    asked, answer = _PLAIN.load(task), _PLAIN.load(reply)
    model = noised(_arrays(asked), _arrays(answer), _clipping(policy))
    arrays = [  # in the order of the task: an order says something, too
        [name, kind, [[key, model[f"{name}.{key}"]] for key, _ in items]]
        for name, kind, items in asked["content"]
        if kind == "arrays"
    ]
    answer["content"] = [*arrays, *(each for each in answer["content"] if each[1] != "arrays")]
    return _PLAIN.dump(answer)


def noised(start: Model, trained: Mapping[str, Any], clipping: Clipping) -> dict[str, Any]:
    """Return `start`, moved by the change with noise. Raises InvalidUpdate for a model of another form, or not finite.

    Tensors that are not of floats have no noise, so they must be those of `start`.
    """
    specs = specs_of(start)
    for name in trained:
        if name not in specs:
            raise InvalidUpdate(f"{name!r} is not in the task; expected the tensors of the task only")
    exact = {name: start[name] for name, spec in specs.items() if spec.is_exact}
    for name, tensor in exact.items():
        if name not in trained or not equal(name, trained[name], tensor):  # which of them are there says something, too
            why = "is missing, or has changed; expected floats: noise covers them only"
            raise InvalidUpdate(f"{name!r} is {specs[name]}, and {why}")
    floats = {name: spec for name, spec in specs.items() if name not in exact}
    bounded = Bounded(floats, clipping, 1)
    total, place = np.empty(bounded.size, np.int64), 0
    for whole in bounded.whole(start, trained):
        noise = np.rint(bounded.deviation * normal(whole.size))
        total[place : place + whole.size] = whole + noise
        place += whole.size
    return {**bounded.moved(start, total), **exact}


def _clipping(policy: Policy) -> Clipping:
    assert policy.clip is not None
    assert policy.noise_multiplier is not None
    return Clipping(policy.clip, policy.noise_multiplier, follows=False)


def _arrays(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of a message's records by record and key."""
    found = {
        f"{name}.{key}": array for name, kind, items in message["content"] if kind == "arrays" for key, array in items
    }
    if len(found) < len(names_of(message)) or not all(isinstance(each, np.ndarray) for each in found.values()):
        raise Unreadable("its arrays have no names of their own, or are of no dtype of numpy's numbers")
    return found
