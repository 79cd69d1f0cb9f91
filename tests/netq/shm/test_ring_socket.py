"""The ring socket: a stream each way with the exceptions of a socket; waits end when the peer goes; nothing is left."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import logging
import os
import random
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import netq
from netq import AddressError, InvalidOption, NetworkLocation
from netq.shm import bell, rendezvous
from netq.shm.control import HELLO, RING_SOCKET, ControlSocket, offer_rings
from netq.shm.ring import HEADER, RingError
from netq.shm.ring_options import Address
from netq.shm.ring_socket import Listener, RingSocket, connect, listen
from netq.shm.socket_handshake import BELL
from netq.testing.fixtures import LIMIT
from netq.testing.log import LogRecorder
from tests.netq.conftest import Start
from tests.pages import Page

Pair = tuple[RingSocket, RingSocket]
SIZE = 4096  # of a ring in these tests
ROOM = SIZE - HEADER
SPINS = [0.0, 50e-6]


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listen(("localhost", 0), spin=0) as listener:
        yield listener


@contextlib.contextmanager
def new_pair(spin: float = 0.0) -> Iterator[Pair]:
    with (
        listen(("localhost", 0), spin=spin) as listener,
        connect(listener.address, LIMIT, size=SIZE, spin=spin) as client,
        listener.accept(LIMIT) as server,
    ):
        server.settimeout(LIMIT)
        yield client, server


@pytest.fixture(params=SPINS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with new_pair(request.param) as pair:
        yield pair


def receive(sock: RingSocket, size: int) -> bytes:
    """Receive so many bytes, fewer at the end of the stream."""
    found = bytearray(size)
    view = memoryview(found)
    got = 0
    while got < size and (n := sock.recv_into(view[got:])):
        got += n
    return bytes(found[:got])


def test_bytes_go_both_ways(pair: Pair) -> None:
    for a, b in (pair, pair[::-1]):
        a.sendall(b"PING")
        assert b.recv(100) == b"PING"
    pair[0].sendall(memoryview(b"tail")[2:])
    assert pair[1].recv(1) == b"i"
    assert pair[1].recv(9) == b"l"


@pytest.mark.slow
@pytest.mark.parametrize("size", [*range(70), *range(ROOM - 3, ROOM + 4), *range(2 * ROOM, 3 * ROOM + 1, 509)])
def test_message_of_any_size_arrives(size: int) -> None:
    data = random.Random(size).randbytes(size)
    with new_pair() as (client, server), ThreadPoolExecutor(1) as other:
        for sender, receiver in ((client, server), (server, client)):
            received = other.submit(receive, receiver, 3 * size)
            for _ in range(3):  # wraps around
                sender.sendall(data)
            assert received.result(LIMIT) == 3 * data


def test_both_directions_at_once(pair: Pair) -> None:
    """A thread for each direction at each end: none takes a wakeup of another one."""
    data = [random.Random(number).randbytes(40 * SIZE + number) for number in range(2)]
    with ThreadPoolExecutor(4) as threads:
        received = [threads.submit(receive, sock, len(data[1 - n])) for n, sock in enumerate(pair)]
        sent = [threads.submit(sock.sendall, data[n]) for n, sock in enumerate(pair)]
        assert [each.result(LIMIT) for each in sent] == [None, None]
        assert [each.result(LIMIT) for each in received] == data[::-1]


STEP = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 2 * SIZE)),
    st.tuples(st.just("receive"), st.integers(1, 2 * SIZE)),
    st.tuples(st.just("select"), st.just(0)),
)


def test_no_bytes_wake_no_peer() -> None:
    with new_pair() as pair:
        assert not select.select([pair[1]], [], [], 0)[0]
        assert pair[0].send(b"") == 0
        assert not select.select([pair[1]], [], [], 0)[0]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.booleans(), STEP), max_size=40), st.randoms())
def test_socket_behaves_like_two_queues(steps: list[tuple[bool, tuple[str, int]]], source: random.Random) -> None:
    with new_pair() as pair:
        queues = [b"", b""]  # what each side is to receive
        for side in pair:
            side.settimeout(0)
        for way, (step, size) in steps:
            side, queue = pair[way], queues[way]
            if step == "send":
                data = source.randbytes(size)
                taken = min(size, ROOM - len(queues[not way]))
                if size and not taken:
                    with pytest.raises(BlockingIOError):
                        side.send(data)
                else:
                    assert side.send(data) == taken
                queues[not way] += data[:taken]
            elif step == "select":
                assert bool(select.select([side], [], [], 0)[0]) is bool(queue)
            elif queue:
                assert side.recv(size) == queue[:size]
                queues[way] = queue[size:]
            else:
                with pytest.raises(BlockingIOError):
                    side.recv(size)


def test_timeouts_are_those_of_a_socket(pair: Pair) -> None:
    client, server = pair
    client.settimeout(0.001)
    assert client.gettimeout() == 0.001
    with pytest.raises(TimeoutError, match=r"no bytes came within 0.001 s"):
        client.recv(1)
    with pytest.raises(TimeoutError, match=r"the peer read nothing within"):
        client.sendall(bytes(ROOM + 1))
    client.settimeout(0)
    with pytest.raises(BlockingIOError, match="no bytes are there"):
        client.recv(1)
    with pytest.raises(BlockingIOError, match="no room: the peer has not read"):
        client.send(b"x")
    assert receive(server, ROOM) == bytes(ROOM)
    assert client.send(b"more") == 4


def test_closed_peer_is_the_end_of_the_stream(pair: Pair) -> None:
    client, server = pair
    client.sendall(b"last words")
    client.close()
    assert server.recv(4) == b"last"
    assert server.recv(100) == b" words"
    for _ in range(2):
        assert server.recv(100) == b""
    with pytest.raises(BrokenPipeError, match="the peer has closed the ring socket, or has died"):
        server.send(b"x")


def test_first_send_after_a_close_fails(pair: Pair) -> None:
    client, server = pair
    client.sendall(b"unread")
    server.close()
    with pytest.raises(BrokenPipeError):
        client.sendall(b"x")


def test_peer_that_read_everything_may_close(pair: Pair) -> None:
    """Also if it closes before the sender has looked again: nothing of what was sent is lost."""
    client, server = pair
    ring = client._parts.rings.writer
    claim = ring.claim_wakeup

    def late_claim() -> bool:
        assert server.recv(10) == b"all of it"
        server.close()
        return claim()

    ring.claim_wakeup = late_claim  # type: ignore[method-assign]
    client.sendall(b"all of it")
    with pytest.raises(BrokenPipeError):
        client.sendall(b"x")


def test_empty_send_and_empty_buffer_do_nothing(pair: Pair) -> None:
    client, server = pair
    client.sendall(b"")
    assert client.send(b"") == 0
    assert server.recv_into(bytearray()) == 0
    client.sendall(b"x")
    assert server.recv(1) == b"x"


def test_buffers_of_other_types_are_bytes(pair: Pair) -> None:
    client, server = pair
    client.sendall(memoryview(bytes(range(8))).cast("I"))
    into = memoryview(bytearray(8)).cast("I")
    assert server.recv_into(into) == 8
    assert into.tobytes() == bytes(range(8))


def test_reader_that_may_not_write_loses_nothing(pair: Pair) -> None:
    client, server = pair
    client.sendall(b"kept")
    with pytest.raises(TypeError):
        server.recv_into(memoryview(bytes(4)))
    assert server.recv(4) == b"kept"


def test_unfit_buffers_are_refused_at_once(pair: Pair) -> None:
    client, server = pair
    with pytest.raises(TypeError, match="recv_into: a read-only buffer; expected a writable one"):
        server.recv_into(b"abc")  # type: ignore[arg-type]
    for call in (server.recv_into, client.send, client.sendall):
        with pytest.raises(BufferError, match="not contiguous; expected a contiguous one"):
            call(memoryview(bytearray(6))[::2])


@pytest.mark.parametrize("wait", ["recv", "send"])
def test_close_ends_a_wait_in_another_thread(pair: Pair, wait: str) -> None:
    client, _ = pair
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(client.recv, 1) if wait == "recv" else other.submit(client.sendall, bytes(9 * SIZE))
        if wait == "send":
            assert pair[1].recv(1) == b"\0"  # it has begun
        client.close()
        with pytest.raises(OSError, match="the ring socket is closed") as raised:
            waiting.result(LIMIT)
    assert raised.value.errno == errno.EBADF


def test_use_after_close_is_an_error(listener: Listener) -> None:
    with connect(listener.address) as client:
        listener.accept(LIMIT).close()
    for call in (client.recv, client.fileno, client.send, client.sendall):
        with pytest.raises(OSError, match="the ring socket is closed; connect anew"):
            call(*([] if call == client.fileno else [1] if call == client.recv else [b"x"]))
    client.close()
    listener.close()
    with pytest.raises(OSError, match="the listener is closed"):
        listener.accept()


def test_sent_bytes_outlive_a_client_that_was_not_accepted(listener: Listener) -> None:
    with connect(listener.address) as client:
        client.sendall(b"gone already")
    with listener.accept(LIMIT) as server:
        assert receive(server, 100) == b"gone already"


def test_many_connections_are_accepted_in_order(listener: Listener) -> None:
    for number in range(150):
        with connect(listener.address, size=SIZE) as client, listener.accept(LIMIT) as server:
            client.sendall(bytes([number]))
            assert server.recv(2) == bytes([number])


def test_several_threads_accept(listener: Listener) -> None:
    with ThreadPoolExecutor(3) as threads, contextlib.ExitStack() as stack:
        accepted = [threads.submit(listener.accept, LIMIT) for _ in range(3)]
        clients = [stack.enter_context(connect(listener.address)) for _ in range(3)]
        servers = [stack.enter_context(each.result(LIMIT)) for each in accepted]
        for number, client in enumerate(clients):
            client.sendall(bytes([number]))
        assert sorted(server.recv(1) for server in servers) == [b"\0", b"\1", b"\2"]


def test_accept_waits_as_long_as_it_is_told(listener: Listener) -> None:
    with pytest.raises(BlockingIOError, match="no connection is there"):
        listener.accept(0)
    with pytest.raises(TimeoutError, match=r"no connection came within 0.001 s"):
        listener.accept(0.001)
    with connect(listener.address):
        assert select.select([listener], [], [], LIMIT)[0] == [listener]
        listener.accept(0).close()


def test_close_ends_accept_and_waiting_clients(listener: Listener) -> None:
    with connect(listener.address, LIMIT) as client, ThreadPoolExecutor(1) as other:
        listener.accept(LIMIT).close()
        waiting = other.submit(listener.accept)
        late = connect(listener.address, LIMIT)
        with contextlib.suppress(OSError):
            waiting.result(LIMIT).close()
        waiting = other.submit(listener.accept)
        listener.close()
        with pytest.raises(OSError, match="the listener is closed"):
            waiting.result(LIMIT)
        assert (client.recv(1), late.recv(1)) == (b"", b"")
        late.close()


def test_path_is_an_address_and_is_removed(tmp_path: Path) -> None:
    path = str(tmp_path / "ring")
    with listen(path) as listener:
        assert listener.address == path
        with connect(path) as client, listener.accept(LIMIT) as server:
            client.sendall(b"x")
            assert server.recv(1) == b"x"
        with pytest.raises(AddressError, match=rf"cannot listen at {path} \(address\): a server listens there"):
            listen(Path(path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(
        FileNotFoundError, match=f"ring socket {path}: No such file .*; a server must listen and accept there"
    ):
        connect(path)


def test_port_is_taken_or_empty(listener: Listener) -> None:
    with pytest.raises(AddressError, match=r"Address already in use; choose another port"):
        listen(listener.address)
    address = listener.address
    listener.close()
    with pytest.raises(
        ConnectionRefusedError, match=r"localhost:\d+: Connection refused; a server must listen and accept there"
    ):
        connect(address)


@pytest.mark.parametrize(
    "address", ["relative", Path("relative"), ("localhost",), ("", 1), ("localhost", 70000), 7, ("localhost", True)]
)
def test_address_of_another_form_is_refused(address: Address) -> None:
    for call in (listen, connect):
        with pytest.raises(InvalidOption, match=r"address: .*; expected an absolute path, or a host and a port from"):
            call(address)


def test_options_out_of_range_are_refused(listener: Listener) -> None:
    for call in (listen, connect):
        with pytest.raises(InvalidOption, match=r"address: 'aggregator.example' is not this machine"):
            call(("aggregator.example", 1))
    for size in (0, 4095, 5000, 2**20 + 4096, True, 4096.0):
        with pytest.raises(InvalidOption, match=r"size: .*; expected a multiple of 4096 from 4096 to 1048576"):
            connect(listener.address, size=size)  # type: ignore[arg-type]
    for spin in (-1, 2, float("nan")):
        with pytest.raises(InvalidOption, match=r"spin: .*; expected seconds, from 0 to 1"):
            connect(listener.address, spin=spin)
    for timeout in (-1, float("inf"), "1"):
        with pytest.raises(InvalidOption, match=r"timeout: .*; expected seconds, from 0 to 1e\+06"):
            connect(listener.address, timeout)  # type: ignore[arg-type]
    with pytest.raises(BlockingIOError):
        listener.accept(0)  # none of these has connected


@pytest.mark.parametrize("missing", ["memfd_create", "eventfd"])
def test_system_without_memfd_or_eventfd_is_refused(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.delattr(os, missing)
    error = r"^netq.shm.ring_socket: shared memory needs Linux and a 64-bit Python; use a Unix socket or .* here$"
    for call in (listen, connect):
        with pytest.raises(InvalidOption, match=error):
            call(("localhost", 1))
    with pytest.raises(InvalidOption, match=r"^Protocol.SHM: shared memory needs Linux .*; use Protocol.TCP here$"):
        netq.new(netq.Protocol.SHM)


MACOS = """
import mmap, os, select, socket, sys
for module, name in (
    (os, "memfd_create"), (os, "eventfd"), (os, "eventfd_write"), (os, "pwritev"), (os, "MFD_CLOEXEC"),
    (os, "EFD_CLOEXEC"), (select, "epoll"), (socket, "SO_PEERCRED"), (socket, "MSG_CMSG_CLOEXEC"),
):
    delattr(module, name)
import netq
from netq.shm.fence import make_fence
from netq.shm.ring import Reader, Writer
from netq.shm.ring_socket import connect
for call in (lambda: connect("/tmp/ring"), lambda: netq.new("shm")):
    try:
        call()
    except netq.InvalidOption as error:
        print(error)
memory = mmap.mmap(-1, 4096)
writer, reader, into = Writer(memory, make_fence()), Reader(memory, make_fence()), bytearray(9)
print(writer.write([b"any bytes"]), reader.available(), reader.read_into(memoryview(into)), into.decode())
"""


def test_pure_ring_works_where_the_socket_is_refused(start: Start) -> None:
    """On a system without what Linux has: everything can be imported, and each refusal is one line."""
    out, errors = start(MACOS).communicate(timeout=LIMIT)
    assert errors == ""
    ring, communicator, pure = out.splitlines()
    assert f"InvalidOption: {ring}\n" in Page("docs/how-to/ring.md").blocks("text")
    assert communicator == "Protocol.SHM: shared memory needs Linux and a 64-bit Python; use Protocol.TCP here"
    assert pure == "9 9 9 any bytes"


def test_communicator_at_the_address_refuses() -> None:
    options = netq.CommunicatorOptions(netloc=NetworkLocation("localhost", 0))
    with LogRecorder() as log, netq.new(netq.Protocol.SHM, netq.Purpose.SERVER, options) as server:
        error = r"the peer is a ring socket .*, and this address belongs to a communicator of Protocol.SHM"
        with pytest.raises(ConnectionRefusedError, match=error), connect(server.netloc, LIMIT) as client:
            client.recv(1)
        log.wait("belongs to a communicator")


def stranger(listener: Listener) -> ControlSocket:
    return ControlSocket(rendezvous.connect(NetworkLocation(*listener.address)))


def test_strangers_are_refused_and_others_served(listener: Listener, log: LogRecorder) -> None:
    link, silent, short, foreign = (stranger(listener) for _ in range(4))
    offer_rings(link).close()
    short.send(HELLO, b"GET /")
    offer_rings(foreign, RING_SOCKET).close()
    with open(os.devnull) as file:
        foreign.send(BELL, fd=file.fileno())
    with connect(listener.address) as client, listener.accept(LIMIT) as server:
        client.sendall(b"served")
        assert server.recv(6) == b"served"
    log.wait("the peer is a communicator of Protocol.SHM, and this address belongs to a ring socket")
    log.wait("the peer does not speak netq")
    log.wait("a packet of kind 5 without an eventfd")
    assert len(log.having("the connection was closed", logging.WARNING)) == 3
    for each in (link, silent, short, foreign):
        each.sock.close()


def test_silent_connections_give_way(listener: Listener) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(stranger(listener).sock) for _ in range(100)]
        client = stack.enter_context(connect(listener.address))
        stack.enter_context(listener.accept(LIMIT))
        client.sendall(b"x")
        silent[0].settimeout(LIMIT)
        assert silent[0].recv(1) == b""
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)


@pytest.mark.parametrize("offset", [0, 128])  # head, tail
def test_impossible_number_raises_ring_error(pair: Pair, offset: int) -> None:
    client, server = pair
    memory = client._parts.rings.memory
    start = offset if offset == 0 else SIZE + offset  # the client writes the first ring, and reads the second
    memory[start : start + 8] = b"\xff" * 8
    with pytest.raises(RingError, match=r"says 18446744073709551615, expected 0 to \d+"):
        server.recv(1) if offset == 0 else server.send(b"x")


@pytest.mark.parametrize("counter", [0, 2**64 - 2])
def test_peer_cannot_make_the_bell_block(monkeypatch: pytest.MonkeyPatch, counter: int) -> None:
    """A hostile peer's bells wait when they are read, or when they are written. `send` and `fileno` do not."""

    def make() -> int:
        fd = os.eventfd(0, os.EFD_CLOEXEC)
        os.eventfd_write(fd, counter)
        return fd

    monkeypatch.setattr(bell, "make", make)
    with new_pair() as (hostile, sock), ThreadPoolExecutor(1) as other:
        try:
            hostile._parts.rings.reader.leave()  # as if it slept
            assert other.submit(sock.send, b"x").result(LIMIT) == 1
            hostile.sendall(b"y")
            assert other.submit(sock.fileno).result(LIMIT) >= 0
            sock.settimeout(0.001)
            assert sock.recv(2) == b"y"
            with pytest.raises(TimeoutError):
                sock.recv(1)
        finally:
            for fd in (hostile._parts.own, hostile._parts.other):  # ends a call that waits
                os.set_blocking(fd, False)
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd) if counter else os.eventfd_write(fd, 1)


WAITER = """
import sys
from netq.shm.ring_socket import connect
sock = connect(sys.argv[1], spin=float(sys.argv[3]))
sock.sendall(b"ready")
if sys.argv[2] == "recv":
    sock.recv(1)
sock.sendall(bytes(10**7))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs", "spin"),
    [*itertools.product(["recv", "send"], ["recv", "send"], SPINS[:1]), ("recv", "recv", SPINS[1])],
)
def test_killed_peer_ends_a_wait(start: Start, tmp_path: Path, ours: str, theirs: str, spin: float) -> None:
    path = str(tmp_path / "ring")
    with listen(path, spin=spin) as listener, ThreadPoolExecutor(1) as other:
        process = start(WAITER, path, theirs, spin)
        with listener.accept(LIMIT) as sock:
            sock.settimeout(LIMIT)
            assert receive(sock, 5) == b"ready"
            waiting = other.submit(sock.sendall, bytes(10**7)) if ours == "send" else None
            process.kill()
            if waiting is not None:
                with pytest.raises(BrokenPipeError):
                    waiting.result(LIMIT)
            while sock.recv(10**6):
                pass
            process.wait()


SUM = """
import hashlib, sys
from netq.shm.ring_socket import connect
with connect(sys.argv[1], size=int(sys.argv[2]), spin=float(sys.argv[3])) as sock:
    digest, buffer, left = hashlib.sha256(), memoryview(bytearray(70_000)), int(sys.argv[4])
    while left:
        n = sock.recv_into(buffer)
        digest.update(buffer[:n])
        left -= n
        if n % 7 == 0:
            sock.sendall(buffer[:n % 200])
print(digest.hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("size", "spin"), [*((4096, spin) for spin in SPINS), (256 * 1024, SPINS[0])])
def test_two_processes_exchange_streams(start: Start, tmp_path: Path, size: int, spin: float) -> None:
    path, source = str(tmp_path / "ring"), random.Random(size)
    messages = [source.randbytes(source.choice([1, 4, 700, 9000])) for _ in range(1500)]
    stream = b"".join(messages)
    with listen(path, spin=spin) as listener, ThreadPoolExecutor(1) as other:
        process = start(SUM, path, size, spin, len(stream))
        with listener.accept(LIMIT) as sock:
            back = other.submit(receive, sock, 10**7)  # until the end of the stream
            for message in messages:
                sock.sendall(message)
            out, errors = process.communicate(timeout=LIMIT)
            back.result(LIMIT)
    assert (out.strip(), errors) == (hashlib.sha256(stream).hexdigest(), "")


def test_signal_handlers_run_during_a_wait(pair: Pair) -> None:
    client, server = pair
    before = signal.signal(signal.SIGUSR1, lambda *_: server.sendall(b"from the handler"))
    try:
        timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        assert client.recv(100) == b"from the handler"
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


FORK = """
import os, sys
from netq.shm.ring_socket import connect, listen
with listen(("localhost", 0)) as listener, connect(listener.address) as sock, listener.accept() as peer:
    files = len(os.listdir("/proc/self/fd"))
    child = os.fork()
    if not child:
        for call in (lambda: sock.recv(1), lambda: peer.send(b"x"), listener.accept):
            try:
                call()
            except OSError as error:
                assert "is closed" in str(error)
            else:
                os._exit(1)
        assert len(os.listdir("/proc/self/fd")) < files - 10
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    sock.sendall(b"still open")
    assert peer.recv(100) == b"still open"
    sock.close()
    assert peer.recv(1) == b""
"""


def test_fork_leaves_the_sockets_to_the_parent(start: Start) -> None:
    process = start(FORK)
    assert process.communicate(timeout=LIMIT) == ("", "")
    assert process.returncode == 0


def test_forgotten_socket_warns_and_closes(listener: Listener) -> None:
    sock = connect(listener.address)
    with listener.accept(LIMIT) as server:
        with pytest.warns(ResourceWarning, match="unclosed ring socket"):
            del sock
        assert server.recv(1) == b""


OTHER = """
import os, sys
from netq.shm.ring_socket import connect
os.setgid(65534); os.setuid(65534)
try:
    connect(("localhost", int(sys.argv[1])))
except PermissionError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")
def test_process_of_another_user_is_refused(listener: Listener, start: Start, log: LogRecorder) -> None:
    process: subprocess.Popen[str] = start(OTHER, listener.address[1])
    said, errors = process.communicate(timeout=LIMIT)
    assert errors == ""
    assert f"process {os.getpid()} is of user 0, this one of 65534" in said
    with pytest.raises(BlockingIOError):
        listener.accept(0)
    log.wait(f"process {process.pid} is of user 65534, this one of 0")
