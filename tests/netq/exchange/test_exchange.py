"""An exchange and its clients, over each transport."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

import netq
from netq import CommunicatorOptions, ConnectionOptions, NetworkLocation, Purpose, SerializationOptions
from netq.errors import Absent, Busy, Closed, Failed, InvalidOption, NotPermitted, Refused, Unreadable
from netq.exchange import Client, Counts, Exchange, Permission
from netq.exchange.envelope import Envelope, EnvelopeKind
from netq.testing.fixtures import LIMIT
from netq.testing.log import LogRecorder
from netq.utils.stream import PickleSerializer, Stream
from tests.wires import NewWire, Wire, on

HERE = NetworkLocation("127.0.0.1", 0)


class Site:
    """Makes an exchange and clients on one wire, and closes them, clients first."""

    def __init__(self, wire: Wire, stack: ExitStack) -> None:
        self._wire = wire
        self._stack = stack

    def exchange(self, netloc: NetworkLocation = HERE, connection: Any = None, **values: Any) -> Exchange:
        options = self._wire.fit(Purpose.SERVER, options_at(netloc, connection=connection))
        exchange = Exchange(options, self._wire.protocol, **{"grace": 0.2, **values})
        self._stack.callback(exchange.close, LIMIT)
        return exchange

    def client(self, exchange: Exchange, id: uuid.UUID | None = None, **values: Any) -> Client:
        client = Client(self.options(exchange, id), self._wire.protocol, **values)
        self._stack.callback(client.close, LIMIT)
        return client

    def raw(
        self, exchange: Exchange, id: uuid.UUID | None = None, connection: ConnectionOptions | None = None
    ) -> netq.Communicator:
        """A client of any bytes."""
        plain = SerializationOptions(Envelope.parse, lambda data: data)
        options = self.options(exchange, id)
        options = netq.CommunicatorOptions(options.id, options.netloc, connection or options.connection, plain)
        queue = netq.new(self._wire.protocol, Purpose.CLIENT, options)
        self._stack.callback(queue.close, 0)
        return queue

    def options(self, exchange: Exchange, id: uuid.UUID | None = None) -> CommunicatorOptions:
        return self._wire.fit(Purpose.CLIENT, options_at(exchange.netloc, id))


def options_at(netloc: NetworkLocation, id: uuid.UUID | None = None, connection: Any = None) -> CommunicatorOptions:
    quick = connection or ConnectionOptions(retry_min=0.01, retry_max=0.1, linger=0.2)
    return CommunicatorOptions(id or uuid.uuid4(), netloc, quick)


@pytest.fixture
def wire(request: pytest.FixtureRequest, new_wire: NewWire) -> Wire:
    return new_wire(getattr(request, "param", "tcp"))


@pytest.fixture
def site(wire: Wire) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(wire, stack)


def done(*futures: Future[Any]) -> list[Any]:
    return [future.result(LIMIT) for future in futures]


def until_last(client: Client, data: Any) -> None:
    """Wait until this publication is the last in a client's inbox: answers may pass it."""
    waiting, load = client._inbox._waiting, PickleSerializer().load
    assert client._inbox._changed.wait(lambda: bool(waiting) and load(waiting[-1].data or b"") == data, LIMIT)


def error(future: Future[Any]) -> Exception:
    found = future.exception(LIMIT)
    assert isinstance(found, Exception)
    return found


ALL = ("tcp", "tls", "mqtt", "mqtt+seal", "grpc", "shm")


@on(*ALL)
def test_publications_reach_those_whose_filters_select_them(site: Site) -> None:
    exchange = site.exchange()
    first, second, third = (site.client(exchange) for _ in range(3))
    done(first.subscribe("plant/+/temperature"), first.subscribe("plant/#"), second.subscribe("plant/3/pressure"))
    data = {"value": 21.5, "raw": bytearray(1_000_000)}
    done(third.publish("plant/3/temperature", data), third.publish("plant/3/pressure", 1), third.publish("else", 0))
    assert first.get(LIMIT) == ("plant/3/temperature", third.id, data)  # once, although two filters select it
    assert first.get(LIMIT) == second.get(LIMIT) == ("plant/3/pressure", third.id, 1)
    done(first.unsubscribe("plant/#"))
    done(third.publish("plant/3/pressure", 2))
    assert second.get(LIMIT).data == 2
    for client in (first, second):
        with pytest.raises(TimeoutError, match=r"no message within 0 s"):
            client.get(0)
    figures = exchange.statistics()
    assert (figures.clients, figures.published, figures.copies, figures.dropped) == (3, 4, 4, 0)


@on(*ALL)
def test_each_job_goes_to_one_worker(site: Site) -> None:
    exchange = site.exchange()
    producer, *clients = (site.client(exchange) for _ in range(3))
    workers = [client.jobs("resize", ahead=2) for client in clients]
    seen: list[tuple[int, uuid.UUID]] = []

    def work(index: int) -> None:
        for job in workers[index]:
            with job:
                assert (job.queue, job.peer, job.tries) == ("resize", producer.id, 0)
                seen.append((job.data, clients[index].id))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    assert done(*[producer.push("resize", number) for number in range(50)]) == [None] * 50
    for worker in workers:
        worker.close()
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(number for number, _ in seen) == list(range(50))
    assert {id for _, id in seen} == {client.id for client in clients}
    assert exchange.statistics().done == 50


@on(*ALL)
def test_calls_messages_and_their_errors(site: Site, log: LogRecorder) -> None:
    exchange = site.exchange()
    server, caller = site.client(exchange), site.client(exchange)
    done(server.serve("invert", lambda number: 1 / number))
    assert caller.call("invert", 4).result(LIMIT) == 0.25
    failed = error(caller.call("invert", 0))
    assert isinstance(failed, Failed)
    assert str(failed) == "invert: ZeroDivisionError: division by zero"
    assert log.wait("the service 'invert' failed")
    absent = error(caller.call("double", 1))
    assert isinstance(absent, Absent)
    assert str(absent) == "call: 'double': no client offers this service"
    done(caller.send(server.id, ["hello"]))
    assert server.get(LIMIT) == ("", caller.id, ["hello"])
    unknown = uuid.uuid4()
    gone = error(caller.send(unknown, 1))
    assert isinstance(gone, Absent)
    assert str(gone) == f"{unknown}: this client is not here"


def test_failed_job_is_told_and_its_worker_goes_on(site: Site, log: LogRecorder) -> None:
    exchange = site.exchange()
    producer, client = site.client(exchange), site.client(exchange)
    futures = [producer.push("resize", number) for number in range(3)]
    with client.jobs("resize") as worker:
        for job, expected in zip(worker, range(3), strict=False):
            with job:
                assert job.data == expected
                if expected == 1:
                    raise OSError("no such picture")
            if expected == 2:
                break
    assert str(error(futures[1])) == "resize: OSError: no such picture"
    assert done(futures[0], futures[2]) == [None, None]
    assert log.wait("a job of 'resize' failed")


def test_worker_that_leaves_gives_its_jobs_back(site: Site) -> None:
    exchange = site.exchange()
    producer, first, second = (site.client(exchange) for _ in range(3))
    worker = first.jobs("resize", ahead=3)
    futures = [producer.push("resize", number) for number in range(4)]
    taken = worker.get(LIMIT)
    worker.close()
    taken.done()  # too late: it went back, as all that was not answered
    with pytest.raises(Closed):
        worker.get(LIMIT)
    other = second.jobs("resize", ahead=4)
    found = [other.get(LIMIT) for _ in range(4)]
    assert sorted((job.data, job.tries) for job in found) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    found[0].give_back()
    again = other.get(LIMIT)
    assert (again.data, again.tries) == (found[0].data, 0)
    for job in (*found[1:], again):
        job.done()
    done(*futures)


@on("tcp", "mqtt", "grpc", "shm")
def test_jobs_of_a_client_that_ends_go_to_another_until_they_have_failed(site: Site) -> None:
    exchange = site.exchange(tries=2)
    producer = site.client(exchange)
    future = producer.push("resize", "a picture")
    for tries in range(2):
        client = site.client(exchange)
        assert client.jobs("resize").get(LIMIT).tries == tries
        client.close(LIMIT)
    failed = error(future)
    assert isinstance(failed, Failed)
    assert str(failed) == "push: 'resize': 2 workers ended with this job"


def test_call_of_a_service_that_leaves_fails(site: Site) -> None:
    exchange = site.exchange()
    server, caller = site.client(exchange), site.client(exchange)
    called, leave = threading.Event(), threading.Event()

    def hangs(data: Any) -> None:
        called.set()
        leave.wait(LIMIT)

    done(server.serve("hang", hangs))
    future = caller.call("hang", 1)
    assert called.wait(LIMIT)
    closing = threading.Thread(target=server.close)
    closing.start()
    leave.set()
    closing.join(LIMIT)
    found = future.exception(LIMIT)
    assert found is None or isinstance(found, Absent)  # its last answer may still leave
    assert isinstance(error(caller.call("hang", 2)), Absent)


def test_busy_service_and_full_queue_are_named(site: Site) -> None:
    exchange = site.exchange(jobs=2, job_memory=12_000)
    server, caller = site.client(exchange), site.client(exchange)
    go_on = threading.Event()
    done(server.serve("slow", lambda data: go_on.wait(LIMIT), waiting=1))
    calls = [caller.call("slow", number) for number in range(3)]
    busy = error(calls[2])
    assert isinstance(busy, Busy)
    assert str(busy) == "call: 'slow': too many calls are open there"
    go_on.set()
    assert done(*calls[:2]) == [True, True]
    large = [caller.push("resize", bytes(8_000)) for _ in range(2)]
    assert "of 12000 bytes of jobs (job_memory) are taken, and this client has 80" in str(error(large[1]))
    small = [caller.push("resize", 1) for _ in range(2)]
    full = error(small[1])
    assert isinstance(full, Busy)
    assert (
        str(full)
        == "push: 'resize': 2 of 2 jobs (jobs) are taken, and this client has 2 of them; ask again when there is room"
    )
    worker = server.jobs("resize", ahead=2)
    for _ in range(2):
        worker.get(LIMIT).done()
    done(large[0], small[0])


def test_permissions_are_checked_by_the_exchange(site: Site) -> None:
    boss, anybody = uuid.uuid4(), ["*"]
    exchange = site.exchange(
        permissions=[
            Permission([boss], publish=["#"], subscribe=["#"], push=["#"], call=["#"], send=anybody),
            Permission(anybody, subscribe=["news/#"], work=["jobs/+"], serve=["add"]),
        ]
    )
    first, other = site.client(exchange, boss), site.client(exchange)
    done(other.subscribe("news/today"))
    done(first.publish("news/today", 1), first.subscribe("#"))
    assert other.get(LIMIT).data == 1
    done(first.send(other.id, 2), other.serve("add", lambda data: data))
    worker = other.jobs("jobs/1")
    done(worker.begun)
    cases = {
        "publish: 'news/today'": other.publish("news/today", 2),
        "subscribe: '#'": other.subscribe("#"),
        "push: 'jobs/1'": other.push("jobs/1", 2),
        "work: 'other'": other.jobs("other").begun,
        "call: 'add'": other.call("add", 2),
        "serve: 'sub'": other.serve("sub", lambda data: data),
        f"send: '{boss}'": other.send(boss, 2),
    }
    for what, future in cases.items():
        refused = error(future)
        assert isinstance(refused, NotPermitted)
        assert isinstance(refused, PermissionError)
        assert str(refused) == f"{what}: not permitted to {other.id}"


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.publish("a/#", 1),
        lambda client: client.subscribe("a#"),
        lambda client: client.push("", 1),
        lambda client: client.jobs("+"),
        lambda client: client.serve("x" * 2000, print),
        lambda client: client.call("a\0", 1),
        lambda client: client.serve("a", 7),
        lambda client: client.send("board", 1),
        lambda client: client.jobs("a", ahead=0),
        lambda client: Client(inbox=0),
        lambda client: Exchange(jobs=0),
        lambda client: Exchange({"port": 1}),  # type: ignore[arg-type]
        lambda client: Client({"port": 1}),  # type: ignore[arg-type]
    ],
)
def test_wrong_argument_is_refused_at_once(site: Site, use: Callable[[Client], Any]) -> None:
    client = site.client(site.exchange())
    with pytest.raises(InvalidOption):
        use(client)


def test_second_worker_or_service_of_a_name_is_refused(site: Site) -> None:
    client = site.client(site.exchange())
    done(client.jobs("a").begun, client.serve("a", print))
    with pytest.raises(InvalidOption, match="works for it already"):
        client.jobs("a")
    with pytest.raises(InvalidOption, match="offers it already"):
        client.serve("a", print)


def test_copies_beyond_a_full_queue_are_dropped_and_counted(site: Site) -> None:
    small = ConnectionOptions(retry_min=0.01, retry_max=0.1, linger=0.2, queue_size=20)
    exchange = site.exchange(connection=small)
    narrow = ConnectionOptions(retry_min=0.01, retry_max=0.1, linger=0.2, window=1000)
    deaf, quick, publisher = site.raw(exchange, connection=narrow), site.client(exchange), site.client(exchange)
    deaf.put(Envelope(EnvelopeKind.SUBSCRIBE, 1, "#").pack())
    assert deaf.get(timeout=LIMIT).data.kind is EnvelopeKind.DONE  # from then on it reads nothing
    done(quick.subscribe("#"))
    for number in range(50):
        done(publisher.publish("a", number))
        assert quick.get(LIMIT).data == number
    received = [deaf.get(timeout=LIMIT).data for _ in range(20)]  # its queue
    done(publisher.publish("a", bytes(10)))  # there is room again
    while len(received[-1].data) <= len(received[0].data):  # and what its window of 1000 bytes admits
        received.append(deaf.get(timeout=LIMIT).data)
    figures = exchange.statistics()
    assert (figures.published, figures.copies, figures.dropped) == (51, 102, 51 - len(received))
    assert 21 <= len(received) <= 25
    assert {each.kind for each in received} == {EnvelopeKind.PUBLICATION}


def test_slow_subscriber_loses_the_oldest_and_delays_nobody(site: Site) -> None:
    exchange = site.exchange()
    slow, quick, publisher = site.client(exchange, inbox=10), site.client(exchange), site.client(exchange)
    done(slow.subscribe("#"), quick.subscribe("#"))
    done(*[publisher.publish("a", number) for number in range(100)])
    assert [quick.get(LIMIT).data for _ in range(100)] == list(range(100))
    done(publisher.send(quick.id, "after all"))
    until_last(slow, 99)
    full = error(publisher.send(slow.id, "too much"))
    assert isinstance(full, Busy)
    assert str(full) == f"{slow.id}: its inbox has 10 messages"
    assert [slow.get(LIMIT).data for _ in range(10)] == list(range(90, 100))
    assert slow.dropped == 90


def test_closed_client_says_so(site: Site) -> None:
    exchange = site.exchange()
    client, other = site.client(exchange), site.client(exchange)
    worker = client.jobs("a")
    done(worker.begun, other.send(client.id, 1))
    client.close(LIMIT)
    assert client.get(LIMIT).data == 1
    with pytest.raises(Closed):
        client.get()
    assert list(worker) == []
    assert isinstance(error(client.publish("a", 1)), Closed)


def test_data_that_cannot_be_loaded_is_unreadable(site: Site) -> None:
    exchange = site.exchange()
    client, raw = site.client(exchange), site.raw(exchange)
    done(client.subscribe("a"))
    raw.put(Envelope(EnvelopeKind.PUBLISH, 1, "a", data=Stream([b"no pickle"])).pack())
    with pytest.raises(Unreadable) as caught:
        client.get(LIMIT)
    assert caught.value.peer == raw.id


def test_hostile_client_is_refused_and_harms_nobody(site: Site, log: LogRecorder) -> None:
    exchange = site.exchange()
    client, raw = site.client(exchange), site.raw(exchange)
    for junk in (b"", bytes(64), b"\xff" * 200):
        raw.put(junk)
    for number, kind in enumerate(EnvelopeKind, 1):
        raw.put(Envelope(kind, number, "a\0b", detail=1).pack())
    answers = {}
    while EnvelopeKind.SERVE not in answers:
        envelope = raw.get(timeout=LIMIT).data
        answers[list(EnvelopeKind)[envelope.number - 1]] = (envelope.kind, bytes(envelope.data).decode())
    assert answers[EnvelopeKind.PUSH] == (EnvelopeKind.REFUSED, "push: 'a\\x00b': expected no null character")
    assert answers[EnvelopeKind.UNSUBSCRIBE][0] is EnvelopeKind.DONE
    done(client.subscribe("#"), client.publish("a", 1))
    assert client.get(LIMIT).data == 1
    assert len(log.having("a message cannot be read, and is dropped")) == 1
    assert exchange.statistics().queues == {}


def test_answers_of_others_do_not_count(site: Site) -> None:
    exchange = site.exchange()
    producer, client, raw = site.client(exchange), site.client(exchange), site.raw(exchange)
    worker = client.jobs("a")
    future = producer.push("a", 1)
    job = worker.get(LIMIT)
    for kind in (EnvelopeKind.DONE, EnvelopeKind.REFUSED, EnvelopeKind.REPLY, EnvelopeKind.RETURN):
        raw.put(Envelope(kind, job._envelope.number).pack())
    raw.put(Envelope(EnvelopeKind.SERVE, 9, "b").pack())
    assert raw.get(timeout=LIMIT).data.number == 9
    assert not future.done()
    assert exchange.statistics().queues == {"a": Counts(0, 1, 1)}
    job.done()
    done(future)


@on("tcp", "mqtt", "grpc", "shm")
def test_clients_return_to_an_exchange_that_was_started_again(site: Site, log: LogRecorder) -> None:
    first = site.exchange()
    client, other = site.client(first), site.client(first)
    done(client.subscribe("a"), client.serve("add", lambda data: data + 1))
    done(other.publish("a", 1))
    worker = client.jobs("q")
    done(worker.begun)
    lost = other.push("q2", 1)
    done(other.publish("a", 2))
    netloc = first.netloc
    first.close(LIMIT)
    assert isinstance(error(lost), Closed)
    site.exchange(netloc)
    future = other.push("q", 3)
    job = worker.get(LIMIT)
    assert job.data == 3
    job.done()
    done(future, other.publish("a", 3))
    assert [client.get(LIMIT).data for _ in range(3)] == [1, 2, 3]
    assert other.call("add", 1).result(LIMIT) == 2


def test_refused_is_the_base_of_what_an_exchange_refuses() -> None:
    assert {Absent, Busy, Failed, NotPermitted} == set(Refused.__subclasses__())


def test_figures_may_be_read_on_top_of_their_reader(site: Site) -> None:
    """As a signal handler does, or a finalizer in the exchange's thread."""
    exchange, found = site.exchange(), list[int]()

    def read() -> None:
        with exchange._lock:
            found.append(exchange.statistics().published)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(LIMIT)
    assert found == [0]
