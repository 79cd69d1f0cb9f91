"""What a link (netq/mqtt/link.py) gives to its port (netq/mqtt/port.py), which may live in another loop."""

from __future__ import annotations

import uuid
from typing import NamedTuple

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
