"""Work queues while their workers are killed: `python -m tests.netq.exchange.killed_workers [JOBS] [KILLS] [SEED]`.

Four processes work for one queue. Each writes the number of a job to a file when it has done it, and then says so. One
of them is killed with SIGKILL at random moments, and another started. Prints how many jobs were done, lost, done twice,
and done twice although they had been acknowledged. Used by test_killed_workers.py, too.
"""

from __future__ import annotations

import collections
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from netq import CommunicatorOptions, ConnectionOptions, NetworkLocation
from netq.exchange import Client, Exchange

WORKERS = 4
ROOT = Path(__file__).parents[3]


class Outcome(NamedTuple):
    """What became of the jobs."""

    done: int  # acknowledged to the producer
    lost: int  # that no worker has done
    twice: int  # that two workers have done
    repeated: int  # by the exchange's count: taken from a worker that had ended
    kills: int
    seconds: float


def work(port: int, file: str) -> None:
    """Do jobs until the exchange closes. In a process of its own."""
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", port))
    journal = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with Client(options) as client:
        for job in client.jobs("count", ahead=4):
            os.write(journal, b"%d\n" % job.data)
            job.done()


def run(jobs: int, kills: int, seed: int) -> Outcome:
    """Push `jobs` jobs, and kill `kills` workers, as the jobs go on."""
    chance = random.Random(seed)
    connection = ConnectionOptions(linger=0.2)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "journal"
        options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0), connection=connection)
        with Exchange(options, grace=0.2, tries=100) as exchange:
            processes = [_start(exchange.netloc.port, file) for _ in range(WORKERS)]
            try:
                begin = time.monotonic()
                at = CommunicatorOptions(id=uuid.uuid4(), netloc=exchange.netloc)
                with Client(at) as client:
                    futures = [client.push("count", number) for number in range(jobs)]
                    moments = sorted(chance.randrange(jobs // 20, jobs) for _ in range(kills))
                    for moment in moments:
                        futures[moment].result(60)
                        victim = chance.randrange(WORKERS)
                        processes[victim].kill()
                        processes[victim].wait()
                        processes[victim] = _start(exchange.netloc.port, file)
                    done = sum(future.exception(60) is None for future in futures)
                    seconds = time.monotonic() - begin
                repeated = exchange.statistics().repeated
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
        times = collections.Counter(map(int, file.read_text().split()))
    lost = sum(number not in times for number in range(jobs))
    return Outcome(done, lost, sum(count > 1 for count in times.values()), repeated, kills, seconds)


def _start(port: int, file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.netq.exchange.killed_workers", "work", str(port), str(file)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)


def _main(arguments: list[str], show: Callable[[str], object] = print) -> None:
    if arguments[:1] == ["work"]:
        work(int(arguments[1]), arguments[2])
        return
    jobs, kills, seed = [int(text) for text in (*arguments, *("10000", "20", "1")[len(arguments) :])]
    found = run(jobs, kills, seed)
    show(
        f"{jobs} jobs, {found.kills} workers killed, {found.seconds:.1f} s: {found.done} done, {found.lost} lost, "
        f"{found.twice} done twice, {found.repeated} given again"
    )


if __name__ == "__main__":
    _main(sys.argv[1:])
