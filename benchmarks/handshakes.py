"""What a handshake of TLS or of sealing costs: bytes in each direction, and the processor's time at each side.

    python -m benchmarks.handshakes [--count 200]

netq's layers, from memory to memory, in one thread: no network, no other process. The bytes include the tickets that
pyOpenSSL's servers send behind the handshake. Medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.table import align
from netq.options import ConnectionOptions, PostQuantum, SealOptions, SecurityOptions
from netq.protocol.connection import Connection
from netq.security import certificates
from netq.security.authority import Algorithm
from netq.security.seal import NewConnection, sealed_connections
from netq.security.tls import Tls, client_side, server_side

HOST = "127.0.0.1"


class Row(NamedTuple):
    """A kind of handshake. `mutual`: the client has a certificate, too."""

    post_quantum: PostQuantum
    algorithm: Algorithm
    mutual: bool


ROWS = [
    *(Row(choice, Algorithm.P256, mutual) for choice in ("off", "prefer") for mutual in (False, True)),
    *(Row("prefer", Algorithm.ML_DSA_65, mutual) for mutual in (False, True)),
]


class Cost(NamedTuple):
    """Of one handshake: bytes sent, and CPU seconds, of the client and of the server."""

    client_bytes: int
    server_bytes: int
    client_seconds: float
    server_seconds: float


def handshake(connect: Callable[[], Tls], accept: Callable[[], Tls]) -> tuple[Tls, Cost]:
    """Let two new connections greet each other; return the client's, and the cost."""
    size, seconds = [0, 0], [0.0, 0.0]
    sides: list[Tls] = []
    for side, make in enumerate((connect, accept)):
        begin = time.thread_time()
        sides.append(make())
        seconds[side] += time.thread_time() - begin
    data = b""
    for turn in range(8):
        side = turn % 2
        begin = time.thread_time()
        if data:
            sides[side].received(data)
            sides[side].read_into(memoryview(bytearray(1)))
        data = sides[side].to_send()
        seconds[side] += time.thread_time() - begin
        size[side] += len(data)
    assert all(tls.handshaken for tls in sides)
    return sides[0], Cost(*size, *seconds)


def sealing_handshake(connect: NewConnection, accept: NewConnection) -> Cost:
    """Let two new sealed connections greet each other; return the cost."""
    size, seconds = [0, 0], [0.0, 0.0]
    sides: list[Connection] = []
    for side, make in enumerate((connect, accept)):
        begin = time.thread_time()
        sides.append(make(uuid.uuid4(), ConnectionOptions(), 0.0, None))
        seconds[side] += time.thread_time() - begin
    data = b""
    for turn in range(4):
        side = turn % 2
        begin = time.thread_time()
        sides[side].feed(memoryview(data), 0.0)
        data = b"".join(sides[side].to_send(1, 0.0))
        seconds[side] += time.thread_time() - begin
        size[side] += len(data)
    assert all(connection.protection for connection in sides)
    return Cost(*size, *seconds)


def measure_sealing(algorithm: Algorithm, folder: Path, count: int) -> list[str]:
    """Return the cells of a row about sealing."""
    files = certificates.init(folder, [HOST], algorithm=algorithm)
    own = certificates.issue(folder, "client")
    connect = sealed_connections(SealOptions(own.key, own.certificate, own.authority), is_client=True)
    accept = sealed_connections(SealOptions(files.key, files.certificate, files.authority), is_client=False)
    for _ in range(max(1, count // 10)):
        sealing_handshake(connect, accept)
    costs = [sealing_handshake(connect, accept) for _ in range(count)]
    return _cells("MLKEM768_X25519 (sealed)", algorithm, "both", costs)


def measure(row: Row, folder: Path, count: int) -> list[str]:
    """Return the cells of a row."""
    files = certificates.init(folder, [HOST], algorithm=row.algorithm)
    server = SecurityOptions(files.key, files.certificate, post_quantum=row.post_quantum)
    client = SecurityOptions(certificate=files.authority, post_quantum=row.post_quantum)
    if row.mutual:
        own = certificates.issue(folder, "client")
        server = SecurityOptions(files.key, files.certificate, files.authority, row.post_quantum)
        client = SecurityOptions(own.key, own.certificate, own.authority, row.post_quantum)
    sides = client_side(client, HOST), server_side(server)
    for _ in range(max(1, count // 10)):
        handshake(*sides)
    costs = [handshake(*sides)[1] for _ in range(count)]
    protection = handshake(*sides)[0].protection
    assert protection is not None
    group = protection.security.group or "X25519 (Python's ssl)"
    return _cells(group, row.algorithm, "both" if row.mutual else "server", costs)


def _cells(group: str, algorithm: Algorithm, certified: str, costs: list[Cost]) -> list[str]:
    sent, received, connecting, accepting = (statistics.median(column) for column in zip(*costs, strict=True))
    return [
        group,
        algorithm.value,
        certified,
        f"{sent:,.0f}",
        f"{received:,.0f}",
        f"{connecting * 1000:.2f}",
        f"{accepting * 1000:.2f}",
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.handshakes", description="what a handshake costs, of TLS and of sealing"
    )
    parser.add_argument("--count", type=int, default=200, help="handshakes of each kind (default: 200)")
    count = parser.parse_args(arguments).count
    titles = ["key exchange", "certificates", "of", "bytes sent", "received", "client, CPU ms", "server, CPU ms"]
    with tempfile.TemporaryDirectory() as folder:
        cells = [measure(row, Path(folder) / str(number), count) for number, row in enumerate(ROWS)]
        cells += [measure_sealing(algorithm, Path(folder) / algorithm.value, count) for algorithm in Algorithm]
    print("\n".join(align([titles, ["---"] * len(titles), *cells])))


if __name__ == "__main__":
    main()
