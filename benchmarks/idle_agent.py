"""What an idle agent costs: `python -m benchmarks.idle_agent [SECONDS]`, 120 by default.

Starts `edge run` for a server that gives no task: without encryption, with Python's own TLS, and with post-quantum
mutual TLS. Prints for each the seconds from its start until it is connected, its resident memory in MiB, the part that
is its own, and the processor time of an hour without tasks, as measured over SECONDS.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import netq
from netq.security import certificates

_TRAIN = "import fl\n\ndef train(model, config):\n    return fl.Update(model, 1)\n"
_TICKS = os.sysconf("SC_CLK_TCK")
_SETTLE = 10.0  # seconds after the connection, until the measurement begins


def main() -> None:
    """Print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    print("| link | connected after, s | resident, MiB | own, MiB | processor time of an hour, s |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "farm.py").write_text(_TRAIN)
        server = certificates.init(folder / "certificates", ["localhost"])
        own = certificates.issue(folder / "certificates", "board")
        identity = f'key = "{own.key}"\ncertificate = "{own.certificate}"\n'
        one_sided = netq.SecurityOptions(server.key, server.certificate, post_quantum="off")
        mutual = netq.SecurityOptions(server.key, server.certificate, server.authority, "require")
        for title, security, table in (
            ("plain", None, ""),
            ("TLS of Python", one_sided, f'[security]\ncertificate = "{server.authority}"\npost_quantum = "off"\n'),
            ("post-quantum mutual TLS", mutual, f'[security]\n{identity}authority = "{server.authority}"\n'),
        ):
            print(f"| {title} | {_measure(folder, security, table, seconds)} |", flush=True)


def _measure(folder: Path, security: netq.SecurityOptions | None, table: str, seconds: float) -> str:
    connected: queue.SimpleQueue[object] = queue.SimpleQueue()
    options = netq.CommunicatorOptions(
        netloc=netq.NetworkLocation("localhost", 0),
        security=security,
        events=netq.EventOptions(ini=connected.put),
    )
    with netq.new(purpose="server", options=options) as server:
        path = folder / "client.toml"
        path.write_text(
            f'[server]\nhost = "localhost"\nport = {server.netloc.port}\n[client]\ntrain = "farm:train"\n{table}'
        )
        begin = time.monotonic()
        agent = subprocess.Popen(
            [sys.executable, "-m", "edge", "run", str(path)], cwd=folder, stderr=subprocess.DEVNULL
        )
        try:
            connected.get(timeout=60)
            start = time.monotonic() - begin
            time.sleep(_SETTLE)
            before = _processor_time(agent.pid)
            time.sleep(seconds)
            hour = (_processor_time(agent.pid) - before) * 3600 / seconds
            resident, own = _memory(agent.pid)
        finally:
            agent.kill()
            agent.wait()
        server.close(0)
    return f"{start:.2f} | {resident:.1f} | {own:.1f} | {hour:.2f}"


def _processor_time(pid: int) -> float:
    """Return the seconds of user and system, with those of children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def _memory(pid: int) -> tuple[float, float]:
    """Return the resident memory, and the part that no other process shares, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return kib["Rss"] / 1024, (kib["Private_Clean"] + kib["Private_Dirty"]) / 1024


if __name__ == "__main__":
    main()
