"""How a session ends: what close counts and how long it takes, and whose memory a link still sends from."""

from __future__ import annotations

import contextlib
import pickle
import queue
import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import netq
from netq import Closed, NetworkLocation, Protocol
from netq.core import Communicator
from netq.options import CommunicatorOptions, EventOptions, Purpose, SerializationOptions
from netq.runtime.delivery import Delivery
from netq.runtime.peer import Peer
from netq.runtime.stream_link import Link
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from netq.utils.stream import BytesSerializer, Stream

MIB = 2**20
LONG = 10 * LIMIT  # seconds: a test that waits for it fails


def make(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
    return netq.new(Protocol.TCP, purpose, options)


@pytest.fixture
def communicators(proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Communicators]:
    with Communicators(make) as communicators:
        yield communicators


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def only(communicator: Communicator) -> Peer:
    (peer,) = communicator._endpoint.peers.values()
    return peer


def closes(communicator: Communicator) -> None:
    """Wait until it has begun to close."""
    peer = only(communicator)
    while not peer.loop.ask(lambda: peer._finishing):
        pass


# What close returns, and when.


def test_close_counts_messages_lost_by_a_restart_of_the_peer(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy], pool: ThreadPoolExecutor
) -> None:
    old, new = communicators.server(), communicators.server()
    proxy = proxies(old.netloc)
    client = communicators.client(proxy.netloc)
    introduce(old, client)
    held = proxy.passed + MIB
    proxy.hold(after=MIB)
    future = client.put(bytes(64 * MIB))
    proxy.wait(held, LIMIT)
    left = pool.submit(client.close, LIMIT)
    closes(client)
    proxy.upstream = new.netloc
    proxy.release()
    proxy.cut()
    with pytest.raises(Closed, match="it began anew while this message was on its way"):
        future.result(LIMIT)
    assert left.result(LIMIT) == 1
    communicators.release(client)


def test_a_failure_before_close_is_counted(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy]
) -> None:
    old, new = communicators.server(), communicators.server()
    proxy = proxies(old.netloc)
    client = communicators.client(proxy.netloc)
    introduce(old, client)
    held = proxy.passed + MIB
    proxy.hold(after=MIB)
    future = client.put(bytes(64 * MIB))
    proxy.wait(held, LIMIT)
    proxy.upstream = new.netloc
    proxy.release()
    proxy.cut()
    with pytest.raises(Closed, match="it began anew"):
        future.result(LIMIT)
    assert client.close(LIMIT) == 1


def test_close_does_not_wait_when_all_messages_are_cancelled(
    communicators: Communicators, pool: ThreadPoolExecutor
) -> None:
    client = communicators.client(communicators.unused_address(), linger=LONG)
    futures = [client.put(n) for n in range(100)]
    left = pool.submit(client.close)
    closes(client)
    for future in futures[:-1]:
        assert future.cancel()
    client._endpoint.home.ask(lambda: None)
    assert not left.done()
    assert futures[-1].cancel()
    assert left.result(LIMIT) == 0


def test_close_while_away_delivers_the_drop_of_a_begun_message(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy], pool: ThreadPoolExecutor
) -> None:
    gone: queue.SimpleQueue[uuid.UUID] = queue.SimpleQueue()
    server = communicators.server(events=EventOptions(fin=gone.put))
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, linger=LONG)
    introduce(server, client)
    proxy.refusing = True
    proxy.cut_after(MIB)
    future, peer = client.put(bytes(64 * MIB)), only(client)
    while peer.loop.ask(lambda: peer.link is not None):
        pass
    assert future.cancel()
    left = pool.submit(client.close)
    closes(client)
    while not server.statistics()[client.id].arriving:
        pass
    proxy.refusing = False
    assert left.result(LIMIT) == 0
    assert gone.get(timeout=LIMIT) == client.id, "not after the server's session_timeout"
    assert server.statistics() == {}


def test_fin_is_sent_when_the_last_message_is_cancelled(communicators: Communicators, pool: ThreadPoolExecutor) -> None:
    """The FIN waits behind a user that does not read."""
    server = communicators.server(window=1, heartbeat=LONG)
    client = communicators.client(server.netloc, window=1, heartbeat=LONG)
    introduce(server, client)
    server.put("fills it").result(LIMIT)
    futures = [server.put(n) for n in range(4)]
    left = pool.submit(server.close)
    closes(server)
    for future in futures:
        assert not left.done()
        assert future.cancel()
    assert client.get(timeout=LIMIT).data == "fills it"
    with pytest.raises(Closed):
        client.get(timeout=LIMIT)
    client.close(LIMIT)
    assert left.result(LIMIT) == 0


# A closing server waits for its clients.


def test_a_client_resumes_with_a_closing_server(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy], pool: ThreadPoolExecutor
) -> None:
    server = communicators.server(linger=LONG)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    left = pool.submit(server.close)
    with pytest.raises(Closed):
        client.get(timeout=LIMIT)
    for number in range(3):
        proxy.cut()
        client.put(number).result(LIMIT)
        assert server.get(timeout=LIMIT).data == number
    assert not left.done()
    assert client.close(LIMIT) == 0
    assert left.result(LIMIT) == 0


def test_a_closing_server_waits_linger_for_a_lost_client(
    communicators: Communicators,
    proxies: Callable[[NetworkLocation], Proxy],
    pool: ThreadPoolExecutor,
    log: LogRecorder,
) -> None:
    server = communicators.server(linger=0.1)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, linger=0.1)
    introduce(server, client)
    left = pool.submit(server.close)
    with pytest.raises(Closed):
        client.get(timeout=LIMIT)
    proxy.refusing = True
    proxy.cut()
    assert isinstance(client.put("never").exception(LIMIT), Closed)
    assert left.result(LIMIT) == 0
    assert client.statistics() == {}


def test_a_silent_client_has_linger_to_return_to_a_closing_server(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy], pool: ThreadPoolExecutor
) -> None:
    server = communicators.server(linger=LONG, heartbeat=0.1, misses=2)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, heartbeat=0.1, misses=2)
    introduce(server, client)
    left = pool.submit(server.close)
    with pytest.raises(Closed):
        client.get(timeout=LIMIT)
    proxy.hold()
    peer = only(server)
    while peer.loop.ask(lambda: peer.link is not None):
        pass
    assert not left.done()
    proxy.release()
    proxy.cut()
    client.put("here again").result(LIMIT)
    client.close(LIMIT)
    assert left.result(LIMIT) == 0
    assert server.get(timeout=0).data == "here again"


def test_a_closing_server_waits_for_a_client_that_returned(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy], pool: ThreadPoolExecutor
) -> None:
    server = communicators.server(linger=LONG)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    peer = only(server)
    proxy.refusing = True
    proxy.cut()
    while peer.loop.ask(lambda: peer.link is not None):
        pass
    server.put("due")
    left = pool.submit(server.close)
    closes(server)
    proxy.refusing = False
    assert client.get(timeout=LIMIT).data == "due"
    with pytest.raises(Closed):
        client.get(timeout=LIMIT)
    for number in range(3):
        proxy.cut()
        client.put(number).result(LIMIT)
    assert not left.done()
    client.close(LIMIT)
    assert left.result(LIMIT) == 0
    assert [server.get(timeout=0).data for _ in range(3)] == [0, 1, 2]


def test_to_close_again_does_not_make_it_longer(communicators: Communicators, pool: ThreadPoolExecutor) -> None:
    client = communicators.client(communicators.unused_address(), linger=LONG)
    client.put("not taken")
    left = pool.submit(client.close, LIMIT)
    closes(client)
    peer = only(client)
    before = peer._expiry
    peer.loop.ask(peer.finish, LIMIT)
    assert peer._expiry is before
    assert client.close(timeout=0) == left.result(LIMIT) == 1
    communicators.release(client)


def test_a_client_that_was_away_is_not_waited_for(communicators: Communicators) -> None:
    server = communicators.server(linger=LONG)
    client = communicators.client(server.netloc)
    introduce(server, client)
    communicators.abort(client)
    while server.statistics()[client.id].connected:
        pass
    assert server.close(LIMIT) == 0


def test_a_client_of_a_closed_server_leaves_its_successor(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy], pool: ThreadPoolExecutor
) -> None:
    gone: queue.SimpleQueue[uuid.UUID] = queue.SimpleQueue()
    old, new = communicators.server(linger=0.1), communicators.server(events=EventOptions(fin=gone.put))
    proxy = proxies(old.netloc)
    client = communicators.client(proxy.netloc, linger=LONG)
    introduce(old, client)
    left = pool.submit(old.close)
    with pytest.raises(Closed):
        client.get(timeout=LIMIT)
    proxy.upstream = new.netloc
    proxy.cut()
    assert gone.get(timeout=LIMIT) == client.id
    assert isinstance(client.put("never").exception(LIMIT), Closed)
    assert left.result(LIMIT) == 0
    assert new.statistics() == {}


def test_a_closing_server_keeps_its_window_until_its_client_closes(
    communicators: Communicators, pool: ThreadPoolExecutor
) -> None:
    server = communicators.server(window=1)
    client = communicators.client(server.netloc)
    introduce(server, client)
    left = pool.submit(server.close)
    with pytest.raises(Closed):
        client.get(timeout=LIMIT)
    futures = [client.put(number) for number in range(5)]
    futures[0].result(LIMIT)
    client.put("on another lane", lane=1).result(LIMIT)
    assert not any(future.done() for future in futures[1:]), "the user does not read, and it is more than a window"
    assert client.close(LIMIT) == 0
    assert left.result(LIMIT) == 0
    assert sorted(str(server.get(timeout=0).data) for _ in range(6)) == ["0", "1", "2", "3", "4", "on another lane"]


@pytest.mark.slow
def test_a_closing_server_logs_for_which_clients_it_waits(
    communicators: Communicators, pool: ThreadPoolExecutor, log: LogRecorder
) -> None:
    server, client = communicators.pair()
    left = pool.submit(server.close)
    assert "closing waits for 1 client to disconnect" in log.wait("closing waits")
    client.close(LIMIT)
    assert left.result(LIMIT) == 0


@pytest.mark.parametrize("is_held", [False, True], ids=["no link", "a link in its handshake"])
def test_a_closing_client_says_the_timeout_if_that_ends_the_wait(
    communicators: Communicators,
    proxies: Callable[[NetworkLocation], Proxy],
    pool: ThreadPoolExecutor,
    log: LogRecorder,
    *,
    is_held: bool,
) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    if is_held:
        proxy.hold()
    proxy.refusing = not is_held
    client = communicators.client(proxy.netloc, linger=10 * LIMIT)
    client.put("at last")
    left = pool.submit(client.close, LIMIT)
    log.wait(f"the server: not connected; closing waits up to {LIMIT:g} s (timeout) for it to return")
    proxy.refusing = False
    proxy.release()
    assert server.get(timeout=LIMIT).data == "at last"
    assert left.result(LIMIT) == 0


def test_a_closing_server_says_the_timeout_if_that_ends_the_wait(
    communicators: Communicators,
    proxies: Callable[[NetworkLocation], Proxy],
    pool: ThreadPoolExecutor,
    log: LogRecorder,
) -> None:
    server = communicators.server(linger=10 * LIMIT)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    proxy.refusing = True
    proxy.cut()
    log.wait("its session waits for it")
    server.put("at last", client.options.id)
    left = pool.submit(server.close, LIMIT)
    log.wait(f"{client.options.id}: not connected; closing waits up to {LIMIT:g} s (timeout) for their return")
    proxy.refusing = False
    assert client.get(timeout=LIMIT).data == "at last"
    client.close(LIMIT)
    assert left.result(LIMIT) == 0


@pytest.mark.slow
def test_a_closing_server_logs_lost_clients_in_one_line(
    communicators: Communicators,
    proxies: Callable[[NetworkLocation], Proxy],
    pool: ThreadPoolExecutor,
    log: LogRecorder,
) -> None:
    server = communicators.server(linger=5.0)
    proxy = proxies(server.netloc)
    clients = [communicators.client(proxy.netloc) for _ in range(3)]
    for client in clients:
        introduce(server, client)
    proxy.refusing = True
    proxy.cut()
    log.wait("its session waits for it", 3)
    for client in clients:
        server.put("at last", client.options.id)
    left = pool.submit(server.close)
    log.wait("and 2 other clients: not connected; closing waits up to 5 s (linger) for their return")
    proxy.refusing = False
    assert [client.get(timeout=LIMIT).data for client in clients] == ["at last"] * 3
    for client in clients:
        client.close(LIMIT)
    assert left.result(LIMIT) == 0
    assert len(log.having("closing waits")) == 1


# Whose memory it is.


def shrink(peer: Peer) -> None:
    """Let the socket take less than a batch, so that the link keeps the rest of it. In the loop."""
    assert isinstance(peer.link, Link)
    peer.link._stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def stands_still(peer: Peer) -> bool:
    """Whether the link has taken something that the socket does not take. In the loop."""
    assert isinstance(peer.link, Link)
    return bool(peer.link._unsent)


def test_failed_data_is_the_users_again_and_is_not_sent_changed(
    communicators: Communicators,
    proxies: Callable[[NetworkLocation], Proxy],
    pool: ThreadPoolExecutor,
    log: LogRecorder,
) -> None:
    plain = SerializationOptions(load=BytesSerializer().load, dump=lambda data: Stream([data]))
    server = communicators.server(serialization=plain)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, serialization=plain, put_merge=False, queue_size=10**6)
    client.put(b"hello").result(LIMIT)
    assert server.get(timeout=LIMIT).data == b"hello"
    proxy.hold()
    peer, futures = only(client), list[Delivery]()
    peer.loop.ask(shrink, peer)
    while not peer.loop.ask(stands_still, peer):
        for _ in range(500):
            data = bytearray(b"A" * 4096)
            futures.append(client.put(data))
            futures[-1].add_done_callback(lambda _, data=data: data.__setitem__(slice(None), b"B" * 4096))  # type: ignore[misc]
    closed = pool.submit(client.close, 0)
    failed = sum(future.exception(LIMIT) is not None for future in futures)
    proxy.release()
    assert closed.result(LIMIT) == failed > 0
    communicators.release(client)
    log.wait(f"{client.id}: lost")
    seen = set()
    with contextlib.suppress(TimeoutError):
        while True:
            seen |= set(server.get(timeout=0).data)
    assert seen == set(b"A")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["silent", "superseded"])
def test_a_link_that_is_given_up_keeps_nothing_of_the_user_s(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy], log: LogRecorder, how: str
) -> None:
    heartbeat = 0.5 if how == "silent" else LONG
    server = communicators.server(heartbeat=heartbeat)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, heartbeat=heartbeat, misses=2)
    introduce(server, client)
    proxy.hold()
    peer, data = only(client), bytearray(64 * MIB)
    peer.loop.ask(shrink, peer)
    future = client.put(pickle.PickleBuffer(data))
    while not peer.loop.ask(stands_still, peer):
        pass
    if how == "silent":
        log.wait("trying again until it answers")
    else:
        link = peer.link
        peer.loop.ask(lambda: client._endpoint._transport.open())
        while peer.loop.ask(lambda: peer.link is link):
            pass
    assert future.cancel()
    client.statistics()  # asks the loop: it has heard of it
    data.clear()  # raises BufferError while anybody has a view of it
    proxy.release()


def test_end_of_a_session_comes_behind_its_messages(communicators: Communicators) -> None:
    end = Stream()
    raw = SerializationOptions(load=lambda data: "end" if data is end else bytes(data), dump=lambda data: data)
    server = communicators.server(events=EventOptions(end=end), serialization=raw)
    id = uuid.uuid4()
    for _ in range(2):  # all is unread until both sessions are over
        client = communicators.client(server.netloc, id=id, serialization=raw)
        for future in [client.put(data) for data in (b"1", b"2")]:
            future.result(LIMIT)
        client.close(LIMIT)
    assert [server.get(timeout=LIMIT) for _ in range(6)] == [(id, each) for each in (b"1", b"2", "end") * 2]


def test_a_server_that_closes_at_once_does_not_say_that_sessions_wait(
    communicators: Communicators, log: LogRecorder
) -> None:
    server = communicators.server()
    introduce(server, communicators.client(server.netloc))
    server.close(0)
    assert not log.having("its session waits for it")
