"""Segments: direct transfer into them, their reuse and release, and large messages without them."""

from __future__ import annotations

import gc
import json
import os
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from netq.buffers import LARGE
from netq.core import Communicator
from netq.protocol.memory import Memory
from netq.shm import link, memfd
from netq.shm.control import ControlSocket
from netq.shm.segments import MAX_SEGMENTS, Pool, Segments
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from tests.netq.conftest import Start

MIB = 2**20
CONTROL = cast(ControlSocket, SimpleNamespace(send=lambda *_: None))  # accepts all that is sent
Array = np.ndarray[Any, np.dtype[Any]]


def mapping_of(array: Array) -> str:
    """Return the file that this process has mapped at the array's address."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, _, *path = line.split(maxsplit=5)
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= address < high:
            return path[0] if path else ""
    raise AssertionError(f"nothing is mapped at {address:#x}")


def send(sender: Communicator, receiver: Communicator, array: Array) -> Array:
    future = sender.put(array)
    got: Array = receiver.get(timeout=LIMIT).data
    future.result(LIMIT)
    return got


def mapped() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:netq" in line]


def test_array_lies_where_the_peer_wrote_it(communicators: Communicators) -> None:
    server, client = communicators.pair()
    sent = np.random.default_rng(1).random((300, 1000), dtype=np.float32)
    got = send(client, server, sent)
    assert mapping_of(got).startswith("/memfd:netq")
    assert np.array_equal(got, sent)
    assert got.flags.writeable
    assert not mapping_of(send(client, server, sent[:10])).startswith("/memfd:netq")  # a small array does not
    send(server, client, got)


@pytest.mark.slow
def test_message_of_many_arrays_of_all_sizes(communicators: Communicators) -> None:
    server, client = communicators.pair()
    chance = np.random.default_rng(2)
    sent = {f"layer {n}": chance.random(size, dtype=np.float32) for n, size in enumerate([1, 10, 5000, 40_000] * 300)}
    for _ in range(3):
        client.put(sent)
        got = server.get(timeout=LIMIT).data
        assert all(np.array_equal(got[name], array) for name, array in sent.items())


def test_segment_is_used_again_without_views(communicators: Communicators) -> None:
    server, client = communicators.pair()
    sent = np.ones(MIB)
    first = send(client, server, sent)
    second = send(client, server, sent)
    assert len({first.ctypes.data, second.ctypes.data}) == 2
    address = first.ctypes.data
    del first
    third = send(client, server, sent * 3)
    assert third.ctypes.data == address
    assert second.sum() == MIB  # nothing else was written there


def test_segment_is_never_used_for_another_peer(communicators: Communicators) -> None:
    server, one = communicators.pair()
    other = communicators.client(server.netloc)
    introduce(server, other)
    addresses = {name: send(client, server, np.ones(MIB)).ctypes.data for name, client in (("a", one), ("b", other))}
    assert addresses["a"] != addresses["b"]
    assert send(one, server, np.ones(MIB)).ctypes.data == addresses["a"]


def test_idle_segments_are_freed_on_both_sides(communicators: Communicators, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_IDLE_TIME", 0.02)
    server, client = communicators.pair()
    before = len(memfds())
    send(client, server, np.ones(MIB))
    assert len(memfds()) == before + 2  # the descriptor of the mapping, and the sender's
    deadline = time.monotonic() + LIMIT
    while len(memfds()) > before and time.monotonic() < deadline:
        introduce(server, client)  # small messages do not need the segment
    assert len(memfds()) == before
    assert send(client, server, np.ones(MIB)).sum() == MIB


def memfds() -> list[str]:
    found = []
    for file in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(file))
        except OSError:
            continue
    return [target for target in found if "memfd:netq" in target]


@pytest.mark.slow
def test_arrays_outlive_their_link(communicators: Communicators) -> None:
    before = len(mapped())
    server, client = communicators.pair()
    kept, other = send(client, server, np.ones(MIB)), send(client, server, np.ones(MIB))
    send(client, server, np.ones(2 * MIB))
    communicators.abort(client)
    communicators.abort(server)
    gc.collect()
    assert len(mapped()) == before + 2
    del other
    assert len(mapped()) == before + 1
    assert kept.sum() == MIB
    del kept
    gc.collect()
    assert len(mapped()) == before


@pytest.mark.slow
def test_more_arrays_than_segments(communicators: Communicators) -> None:
    server, client = communicators.pair()
    got = [send(client, server, np.full(LARGE, n, np.uint8)) for n in range(MAX_SEGMENTS + 20)]
    assert [int(array[0]) for array in got] == list(range(MAX_SEGMENTS + 20))
    kinds = [mapping_of(array).startswith("/memfd:netq") for array in got]
    assert kinds == [True] * MAX_SEGMENTS + [False] * 20


def test_memory_has_no_name_in_a_file_system(communicators: Communicators) -> None:
    before = sorted(Path("/dev/shm").iterdir())
    server, client = communicators.pair()
    got = send(client, server, np.ones(MIB))
    assert sorted(Path("/dev/shm").iterdir()) == before
    assert all("(deleted)" in line for line in mapped())
    assert got.sum() == MIB


@pytest.mark.slow
def test_both_directions_at_once(communicators: Communicators) -> None:
    server, client = communicators.pair()
    sent = np.random.default_rng(3).random(3 * MIB, dtype=np.float32)
    futures = [side.put(sent * n) for n in range(1, 6) for side in (server, client)]
    for n in range(1, 6):
        for side in (server, client):
            assert np.array_equal(side.get(timeout=LIMIT).data, sent * n)
    for future in futures:
        future.result(LIMIT)


def test_small_message_passes_a_large_one_on_another_lane(communicators: Communicators) -> None:
    server, client = communicators.pair(window=2**30)
    client.put(np.ones(8 * MIB))
    client.put("small", lane=1)
    assert isinstance(server.get(timeout=LIMIT).data, str)
    assert server.get(timeout=LIMIT).data.sum() == 8 * MIB


def test_cancel_during_a_direct_transfer(communicators: Communicators) -> None:
    server, client = communicators.pair()
    for n in range(20):
        data = np.full(2 * MIB, n)
        future = client.put(data)
        client.put(n)
        if not future.cancel():
            future.result(LIMIT)
            assert server.get(timeout=LIMIT).data[-1] == n
        data[:] = -1  # the array is the user's again
        assert server.get(timeout=LIMIT).data == n


def test_forked_child_keeps_its_arrays(communicators: Communicators) -> None:
    server, client = communicators.pair()
    got = send(client, server, np.ones(MIB))
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)  # until the parent has written or has ended
        os._exit(0 if got.sum() == MIB else 1)
    try:
        del got
        assert send(client, server, np.zeros(MIB)).sum() == 0
    finally:
        os.close(write)
        os.close(read)
        status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 0


def test_idle_segments_of_all_links_are_bounded() -> None:
    class Connection:
        source: Memory | None = None

    class Link:
        def on_release(self, number: int) -> None:
            pass

    pool, owners = Pool(16 * MIB), [Link() for _ in range(5)]
    members = [Segments(Connection(), pool, CONTROL, owner.on_release) for owner in owners]  # type: ignore[arg-type]
    for member in members:
        member.memory.take(2 * MIB)  # freed at once
    assert sum(member.memory.idle for member in members) <= 4 * MIB + 2 * (2 * MIB)
    for member in members:
        member.end()


def test_freed_segment_is_not_confused_with_its_successor() -> None:
    """A block is unmapped before its finalizers run, and the loop may map another there meanwhile."""

    class Link:
        def on_release(self, number: int) -> None:
            pass

    link = Link()
    segments = Segments(SimpleNamespace(source=None), Pool(0), CONTROL, link.on_release)  # type: ignore[arg-type]
    first = segments.memory.take(MIB)
    places, later = [segments.find(first)], list[memoryview]()

    def meanwhile() -> None:
        later.append(segments.memory.take(MIB))
        places.append(segments.find(later[0]))

    block = segments._table[1]._block()
    assert block is not None
    weakref.finalize(block, meanwhile)  # finalizers run in reverse order: this one before that of the segments
    del block, first
    assert places == [(1, 0), (2, 0)]
    segments.end()


def test_segments_that_become_idle_are_bounded(communicators: Communicators) -> None:
    server = communicators.server(memory=32 * MIB, message_size=16 * MIB)  # so 8 MiB may be idle
    before = mapped_bytes()
    clients = [communicators.client(server.netloc) for _ in range(4)]
    for client in clients:
        introduce(server, client)
    rings = mapped_bytes() - before
    kept = [send(client, server, np.ones(6 * MIB, np.uint8)) for client in clients]
    assert mapped_bytes() - before - rings >= 24 * MIB
    del kept
    gc.collect()
    assert 0 < mapped_bytes() - before - rings <= 8 * MIB


def mapped_bytes() -> int:
    spans = [line.split()[0].split("-") for line in mapped()]
    return sum(int(high, 16) - int(low, 16) for low, high in spans)


def test_high_descriptor_number_means_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda kind: (100, 100))
    assert [memfd.scarce(fd) for fd in (3, 49, 50, 99)] == [False, False, True, True]


LIMITED = """
import json, resource, sys
from pathlib import Path
import numpy as np
import netq, netq.shm.client
which, when = sys.argv[3:5]
def limit():
    if which == "size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
if when == "before":
    limit()
options = netq.CommunicatorOptions(netloc=(sys.argv[1], int(sys.argv[2])))
with netq.new(netq.Protocol.SHM, options=options) as client:
    if when == "after":
        client.put("hello").result(30)
        limit()
    client.put(np.arange(1_000_000)).result(30)
    got = [client.get(timeout=30).data for _ in range(8)]
    assert all(np.array_equal(array, np.arange(1_000_000)) for array in got)
    print(json.dumps(Path("/proc/self/maps").read_text().count("memfd:netq")))
"""


@pytest.mark.parametrize("which", ["size", "descriptors"])
def test_large_messages_without_segments(
    communicators: Communicators, start: Start, log: LogRecorder, which: str
) -> None:
    server = communicators.server()
    process = start(LIMITED, *server.netloc, which, "before")
    peer, data = server.get(timeout=LIMIT)
    assert np.array_equal(data, np.arange(1_000_000))
    for _ in range(8):
        server.put(data, peer)
    out, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, errors) == (0, "")
    assert not log.having("lost (")  # no link was lost
    assert json.loads(out) < 8  # the rings, and the few segments that were possible


def test_client_without_memory_for_rings_logs_it(communicators: Communicators, start: Start) -> None:
    server = communicators.server()
    code = """
import resource, sys, netq, netq.shm.client
from netq.testing.log import LogRecorder
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with LogRecorder() as log:
    client = netq.new(netq.Protocol.SHM, options=netq.CommunicatorOptions(netloc=(sys.argv[1], int(sys.argv[2]))))
    log.wait("no memory for the rings: File too large")
    client.close(0)
"""
    _, errors = start(code, *server.netloc).communicate(timeout=LIMIT)
    assert errors == ""
    introduce(server, communicators.client(server.netloc))
