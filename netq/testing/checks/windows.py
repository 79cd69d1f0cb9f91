"""Flow control: how much is unread at a receiver, and which senders wait for it."""

from __future__ import annotations

import itertools
import time
import uuid

from netq.core import Communicator, Message
from netq.testing.fixtures import LIMIT, Communicators, Make, introduce

_WINDOW = 64 * 1024
_SIZE = 10_000
_MEMORY = 512 * 1024
_LARGE = 300_000  # bytes of a message: one that has come and is not taken leaves no room in _MEMORY for another


def check_message_larger_than_window(make: Make) -> None:
    """A message larger than the window arrives, alone."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(window=1000, transport_size=777)
        for number in range(3):
            client.put(bytes([number]) * 100_000)
        for number in range(3):
            assert server.get(timeout=LIMIT).data == bytes([number]) * 100_000


def check_slow_reader(make: Make) -> None:
    """Without a get, a window and one message arrive at most; afterwards all messages arrive, in order."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(window=_WINDOW)
        futures = [client.put((number, bytes(_SIZE))) for number in range(100)]
        for future in futures[: _WINDOW // (_SIZE + 512)]:
            future.result(LIMIT)
        for _ in range(3):
            server.put("passing", client.id).result(LIMIT)
            assert client.get(timeout=LIMIT).data == "passing"
        unread = server.statistics()[client.id].bytes_in
        assert unread <= _WINDOW + _SIZE + 1000, f"{unread} bytes unread, and the window is {_WINDOW}"
        assert not futures[-1].done()
        assert [server.get(timeout=LIMIT).data[0] for _ in futures] == list(range(100))
        futures[-1].result(LIMIT)


def check_slow_reader_alone(make: Make) -> None:
    """A client that does not get delays neither the server nor the other clients."""
    with Communicators(make) as communicators:
        server = communicators.server()
        slow, quick = (
            communicators.client(server.netloc, window=_WINDOW),
            communicators.client(server.netloc, window=_WINDOW),
        )
        introduce(server, slow, quick)
        for _ in range(50):
            server.put(bytes(_SIZE))
            assert len(quick.get(timeout=LIMIT).data) == _SIZE
        assert all(len(slow.get(timeout=LIMIT).data) == _SIZE for _ in range(50))


def check_full_lane(make: Make) -> None:
    """A lane with a full window does not delay another lane."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(window=1000)
        full = [client.put(bytes(1000)) for _ in range(10)]
        client.put("urgent", lane=1).result(LIMIT)
        assert not full[-1].done()
        got = [server.get(timeout=LIMIT).data for _ in range(11)]
        assert "urgent" in got[:3], "a message on lane 1 waited for lane 0"


def check_messages_without_order_do_not_wait(make: Make) -> None:
    """Messages without order take lanes that are free: eight arrive, though each fills the window of its lane."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(window=1000)
        for future in [client.put((number, bytes(1000)), lane=None) for number in range(8)]:
            future.result(LIMIT)
        got = [server.get(timeout=LIMIT) for _ in range(8)]
        assert sorted((message.data[0], message.lane) for message in got) == [(n, 8 + n) for n in range(8)]


def check_message_of_one_peer_passes_full_memory(make: Make) -> None:
    """A get of one peer gets its message, however much of other peers is unread; that costs one message of memory."""
    with Communicators(make) as communicators:
        server, clients = _full(communicators, 5)
        unread = sum(figures.bytes_in + figures.arriving for figures in server.statistics().values())
        for client in reversed(clients):
            assert server.get(client.id, timeout=LIMIT).data[0] == client.id
            now = sum(figures.bytes_in + figures.arriving for figures in server.statistics().values())
            assert now <= unread + _LARGE + len(clients) * _WINDOW, "the others have used the occasion"
            unread += _LARGE


def check_polling_get_of_one_peer_passes_full_memory(make: Make) -> None:
    """The same for a get that does not wait and is called again and again, and for one of several peers."""
    with Communicators(make) as communicators:
        server, (first, *clients, last) = _full(communicators, 5)
        assert _poll(server, last.id).data[0] == last.id
        left = [client.id for client in clients]
        while left:
            left.remove(_poll(server, *left).peer)
        assert _poll(server, first.id).data[0] == first.id


def check_each_lane_passes_full_memory(make: Make) -> None:
    """A get of one peer gets the large messages of all its lanes, of each lane in order."""
    with Communicators(make) as communicators:
        server, (first, client) = _full(communicators, 2)
        for number, lane in itertools.product(range(2), range(3)):
            client.put((number, bytes(_LARGE)), lane=lane)
        got = [server.get(client.id, timeout=LIMIT) for _ in range(7)]
        for lane, sent in enumerate([[client.id, 0, 1], [0, 1], [0, 1]]):
            assert [message.data[0] for message in got if message.lane == lane] == sent
        assert server.get(first.id, timeout=LIMIT).data[0] == first.id


def check_half_arrived_messages_of_many_end(make: Make) -> None:
    """When each of many peers has begun a message, and none has room for all of it, all arrive with a plain get."""
    with Communicators(make) as communicators:
        server, clients = _full(communicators, 8)
        got = [server.get(timeout=LIMIT).data[0] for _ in clients]
        assert sorted(got) == sorted(client.id for client in clients)


def _full(communicators: Communicators, count: int) -> tuple[Communicator, list[Communicator]]:
    """Return a server and clients: a large message of the first fills the memory, and all others have begun one."""
    server = communicators.server(window=_WINDOW, memory=_MEMORY)
    clients = [communicators.client(server.netloc) for _ in range(count)]
    introduce(server, *clients)
    for client in clients:
        future = client.put((client.id, bytes(_LARGE)))
        if client is clients[0]:
            future.result(LIMIT)
    deadline = time.monotonic() + LIMIT
    while not all(server.statistics()[client.id].arriving for client in clients[1:]):
        assert time.monotonic() < deadline, "not every client has begun to send"
    return server, clients


def _poll(server: Communicator, *peers: uuid.UUID) -> Message:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        try:
            return server.get(*peers, timeout=0)
        except TimeoutError:
            pass
    raise AssertionError("no message, although get was called again and again")


CHECKS = (
    check_message_larger_than_window,
    check_slow_reader,
    check_slow_reader_alone,
    check_full_lane,
    check_messages_without_order_do_not_wait,
    check_message_of_one_peer_passes_full_memory,
    check_polling_get_of_one_peer_passes_full_memory,
    check_each_lane_passes_full_memory,
    check_half_arrived_messages_of_many_end,
)
