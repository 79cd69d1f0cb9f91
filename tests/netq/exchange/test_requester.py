"""What a client sends, and the futures of it: over a communicator that records, and fails on demand."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, cast

import netq
from netq.core import Communicator
from netq.errors import Busy, Closed, QueueFull
from netq.exchange.envelope import UP_TO, Envelope, EnvelopeKind, Refusal
from netq.exchange.requester import Requester
from netq.exchange.requests import Request, Requests, UserCode
from netq.runtime.undelivered import Undelivered
from netq.testing.fixtures import LIMIT

EXCHANGE = uuid.uuid4()


class Sent(Future[None]):
    """A delivery. `left`: whether the message has left."""

    left = False


class Queue:
    """A communicator that delivers at once; the first messages fail with `errors`, and `before` runs in each put."""

    forked = False

    def __init__(self, *errors: Exception) -> None:
        self.id = uuid.uuid4()
        self.ledger = Undelivered(cast(Any, None))
        self.ledger.closing = True  # it has no loop to log in
        self.put_to: SimpleQueue[tuple[Envelope, int]] = SimpleQueue()
        self.before: Callable[[], object] = lambda: None
        self.errors = list(errors)

    def check_not_forked(self, what: str) -> None: ...

    @property
    def _baton(self) -> Queue:
        return self

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        function(*arguments)

    def put(self, envelope: Envelope, lane: int = 0) -> Sent:
        self.before()
        delivery = Sent()
        if self.errors:
            delivery.set_exception(self.errors.pop(0))
        else:
            delivery.set_result(None)
        self.put_to.put((envelope, lane))
        return delivery


def requester_of(queue: Queue) -> Requester:
    made = Requester(netq.SerializationOptions())
    made.queue = cast(Communicator, queue)
    return made


def test_answer_is_sent_again_when_the_queue_was_full() -> None:
    queue = Queue(QueueFull(None, "3 messages (queue_size)"), QueueFull(None, "3 messages (queue_size)"))
    made = requester_of(queue)
    made.answer(Envelope(EnvelopeKind.JOB, 7, "q"), Envelope(EnvelopeKind.DONE))
    made.answer(Envelope(EnvelopeKind.JOB, 8, "q"), Envelope(EnvelopeKind.RETURN))
    made.resend()
    found = [queue.put_to.get(timeout=LIMIT) for _ in range(4)]
    assert [(envelope.kind, envelope.number, lane) for envelope, lane in found] == [
        (EnvelopeKind.DONE, 7, 1),
        (EnvelopeKind.RETURN, 8, 0),
        (EnvelopeKind.DONE, 7, 1),
        (EnvelopeKind.RETURN, 8, 0),
    ]


def test_registration_is_sent_again_when_the_queue_was_full() -> None:
    queue = Queue()
    made = requester_of(queue)
    made.register(Envelope(EnvelopeKind.SUBSCRIBE, name="a"))
    queue.errors = [QueueFull(None, "3 messages (queue_size)")]
    made.session_begins()
    made.resend()
    assert [queue.put_to.get(timeout=LIMIT)[0].name for _ in range(3)] == ["a", "a", "a"]
    made.session_begins()
    assert queue.put_to.get(timeout=LIMIT)[0].name == "a"


def test_request_fails_when_the_session_ends_while_it_is_put() -> None:
    queue = Queue()
    made = requester_of(queue)
    ends = threading.Thread(target=made.session_ends, args=(EXCHANGE,))

    def end() -> None:
        queue.before = lambda: None
        ends.start()
        ends.join()  # it leaves that to the thread that puts

    queue.before = end
    future = made.ask(Envelope(EnvelopeKind.PUSH, name="q"))
    assert isinstance(future.exception(LIMIT), Closed)


def test_what_is_unregistered_while_a_session_announces_it_is_unregistered_last() -> None:
    queue = Queue()
    made = requester_of(queue)
    made.register(Envelope(EnvelopeKind.SUBSCRIBE, name="a"))
    made.register(Envelope(EnvelopeKind.SUBSCRIBE, name="b"))

    def withdraw() -> None:
        queue.before = lambda: None
        for name in ("a", "b"):
            other = threading.Thread(
                target=made.unregister, args=(EnvelopeKind.SUBSCRIBE, Envelope(EnvelopeKind.UNSUBSCRIBE, name=name))
            )
            other.start()
            other.join()

    queue.before = withdraw
    made.session_begins()
    found = [queue.put_to.get(timeout=LIMIT)[0] for _ in range(5)]
    assert [(each.kind, each.name) for each in found[2:]] == [
        (EnvelopeKind.SUBSCRIBE, "a"),
        (EnvelopeKind.UNSUBSCRIBE, "a"),
        (EnvelopeKind.UNSUBSCRIBE, "b"),
    ]


def test_refused_publications_leave_nothing() -> None:
    requests = Requests(UserCode())
    some = [Request(Envelope(EnvelopeKind.PUBLISH, name="a"), cast(Communicator, Queue())) for _ in range(10)]
    numbers = [requests.add(request) for request in some]
    for request in some[1:]:
        requests.settle(request, error=Busy("no"))
    for stray in (0, numbers[0] - 1, numbers[-1] + 1, 2**64 - 1):
        requests.settle_publications(stray)
        assert not some[0].future.done()
    requests.settle_publications(numbers[-1])
    assert not requests._open
    assert some[0].future.done()


def test_failure_is_handled_before_the_future_tells_it() -> None:
    seen: list[Any] = []
    queue = Queue()
    made = requester_of(queue)

    def failed(error: Exception) -> bool:
        seen.append((future.done(), str(error)))
        return False

    future = made.ask(Envelope(EnvelopeKind.WORK, name="q"), failed)
    number = queue.put_to.get(timeout=LIMIT)[0].number
    made.handle_answer(Envelope(EnvelopeKind.REFUSED, number, code=Refusal.FULL))
    assert seen == [(False, "")]
    assert isinstance(future.exception(0), Busy)


def test_done_up_to_a_number_settles_publications_only() -> None:
    queue = Queue()
    made = requester_of(queue)
    first, push, second = (
        made.ask(Envelope(kind, name="a")) for kind in (EnvelopeKind.PUBLISH, EnvelopeKind.PUSH, EnvelopeKind.PUBLISH)
    )
    number = [queue.put_to.get(timeout=LIMIT)[0].number for _ in range(3)][1]
    made.handle_answer(Envelope(EnvelopeKind.DONE, number, code=UP_TO))
    assert [future.done() for future in (first, push, second)] == [True, False, False]
