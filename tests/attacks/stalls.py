"""What broken and hostile clients cost a federation: seconds a round, memory, and how the server ends.

    python -m tests.attacks.stalls [CASE ...]

Each case runs in a process of its own. "Memory" is how far the resident memory of the server's process grew at most.
The MQTT case needs mosquitto.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fl
import netq
from fl.envelope import Job
from fl.messages import MESSAGES, Reply, Task
from netq import CommunicatorOptions, ConnectionOptions, NetworkLocation
from netq.protocol.wire import Greeting
from tests.fl.federation import grouped
from tests.servers.mosquitto import Mosquitto

MIB = 2**20
DEADLINE = 3.0  # seconds
LIMIT = 60.0  # seconds in which a case must end
ROUNDS = 10
GHOSTS = 8000
_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

_spawn = multiprocessing.get_context("spawn")


class Row(NamedTuple):
    """What a case showed."""

    seconds: str  # a round, or a call
    memory: str
    end: str  # status of the processes, if they end
    log: str


class Memory:
    """How far the resident memory of this process grows within the block, in MiB."""

    def __enter__(self) -> Memory:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak (proc(5))
        self._before = self._peak("VmRSS")
        return self

    def __exit__(self, *error: object) -> None:
        self.grown = (self._peak("VmHWM") - self._before) / 1024

    def __str__(self) -> str:
        return f"{self.grown:.0f} MiB"

    @staticmethod
    def _peak(name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1])


class LogLines(logging.Handler):
    """The lines that the project logged in this process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        logging.getLogger("netq").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line."""
        self.lines.append(record.getMessage())

    def __str__(self) -> str:
        return f"{len(self.lines)} lines; {self.lines[0]}" if self.lines else "nothing"


def model(size: int = 1000) -> dict[str, Any]:
    """Return a model of `size` float32."""
    return {"w": np.zeros(size, np.float32)}


def initial() -> dict[str, Any]:
    """Return the model of the federation that is run as a command."""
    return model()


def good(model: Mapping[str, Any], config: object) -> fl.Update:
    """Return the model, a little changed."""
    return fl.Update({name: np.asarray(array) + 1 for name, array in model.items()}, 100, {"loss": 1.0})


def diverged(model: Mapping[str, Any], config: object) -> fl.Update:
    """Return a model without numbers."""
    return fl.Update({name: np.full_like(array, np.nan) for name, array in model.items()}, 100)


def steady(model: Mapping[str, Any], config: object) -> fl.Update:
    """Train for a tenth of a second."""
    time.sleep(0.1)
    return good(model, config)


def slow(model: Mapping[str, Any], config: object) -> fl.Update:
    """Train for longer than the deadline."""
    time.sleep(2 * DEADLINE)
    return good(model, config)


def heavy(model: Mapping[str, Any], config: object) -> fl.Update:
    """Return a model that weighs more than all others."""
    return fl.Update({name: np.full_like(array, 1e6) for name, array in model.items()}, 2**53)


def take_part(netloc: NetworkLocation, train: Callable[..., fl.Update], protocol: netq.Protocol) -> None:
    """Be a client of the federation."""
    options = CommunicatorOptions(netloc=netloc, connection=ConnectionOptions(retry_max=0.2))
    fl.Client(train).run(options, protocol)


def answer_wrongly(netloc: NetworkLocation, count: int, wrong: Callable[[Task], Reply | None]) -> None:
    """Be `count` clients that answer each task with what `wrong` returns; None: with nothing."""

    def run() -> None:
        options = CommunicatorOptions(netloc=netloc, serialization=MESSAGES)
        with netq.new(purpose=netq.Purpose.CLIENT, options=options) as server, contextlib.suppress(netq.Closed):
            while True:
                task = server.get().data
                if isinstance(task, Task) and (reply := wrong(task)) is not None:
                    server.put(reply)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def nothing(task: Task) -> None:
    """Do not answer."""


def now_and_then(task: Task) -> Reply | None:
    """Answer every third task."""
    return None if task.job.round % 3 else Reply(task.job, good(task.model, {}))


def of_another_run(task: Task) -> Reply:
    """Answer a task of a server that is no longer there."""
    return Reply(replace(task.job, run=task.job.run ^ 1), good(task.model, {}))


def of_an_older_round(task: Task) -> Reply:
    """Answer the round before."""
    return Reply(replace(task.job, round=task.job.round - 1), good(task.model, {}))


def of_another_purpose(task: Task) -> Reply:
    """Answer the task to train as one to evaluate."""
    return Reply(Job(task.job.run, task.job.round, "evaluate"), fl.Report(1, {"loss": 1.0}))


def with_large_extra(task: Task) -> Reply:
    """Send 200 MB that no strategy has asked for."""
    return Reply(task.job, replace(good(task.model, {}), extra={"x": np.ones(50_000_000, np.float32)}))


@contextlib.contextmanager
def processes(*calls: tuple[Any, ...]) -> Iterator[None]:
    """Run each call in a process of its own, until the end of the block or shortly after."""
    started = [_spawn.Process(target=function, args=arguments) for function, *arguments in calls]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.join(5.0)
            process.kill()
            process.join()


@contextlib.contextmanager
def federation(**settings: Any) -> Iterator[fl.Server]:
    """Serve on a free port, with a short deadline."""
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))
    settings = {"min_clients": 2, "deadline": DEADLINE, **settings}
    with fl.Server(model(), options, **grouped(settings)) as server:
        yield server


def spoilt_rounds(clients: int, wrong: Callable[..., Any], count: int, rounds: int = ROUNDS, **settings: Any) -> Row:
    """Run rounds with good clients and wrong ones."""
    log = LogLines()
    with federation(**settings) as server:
        good_ones = [(take_part, server.netloc, good, netq.Protocol.TCP)] * clients
        with processes(*good_ones, (answer_wrongly, server.netloc, count, wrong)):
            server.wait(clients + count, LIMIT)
            with Memory() as memory:
                times = [report.seconds for report in server.rounds(rounds)]
            server.close()
    return Row(in_seconds(times), str(memory), "", str(log))


def in_seconds(times: list[float]) -> str:
    """Return the median and the worst of some times."""
    return f"{statistics.median(times):.3f} (worst {max(times):.2f}, all {sum(times):.1f})"


def two_clients_without_numbers() -> Row:
    """Run `fl serve` of 100 rounds and two agents whose updates are NaN."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "server.toml").write_text(
            '[server]\nhost = "127.0.0.1"\nport = 29399\nrounds = 100\nvoid_rounds = 4\n'
            '[model]\ninitial = "tests.attacks.stalls:initial"\nsave = "last.npz"\n'
        )
        (folder / "client.toml").write_text(
            '[server]\nhost = "127.0.0.1"\nport = 29399\n[client]\ntrain = "tests.attacks.stalls:diverged"\n'
        )
        begin = time.monotonic()
        server = _command("fl", "serve", str(folder / "server.toml"))
        agents = [_command("edge", "run", str(folder / "client.toml")) for _ in range(2)]
        _, errors = server.communicate(timeout=LIMIT)
        seconds = time.monotonic() - begin
        ends = []
        for agent in agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(2.0)
            ends.append("waits" if agent.returncode is None else f"status {agent.returncode}")
            agent.kill()
            agent.communicate()
        saved = "saved" if (folder / "last.npz").exists() else "not saved"
    end = f"server: status {server.returncode} after {seconds:.1f} s, model {saved}; agents: {', '.join(ends)}"
    return Row("", "", end, errors.strip().splitlines()[-1])


def _command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", *arguments], stderr=subprocess.PIPE, text=True)


def ghost_sessions() -> Row:
    """Begin sessions that carry nothing, and put to all."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    log = LogLines()
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as server, Memory() as memory:
        ghosts = _spawn.Process(target=_haunt, args=(server.netloc,))
        ghosts.start()
        ghosts.join()
        count = len(server.statistics())
        begin = time.monotonic()
        server.put(bytes(100))
        seconds = time.monotonic() - begin
        begin = time.monotonic()
        server.statistics()
        asked = time.monotonic() - begin
        server.close(0.0)
    return Row(
        f"put {seconds * 1000:.1f} ms, statistics() {asked * 1000:.1f} ms, of {count} sessions",
        str(memory),
        "",
        str(log),
    )


def _haunt(netloc: NetworkLocation) -> None:
    async def begin(limit: asyncio.Semaphore) -> None:
        async with limit:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(netloc.host, netloc.port)
                writer.write(Greeting(uuid.uuid4(), uuid.uuid4().bytes, 2**40, 2**18, 10_000).frame().whole())
                await reader.readexactly(24)
                writer.transport.abort()

    async def main() -> None:
        limit = asyncio.Semaphore(100)
        await asyncio.gather(*[begin(limit) for _ in range(GHOSTS)])

    asyncio.run(main())


def dead_client() -> Row:
    """Broadcast 60 messages of 16 MB to two clients, one of which is stopped."""
    log = LogLines()
    connection = ConnectionOptions(heartbeat=0.5, queue_bytes=256 * 2**20)
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0), connection=connection)
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as server:
        stopped = _spawn.Process(target=_read_all, args=(server.netloc,))
        stopped.start()
        assert server.get(timeout=LIMIT) is not None
        assert stopped.pid is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        with processes((_read_all, server.netloc)):
            assert server.get(timeout=LIMIT) is not None
            refused = 0
            with Memory() as memory:
                for _ in range(60):
                    delivery = server.put(np.ones(4_000_000, np.float32))
                    for part in delivery.futures:
                        if part.done() and part.exception() is not None:
                            refused += 1
                    server.get(timeout=LIMIT)  # the other client has it
            server.close(0.0)
        stopped.kill()
        stopped.join()
    return Row("", str(memory), f"{refused} of 60 refused with QueueFull", str(log))


def _read_all(netloc: NetworkLocation) -> None:
    with netq.new(purpose=netq.Purpose.CLIENT, options=CommunicatorOptions(netloc=netloc)) as server:
        server.put("here")
        with contextlib.suppress(netq.Closed):
            while True:
                server.get()
                server.put("read")


def heavy_client(**settings: Any) -> Row:
    """Run one round of two good clients, and one that claims 2**53 examples and is far away."""
    log = LogLines()
    with federation(min_clients=3, **settings) as server:
        calls = [(take_part, server.netloc, train, netq.Protocol.TCP) for train in (good, good, heavy)]
        with processes(*calls):
            report = server.round()
            server.close()
    value = float(np.asarray(server.model["w"])[0])
    return Row(in_seconds([report.seconds]), "", f"w = {value:.4g}; good clients only: 1", str(log))


def three_broken_of_ten(**settings: Any) -> Row:
    """Run 50 rounds with seven good clients, and 50 with a silent, a diverged and a slow one besides them."""
    log = LogLines()
    seconds = []
    for broken in (False, True):
        with federation(min_clients=7, **settings) as server:
            trains = [steady] * 7 + [diverged, slow] * broken
            calls: list[Any] = [(take_part, server.netloc, train, netq.Protocol.TCP) for train in trains]
            calls += [(answer_wrongly, server.netloc, 1, nothing)] * broken
            with processes(*calls):
                server.wait(len(calls), LIMIT)
                begin = time.monotonic()
                for _ in server.rounds(50):
                    pass
                seconds.append((time.monotonic() - begin) / 50)
                server.close(0.0)
    ratio = f"{seconds[1] / seconds[0]:.2f} x seven good clients ({seconds[0]:.3f})"
    return Row(f"{seconds[1]:.3f}, {ratio}", "", "", str(log))


def second_server() -> Row:
    """Close a second server on the prefix of a federation over MQTT."""
    log = LogLines()
    with tempfile.TemporaryDirectory() as folder:
        broker = Mosquitto(Path(folder))
        broker.start()
        try:
            options = CommunicatorOptions(netloc=broker.netloc)
            with fl.Server(model(), options, min_clients=2, protocol=netq.Protocol.MQTT) as server:
                calls = [(take_part, broker.netloc, good, netq.Protocol.MQTT)] * 2
                clients = [_spawn.Process(target=function, args=arguments) for function, *arguments in calls]
                for client in clients:
                    client.start()
                server.round()
                other = fl.Server(model(), CommunicatorOptions(netloc=broker.netloc), protocol=netq.Protocol.MQTT)
                with contextlib.suppress(TimeoutError):
                    other.wait(2, 5.0)
                other.close()
                for client in clients:
                    client.join(2.0)
                ended = sum(client.exitcode is not None for client in clients)
                for client in clients:
                    client.kill()
                    client.join()
                server.close(0.0)
        finally:
            broker.stop()
    return Row("", "", f"{ended} of 2 clients ended", str(log))


CASES: dict[str, Callable[[], Row]] = {
    "two clients send NaN": two_clients_without_numbers,
    "60 silent clients": lambda: spoilt_rounds(2, nothing, 60),
    "answers every third task": lambda: spoilt_rounds(2, now_and_then, 1, 15),
    "answers every third task, close_early": lambda: spoilt_rounds(2, now_and_then, 1, 15, close_early=True),
    "wrong run": lambda: spoilt_rounds(2, of_another_run, 1),
    "older round": lambda: spoilt_rounds(2, of_an_older_round, 1),
    "wrong purpose": lambda: spoilt_rounds(2, of_another_purpose, 1),
    "200 MB extra, memory_limit 10 MB": lambda: spoilt_rounds(2, with_large_extra, 1, 3, memory_limit=10_000_000),
    "8,000 ghost sessions": ghost_sessions,
    "a stopped client, 60 x 16 MB": dead_client,
    "2**53 examples": heavy_client,
    "2**53 examples, max_examples 1000": lambda: heavy_client(strategy=fl.FedAvg(max_examples=1000)),
    "3 broken of 10": three_broken_of_ten,
    "3 broken of 10, close_early": lambda: three_broken_of_ten(close_early=True),
    "a second MQTT server closes": second_server,
}


def run(name: str, pipe: Any) -> None:
    """Run a case in this process, and send its row."""
    pipe.send(CASES[name]())


def main() -> None:
    """Print the table."""
    print("| attack | seconds a round | memory | end | log |\n|---|---|---|---|---|")
    for name in sys.argv[1:] or CASES:
        near, far = _spawn.Pipe()
        process = _spawn.Process(target=run, args=(name, far))
        process.start()
        row = near.recv() if near.poll(3 * LIMIT) else Row("", "", f"none after {3 * LIMIT:g} s", "")
        process.join(10.0)
        process.kill()
        print(f"| {name} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
