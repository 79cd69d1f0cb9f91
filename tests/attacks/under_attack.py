"""What good clients notice while a server's port is attacked: 200 slow connections, and 500 handshakes a second.

    python -m tests.attacks.under_attack [SECONDS]

For TCP, plain and with mutual TLS: how long a new client takes to connect, and how long the rounds of a federation take
whose model has 10 MB; first without the attack, then under it, for SECONDS each. The attacker has no certificate. On
plain TCP any process may be a client, so there it completes every second handshake.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fl
import netq
from netq import CommunicatorOptions, EventOptions, NetworkLocation, SecurityOptions
from netq.security import certificates

SLOW, RATE = 200, 500.0
LIMIT = 30.0  # seconds
_PAUSE = 0.2  # seconds between two new clients


class Attacker:
    """A process that attacks a port. `tried` and `answered` count its handshakes."""

    def __init__(self, netloc: NetworkLocation, *, secure: bool, slow: int = SLOW, rate: float = RATE) -> None:
        arguments = [netloc.host, str(netloc.port), "tls" if secure else "plain", str(slow), str(rate)]
        self.tried = self.answered = 0
        self.running = threading.Event()  # the attack has begun
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.flood", *arguments], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def close(self) -> None:
        """End the attack."""
        self._process.kill()
        self._reader.join()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):  # otherwise the process was killed meanwhile
                    self.tried, self.answered = map(int, line.split())
                    self.running.set()


class Figures(NamedTuple):
    """Seconds."""

    connects: list[float]
    rounds: list[float]


def connect(options: CommunicatorOptions) -> float:
    """Return the seconds that a new client takes until its session has begun."""
    connected = threading.Event()
    options = CommunicatorOptions(
        netloc=options.netloc, security=options.security, events=EventOptions(ini=lambda _: connected.set())
    )
    begin = time.monotonic()
    with netq.new(netq.Protocol.TCP, netq.Purpose.CLIENT, options) as client:
        if not connected.wait(LIMIT):
            raise TimeoutError(f"no connection within {LIMIT:g} s")
        seconds = time.monotonic() - begin
        client.close(LIMIT)
    return seconds


def train(model: Mapping[str, Any], config: object) -> fl.Update:
    """Return the model, a little changed."""
    return fl.Update({name: np.asarray(array) + 1 for name, array in model.items()}, num_examples=1)


def take_part(netloc: NetworkLocation, security: SecurityOptions | None) -> None:
    """Be a client of the federation, in a process of its own."""
    with contextlib.suppress(netq.Closed):
        fl.Client(train).run(CommunicatorOptions(netloc=netloc, security=security))


@contextlib.contextmanager
def federation(security: Sequence[SecurityOptions | None]) -> Iterator[tuple[CommunicatorOptions, list[float]]]:
    """Run rounds in a thread; yield a client's options, and the list to which the times of the rounds are added.

    `security`: of the server, of its two clients, and of the client that is yielded.
    """
    times: list[float] = []
    stop = threading.Event()
    model = {"w": np.zeros(2_500_000, np.float32)}
    options = CommunicatorOptions(netloc=NetworkLocation(port=0), security=security[0])
    with fl.Server(model, options, min_clients=2) as server:
        spawn = multiprocessing.get_context("spawn")
        clients = [spawn.Process(target=take_part, args=(server.netloc, theirs)) for theirs in security[1:3]]
        for client in clients:
            client.start()

        def run() -> None:
            begin = time.monotonic()
            for _ in server.rounds(10**6):
                times.append(time.monotonic() - begin)
                begin = time.monotonic()
                if stop.is_set():
                    return

        thread = threading.Thread(target=run)
        thread.start()
        while len(times) < 2:  # the first ones wait for the clients
            time.sleep(0.01)
        yield CommunicatorOptions(netloc=server.netloc, security=security[3]), times
        stop.set()
        thread.join()
    for client in clients:
        client.join()


def measure(options: CommunicatorOptions, rounds: list[float], seconds: float) -> Figures:
    """Connect new clients, one after the other, while rounds go on."""
    connects = []
    before = len(rounds)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connects.append(connect(options))
        time.sleep(_PAUSE)
    return Figures(connects, rounds[before:])


def mutual(folder: Path) -> list[SecurityOptions | None]:
    """Return the options of a server and of three clients, each with a certificate."""
    files = [certificates.init(folder), *[certificates.issue(folder, f"client-{number}") for number in range(3)]]
    return [SecurityOptions(one.key, one.certificate, one.authority) for one in files]


def rows(folder: Path, seconds: float) -> Iterator[tuple[str, ...]]:
    """Measure each case, and yield it as text."""
    for secure in (False, True):
        with federation(mutual(folder) if secure else [None] * 4) as (options, rounds):
            name = "TLS" if secure else "TCP"
            yield name, "none", *describe(measure(options, rounds, seconds))
            attacker = Attacker(options.netloc, secure=secure)
            try:
                attacker.running.wait(LIMIT)
                figures = measure(options, rounds, seconds)
            finally:
                attacker.close()
            yield name, f"{attacker.tried} handshakes, {attacker.answered} answered", *describe(figures)


def describe(figures: Figures) -> tuple[str, ...]:
    """Return the cells of a row."""
    return tuple(
        f"{statistics.median(times):.3f} s, {max(times):.3f} s ({len(times)})" if times else "none"
        for times in (figures.connects, figures.rounds)
    )


def main() -> None:
    """Print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    with tempfile.TemporaryDirectory() as folder:
        print(f"{SLOW} slow connections and {RATE:g} handshakes a second, {seconds:g} s; median, worst (count)")
        print("| | attack | a new client connects after | a round of 10 MB, two clients |\n|---|---|---|---|")
        for row in rows(Path(folder), seconds):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
