"""One lane for tests: senders, receivers, and the frames between them."""

from __future__ import annotations

from collections.abc import Sequence

from netq.buffers import Buffer
from netq.protocol.codec import Outgoing
from netq.protocol.memory import Memory
from netq.protocol.receiver import Receiver
from netq.protocol.sender import Part, Sender
from netq.protocol.wire import Frame, FrameKind
from netq.utils.stream import Stream
from tests.netq.parsing import Parser

WINDOW = 10_000


LANE = 3


class Noted(Outgoing):
    """A message that records its acknowledgement."""

    def __init__(self, size: int, acked: list[Outgoing]) -> None:
        super().__init__(Stream([bytes(n % 251 for n in range(size))]), LANE)
        self.noted = acked
        self.watched = True

    def acked(self) -> None:
        super().acked()
        self.noted.append(self)


def message(size: int) -> Outgoing:
    return Noted(size, [])


def sender(*sizes: int, limit: int = WINDOW) -> tuple[Sender, list[Outgoing]]:
    made, messages = Sender(LANE, limit), noted(*sizes)
    for each in messages:
        made.put(each)
    return made, messages


def noted(*sizes: int) -> list[Outgoing]:
    """Return messages that share one list of acknowledged ones; see `acked`."""
    acked: list[Outgoing] = []
    return [Noted(size, acked) for size in sizes]


def acked(messages: Sequence[Outgoing]) -> list[Outgoing]:
    """Return the messages that were acknowledged since the last call, in order."""
    (first, *_) = messages
    assert isinstance(first, Noted)
    found = first.noted[:]
    first.noted.clear()
    return found


def receiver(window: int = WINDOW, *, merge: bool = True) -> Receiver:
    return Receiver(3, window, Memory(), merge=merge)


def next_frame(sender: Sender, size: int = 100) -> Frame:
    """Return the next frame of a sender, parsed."""
    assert sender.ready
    header, body = sender.chunk(size)
    data = b"".join([header, *(body.buffers() if body else ())])
    (frame,) = Parser().feed(data)
    return frame


def msg(number: int, length: int, size: int) -> Frame:
    return Frame(FrameKind.MSG, lane=3, length=length, number=number, value=size, body=bytes(length))


def drop(number: int, size: int) -> Frame:
    return Frame(FrameKind.DROP, lane=3, number=number, value=size)


def arrive(receiver: Receiver, frame: Frame) -> Stream | None:
    receiver.place(frame)[:] = frame.body
    return receiver.received(frame.length)


def take(receiver: Receiver, mark: int) -> None:
    """Let the user take a message (see Receiver.item for `mark`)."""
    assert mark > receiver.taken_room
    receiver.taken_room = mark
    receiver.release_room()


def batched(sender: Sender, small: int = 100, limit: int = 10**6) -> tuple[list[Frame], int]:
    """Let it send a batch, and parse that; return also how many bytes it said."""
    out: list[Buffer | Part] = []
    assert sender.ready
    size = sender.batch(out, small, limit)
    data = b"".join(piece for piece in out if not isinstance(piece, Part))
    assert len(data) == size, "no parts, and what it says is what it sends"
    return list(Parser().feed(data)), size
