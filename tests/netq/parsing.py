"""Parses bytes into whole frames, with their bodies."""

from __future__ import annotations

from collections.abc import Iterator

from netq.protocol.wire import Frame, FrameKind, Reader


class Parser(Reader):
    """A reader that allocates each body and keeps the last one: a body begins only when the one before is whole."""

    def __init__(self) -> None:
        super().__init__(self._make_place)
        self._last = memoryview(b"")

    def _make_place(self, frame: Frame) -> memoryview:
        self._last = memoryview(bytearray(frame.length))
        return self._last

    def feed(self, data: bytes, step: int = 10**9) -> Iterator[Frame]:
        """Receive as a link does, into `buffer()`, in pieces of `step`; yield the frames with their bodies."""
        while data:
            buffer = self.buffer()
            piece = data[: min(step, len(buffer))]
            buffer[: len(piece)] = piece
            data = data[len(piece) :]
            for frame in self.advance(len(piece)):
                assert frame.kind is FrameKind.MSG or frame.body == self._last
                yield frame._replace(body=bytes(self._last))
