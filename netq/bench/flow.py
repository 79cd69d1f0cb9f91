"""How messages pass: one way, both at once, and back as echoes. The same code on both sides.

Runs while the clock does. So it makes nothing for a message that it can make before; `messages` makes a buffer for
all of them, and the order in which they come. What is under way is bounded in number, because each message has a
future, but amply, because a way that is long wants to be full; and for echoes in bytes too, because each has memory of
its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pickle import PickleBuffer
from typing import Any, NamedTuple, Protocol

from netq.bench.plan import Plan
from netq.bench.protocol import Counted, Unexpected
from netq.core import Message
from netq.runtime.delivery import Delivery

BATCH = 2048  # messages; two batches are under way at most: 40,000 a second where an answer takes 100 ms
DEPTH = 2048  # how many messages a side is ahead of the other when both send
_ECHOED = 64 * 2**20  # bytes of a batch of echoes
# Bytes up to which netq joins the buffers of a message itself (docs/explanation/design.md): pickled whole.
_JOINED = 64 * 1024
_PATTERN = 2**20  # bytes of noise, repeated: a compressing way or a page of zeros would flatter

Payload = bytes | PickleBuffer
Show = Callable[[int], object]  # called now and then with how many messages have passed


class _Get(Protocol):
    def __call__(self, *, timeout: float | None = None) -> Message: ...


class Endpoint(NamedTuple):
    """One side of a session: puts to the peer, gets from it."""

    put: Callable[[Any], Delivery]
    get: _Get


def slowed(end: Endpoint, delay: float) -> Endpoint:
    """Return an endpoint whose `put` pauses for `delay` seconds before each message; `end` itself if there is none.

    A `put` to a peer that is gone raises Closed at once: a sender that waits for a batch would know it hours later.
    """
    if not delay:
        return end

    def put(data: Any) -> Delivery:
        time.sleep(delay)
        delivery = end.put(data)
        if delivery.done():
            delivery.result()
        return delivery

    return end._replace(put=put)


def show_nothing(done: int) -> None:
    """Show no progress."""


def payload(size: int) -> Payload:
    """Return a message of `size` bytes, that can be put any number of times."""
    return next(messages(Plan(((size, 1),))))


def messages(plan: Plan) -> Iterator[Payload]:
    """Return the messages of a plan. They share one buffer, which is filled now."""
    block = _noise(plan.largest)
    made = [PickleBuffer(block[:size]) if size > _JOINED else bytes(block[:size]) for size, _ in plan.pairs]
    return map(made.__getitem__, plan.order())


def send(end: Endpoint, plan: Plan, made: Iterator[Payload], show: Show) -> None:
    """Put all messages, and wait until the peer has them."""
    earlier: Delivery | None = None
    waited = 0
    for done, stride in _strides(plan.count, BATCH):
        for _ in range(stride):
            delivery = end.put(next(made))
        if done - waited >= BATCH:
            if earlier is not None:
                earlier.result()
            earlier, waited = delivery, done
        show(done)
    delivery.result()


def receive(end: Endpoint, count: int, show: Show) -> Counted:
    """Get so many messages; return how many came, and their bytes."""
    nbytes = 0
    for done, stride in _strides(count, BATCH):
        for _ in range(stride):
            nbytes += _size(end.get().data)
        show(done)
    return Counted(count, nbytes)


def receive_one(end: Endpoint, timeout: float | None = None) -> int:
    """Get a message; return its bytes. Raises TimeoutError."""
    return _size(end.get(timeout=timeout).data)


def exchange(end: Endpoint, plan: Plan, made: Iterator[Payload], show: Show) -> Counted:
    """Put all messages while as many come; return how many came, and their bytes."""
    count = plan.count
    ahead = min(DEPTH, count)
    for _ in range(ahead):
        delivery = end.put(next(made))
    nbytes = 0
    for done, stride in _strides(count - ahead, BATCH):
        for _ in range(stride):
            nbytes += _size(end.get().data)
            delivery = end.put(next(made))
        show(done)
    nbytes += receive(end, ahead, lambda done: None).nbytes
    delivery.result()
    return Counted(count, nbytes)


def echo(end: Endpoint) -> tuple[Counted, Any]:
    """Put back what comes; return how many messages and bytes that was, and the tuple that ended it."""
    count = nbytes = 0
    next_count, next_nbytes = BATCH, _ECHOED
    earlier: Delivery | None = None
    while True:
        data = end.get().data
        if type(data) is tuple:
            return Counted(count, nbytes), data
        delivery = end.put(data if type(data) is bytes else PickleBuffer(data))
        count += 1
        nbytes += len(data)
        del data  # a large one is not to be here while the next one comes
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


def _strides(count: int, most: int) -> Iterator[tuple[int, int]]:
    """Divide: yield how many are done after each stride, and its length. A hundred strides, or more short ones."""
    length = max(1, min(most, count // 100))
    for done in range(0, count, length):
        stride = min(length, count - done)
        yield done + stride, stride


def _size(data: Any) -> int:
    """The bytes of a message, which is not kept."""
    if type(data) is bytes or type(data) is memoryview:
        return len(data)
    raise Unexpected(data)
