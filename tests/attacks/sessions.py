"""Sessions whose ids have one hash, at a server without an authority: `python -m tests.attacks.sessions [COUNT]`.

Each look-up of such an id would search all of them. Prints seconds; by how many MiB the server's process has grown; how
many sessions began; and the median and the longest time in milliseconds, before and after the attack, of what an honest
client and the server's own program do: a message until it is acknowledged, and `statistics()`.
"""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from typing import NamedTuple

import netq
from netq import CommunicatorOptions, NetworkLocation
from netq.protocol.wire import FrameKind, Greeting
from tests.attacks.exchange import LIMIT, _mib, _shown

COUNT = 2700
PRIME = 2**61 - 1  # the hash of an id is its number modulo this
_TIMES = 20


class Figures(NamedTuple):
    """What the attack has done. Times are of messages and of statistics(), in seconds."""

    seconds: float
    mib: float  # by which the server has grown
    begun: int  # sessions
    before: tuple[list[float], list[float]]
    after: tuple[list[float], list[float]]


def ids(count: int) -> list[uuid.UUID]:
    """Return ids of one hash."""
    return [uuid.UUID(int=1 + number * PRIME) for number in range(count)]


def begin(stack: ExitStack, port: int, id: uuid.UUID) -> bool:
    """Begin a session, whose link stays; return whether the server has taken it."""
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT))
    sock.sendall(Greeting(id, bytes(16), 2**40, 2**20, 10_000).frame().whole())
    return sock.recv(1) == bytes([FrameKind.INI])


def run(count: int = COUNT) -> Figures:
    """Attack a server in a process of its own."""
    _raise_descriptors()
    command = [sys.executable, "-m", "tests.attacks.sessions", "serve"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
        ExitStack() as stack,
    ):
        assert server.stdin is not None
        answers = server.stdout
        assert answers is not None
        stack.callback(server.stdin.close)
        port = int(answers.readline())
        honest = stack.enter_context(netq.new(options=CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", port))))

        def times() -> tuple[list[float], list[float]]:
            messages = []
            for number in range(_TIMES):
                start = time.monotonic()
                honest.put(number).result(LIMIT)
                messages.append(time.monotonic() - start)
            print(file=server.stdin, flush=True)
            return messages, json.loads(answers.readline())

        before, size, start = times(), _mib(server.pid, "VmRSS"), time.monotonic()
        begun = sum(begin(stack, port, id) for id in ids(count))
        seconds, grown = time.monotonic() - start, _mib(server.pid, "VmHWM") - size
        return Figures(seconds, grown, begun, before, times())


def serve() -> None:
    """Run a server; for each line of the standard input, print the times of statistics()."""
    _raise_descriptors()
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as server:
        print(server.netloc.port, flush=True)
        for _ in sys.stdin:
            times = []
            for _ in range(_TIMES):
                start = time.monotonic()
                server.statistics()
                times.append(time.monotonic() - start)
            print(json.dumps(times), flush=True)


def _raise_descriptors() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    """Print the table."""
    found = run(int(sys.argv[1])) if sys.argv[1:] else run()
    print("| seconds | MiB | sessions | a message before | statistics() | a message after | statistics() |")
    print("|---|---|---|---|---|---|---|")
    times = " | ".join(map(_shown, (*found.before, *found.after)))
    print(f"| {found.seconds:.1f} | {found.mib:.0f} | {found.begun} | {times} |")


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
