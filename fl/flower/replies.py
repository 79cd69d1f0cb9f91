"""Makes Flower's reply messages. Called by a grid (fl/flower/grid.py).

A reply's metadata are made from those of the message that it answers, never from what a node sent.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import overload

from flwr.app import Error, Message, Metadata, RecordDict

from fl.flower._compat import SUPERLINK_NODE_ID, SYSTEM_MESSAGE_TYPE, ErrorCode, make_message


class Streamed(list[Message]):
    """Messages whose replies are wanted as they arrive: `Grid.send_and_receive` returns Replies for them.

    Other grids of Flower treat it as a list.
    """


class Replies(Sequence[Message]):
    """Replies that can be read as they arrive, and again later.

    Flower's grids return a list, and strategies rely on it: they read the replies before and after they call `super()`.
    So iteration waits for the next reply only, and each reply is kept. The reader drops the arrays it has used.
    """

    def __init__(self, arriving: Iterator[Message]) -> None:
        self._arriving = arriving
        self._arrived: list[Message] = []

    def __iter__(self) -> Iterator[Message]:
        index = 0
        while index < len(self._arrived) or self._wait():
            yield self._arrived[index]
            index += 1

    def __len__(self) -> int:
        """Wait for all replies. Return their number."""
        while self._wait():
            pass
        return len(self._arrived)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        """Wait for all replies. Return some of them."""
        len(self)
        return self._arrived[index]

    def _wait(self) -> bool:
        """Keep the next reply. Return whether there was one."""
        for each in self._arriving:
            self._arrived.append(each)
            return True
        return False


def reply(asked: Metadata, answer: RecordDict | Error) -> Message:
    """Return the reply to a message with these metadata."""
    now = time.time()
    metadata = Metadata(
        run_id=asked.run_id,
        message_id=uuid.uuid4().hex,
        src_node_id=asked.dst_node_id,
        dst_node_id=asked.src_node_id,
        reply_to_message_id=asked.message_id,
        group_id=asked.group_id,
        created_at=now,
        ttl=max(0.0, asked.created_at + asked.ttl - now),
        message_type=asked.message_type,
        src_task_id=asked.dst_task_id,
        dst_task_id=asked.src_task_id,
    )
    if isinstance(answer, Error):
        return make_message(metadata, error=answer)
    return make_message(metadata, content=answer)


def reply_to_nothing(run: int, id: str) -> Message:
    """Return an error in place of the reply to an unknown message, as Flower's grids do."""
    asked = Metadata(run, id, SUPERLINK_NODE_ID, SUPERLINK_NODE_ID, "", "", 0.0, 0.0, SYSTEM_MESSAGE_TYPE)
    reason = f"the message {id!r} was not sent by this grid, or its reply was taken or dropped"
    return reply(asked, Error(ErrorCode.MESSAGE_UNAVAILABLE, reason))
