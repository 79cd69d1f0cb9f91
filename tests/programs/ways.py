"""Puts the numbers below `count`, and ends without `close` in the way that the fact `way` names.

netq is imported where it is used, and so in some of the processes only after they have begun.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import json
import multiprocessing
import os
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

BYTES = bytes(20_000)
COUNT: int = json.loads(sys.argv[1])["count"]
_KEPT: list[Any] = []  # open communicators


def put(first: int = 0, last: int = COUNT) -> None:
    from tests.programs.command_line import communicator

    queue = communicator(id=uuid.uuid4())
    _KEPT.append(queue)
    for number in range(first, last):
        queue.put((number, BYTES))


def put_and_exit() -> None:
    put()
    sys.exit(0)


def put_and_raise() -> None:
    put()
    raise KeyError("on purpose")


def put_in_thread() -> None:
    """Let a thread put the second half, after the main thread has ended."""
    put(0, COUNT // 2)
    threading.Thread(target=_put_after, args=(threading.current_thread(), put_more)).start()


def put_in_late_thread() -> None:
    """The same, with netq imported and a communicator made after the main thread has ended."""
    threading.Thread(target=_put_after, args=(threading.current_thread(), put)).start()


def _put_after(main: threading.Thread, function: Callable[[], None]) -> None:
    main.join()
    function()


def put_in_pool_of_threads() -> None:
    """Put in a thread that waits for more work for ever."""
    pool = ThreadPoolExecutor(1)
    _KEPT.append(pool)
    pool.submit(put)


def put_in_daemon() -> None:
    daemon = threading.Thread(target=put, daemon=True)
    daemon.start()
    daemon.join()


def put_at_exit() -> None:
    put(0, COUNT // 2)
    atexit.register(put_more)


def put_all_at_exit() -> None:
    import netq  # noqa: F401  # before the end: what is imported in a function of atexit cannot register any more

    atexit.register(put)


def put_more() -> None:
    for number in range(COUNT // 2, COUNT):
        _KEPT[-1].put((number, BYTES))


def put_in_asyncio() -> None:
    asyncio.run(_put_in("netq.aio"))


def put_in_trio() -> None:
    import trio

    trio.run(_put_in, "netq.trio")


async def _put_in(front: str) -> None:
    from tests.programs.command_line import options

    queue = importlib.import_module(front).new(options=options(id=uuid.uuid4()))
    _KEPT.append(queue)
    for number in range(COUNT):
        queue.put((number, BYTES))


def publish() -> None:
    from netq.exchange import Client
    from tests.programs.command_line import options

    client = Client(options(id=uuid.uuid4()))
    _KEPT.append(client)
    for number in range(COUNT):
        client.publish("numbers", (number, BYTES))


def put_and_lose() -> None:
    put()
    _KEPT.clear()


def put_in_child() -> None:
    in_process("fork", put)


def in_process(start: str, function: Callable[[], None]) -> None:
    context: Any = multiprocessing.get_context(start)
    process = context.Process(target=function)
    process.start()
    process.join()


def in_pool(start: str) -> None:
    pool = multiprocessing.get_context(start).Pool(2)
    pool.starmap(put, [(first, first + COUNT // 10) for first in range(0, COUNT, COUNT // 10)])
    pool.close()
    pool.join()


def in_executor(start: str) -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context(start)) as executor:
        executor.submit(put, 0, COUNT // 2)
        executor.submit(put, COUNT // 2)


def in_fork() -> None:
    """Fork by hand; the child ends as the interpreter does."""
    if pid := os.fork():
        os.waitpid(pid, 0)
    else:
        put()


def main() -> None:
    way = json.loads(sys.argv[1])["way"]
    how, _, what = way.partition(" ")
    if how == "main":
        globals()[what]()
    elif how == "by-hand":
        in_fork()
    elif what in ("pool", "executor"):
        globals()[f"in_{what}"](how)
    else:
        in_process(how, globals()[what])


if __name__ == "__main__":
    main()
