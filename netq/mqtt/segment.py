"""What a link (netq/mqtt/link.py) and its port (netq/mqtt/port.py) know of each other: segments go one way, bytes the
other. Either may live in another loop.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple, Protocol

from netq.memory import Buffer
from netq.utils.stream import Stream


class Block(NamedTuple):
    """Some bytes of a message for several peers, which the links of all of them cut alike."""

    stream: Stream
    start: int
    audience: tuple[uuid.UUID, ...]  # the peers: one object for each put
    buffers: list[memoryview]


class Segment(NamedTuple):
    """Bytes of the session, and a block that follows them, if one does."""

    buffers: list[Buffer]
    block: Block | None = None

    @property
    def whole(self) -> list[Buffer]:
        """All bytes, those of the block too."""
        return [*self.buffers, *(self.block.buffers if self.block else ())]

    def copy(self) -> Segment:
        """The same, in memory of its own."""
        block = self.block
        own = block and block._replace(buffers=[memoryview(b"".join(block.buffers))])
        return Segment([b"".join(self.buffers)], own)


class Far(Protocol):
    """The Link, of which all but `listener` and `greeted` is called in the link's own loop."""

    @property
    def greeted(self) -> bool:
        """Whether both have said who they are."""

    def listener(self, size: int) -> uuid.UUID | None:
        """Who takes blocks of this size there, if somebody does."""

    def feed(self, data: memoryview) -> None:
        """Take bytes of the session; tell `used` then."""

    def published(self) -> None:
        """A segment has left."""

    def lost(self, error: Exception) -> None:
        """No byte passes any more."""
