"""Faults of time: a process is stopped for a while, or its wall clock jumps.

The cases "a client stopped for 15 s" and "wall clock a day forward, then back" of docs/explanation/reliability.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest

from netq import NetworkLocation, Purpose
from netq.core import Communicator
from netq.testing.fixtures import LIMIT, Communicators
from netq.testing.log import LogRecorder
from tests.faults.conftest import FULL, Figure
from tests.programs.child import Children
from tests.wires import ALL, Wire, together

MUST = os.environ.get("NETQ_FAULTS") == "must"  # a case that cannot run is a failure
FAKETIME = next(Path("/usr").glob("lib*/**/faketime/libfaketime.so.1"), None)
DAY = 86400.0


# 19: a client is stopped

BEAT: dict[str, Any] = {"heartbeat": 1.0, "misses": 3}
NOTICED = BEAT["heartbeat"] * BEAT["misses"] + 1.0
LONG, SHORT = 15.0 if FULL else 6.0, 1.5  # seconds


class Counted:
    """A server in this process and a client process that sends numbers; each puts a hundred numbers during the stop."""

    def __init__(self, communicators: Communicators, children: Children, wire: Wire) -> None:
        self.server = communicators.server(**BEAT)
        self.id = uuid.uuid4()
        netloc = self.server.netloc
        self.program = children.start("counter", wire, Purpose.CLIENT, netloc, id=self.id, connection=BEAT)
        self._numbers = [self.server.get(timeout=LIMIT).data for _ in range(100)]

    @property
    def address(self) -> str:
        return self.server.statistics()[self.id].address

    def stop(self) -> float:
        """Stop the client; return the time."""
        self.program.signal(signal.SIGSTOP)
        self._told = [self.server.put(number, self.id) for number in range(100)]
        return time.monotonic()

    def listen(self, until: float) -> None:
        """Get messages up to a time: those in transit, and then none."""
        with contextlib.suppress(TimeoutError):
            while True:
                self._numbers.append(self.server.get(timeout=max(until - time.monotonic(), 0.0)).data)

    def resume(self) -> float:
        """Continue the client; return the seconds until it has all messages."""
        start = time.monotonic()
        self.program.signal(signal.SIGCONT)
        for future in self._told:
            future.result(LIMIT)
        return time.monotonic() - start

    def finish(self) -> int:
        """End the client, and check that each message arrived once, both ways. Return the count of its connections."""
        self.server.put("enough", self.id)
        while isinstance(number := self.server.get(timeout=LIMIT).data, int):
            self._numbers.append(number)
        assert number == ("last", len(self._numbers) - 1)
        assert self._numbers == list(range(len(self._numbers)))
        facts = self.program.receive()
        assert facts["received"] == [*range(100), "enough"]
        self.program.finish()
        return int(facts["connected"])


def on_each(wires: dict[str, Wire], scenario: Callable[[Wire, Communicators], None]) -> None:
    """Run a case on all wires at the same time, each with its own communicators."""

    def run(wire: Wire) -> None:
        with Communicators(wire.make) as communicators:
            scenario(wire, communicators)

    with ThreadPoolExecutor(len(wires)) as pool:
        for future in [pool.submit(run, wire) for wire in wires.values()]:
            future.result()


@pytest.mark.slow
@together(*ALL)
def test_client_stopped_for_long_is_noticed_and_resumes(
    wires: dict[str, Wire], children: Children, log: LogRecorder, figure: Figure
) -> None:
    def scenario(wire: Wire, communicators: Communicators) -> None:
        counted = Counted(communicators, children, wire)
        start = counted.stop()
        log.wait(f"{counted.id}: lost (nothing heard")
        noticed = time.monotonic() - start
        counted.listen(until=start + LONG)
        resumed = counted.resume()
        assert counted.finish() == 2
        assert noticed < NOTICED
        text = f"{wire.kind}: noticed after {noticed:.2f} s, limit {NOTICED:g} s; resumed {resumed:.2f} s after SIGCONT"
        figure(f"19 client stopped {LONG:g} s", text)

    on_each(wires, scenario)


@pytest.mark.slow
@together(*ALL)
def test_client_stopped_for_a_short_time_keeps_its_link(
    wires: dict[str, Wire], children: Children, log: LogRecorder, figure: Figure
) -> None:
    def scenario(wire: Wire, communicators: Communicators) -> None:
        counted = Counted(communicators, children, wire)
        address = counted.address
        counted.listen(until=counted.stop() + SHORT)
        resumed = counted.resume()
        assert counted.address == address
        assert counted.finish() == 1
        assert not log.having(f"{counted.id}: lost")
        figure("19 client stopped 1.5 s", f"{wire.kind}: the link stays, all held {resumed:.3f} s after SIGCONT")

    on_each(wires, scenario)


# 20: the wall clock jumps

QUICK: dict[str, Any] = {"heartbeat": 1.5, "misses": 3}  # other tests make a heartbeat late, but not by 4.5 s
SILENCE = 5.0  # seconds, longer than both sides wait for a heartbeat
# At a broker, both servers of this test would have one prefix. TLS has what TCP and shared memory have of clocks.
CLOCKED = ("tcp", "tls", "grpc", "shm") if FULL else ("tls", "grpc")


@pytest.mark.skipif(FAKETIME is None and not MUST, reason="needs libfaketime, as in Debian's package faketime")
@pytest.mark.slow
@together(*CLOCKED)
def test_jump_of_the_wall_clock_by_a_day_is_harmless(
    wires: dict[str, Wire], children: Children, tmp_path: Path, log: LogRecorder, figure: Figure
) -> None:
    def scenario(wire: Wire, communicators: Communicators) -> None:
        id = uuid.uuid4()
        with Clock(tmp_path / wire.kind) as clock:
            server = communicators.server(**QUICK)
            environment, netloc = clock.environment, server.netloc
            far_client = children.start("echo", wire, Purpose.CLIENT, netloc, environment, id=id, connection=QUICK)
            far_server = children.start("echo", wire, Purpose.SERVER, environment=environment, connection=QUICK)
            assert far_client.receive()["netloc"] == list(netloc)
            client = communicators.client(NetworkLocation(*far_server.receive()["netloc"]), **QUICK)
            assert server.get(timeout=LIMIT) == (id, "hello")
            for jump in (DAY, -DAY):
                clock.set(jump)
                for queue in (server, client):
                    assert_sees(queue, jump)
                for queue, silence in ((server, SILENCE), (client, 0.0)):  # the same silence for both
                    with pytest.raises(TimeoutError):
                        queue.get(timeout=silence)
                for queue in (server, client):
                    assert_sees(queue, jump)
            for queue, program, connected in ((server, far_client, 1), (client, far_server, 0)):
                queue.put("enough").result(LIMIT)
                if queue is client:
                    client.close(LIMIT)  # its server waits for its close
                assert program.receive() == {"connected": connected, "lost": []}
                program.finish()
        figure("20 wall clock", f"{wire.kind}: +1 day, then -1 day, at the client and at the server: no link lost")

    on_each(wires, scenario)
    assert len(log.having("connected")) == len(wires)
    assert not log.having("lost")


class Clock:
    """The wall clock of processes with libfaketime. Their monotonic clock is not changed. End them before the clock."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0.0)
        self.environment = {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # the newer name of the same setting
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the shared memory that libfaketime leaves of processes that have ended."""
        for path in Path("/dev/shm").glob("*faketime_s?m_*"):
            if not Path("/proc", path.name.rpartition("_")[2]).exists():
                path.unlink(missing_ok=True)

    def set(self, offset: float) -> None:
        """Change the clock of running processes."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset:+.0f}")
        new.replace(self._file)


def assert_sees(queue: Communicator, jump: float) -> None:
    """The other end is so far from the true time. Asked a few times: while one thread of it reads libfaketime's file,
    which each does for each answer, another is shown the true time.
    """
    answers = [wall_clock(queue) - time.time() for _ in range(5)]
    assert statistics.median(answers) == pytest.approx(jump, abs=60), answers


def wall_clock(queue: Communicator) -> float:
    """Return the wall-clock time in the other end's echo."""
    queue.put("what time is it?").result(LIMIT)
    data, wall = queue.get(timeout=LIMIT).data
    assert data == "what time is it?"
    return float(wall)
