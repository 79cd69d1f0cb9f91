"""Sessions: events, ids, statistics, and how sessions end and begin."""

from __future__ import annotations

import queue
import time
import uuid

from netq.core import Communicator
from netq.errors import Closed
from netq.options import EventOptions
from netq.testing.checks.futures import NARROW
from netq.testing.fixtures import LIMIT, Communicators, Make, introduce


class EventRecorder:
    """Records the calls of a communicator's event functions, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[str, uuid.UUID]] = queue.SimpleQueue()
        self.events = EventOptions(
            ini=lambda peer: self._queue.put(("ini", peer)), fin=lambda peer: self._queue.put(("fin", peer))
        )

    def next(self) -> tuple[str, uuid.UUID]:
        """Wait for the next event."""
        return self._queue.get(timeout=LIMIT)

    @property
    def empty(self) -> bool:
        """Whether no other event has come."""
        return self._queue.empty()


def check_events(make: Make) -> None:
    """`ini` and `fin` are called once for each session, with the peer's id, at both ends."""
    with Communicators(make) as communicators:
        server_events, client_events = EventRecorder(), EventRecorder()
        server = communicators.server(events=server_events.events)
        client = communicators.client(server.netloc, events=client_events.events)
        introduce(server, client)
        assert server_events.next() == ("ini", client.id)
        assert client_events.next() == ("ini", server.id)
        client.close(LIMIT)
        assert server_events.next() == ("fin", client.id)
        assert client_events.next() == ("fin", server.id)
        server.close(LIMIT)
        assert server_events.empty
        assert client_events.empty


def check_put_in_event(make: Make) -> None:
    """An event function can put: a server can greet each client."""
    with Communicators(make) as communicators:
        server = communicators.server(events=EventOptions(ini=lambda peer: server.put("welcome", peer)))
        client = communicators.client(server.netloc)
        assert client.get(timeout=LIMIT).data == "welcome"


def check_event_fails(make: Make) -> None:
    """An event function that raises affects no session."""

    def fail(peer: uuid.UUID) -> None:
        raise LookupError("a bug of the user's: this line in the log is expected")

    with Communicators(make) as communicators:
        server = communicators.server(events=EventOptions(ini=fail, fin=fail))
        first, second = communicators.client(server.netloc), communicators.client(server.netloc)
        introduce(server, first)
        first.close(LIMIT)
        introduce(server, second)


def check_statistics(make: Make) -> None:
    """The statistics of each peer are right."""
    with Communicators(make) as communicators:
        server = communicators.server()
        assert server.statistics() == {}
        client = communicators.client(server.netloc, window=NARROW, queue_size=10)
        introduce(server, client)
        server.put("held", client.id).result(LIMIT)
        server.put("waits", client.id)
        (peer,) = server.statistics()
        assert peer == client.id
        here, there = server.statistics()[client.id], client.statistics()[server.id]
        assert here.connected
        assert there.connected
        assert here.absent == there.absent == 0.0
        assert here.arriving == there.arriving == here.expected == there.expected == 0
        assert here.waits == there.waits is False
        assert here.address, "no address"
        assert (here.queued, there.queued) == (1, 0)
        assert (here.messages_in, here.messages_out) == (there.messages_out, there.messages_in) == (1, 1)
        assert (here.bytes_in, here.bytes_out) == (there.bytes_out, there.bytes_in)
        assert here.bytes_in > 0
        assert here.bytes_out > 0
        assert [client.get(timeout=LIMIT).data for _ in range(2)] == ["held", "waits"]
        client.close(LIMIT)
        server.close(LIMIT)
        assert server.statistics() == client.statistics() == {}


def check_round_trip(make: Make) -> None:
    """The heartbeat measures the round trip at the end that sends PING first; the other end need not send one."""
    with Communicators(make) as communicators:
        server, client = communicators.pair(heartbeat=0.02, misses=1000)
        deadline = time.monotonic() + LIMIT
        while not (measured := _round_trips(server, client)):
            assert time.monotonic() < deadline, "no heartbeat"
            _beat(server, client)
        assert all(0.0 < seconds < LIMIT for seconds in measured)


def check_come_back(make: Make) -> None:
    """A client that closed can connect again under its id."""
    with Communicators(make) as communicators:
        recorder = EventRecorder()
        server = communicators.server(events=recorder.events)
        id = uuid.uuid4()
        for text in ("first", "second"):
            client = communicators.client(server.netloc, id=id)
            client.put(text).result(LIMIT)
            assert server.get(id, timeout=LIMIT) == (id, text)
            client.close(LIMIT)
            assert (recorder.next(), recorder.next()) == (("ini", id), ("fin", id))


def check_death_of_a_client(make: Make) -> None:
    """A client that dies and restarts under its id begins a new session; delivered messages are kept."""
    with Communicators(make) as communicators:
        recorder = EventRecorder()
        server = communicators.server(events=recorder.events, window=NARROW)
        id = uuid.uuid4()
        first = communicators.client(server.netloc, id=id)
        first.put("delivered").result(LIMIT)
        first.put("dies with it")
        to_first = server.put("fills", id)
        to_first.result(LIMIT)
        assert communicators.abort(first) == 1
        second = communicators.client(server.netloc, id=id)
        future = second.put("new")
        assert [server.get(id, timeout=LIMIT).data for _ in range(2)] == ["delivered", "new"]
        future.result(LIMIT)
        assert [recorder.next() for _ in range(3)] == [("ini", id), ("fin", id), ("ini", id)]
        assert server.statistics()[id].messages_in == 1, "the figures are those of the new session"


def check_queue_of_an_absent_id(make: Make) -> None:
    """Unsent messages to an absent id reach the process that connects with that id."""
    with Communicators(make) as communicators:
        recorder = EventRecorder()
        server = communicators.server(events=recorder.events)
        id = uuid.uuid4()
        first = communicators.client(server.netloc, id=id, window=NARROW)
        introduce(server, first)
        server.put("fills", id).result(LIMIT)
        before = [server.put(number, id) for number in range(3)]
        assert communicators.abort(first) == 0
        while server.statistics()[id].connected:
            continue
        away = [server.put(number, id) for number in range(3, 5)]
        assert away[0].cancel()
        second = communicators.client(server.netloc, id=id)
        assert [second.get(timeout=LIMIT).data for _ in range(4)] == [0, 1, 2, 4]
        for future in (*before, *away[1:]):
            future.result(LIMIT)
        assert server.put("new", id).exception(LIMIT) is None
        assert second.get(timeout=LIMIT).data == "new"
        assert [recorder.next() for _ in range(3)] == [("ini", id), ("fin", id), ("ini", id)]
        assert server.statistics()[id].messages_out == 5, "the figures are those of the new session"


def check_death_of_a_server(make: Make) -> None:
    """Clients connect to a restarted server; it gets the unsent messages, and the others fail with Closed."""
    with Communicators(make) as communicators:
        recorder = EventRecorder()
        first = communicators.server(window=NARROW)
        client = communicators.client(first.netloc, window=NARROW, events=recorder.events)
        client.put("delivered").result(LIMIT)
        waiting = client.put("had not left")
        first.put("fills").result(LIMIT)
        first.put("dies with it")
        assert communicators.abort(first) == 1
        second = communicators.server(first.netloc)
        assert second.get(timeout=LIMIT) == (client.id, "had not left")
        waiting.result(LIMIT)
        assert client.get(timeout=LIMIT) == (first.id, "fills")
        second.put("anew", client.id)
        assert client.get(timeout=LIMIT) == (second.id, "anew")
        assert [recorder.next() for _ in range(3)] == [("ini", first.id), ("fin", first.id), ("ini", second.id)]
        assert _is_closed_to(client, first.id)


def check_id_in_use(make: Make) -> None:
    """A second client with the id of a connected one is refused; the first is not affected."""
    with Communicators(make) as communicators:
        server, first = communicators.pair()
        second = communicators.client(server.netloc, id=first.id)
        future = second.put("from the second")
        for number in range(20):
            first.put(number)
            assert server.get(timeout=LIMIT).data == number
            server.put(number, first.id)
            assert first.get(timeout=LIMIT).data == number
        assert not future.done(), "two clients under one id"
        first.close(LIMIT)
        assert server.get(timeout=LIMIT) == (first.id, "from the second")
        future.result(LIMIT)


def check_workers(make: Make) -> None:
    """With several workers, sessions run in several threads, with the same behaviour."""
    with Communicators(make) as communicators:
        recorder = EventRecorder()
        server = communicators.server(workers=2, events=recorder.events)
        clients = [communicators.client(server.netloc) for _ in range(5)]
        introduce(server, *clients)
        assert {recorder.next() for _ in clients} == {("ini", client.id) for client in clients}
        for client in clients:
            for number in range(50):
                client.put(number)
        got: dict[uuid.UUID, list[int]] = {client.id: [] for client in clients}
        for _ in range(5 * 50):
            peer, data = server.get(timeout=LIMIT)
            got[peer].append(data)
        assert all(numbers == list(range(50)) for numbers in got.values())
        server.put("to all").result(LIMIT)
        assert {client.get(timeout=LIMIT).data for client in clients} == {"to all"}
        assert set(server.statistics()) == set(got)


def _is_closed_to(communicator: Communicator, peer: uuid.UUID) -> bool:
    """Return whether `get` raises Closed for this peer."""
    try:
        message = communicator.get(peer, timeout=LIMIT)
    except Closed as error:
        return error.peer == peer
    raise AssertionError(f"expected Closed, got {message}")


def _round_trips(server: Communicator, client: Communicator) -> list[float]:
    both = (server.statistics()[client.id], client.statistics()[server.id])
    return [one.round_trip for one in both if one.round_trip is not None]


def _beat(server: Communicator, client: Communicator) -> None:
    """Let some time pass, by waiting for a message that does not come."""
    try:
        server.get(client.id, timeout=0.02)
    except TimeoutError:
        return
    raise AssertionError("a message that was never put")


CHECKS = (
    check_events,
    check_put_in_event,
    check_event_fails,
    check_statistics,
    check_round_trip,
    check_come_back,
    check_death_of_a_client,
    check_queue_of_an_absent_id,
    check_death_of_a_server,
    check_id_in_use,
    check_workers,
)
