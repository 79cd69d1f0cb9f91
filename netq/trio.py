"""The trio front: the communicator of netq/core.py, awaited in one trio.run instead of waited for in threads.

    async with netq.trio.new() as queue:
        await queue.put("Hello, server!")
        print((await queue.get()).data)

Owns no bytes and no session: those are the core communicator's, whose loops run on in threads of their own. It owns a
Waiter of netq/runtime/inbox.py for each get. The other threads come here by `_soon` only: trio calls in order what they
leave there. So all messages and events arrive in the order in which they came. What waits in core (close, statistics)
runs in a thread, which ends before the call does.
"""

from __future__ import annotations

import functools
import math
import threading
import uuid
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import netq
from netq.core import Message
from netq.fronts import Front
from netq.log import log
from netq.options import CommunicatorOptions, Protocol, Purpose
from netq.runtime.inbox import Waiter

try:
    import trio
    from outcome import Outcome, capture  # which trio itself needs
    from trio.lowlevel import TrioToken, checkpoint, current_trio_token, enable_ki_protection
except ImportError as error:
    raise ImportError("netq.trio needs trio: pip install trio") from error

_T = TypeVar("_T")


def new(
    protocol: Protocol | str = Protocol.TCP,
    purpose: Purpose | str = Purpose.CLIENT,
    options: CommunicatorOptions | None = None,
) -> Communicator:
    """Return a communicator for the trio.run that this is called in, as netq.new does for threads. Never waits."""
    return Communicator(protocol, purpose, options)


class Delivery:
    """What `put` returns. Await it to wait until the peer (each of several) holds the message.

    Any number of tasks may await it, and none has to. `delivery` is the netq.Delivery that it follows.
    """

    def __init__(self, delivery: netq.Delivery, token: TrioToken) -> None:
        self.delivery = delivery
        self._token = token
        self._done = trio.Event()
        self._followed = False  # whether a callback of `delivery` sets the event

    def __await__(self) -> Generator[Any, None, None]:
        return self.wait().__await__()

    async def wait(self) -> None:
        """Wait until it is done, as `await delivery` does: for `nursery.start_soon(delivery.wait)`.

        Raises Closed, QueueFull or MessageTooLarge if the peer never will hold the message, and
        concurrent.futures.CancelledError if it was taken back.

        If the task is cancelled, the message is taken back. The task stops waiting even if the last byte has left and
        no ACK has come: then `delivery` says later how it ended.
        """
        _check_run(self._token, "wait")
        try:
            if self.delivery.done():
                await checkpoint()
            else:
                self._follow()
                await self._done.wait()
        except BaseException:
            self.delivery.cancel()
            raise
        self.delivery.result()

    def done(self) -> bool:
        """Return whether it is known how it ended."""
        return self.delivery.done()

    def result(self) -> None:
        """Raise what `wait` would raise, or return; trio.WouldBlock if it is not done."""
        if not self.delivery.done():
            raise trio.WouldBlock
        self.delivery.result()

    def cancelled(self) -> bool:
        """Return whether it was taken back."""
        return self.delivery.cancelled()

    def cancel(self) -> bool:
        """Take the message back; return True if the peer (with several: each of them) will never see it."""
        return self.delivery.cancel()

    @property
    def peer(self) -> uuid.UUID | None:
        """The peer that it is for; None for several peers, and for a server that was not reached yet."""
        return self.delivery.peer

    @functools.cached_property
    def futures(self) -> tuple[Delivery, ...]:
        """One for each peer; for a message to one peer, this itself."""
        parts = self.delivery.futures
        return (self,) if parts[0] is self.delivery else tuple([Delivery(part, self._token) for part in parts])

    def _follow(self) -> None:
        """Have `_done` set when the delivery is done. Not for each put: most are never awaited."""
        if not self._followed:
            self._followed = True
            self.delivery.add_done_callback(lambda _: _soon(self._token, self._done.set))


class Communicator(Front):
    """Moves Python objects between one server and many clients, in the trio.run that it was made in.

    An asynchronous context manager, and an iterator over the messages. Event functions are called in trio's thread, in
    order, each before a `get` returns what came after it; their errors are logged. Raises what netq.Communicator
    raises, and RuntimeError for a call from another trio.run or from none. Objects are pickled in trio's thread.
    """

    def __init__(self, protocol: Protocol | str, purpose: Purpose | str, options: CommunicatorOptions | None) -> None:
        self._token = _current_run("new")
        super().__init__(protocol, purpose, options)

    def put(self, data: Any, *peers: uuid.UUID, lane: int | None = 0, bounded: bool = True) -> Delivery:
        """Send `data`, as netq.Communicator.put does. Never waits; await the result to know that it has arrived."""
        self._check_here("put")
        return Delivery(self._core.put(data, *peers, lane=lane, bounded=bounded), self._token)

    @enable_ki_protection  # Ctrl-C raises KeyboardInterrupt in an `await`, as a cancellation does, and nowhere else
    async def get(self, *peers: uuid.UUID, timeout: float | None = None, into: Any = None) -> Message:
        """Wait for the next message of any of `peers`, and return it. Without `peers`, of any peer.

        Takes `into`, and raises TimeoutError, Closed, Unreadable and BufferMismatch, as netq.Communicator.get does. If
        it is cancelled, at any moment, it has taken no message, and `into` is unchanged. Always a checkpoint.
        """
        self._check_here("get")
        self._core._check_get(peers, timeout)
        load = None if into is None else self._core._loader(into)
        deadline = math.inf if timeout is None else trio.current_time() + timeout
        waiter = Waiter(peers, lambda: None)
        woken = trio.Event()
        waiter.wake = functools.partial(_soon, self._token, woken.set)
        try:
            self._core._inbox.enter(waiter)
            # A cancellation is raised in these two lines and nowhere else. Nothing is taken before, and after them
            # there is no `await`: so a cancelled `get` has a reservation at most, which `leave` gives back.
            with trio.CancelScope(deadline=deadline):
                await woken.wait()
            if not waiter.ready:
                raise TimeoutError(f"no message within {timeout:g} s")
            if not woken.is_set():  # the message came in time, and trio has yet to call the events before it
                await woken.wait()
            item = self._core._inbox.accept(waiter)
        except BaseException:
            self._core._inbox.leave(waiter)
            raise
        return self._core._unpack(item, load)

    def _check_here(self, name: str) -> None:
        _check_run(self._token, name)

    def _wrapped(self, function: Callable[..., object]) -> Callable[..., object]:
        return functools.partial(_soon, self._token, _run_event, function)

    def _prepare_close(self) -> None:
        if _soon(self._token, lambda: None):  # it has not ended
            self._check_here("close")

    async def _aside(self, function: Callable[..., _T], *args: Any, hasten: Callable[[], object] | None = None) -> _T:
        return await _in_thread(function, *args, hasten=hasten)


def _run_event(function: Callable[..., object], peer: uuid.UUID, *args: Any) -> None:
    try:
        function(peer, *args)
    except BaseException:  # trio would end with it
        log.exception("an event function failed for %s", peer)


def _soon(token: TrioToken, function: Callable[..., object], *args: Any) -> bool:
    """Run `function(*args)` in trio's thread, in the order of the calls; return False if the trio.run has ended.

    In any thread; never waits or raises.
    """
    try:
        token.run_sync_soon(function, *args)
    except trio.RunFinishedError:
        return False
    return True


def _current_run(name: str) -> TrioToken:
    try:
        return current_trio_token()
    except RuntimeError:
        raise RuntimeError(
            f"{name}(): netq.trio is for tasks of trio, and here no trio.run runs; see netq.new"
        ) from None


def _check_run(token: TrioToken, name: str) -> None:
    if _current_run(name) is not token:
        raise RuntimeError(
            f"{name}(): this communicator belongs to the trio.run that it was made in, and this is another; make one "
            "in each trio.run, or use netq.new, which any thread may use"
        )


@enable_ki_protection
async def _in_thread(function: Callable[..., _T], *args: Any, hasten: Callable[[], object] | None = None) -> _T:
    """Run a function that waits in a thread of its own, which has ended when this returns or raises.

    If it is cancelled, `hasten` makes the function end soon.
    """
    # Not in a thread of trio.to_thread: those stay for ten seconds, and a closed communicator should leave no thread.
    token, done = current_trio_token(), trio.Event()
    results: list[Outcome[_T]] = []

    def run() -> None:
        results.append(capture(function, *args))
        _soon(token, done.set)

    thread = threading.Thread(target=run, name="netq-aside", daemon=True)
    thread.start()
    try:
        await done.wait()
    except BaseException:
        with trio.CancelScope(shield=True):
            if hasten is not None:
                await _in_thread(hasten)
            await done.wait()
        raise
    finally:
        thread.join()  # it has done its work
    return results[0].unwrap()
