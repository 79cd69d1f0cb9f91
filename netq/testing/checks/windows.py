"""Flow control: how much is unread at a receiver, and which senders wait for it."""

from __future__ import annotations

from netq.testing.fixtures import LIMIT, Communicators, Make, introduce

_WINDOW = 64 * 1024
_SIZE = 10_000


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


CHECKS = (
    check_message_larger_than_window,
    check_slow_reader,
    check_slow_reader_alone,
    check_full_lane,
    check_messages_without_order_do_not_wait,
)
