"""What the child process of an agent adds to a round: `python -m benchmarks.child_process [ROUNDS]`, 10 by default.

A server and one client, on this machine, with a model of 100 MB and a training that changes nothing. The client is
fl.Client, which trains in its own process; or the agent of edge, whose child is kept between rounds, or started for
each. Prints the median seconds of a round, the least, and the peak memory of the client and of its child. The clients
take turns, three times.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import numpy as np

import fl
import netq

_MODEL = 25_000_000  # elements of float32
_TURNS = 3
_FUNCTIONS = """
import resource
import fl

def train(model, config):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return fl.Update(model, 1, {"peak": peak})
"""
_CLIENT = """
import sys
import fl, netq
import functions

options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", int(sys.argv[1])))
fl.Client(functions.train).run(options)
"""


def main() -> None:
    """Print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    seconds: dict[str, list[float]] = {}
    peaks: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "functions.py").write_text(_FUNCTIONS)
        (folder / "client.py").write_text(_CLIENT)
        for _ in range(_TURNS):
            for title in ("fl.Client", "agent, keep = true", "agent, keep = false"):
                found, peaks[title] = _run(folder, title, rounds)
                seconds.setdefault(title, []).extend(found)
    print("| client | median, s | least, s | peak of the client, MB | peak of the child, MB |")
    print("|---|---|---|---|---|")
    for title, found in seconds.items():
        own, child = peaks[title]
        print(f"| {title} | {statistics.median(found):.3f} | {min(found):.3f} | {own:.0f} | {child:.0f} |")


def _run(folder: Path, title: str, rounds: int) -> tuple[list[float], tuple[float, float]]:
    model = {"w": np.zeros(_MODEL, np.float32)}
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    with fl.Server(model, options, min_clients=1) as server:
        command = _command(folder, title, server.netloc.port)
        client = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
        try:
            reports = list(server.rounds(rounds + 1))[1:]  # the first one warms up
            peak = _peak(client.pid)
        finally:
            client.kill()
            client.wait()
        server.close(0)
    trained = next(iter(reports[-1].client_metrics.values()))["peak"]
    return [report.seconds for report in reports], (peak, 0.0 if title == "fl.Client" else trained)


def _command(folder: Path, title: str, port: int) -> list[str]:
    if title == "fl.Client":
        return [sys.executable, "client.py", str(port)]
    path = folder / "client.toml"
    path.write_text(
        f'[server]\nhost = "127.0.0.1"\nport = {port}\n[client]\nid = "{uuid.uuid4()}"\ntrain = "functions:train"\n'
        f"[training]\n{title.partition(', ')[2]}\n"
    )
    return [sys.executable, "-m", "edge", "run", str(path)]


def _peak(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
