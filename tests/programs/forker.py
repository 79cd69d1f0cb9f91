"""A server or a client that forks. The child reports the state of its copy of the communicator.

The program echoes a message, forks, and echoes another one: with the same communicator after the end of the child, or,
with the fact `outlived`, with a new communicator at the same address while the child lives.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from netq import Closed
from netq.core import Communicator
from tests.programs.command_line import communicator, facts, report


def main() -> None:
    with communicator() as queue:
        report(netloc=queue.netloc)
        if facts()["purpose"] == "client":
            queue.put("hello")
        echo(queue)
        ours, childs = os.pipe()  # the child ends when the parent closes `childs`
        looked, looking = os.pipe()  # the child writes here when it has checked: before that it may have the sockets
        pid = fork() or child(queue, ours, childs, looking)
        os.read(looked, 1)
        if not facts()["outlived"]:
            end(pid, childs)
            echo(queue)
            with contextlib.suppress(Closed):
                queue.get()
            return
        netloc = queue.netloc
        queue.close()
    with communicator(netloc=netloc, id=uuid.uuid4()) as successor:
        report(netloc=successor.netloc)
        echo(successor)
    end(pid, childs)


def echo(queue: Communicator) -> None:
    peer, data = queue.get()
    queue.put(data, peer)


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: a fork with threads
        return os.fork()


def end(pid: int, childs: int) -> None:
    os.close(childs)
    start = time.monotonic()
    _, status = os.waitpid(pid, 0)
    report(status=os.waitstatus_to_exitcode(status), seconds=time.monotonic() - start)


def child(queue: Communicator, ours: int, childs: int, looking: int) -> NoReturn:
    refusals = {
        "put": refusal(lambda: queue.put("of the child")),
        "get": refusal(lambda: queue.get(timeout=0)),
        "statistics": refusal(queue.statistics),
    }
    if facts()["protocol"] == "grpc":  # which cannot be used in a child; others would have to be closed here
        refusals["new"] = refusal(lambda: communicator(id=uuid.uuid4()))
    report(refusals=refusals, closed=queue.close(), sockets=sockets())
    os.write(looking, b"!")
    os.close(childs)
    os.read(ours, 1)
    sys.exit(0)  # a normal end, with the functions of atexit


def refusal(call: Callable[[], object]) -> str:
    try:
        return f"no error, but {call()!r}"
    except RuntimeError as error:
        return str(error)


def sockets() -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of iterdir itself
            found.append(os.readlink(link))
    return [target for target in found if target.startswith("socket:")]


main()
