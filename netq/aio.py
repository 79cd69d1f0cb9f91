"""The asyncio front: the communicator of netq/core.py, awaited in one event loop instead of waited for in threads.

    async with netq.aio.new() as queue:
        await queue.put("Hello, server!")
        print((await queue.get()).data)

Owns no bytes and no session: those are the core communicator's, whose loops run on in threads of their own. It owns
what waits in the event loop: a Delivery for each put, a Waiter of netq/runtime/inbox.py for each get. Everything
belongs to the event loop's thread but `_soon`, by which the other threads come here. It never blocks the event loop:
what waits in the core (close, statistics) runs in a thread, which ends before the call does.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Self, TypeVar

import netq
from netq.core import Message
from netq.fronts import Front
from netq.io.baton import EventLoopPoller
from netq.options import CommunicatorOptions, Protocol, Purpose
from netq.runtime.inbox import Waiter

_T = TypeVar("_T")
_Events = deque[Callable[[], object]]


def new(
    protocol: Protocol | str = Protocol.TCP,
    purpose: Purpose | str = Purpose.CLIENT,
    options: CommunicatorOptions | None = None,
) -> Communicator:
    """Return a communicator for the running event loop, as netq.new does for threads. Never waits."""
    return Communicator(protocol, purpose, options)


class Delivery(asyncio.Future[None]):
    """What `put` returns: an asyncio future, done when the peer (when each of several) holds the message.

    Fails as netq.Delivery does; if it is not awaited, it fails silently. `delivery` is the netq.Delivery that it
    follows. It registers a callback with that when it is first awaited or gets a callback.
    """

    _parts: tuple[Delivery, ...] = ()
    _follower: list[Delivery] | None = None  # for the delivery's callback; emptied when this is done

    def __init__(self, delivery: netq.Delivery, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.delivery = delivery
        self._event_loop = loop
        if (parts := delivery.futures)[0] is not delivery:
            self._parts = tuple([Delivery(part, loop) for part in parts])

    def add_done_callback(self, fn: Callable[[Self], object], *, context: contextvars.Context | None = None) -> None:
        """Call `fn(self)` in the event loop when it is done."""
        if not self.done() and not self._follower:
            self._follower = [self]
            self.delivery.add_done_callback(functools.partial(_notify, self._event_loop, self._follower))
        super().add_done_callback(fn, context=context)

    def done(self) -> bool:
        """Return whether it is known how it ended."""
        self._settle()
        return super().done()

    def result(self) -> None:
        """Raise its error, if it has one; InvalidStateError if it is not done."""
        self._settle()
        return super().result()

    def exception(self) -> BaseException | None:
        """Return what `result` would raise, or None."""
        self._settle()
        return super().exception()

    def cancelled(self) -> bool:
        """Return whether it was taken back."""
        self._settle()
        return super().cancelled()

    @property
    def peer(self) -> uuid.UUID | None:
        """The peer that it is for; None for several peers, and for a server that was not reached yet."""
        return self.delivery.peer

    @property
    def futures(self) -> tuple[Delivery, ...]:
        """One for each peer; for a message to one peer, this itself."""
        return self._parts or (self,)

    def cancel(self, msg: Any = None) -> bool:
        """Take the message back; return True if the peer (with several: each of them) will never see it.

        Cancelling a task that awaits this does the same. The task stops waiting even if the last byte has left and no
        ACK has come: then this is cancelled, returns False, and `delivery` says later how it ended.
        """
        if self.done():
            return False
        taken_back = self.delivery.cancel()
        for part in self._parts:
            part._settle()
        if not taken_back:
            self._settle()  # it may be done: delivered, or some peers have it and the others never will
        super().cancel(msg)
        if self._follower:
            self._follower.clear()
        return taken_back

    def _settle(self) -> None:
        """Take the state of the delivery, if that is done; the parts first."""
        # The state is fetched when it is asked for, and by the delivery's callback if this is awaited. A callback for
        # each put would wake the event loop for each message, also where nothing waits for it.
        if super().done() or not self.delivery.done() or self._event_loop.is_closed():
            return
        for part in self._parts:
            part._settle()
        if self._follower:
            self._follower.clear()
        if self.delivery.cancelled():
            super().cancel()
        elif error := self.delivery.exception():
            self.set_exception(error)
            super().exception()  # mark it as retrieved: a put need not be awaited, and asyncio would log each failure
        else:
            self.set_result(None)


class _ImmediateFuture(asyncio.Future[None]):
    """A future whose task continues within the call of `begin`, and not in the event loop's next iteration.

    Only a callback of the event loop may call `begin`: no task runs then.
    """

    _task: tuple[Callable[[Any], object], contextvars.Context | None] | None = None

    def add_done_callback(self, fn: Callable[[Self], object], *, context: contextvars.Context | None = None) -> None:
        """Note the callback that continues the task."""
        if self.done() or self._task is not None:
            super().add_done_callback(fn, context=context)
        else:
            self._task = fn, context

    def begin(self) -> None:
        """Be done, and continue the task. May be called again, if a signal handler's exception came in between."""
        if not self.done():
            self.set_result(None)
        if self._task is not None and not self.cancelled():
            (go_on, context), self._task = self._task, None
            go_on(self) if context is None else context.run(go_on, self)

    def cancel(self, msg: Any = None) -> bool:
        """Be cancelled; the task continues in the next iteration."""
        cancelled = super().cancel(msg)
        if cancelled and self._task is not None:
            go_on, context = self._task
            self.get_loop().call_soon(go_on, self, context=context)
        return cancelled


class Communicator(Front):
    """Moves Python objects between one server and many clients, in the event loop that it was made in.

    An asynchronous context manager, and an iterator over the messages. Event functions are called in the event loop, in
    order, each before a `get` returns what came after it. Raises what netq.Communicator raises, and RuntimeError for a
    call from another event loop or from none. Objects are pickled in the event loop.
    """

    def __init__(self, protocol: Protocol | str, purpose: Purpose | str, options: CommunicatorOptions | None) -> None:
        self._loop = _running_loop("new")
        self._events: _Events = deque()  # that have happened, in order, and are to be called in the event loop
        super().__init__(protocol, purpose, options)
        self._baton = self._core._endpoint.home.baton
        self._thread = threading.get_ident()
        self._poller = EventLoopPoller()
        self._polling = False
        self._woken: deque[_ImmediateFuture] = deque()  # for `_wake_all`, one for each `get`

    def put(self, data: Any, *peers: uuid.UUID, lane: int | None = 0, bounded: bool = True) -> Delivery:
        """Send `data`, as netq.Communicator.put does. Never waits; await the result to know that it has arrived."""
        self._check_here("put")
        return Delivery(self._core.put(data, *peers, lane=lane, bounded=bounded), self._loop)

    async def get(self, *peers: uuid.UUID, timeout: float | None = None, into: Any = None) -> Message:
        """Wait for the next message of any of `peers`, and return it. Without `peers`, of any peer.

        Takes `into`, and raises TimeoutError, Closed, Unreadable and BufferMismatch, as netq.Communicator.get does. If
        it is cancelled, at any moment, it has taken no message, and `into` is unchanged. Yields to the event loop at
        least once, so a flood of messages does not stop other tasks.
        """
        self._check_here("get")
        if peers or timeout is not None or self._baton.forked:
            self._core._check_get(peers, timeout)
        load = None if into is None else self._core._loader(into)
        woken = _ImmediateFuture(loop=self._loop)
        waiter = Waiter(peers, functools.partial(self._wake, woken))
        timer = None if timeout is None else self._loop.call_later(timeout, lambda: waiter.wake())
        try:
            self._core._inbox.enter(waiter)
            if not (waiter.ready or self._poller.active):
                self._poll()
            # A cancellation is raised here and nowhere else. Nothing is taken before, and after it there is no `await`:
            # so a cancelled `get` has a reservation at most, which `leave` gives back.
            await woken
            if not waiter.ready:
                raise TimeoutError(f"no message within {timeout:g} s")
            item = self._core._inbox.accept(waiter)
        except BaseException:
            self._core._inbox.leave(waiter)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return self._core._unpack(item, load)

    def _wake(self, woken: _ImmediateFuture) -> None:
        """Let a `get` continue, after those that were woken before. In any thread."""
        # All go through one queue, whichever way they are woken. If each were scheduled by its own thread, a `get` that
        # came later could be continued before an earlier one, which has an earlier message.
        self._woken.append(woken)
        if threading.get_ident() != self._thread or self._loop.is_closed():
            _soon(self._loop, self._wake_all)
        elif not self._polling:  # otherwise `_ready` runs it
            self._loop.call_soon(self._wake_all)

    def _wake_all(self) -> None:
        """Continue the tasks, in a callback of the event loop."""
        # An event that came before a message was added before it, and may wait in the event loop's queue: then so does
        # the message, behind it.
        count = len(self._woken)  # before the events are looked at; and not the tasks that these wake in turn
        if self._events:
            self._loop.call_soon(_run_event, self._events)  # again: a signal handler's exception may have stopped it
            self._loop.call_soon(self._wake_all)
            return
        # Each is removed after it has begun. An exception in between leaves it here, and it begins once more, which is
        # harmless (`begin`); in the other order its task would sleep forever.
        try:
            for _ in range(count):
                self._woken[0].begin()
                self._woken.popleft()
        except BaseException:  # of a signal handler, or of one of the tasks
            self._loop.call_soon(self._wake_all)
            raise

    def _poll(self) -> None:
        """Poll the core's sockets in the event loop, unless the core's thread has to."""
        if self._baton.start_polling(self._poller):
            self._loop.add_reader(self._baton.poller.fileno(), _ready, weakref.ref(self))
            self._loop.call_soon(self._ready)  # for what came before it began

    def _ready(self) -> None:
        """Receive what has come, and continue the waiting tasks now, not in the event loop's next iteration."""
        # This is a reader's callback, so no task runs, and a task may be continued in it. The next iteration would cost
        # another look at all descriptors for each message.
        self._polling = True
        try:
            goes_on = self._baton.poll_ready(self._poller)
        except BaseException:  # a signal handler's
            self._loop.call_soon(self._wake_all)
            raise
        finally:
            self._polling = False
        if not goes_on:
            self._stop_polling()
        self._wake_all()

    def __del__(self) -> None:
        if hasattr(self, "_poller") and self._poller.active:  # otherwise the constructor has raised, perhaps
            self._poller.active = False
            with contextlib.suppress(ValueError):  # the core's loop has ended
                _soon(self._loop, self._loop.remove_reader, self._baton.poller.fileno())
            self._baton.resume()

    def _stop_polling(self) -> None:
        self._poller.active = False
        with contextlib.suppress(ValueError, OSError):  # the core's loop has ended
            self._loop.remove_reader(self._baton.poller.fileno())
        self._baton.resume()

    def _check_here(self, name: str) -> None:
        if _running_loop(name) is not self._loop:
            raise RuntimeError(
                f"{name}(): this communicator belongs to the event loop that it was made in, and this is another; "
                "make one in each event loop, or use netq.new, which any thread may use"
            )

    def _wrapped(self, function: Callable[..., object]) -> Callable[..., object]:
        return functools.partial(_tell, self._loop, self._events, function)

    def _prepare_close(self) -> None:
        # The core's thread has to poll again: the thread that closes waits for it, and does not run the event loop.
        if not self._loop.is_closed():
            self._check_here("close")
            self._stop_polling()

    async def _aside(self, function: Callable[..., _T], *args: Any, hasten: Callable[[], object] | None = None) -> _T:
        # The thread cannot be cancelled. `hasten` runs in a second one, and makes the first one end; both are awaited,
        # so that no thread is left when this raises.
        running = _in_thread(function, *args)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await _end_of(running, *[_in_thread(each) for each in (hasten,) if each is not None])
            raise


def _ready(communicator: weakref.ref[Communicator]) -> None:
    """Call `_ready`. The event loop refers to this function, so it keeps no communicator that no one else refers to."""
    if (found := communicator()) is not None:
        found._ready()


def _running_loop(name: str) -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(f"{name}(): netq.aio is for coroutines, and here no event loop runs; see netq.new") from None


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: Any) -> None:
    """Run `function(*args)` in the event loop, in the order of the calls. In any thread; never waits or raises."""
    with contextlib.suppress(RuntimeError):  # the event loop is closed, and no task waits
        loop.call_soon_threadsafe(function, *args)


def _tell(loop: asyncio.AbstractEventLoop, events: _Events, function: Callable[..., object], *args: Any) -> None:
    """Have a function of the user called in the event loop. In any thread."""
    events.append(functools.partial(function, *args))
    _soon(loop, _run_event, events)


def _run_event(events: _Events) -> None:
    if events:
        events.popleft()()


def _notify(loop: asyncio.AbstractEventLoop, followers: list[Delivery], _: object) -> None:
    """Settle the futures that follow a delivery, in the event loop."""
    for delivery in [*followers]:  # a copy: it may be emptied meanwhile
        _soon(loop, delivery._settle)


def _in_thread(function: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
    """Run a function that waits in its own thread. The future is done when the thread has ended; do not cancel it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def run() -> None:
        try:
            settle = functools.partial(done.set_result, function(*args))
        except BaseException as error:
            settle = functools.partial(done.set_exception, error)
        _soon(loop, _end, thread, settle)

    thread = threading.Thread(target=run, name="netq-aside", daemon=True)
    thread.start()
    return done


def _end(thread: threading.Thread, settle: Callable[[], object]) -> None:
    try:
        thread.join()  # it has done its work; no thread is left when the future is done
    finally:  # also after Ctrl-C
        settle()


async def _end_of(*futures: asyncio.Future[Any]) -> None:
    """Wait until all are done, which is soon, even if this is cancelled."""
    while not all(future.done() for future in futures):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(futures)
