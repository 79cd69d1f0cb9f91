"""What clients can make a server hold, in bytes: bounds that follow from its model and its memory limit. Pure.

Called by fl/server/server.py. The communicator enforces the bounds before a message is in memory: it drops the link of
a client that announces a larger message, and gives no window for more unread bytes than there is room for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import netq
from netq.validate import expect, is_whole

# An update of SCAFFOLD is as large as two models, one in another dtype as four. Control values come on top.
_EXTRA = 10**6  # bytes that an update may have on top of four models
_SPARE = 60 * 10**6  # bytes of updates admitted on top of one model; the interpreter takes 40 of the promised 100 MB
_TEXTS = 10**6  # bytes of a message on top of its arrays: names, metrics


class Limits(NamedTuple):
    """The bounds of one server."""

    room: int  # of the updates that may be on their way at once
    update: int  # of the largest update
    task: int  # of the largest task

    def applied_to(self, options: netq.CommunicatorOptions) -> netq.CommunicatorOptions:
        """Return options with these bounds, where the user's are wider; a task to a client always has room."""
        connection, least = options.connection, 2 * self.task
        connection = replace(
            connection,
            message_size=min(connection.message_size, self.update + _TEXTS),
            memory=min(connection.memory, self.room + _TEXTS),
            queue_bytes=max(connection.with_queue_bytes(least).queue_bytes, least),
        )
        return replace(options, connection=connection)


def limits(model: int, memory_limit: int | None) -> Limits:
    """Return the bounds for a model of this many bytes: the model, its successor and the updates make up the limit.

    Raises InvalidOption.
    """
    update, task = 4 * model + _EXTRA, model + _TEXTS
    if memory_limit is None:
        return Limits(model + _SPARE, update, task)
    least = f"{3 * model} bytes, three models, at least"
    expect(is_whole(memory_limit, 3 * model), "Server.memory_limit", memory_limit, least)
    room = memory_limit - 2 * model
    return Limits(room, min(update, room), task)
