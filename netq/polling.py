"""Waits for the next message of any of several communicators.

Each communicator has sockets and a loop of its own. So no thread can poll for all of them, and this one waits as
threads do of which another polls: with a Waiter in each inbox (netq/runtime/inbox.py). It takes no message: what is
reserved for its waiters is given back, and is the next for `get`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from netq.core import Communicator
from netq.io.condition import deadline_of
from netq.runtime.inbox import Waiter
from netq.validate import check_timeout, expect


def poll(communicators: Iterable[Communicator], timeout: float | None = None) -> list[Communicator]:
    """Wait until `get` of one of these communicators need not wait; return those of which this is so.

    It returns an empty list after `timeout` seconds. A communicator is also returned when its `get` would raise Closed.
    Another thread that calls `get` may be faster: pass `timeout=0` to `get` where there is one.

    Raises InvalidOption without communicators. Raises RuntimeError where `get` does: in events, callbacks and forks,
    and in a handler that has interrupted one of the communicators.
    """
    expected = "one or more communicators, as netq.new returns them, in a list"
    expect(isinstance(communicators, Iterable), "poll", communicators, expected)
    watched = list(dict.fromkeys(communicators))
    expect(bool(watched), "poll", watched, expected)
    for communicator in watched:
        expect(isinstance(communicator, Communicator), "poll", communicator, expected)
        communicator._baton.check("poll")
    check_timeout("poll", timeout)
    deadline = deadline_of(timeout)
    waiters = [Waiter((), lambda: None) for _ in watched]
    found: list[Communicator] = []

    def look() -> bool:
        found[:] = [one for one, waiter in zip(watched, waiters, strict=True) if one._inbox.is_ready(waiter)]
        return bool(found)

    def subscribe(wake: Callable[[], object]) -> None:
        for communicator, waiter in zip(watched, waiters, strict=True):
            waiter.wake = wake
            communicator._inbox.enter(waiter)
            communicator._baton.stop_polling()  # perhaps this thread was the one that did

    def leave() -> None:
        for communicator, waiter in zip(watched, waiters, strict=True):
            communicator._inbox.leave(waiter)

    try:
        watched[0]._baton.wait(look, deadline, subscribe, leave, "poll")
    except BaseException as error:
        for communicator in watched:
            communicator._check_step(error)
        raise
    return found
