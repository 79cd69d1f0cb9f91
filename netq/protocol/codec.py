"""The inner loops for small messages: an outgoing message, its frame, its acknowledgement. No socket, clock or thread.

`netq/protocol/_codec.c` implements the same in C. Where it is built, it replaces the attributes of the class and the
three functions below, unless the environment has NETQ_PURE=1. Both behave alike, and the tests run both: change both
together. Large messages, chunks, cancelling and illegal frames are handled in Python only, by sender.py, receiver.py
and session.py.
"""

from __future__ import annotations

import contextlib
import os
import struct
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, cast

from netq.protocol.wire import HEADER_SIZE, OVERHEAD
from netq.utils.stream import Stream

_MSG, _ACK = 2, 3  # wire.FrameKind as plain numbers: comparing with an enum member is slower
_HEADER = struct.Struct("<BBHIQQ")
_pack, _unpack = _HEADER.pack, _HEADER.unpack_from


class SenderFields(Protocol):
    """The attributes of netq.protocol.sender.Sender that are used here and, by the same names, in _codec.c."""

    lane: int
    limit: int
    next: int
    number: int
    _position: int
    sent: deque[Outgoing]


class ReceiverFields(Protocol):
    """The attributes of netq.protocol.receiver.Receiver that are used here and in _codec.c."""

    held: int
    start: int
    limit: int
    cancelled: int
    claimed: int
    parts: list[memoryview]


class SessionFields(Protocol):
    """The attributes of netq.protocol.session.Session that are used here and in _codec.c."""

    peer: uuid.UUID | None
    small: int
    arrived: Any  # deque[Item]
    senders: Any  # dict[int, Sender]
    receivers: Any  # dict[int, Receiver]
    owed: Any  # dict[int, Receiver]
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int


class Outgoing:
    """One message on its way to one peer.

    data:      its bytes. They are released when the peer holds them, and when the message is cancelled or has failed.
    audience:  all peers to which the same data goes, if there are several.
    """

    number = start = 0  # its number and position in the lane; number 0: it has none yet
    withdrawn = False  # cancelled
    left = False  # its last byte has left, so it cannot be cancelled any more
    waits = False  # it is in `Sender.waiting`: no byte of it has left
    held = False  # the peer has acknowledged it
    watched = False  # `acked` is called when the peer holds it; otherwise it is only marked as `held`
    bounded = True  # queue_size and queue_bytes hold for it; read by session.py only, so it is not in C

    def __init__(self, data: Stream | bytes, lane: int = 0, audience: tuple[uuid.UUID, ...] = ()) -> None:
        self.data = data
        self.size = len(data) if type(data) is bytes else cast(Stream, data).nbytes
        self.lane = lane
        self.audience = audience

    @property
    def stop(self) -> int:
        """The position at which the next message starts."""
        return self.start + self.size + OVERHEAD

    def withdraw(self) -> None:
        """Cancel it and release its bytes; if a part was sent, a DROP will follow. Not after it has `left`."""
        self.withdrawn = True
        self.data = b""

    def acked(self) -> None:
        """Release its bytes: the peer holds the message. Harmless if it is called again."""
        self.data = b""
        self.held = True

    def fail(self, error: Exception) -> bool:
        """Release its bytes: it will not be delivered, or that is unknown. Return False if it has ended before."""
        self.data = b""
        return True


def batch(sender: SenderFields, out: list[Any], small: int, limit: int, source: deque[Outgoing]) -> int:
    """Move small messages from `source` to `sender.sent`, and append their frames to `out`; return their bytes.

    See `Sender.batch`.
    """
    number, position, size = sender.next, sender._position, 0
    sent, lane, most = sender.sent, sender.lane, sender.limit
    while source and size < limit:
        message = source[0]
        length = message.size
        if length > small or message.withdrawn or position + (length or 1) > most or message.lane != lane:
            break
        message.number, message.start, message.left = number, position, True
        sent.append(message)
        source.popleft()
        out.append(_pack(_MSG, 0, lane, length, number, length))
        if type(data := message.data) is bytes:
            out.append(data)
        else:
            out += cast(Stream, data).buffers
        number += 1
        position += length + OVERHEAD
        size += length + HEADER_SIZE
    sender._position = position
    sender.next = sender.number = number
    return size


def settle(sent: deque[Outgoing], number: int) -> tuple[int, int]:
    """Settle and remove the messages up to `number`; return how many, and their bytes. See `Sender.acked`."""
    count = size = 0
    while sent:
        message = sent[0]
        if message.number > number:
            break
        if message.watched:
            message.acked()
        else:  # as Outgoing.acked does, without the call
            message.data = b""
            message.held = True
        sent.popleft()
        if not message.withdrawn:
            count += 1
            size += message.size
    return count, size


def take(session: SessionFields, data: memoryview, low: int, high: int) -> int:
    """Receive small messages and ACKs from `data[low:high]`; return where the rest begins. See `Session.take_small`."""
    # All checks of the general path (Receiver.place, Sender.acked) are here too, as conditions to go on. A frame that
    # fails one of them is left: the general path then handles it, or raises the error.
    peer, small = session.peer, session.small
    assert peer is not None
    while high - low >= HEADER_SIZE:
        kind, flags, lane, length, number, value = _unpack(data, low)
        if kind == _MSG:
            receiver: ReceiverFields | None = session.receivers.get(lane)
            if receiver is None or receiver.parts or receiver.claimed:
                break  # a message has begun, or the budget has granted a claim
            held, start, limit = receiver.held, receiver.start, receiver.limit
            mark = start - receiver.cancelled  # see Receiver.item
            whole: list[tuple[uuid.UUID, bytes, ReceiverFields, int]] = []
            size = 0
            while (
                kind == _MSG
                and number == held + 1
                and low + HEADER_SIZE + length <= high
                and length == value <= small
                and start + (length or 1) <= limit
                and not flags
            ):
                stop = low + HEADER_SIZE + length
                held = number
                size += length
                start += length + OVERHEAD
                mark += length + OVERHEAD
                whole.append((peer, bytes(data[low + HEADER_SIZE : stop]), receiver, mark))
                low = stop
                if high - low < HEADER_SIZE:
                    break
                kind, flags, next_lane, length, number, value = _unpack(data, low)
                if next_lane != lane:
                    break
            if not whole:
                break
            session.arrived.extend(whole)
            receiver.held, receiver.start = held, start
            session.owed[lane] = receiver
            session.messages_in += len(whole)
            session.bytes_in += size
        elif kind == _ACK:
            sender: SenderFields | None = session.senders.get(lane)
            if sender is None or flags or length or number >= sender.number:
                break
            count, size = settle(sender.sent, number)
            session.messages_out += count
            session.bytes_out += size
            if value > sender.limit:
                sender.limit = value
            low += HEADER_SIZE
        else:
            break
    return low


if not TYPE_CHECKING and os.environ.get("NETQ_PURE", "0") in ("", "0"):
    with contextlib.suppress(ImportError):
        from netq.protocol._codec import Message, batch, settle, take  # noqa: F401

        class Outgoing(Message):
            """One message on its way to one peer: the methods as above, the attributes in C."""

            __slots__ = ()
            bounded = Outgoing.bounded
            stop, withdraw, acked, fail = Outgoing.stop, Outgoing.withdraw, Outgoing.acked, Outgoing.fail
