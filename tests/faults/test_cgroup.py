"""A server in a memory cgroup, to which ten clients send more than that at once.

The case "ten messages of 64 MiB at once" of docs/explanation/reliability.md, with TCP and TLS; tests/netq/shm has its
own case. Makes a memory cgroup below the present one, which needs root.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from netq import NetworkLocation, Purpose
from netq.testing.fixtures import LIMIT, Communicators
from tests.faults.conftest import FULL, Figure
from tests.programs.child import Children

if TYPE_CHECKING:
    from tests.wires import Wire

MIB = 1024**2
SIZE = (64 if FULL else 32) * MIB  # bytes of each client's message
MEMORY_LIMIT = 4 * SIZE  # bytes: the limit of the server
CLIENTS = 10


class Cgroup:
    """A memory cgroup of version 1 or 2, below that of this process."""

    def __init__(self, limit: int) -> None:
        parent, self._limit, self._peak = _own()
        self.path = parent / f"netq-{uuid.uuid4().hex[:8]}"
        self.path.mkdir()
        (self.path / self._limit).write_text(str(limit))

    @property
    def peak(self) -> int:
        """The peak of used memory, in bytes."""
        return int((self.path / self._peak).read_text())

    def remove(self) -> None:
        """Remove the cgroup. Its last process has ended, which the system may notice a moment later."""
        deadline = time.monotonic() + LIMIT
        while self.path.exists():
            try:
                self.path.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise


def _own() -> tuple[Path, str, str]:
    """Return the folder of this process's memory cgroup, and the file names of the limit and of the peak."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path(f"/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"
    return Path(f"/sys/fs/cgroup{path}"), "memory.max", "memory.peak"


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    try:
        cgroup = Cgroup(MEMORY_LIMIT)
    except OSError as error:
        if os.environ.get("NETQ_FAULTS") == "must":
            raise
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield cgroup
    finally:
        cgroup.remove()


@pytest.mark.slow
def test_server_in_a_cgroup_receives_more_than_its_memory(
    cgroup: Cgroup, communicators: Communicators, wire: Wire, figure: Figure
) -> None:
    content = np.frombuffer(os.urandom(SIZE), np.uint8)
    memory = {"memory": SIZE}
    with Children() as children:
        server = children.start(
            "taker", wire, Purpose.SERVER, connection=memory, cgroup=str(cgroup.path), count=CLIENTS
        )
        netloc = NetworkLocation(*server.receive()["netloc"])
        clients = [communicators.client(netloc, linger=0.5) for _ in range(CLIENTS)]  # in case the server dies
        start = time.monotonic()
        futures = [client.put((number, content)) for number, client in enumerate(clients)]
        taken = [server.receive(2 * LIMIT) for _ in range(CLIENTS)]
        seconds = time.monotonic() - start
        for future in futures:
            future.result(LIMIT)
        assert sorted(facts["number"] for facts in taken) == list(range(CLIENTS))
        assert {(facts["size"], facts["crc"]) for facts in taken} == {(SIZE, zlib.crc32(content.data))}
        with contextlib.ExitStack() as leaving:
            for client in clients:
                communicators.release(client)
                leaving.callback(client.close, LIMIT)
        server.finish()
        figure(
            f"25 cgroup of {MEMORY_LIMIT // MIB} MiB",
            f"{wire.kind}: 10 messages of {SIZE // MIB} MiB arrived within {seconds:.1f} s, the server's peak was "
            f"{cgroup.peak / MIB:.0f} MiB",
        )
    assert cgroup.peak <= MEMORY_LIMIT
