"""How messages are sent and received: one way, both ways at once, and as echoes. Both sides run the same code.

This code runs while time is measured, so all buffers are made before: the messages of a plan share one. A sender bounds
the messages that wait for their acknowledgement, because each holds a future. The bound is high enough to fill a link
with a long round trip. For echoes the bytes are bounded too, because each echo has memory of its own.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pickle import PickleBuffer
from typing import Any, NamedTuple, Protocol

from netq.bench.plan import Plan
from netq.bench.protocol import Counted, Unexpected
from netq.core import Message
from netq.runtime.delivery import Delivery

BATCH = 2048  # messages; two batches are in flight at most: 40,000 a second with a round trip of 100 ms
DEPTH = 2048  # messages that a side sends ahead of what it has received, when both send
_ECHOED = 64 * 2**20  # bytes in a batch of echoes
# Bytes up to which netq joins the buffers of a message (docs/explanation/design.md): such a message is plain bytes.
_JOINED = 64 * 1024
_PATTERN = 2**20  # bytes of noise, repeated: zeros would flatter a link that compresses, and the page cache

Payload = bytes | PickleBuffer


class _Get(Protocol):
    def __call__(self, *, timeout: float | None = None) -> Message: ...


class Endpoint(NamedTuple):
    """One side of a session: puts to the peer, gets from it."""

    put: Callable[[Any], Delivery]
    get: _Get


def payload(size: int) -> Payload:
    """Return a message of `size` bytes, which can be put any number of times."""
    return next(messages(Plan(((size, 1),))))


def messages(plan: Plan) -> Iterator[Payload]:
    """Return the messages of a plan, in its order. They share one buffer, which is filled now."""
    block = _noise(plan.largest)
    made = [PickleBuffer(block[:size]) if size > _JOINED else bytes(block[:size]) for size, _ in plan.pairs]
    return map(made.__getitem__, plan.order())


def send(end: Endpoint, made: Iterator[Payload]) -> None:
    """Put all messages, and wait until the peer has acknowledged them."""
    earlier: Delivery | None = None
    for number, message in enumerate(made, 1):
        delivery = end.put(message)
        # Deliveries end in order: to wait for the last one of the batch before bounds what is in flight.
        if not number % BATCH:
            if earlier is not None:
                earlier.result()
            earlier = delivery
    delivery.result()


def receive(end: Endpoint, count: int) -> Counted:
    """Get `count` messages; return their number and their bytes."""
    return Counted(count, sum(_size(end.get().data) for _ in range(count)))


def receive_one(end: Endpoint, timeout: float | None = None) -> int:
    """Get a message; return its bytes. Raises TimeoutError."""
    return _size(end.get(timeout=timeout).data)


def exchange(end: Endpoint, plan: Plan, made: Iterator[Payload]) -> Counted:
    """Put all messages while as many arrive; return the number that arrived, and their bytes."""
    for message in itertools.islice(made, DEPTH):
        delivery = end.put(message)
    nbytes = 0
    for message in made:
        nbytes += _size(end.get().data)
        delivery = end.put(message)
    nbytes += receive(end, min(DEPTH, plan.count)).nbytes
    delivery.result()
    return Counted(plan.count, nbytes)


def echo(end: Endpoint) -> tuple[Counted, Any]:
    """Put back each message until a tuple arrives; return the number of messages, their bytes, and the tuple."""
    count = nbytes = 0
    next_count, next_nbytes = BATCH, _ECHOED
    earlier: Delivery | None = None
    while True:
        data = end.get().data
        if type(data) is tuple:
            return Counted(count, nbytes), data
        size = _size(data)
        delivery = end.put(data if type(data) is bytes else PickleBuffer(data))
        count += 1
        nbytes += size
        del data  # before the next message arrives: two large ones need twice the memory
        if count >= next_count or nbytes >= next_nbytes:
            if earlier is not None:
                earlier.result()
            earlier = delivery
            next_count, next_nbytes = count + BATCH, nbytes + _ECHOED


def _noise(size: int) -> memoryview:
    pattern, block = os.urandom(min(size, _PATTERN)), memoryview(bytearray(size))
    for start in range(0, size, len(pattern)):
        block[start : start + len(pattern)] = pattern[: size - start]
    return block


def _size(data: Any) -> int:
    """Return the bytes of a message. Does not keep a reference to it."""
    if type(data) is bytes or type(data) is memoryview:
        return len(data)
    raise Unexpected(data)
