"""Clients that end, do not read, ask too much or lie harm no others, and an exchange keeps nothing of them."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

from netq import ConnectionOptions
from netq.core import Communicator
from netq.errors import Absent, Busy, Closed, Failed
from netq.exchange import Client, Exchange
from netq.exchange.envelope import UP_TO, Envelope, EnvelopeKind, Refusal
from netq.exchange.publications import Publications
from netq.testing.fixtures import LIMIT
from netq.testing.log import LogRecorder
from netq.utils.stream import PickleSerializer, Stream
from tests.netq.exchange.test_exchange import Site, done, error
from tests.wires import NewWire

PICKLE = PickleSerializer()
SMALL = ConnectionOptions(window=65536, linger=0.2)


@pytest.fixture
def site(new_wire: NewWire) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(new_wire("tcp"), stack)


def ask(raw: Communicator, *envelopes: Envelope) -> None:
    """Put messages, and wait until the exchange has got them; it need not have read them."""
    for future in [raw.put(envelope.pack()) for envelope in envelopes]:
        future.result(LIMIT)


def answers(raw: Communicator, count: int) -> list[Envelope]:
    return [raw.get(timeout=LIMIT).data for _ in range(count)]


def let_it_read(client: Client) -> None:
    """Return when the exchange has handled five further messages of each other client that has sent as many."""
    for _ in range(5):
        done(client.unsubscribe("none"))


WANTED = (
    Envelope(EnvelopeKind.SUBSCRIBE, 1, "t"),
    Envelope(EnvelopeKind.SERVE, 2, "s", detail=1),
    Envelope(EnvelopeKind.WORK, 3, "q", detail=1),
)


def test_what_the_next_session_of_an_id_asks_holds(site: Site) -> None:
    exchange, id = site.exchange(), uuid.uuid4()
    first, other = site.client(exchange, id), site.client(exchange)
    done(first.subscribe("t"), other.publish("else", 1))
    done(first.unsubscribe("none"))  # the subscription was announced twice if the session began at that moment
    with exchange._lock:  # it reads nothing meanwhile
        first.close(LIMIT)
        second = site.raw(exchange, id)
        ask(second, *WANTED)
    assert [each.kind for each in answers(second, 3)] == [EnvelopeKind.DONE] * 3
    done(other.publish("t", 1))
    future = other.push("q", 1)
    other.call("s", 1)
    assert {each.kind for each in answers(second, 3)} == {
        EnvelopeKind.PUBLICATION,
        EnvelopeKind.JOB,
        EnvelopeKind.REQUEST,
    }
    assert not future.done()


def test_next_session_of_an_id_does_not_take_the_answers_of_the_last_one(site: Site) -> None:
    exchange, id = site.exchange(), uuid.uuid4()
    first, other = site.client(exchange, id), site.client(exchange)
    done(first.unsubscribe("none"), other.publish("else", 1))
    with exchange._lock:
        unread = [first.subscribe(f"t/{number}") for number in range(3)]
        first.close(LIMIT)
        second = site.client(exchange, id)
        futures = [second.push("q", 1) for _ in range(10)]
    done(second.unsubscribe("none"))
    assert all(isinstance(error(each), Closed) for each in unread)
    assert not any(each.done() for each in futures)


def test_what_was_unread_at_the_end_of_a_session_stays_not(site: Site) -> None:
    exchange = site.exchange()
    raw, other = site.raw(exchange), site.client(exchange)
    ask(raw, Envelope(EnvelopeKind.UNSUBSCRIBE, 1, "t"))
    done(other.publish("else", 1))
    with exchange._lock:
        ask(raw, *WANTED)
        raw.close(LIMIT)
    let_it_read(other)
    figures = exchange.statistics()
    assert (figures.queues, figures.services) == ({}, {})
    assert list(exchange._subscriptions.filters_of(raw.id)) == []


def test_session_that_ended_unread_costs_a_job_no_try(site: Site) -> None:
    exchange = site.exchange(tries=1)
    raw, other = site.raw(exchange), site.client(exchange)
    ask(raw, Envelope(EnvelopeKind.UNSUBSCRIBE, 1, "t"))
    done(other.publish("else", 1))
    with exchange._lock:
        future = other.push("q", 1)
        ask(raw, *WANTED)
        raw.close(LIMIT)
    let_it_read(other)
    job = other.jobs("q").get(LIMIT)
    assert job.tries == 0
    job.done()
    done(future)


class Queue:
    """Stands for a communicator and an outbox: keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[uuid.UUID, Envelope]] = []

    def send(self, client: uuid.UUID, envelope: Envelope) -> None:
        self.sent.append((client, envelope))


def test_publications_are_acknowledged_while_messages_come() -> None:
    queue: Any = Queue()
    publications = Publications(queue, queue)
    client = uuid.uuid4()
    begin = time.monotonic()
    for number in (1, 2):
        publications.send(client, Envelope(EnvelopeKind.PUBLISH, number, "t"), ())
    publications.acknowledge(begin)
    publications.send(client, Envelope(EnvelopeKind.PUBLISH, 3, "t"), ())
    publications.acknowledge(begin)  # too soon
    assert queue.sent == [(client, Envelope(EnvelopeKind.DONE, 2, code=UP_TO))]
    publications.acknowledge(math.inf)
    assert queue.sent[1:] == [(client, Envelope(EnvelopeKind.DONE, 3, code=UP_TO))]
    assert not publications.to_acknowledge


@pytest.mark.slow
def test_flood_of_a_client_delays_no_acknowledgement(site: Site) -> None:
    exchange, count = site.exchange(), 8_000
    raw, other = site.raw(exchange), site.client(exchange)
    ask(raw, Envelope(EnvelopeKind.UNSUBSCRIBE, 1, "t"))
    done(other.publish("else", 1))
    seen: list[int] = []
    with exchange._lock:
        ask(raw, *[Envelope(EnvelopeKind.PUBLISH, number, "t") for number in range(1, count + 1)])
        future = other.publish("else", 2)
        future.add_done_callback(lambda future: seen.append(exchange.statistics().published))
    done(future)
    let_it_read(other)
    assert seen[0] < count


def test_client_that_never_reads_is_ended(site: Site, log: LogRecorder) -> None:
    exchange = site.exchange(answers=100)
    raw, other = site.raw(exchange, connection=SMALL), site.client(exchange)
    for number in range(2000):
        raw.put(Envelope(EnvelopeKind.UNSUBSCRIBE, number, "t").pack())
    line = log.wait("does not read")
    assert line == f"{raw.id}: does not read: 100 messages wait for it (answers); ended"
    done(other.send(other.id, "after all"))


def test_answers_beyond_queue_bytes_are_refused(site: Site) -> None:
    exchange = site.exchange(connection=ConnectionOptions(queue_bytes=100_000))
    raw, server = site.raw(exchange, connection=SMALL), site.client(exchange)
    done(server.serve("large", lambda data: bytes(80_000)))
    calls = [Envelope(EnvelopeKind.CALL, number, "large", data=PICKLE.dump(1)) for number in range(1, 11)]
    ask(raw, *calls)
    let_it_read(server)
    found = answers(raw, 10)
    assert sorted(each.number for each in found) == list(range(1, 11))
    refused = [each for each in found if each.kind is EnvelopeKind.REFUSED]
    assert refused
    assert {each.code for each in refused} == {Refusal.FULL}
    reason = bytes(refused[0].data or b"").decode()
    assert reason.startswith(f"the answer of {server.id} is dropped: ")
    assert reason.endswith(f"of 100000 bytes wait for {raw.id} already (queue_bytes)")


def test_messages_keep_their_order_when_a_queue_is_full(site: Site) -> None:
    exchange = site.exchange(connection=ConnectionOptions(queue_bytes=1_000_000))
    sender, raw = site.client(exchange), site.raw(exchange, connection=SMALL)
    ask(raw, Envelope(EnvelopeKind.UNSUBSCRIBE, 1, "t"))
    raw.get(timeout=LIMIT)
    futures = [sender.send(raw.id, (number, bytes(300_000 * (number % 2)))) for number in range(30)]
    let_it_read(sender)
    refused = [number for number, each in enumerate(futures) if each.done() and isinstance(error(each), Busy)]
    came = []
    for _ in range(len(futures) - len(refused)):
        request = raw.get(timeout=LIMIT).data
        came.append(PICKLE.load(request.data)[0])
        raw.put(Envelope(EnvelopeKind.REPLY, request.number).pack(), lane=1)
    assert refused
    assert came == sorted(set(range(30)) - set(refused))
    done(*[futures[number] for number in came])


def test_worker_cannot_forge_what_the_exchange_says(site: Site) -> None:
    exchange = site.exchange()
    raw, producer = site.raw(exchange), site.client(exchange)
    ask(raw, Envelope(EnvelopeKind.WORK, 1, "q", detail=1))
    raw.get(timeout=LIMIT)
    future = producer.push("q", 1)
    job = raw.get(timeout=LIMIT).data
    forged = Envelope(EnvelopeKind.DONE, job.number, "name", uuid.uuid4(), UP_TO, 7, Stream([b"data"]))
    raw.put(forged.pack(), lane=1)
    done(future)


def test_names_of_a_client_are_bounded_and_can_be_withdrawn(site: Site) -> None:
    client = site.client(site.exchange(names=2))
    workers = [client.jobs(name) for name in ("a", "b")]
    done(*[worker.begun for worker in workers])
    done(client.serve("a", print), client.serve("b", print), client.subscribe("a"), client.subscribe("b"))
    refused = [client.jobs("c").begun, client.serve("c", print), client.subscribe("c")]
    assert [type(error(each)) for each in refused] == [Busy] * 3
    assert str(error(refused[0])) == "work: 'c': 2 queues are the most (names); give one up first"
    done(client.subscribe("a"))
    workers[0].close()
    done(client.unsubscribe("a"))
    done(client.jobs("d").begun, client.subscribe("d"))


def test_message_to_a_client_that_was_lost_fails(site: Site) -> None:
    exchange = site.exchange()
    lost, other = site.raw(exchange), site.client(exchange)
    ask(lost, Envelope(EnvelopeKind.UNSUBSCRIBE, 1, "t"))
    lost.close(0)  # without a goodbye: its session waits for it
    future: Future[Any] = other.send(lost.id, 1)
    assert isinstance(error(future), Absent)


def test_defect_of_the_exchange_costs_one_message(
    site: Site, log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = site.exchange()
    client = site.client(exchange)
    done(client.subscribe("t"))
    with monkeypatch.context() as patch:
        patch.setattr(exchange._subscriptions, "remove", lambda client, filter: 1 / 0)
        failed = error(client.unsubscribe("t"))
    assert isinstance(failed, Failed)
    assert str(failed) == "a defect of the exchange: see its log"
    assert log.wait(f"{client.id}: UNSUBSCRIBE cannot be handled: a defect of the exchange")
    done(client.unsubscribe("t"))


def test_copy_that_is_too_large_is_counted_and_logged(site: Site, log: LogRecorder) -> None:
    exchange = site.exchange()
    publisher, raw = site.client(exchange), site.raw(exchange, connection=ConnectionOptions(message_size=10_000))
    ask(raw, Envelope(EnvelopeKind.SUBSCRIBE, 1, "t"))
    raw.get(timeout=LIMIT)
    for _ in range(2):
        done(publisher.publish("t", bytes(20_000)))
    done(publisher.publish("t", 1))
    assert raw.get(timeout=LIMIT).data.kind is EnvelopeKind.PUBLICATION  # the drops were counted before
    assert exchange.statistics().dropped == 2
    assert len(log.having("this publication and further ones of such a size are dropped for it")) == 1


def test_closed_exchange_has_no_clients_left(site: Site) -> None:
    exchange = site.exchange()
    client = site.client(exchange)
    done(client.serve("s", print), client.jobs("q").begun, client.subscribe("t"))
    client.close(LIMIT)
    exchange.close(LIMIT)
    figures = exchange.statistics()
    assert (figures.clients, figures.queues, figures.services) == (0, {}, {})


def test_exchange_has_a_finite_queue_unless_it_is_set(site: Site) -> None:
    sizes = [
        site.exchange(connection=connection)._queue.options.connection.queue_size
        for connection in (ConnectionOptions(), ConnectionOptions(queue_size=7))
    ]
    assert sizes == [100_000, 7]


def test_wrong_permissions_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"Exchange.permissions: 'a'; expected a list of netq.exchange.Permission"):
        Exchange(permissions=["a"])  # type: ignore[list-item]
