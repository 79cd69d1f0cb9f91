"""What clients can make a server hold and read: bounds that follow from its model and its memory limit. Pure.

Called by fl/server/server.py. The communicator enforces the bounds of bytes before a message is in memory: it drops the
link of a client that announces a larger message, and gives no window for more unread bytes than there is room for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import netq
from fl.metrics import MAX_ARRAYS
from fl.tensors.json_format import MAX_BUFFERS, MAX_TEXT, MAX_VALUES
from fl.tensors.spec import nbytes, specs_of
from netq.protocol.flow_control import CREDIT
from netq.validate import expect, is_whole

# An update of SCAFFOLD is as large as two models, one in another dtype as four. Control values come on top.
_MODELS = 4  # in an update
_EXTRA = 10**6  # bytes that an update may have on top of them
_SPARE = 60 * 10**6  # bytes of updates admitted on top of one model; the interpreter takes 40 of the promised 100 MB
_TEXT = 500_000  # bytes of text besides the tensors; 1,000 metrics, with names of 100 ASCII characters, have 125,000
_OF_TENSOR = 200  # bytes for each, besides its name, shape and elements: 110 of text if packed, 72 around its buffer
_VALUES_OF_TENSOR = 17  # of JSON, besides its shape; a packed one
_OF_RELAY = 16_000_000  # bytes of text in a sum: 160 for each of 100,000 clients
_OF_MASKS = 20_000_000  # bytes of shares, or of sealed secrets: 1,168 for each of 16,384 clients
_OF_SUMS = _SPARE  # bytes of the same of all clients of a relay: 205 kB for each of 290, if the session has 1,000
_BUFFERS_OF_RELAY = 2**15  # in an answer to a step: 11 for a client that shows a chain of 8 certificates
_BUFFERS = 16 + MAX_ARRAYS  # besides those of tensors; metrics may be arrays


class Limits(NamedTuple):
    """The bounds of one server. In bytes, but for the buffers."""

    room: int  # of the updates that may be on their way at once
    update: int  # of the arrays of the largest update
    task: int  # of the largest task, with half a MB of config
    text: int  # of what a message from a client has besides its arrays
    buffers: int  # in a message from a client

    def applied_to(self, options: netq.CommunicatorOptions) -> netq.CommunicatorOptions:
        """Return options with these bounds, where the user's are wider; a task to a client always has room."""
        connection, least = options.connection, 2 * self.task
        connection = replace(
            connection,
            message_size=min(connection.message_size, self.update + self.text),
            # Half of it is for messages that exceed the window: so all that are admitted have room. The other half
            # would widen windows, and nothing is lent to windows of this size.
            memory=min(connection.memory, 2 * (self.room + self.text)),
            window=min(connection.window, CREDIT),
            queue_bytes=max(connection.with_queue_bytes(least).queue_bytes, least),
        )
        return replace(options, connection=connection)


def limits(
    model: Mapping[str, Any],
    memory_limit: int | None,
    *,
    relays: bool = False,
    vector: int = 0,
    encrypted: int = 0,
    carries_masks: bool = False,
) -> Limits:
    """Return the bounds for a model: with its successor and the updates, it makes up the limit, in bytes.

    relays: whether clients may answer for others.
    vector: bytes of an update under masks, without its shares. The sum of all has as many. 0: there are no masks.
    encrypted: bytes of an update of ciphertexts; later models have as many. 0: there are none.
    carries_masks: whether clients of a relay may answer under masks that are opened elsewhere.

    Raises InvalidOption.
    """
    size, of_model = max(nbytes(model), encrypted), _text(model)
    text = min(MAX_TEXT, _TEXT + _MODELS * of_model + (_OF_RELAY if relays else 0))
    carries_sums = relays and (carries_masks or vector > 0)
    buffers = min(MAX_BUFFERS, _BUFFERS + _MODELS * len(model) + carries_sums * _BUFFERS_OF_RELAY)
    of_masks = _OF_SUMS if carries_sums else _OF_MASKS
    task = size + text + _TEXT
    a_sum = _sum(model) if relays else 0
    update = max(_MODELS * size, 2 * a_sum) + (of_masks if carries_masks else _EXTRA)
    most, what = (size, "three models") if size >= a_sum else (a_sum, "two models and a relay's sum")
    held = 2 * size  # the model, and its successor or what it is made of
    if vector:
        update = most = vector + of_masks
        held, what = size + max(size, vector), "the model, two vectors under masks, and their shares"
    if encrypted:
        update, most, held = encrypted + _EXTRA, encrypted, 3 * size
        what = "the model, its successor, the sum and an update, as ciphertexts"
    if memory_limit is None:
        return Limits(max(size, vector) + _SPARE, update, task, text, buffers)
    least = f"{held + most} bytes, {what}, at least"
    expect(is_whole(memory_limit, held + most), "Server.memory_limit", memory_limit, least)
    room = memory_limit - held
    return Limits(room, min(update, room), task, text, buffers)


def _sum(model: Mapping[str, Any]) -> int:
    """Return the bytes of a relay's sum of one model: of SCAFFOLD it has two."""
    return sum(spec.size * (spec.accumulator.itemsize + 8 * spec.is_long) for spec in specs_of(model).values())


def _text(model: Mapping[str, Any]) -> int:
    """Return the bytes that an update of the model has besides the elements, at most.

    Raises InvalidOption for a model that is too large in numbers, whatever its bytes: no round could send it.
    """
    shapes = [tuple(tensor.shape) for tensor in model.values()]
    names = sum(len(json.dumps(name)) for name in model)
    text = names + sum(2 * len(str(shape)) for shape in shapes) + _OF_TENSOR * len(model)  # 2: shape and strides
    values = sum(2 * len(shape) for shape in shapes) + _VALUES_OF_TENSOR * len(model)
    for what, count, most in (
        ("bytes of names and shapes", text + _TEXT, MAX_TEXT),
        ("values in them", values, MAX_VALUES),
        ("arrays", len(model) + _BUFFERS, MAX_BUFFERS),
    ):
        if count > most:
            raise netq.InvalidOption(
                f"Server.model: {len(model)} tensors, whose update would have {count} {what}; expected {most} at most: "
                "join small tensors, or shorten their names"
            )
    return text
