"""A client of an exchange (netq/exchange/server.py): topics, work queues, services, messages to other clients.

    your thread ── publish, push, call, send ──► future ◄── done ── the client's thread ── get ── communicator
                   get, jobs ◄── inbox, jobs ◄─────────────────────┘

Owns a communicator and a thread, which reads its messages, answers futures, and fills bounded queues. Functions of
`serve` run in threads of their own. If the exchange is started again, the client connects again by itself, and
subscribes, works and serves as before; what was asked and not answered fails with Closed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Self

import netq
from netq.core import check_timeout
from netq.errors import Absent, Busy, Closed, Failed, InvalidOption, NotPermitted, Refused, Unreadable
from netq.exchange.envelope import UP_TO, Envelope, Kind, Refusal
from netq.exchange.topics import why_wrong
from netq.options import CommunicatorOptions, EventOptions, Protocol, Purpose, SerializationOptions
from netq.text import printable
from netq.utils.stream import Stream, stream_of
from netq.validate import expect, whole

log = logging.getLogger("netq")

_ANSWERS = 1  # a lane: answers pass publications and jobs
_PAUSE = 1.0  # seconds between two connections, at least
_MORE = 256  # messages that are handled together, at most: so long the first waits for the last
_SERIALIZATION = SerializationOptions(lambda stream: stream, Envelope.pack)  # `_handle_all` parses
_ERRORS: dict[int, type[Refused]] = {
    Refusal.NOT_PERMITTED: NotPermitted,
    Refusal.FULL: Busy,
    Refusal.ABSENT: Absent,
    Refusal.FAILED: Failed,
}


class Received(NamedTuple):
    """What `get` returns: a publication, or a message of another client, whose topic is ""."""

    topic: str
    peer: uuid.UUID  # who has sent it
    data: Any


class Client:
    """A client of an exchange. Thread-safe; a context manager.

    options: as for netq.new; its serialiser is for the data.
    inbox:   publications and messages that may wait for `get`. Of publications, the oldest are dropped for new ones;
             a message is refused then.

    Never waits for the exchange: what is asked before it is there, is asked when it comes. Futures are
    concurrent.futures.Future. They fail with a Refused (NotPermitted, Busy, Absent, Failed), with Closed if the
    exchange has ended before it has answered, and with what netq.Communicator.put raises.

    Raises InvalidOption, and what netq.new raises.
    """

    def __init__(
        self,
        options: CommunicatorOptions | None = None,
        protocol: Protocol | str = Protocol.TCP,
        *,
        inbox: int = 10_000,
    ) -> None:
        whole("Client.inbox", inbox, 1)
        options = options or CommunicatorOptions()
        if not isinstance(options, CommunicatorOptions):
            raise InvalidOption(f"options: a {type(options).__name__}; expected CommunicatorOptions")
        self._dump, self._load = options.serialization.dump, options.serialization.load
        self._protocol = protocol
        events = EventOptions(self._session_begins, self._session_ends)
        self._ini, self._fin = options.events.ini, options.events.fin
        self._options = replace(options, serialization=_SERIALIZATION, events=events)
        # What the exchange is told again when it has been started again.
        self._filters: dict[str, None] = {}
        self._workers: dict[str, Worker] = {}
        self._services: dict[str, _Service] = {}
        # What is asked and not answered.
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._published: deque[int] = deque()  # the numbers of publications among them
        # What has come.
        self._most = inbox
        self._inbox: deque[Envelope] = deque()
        self._lock = threading.RLock()  # guards all of the above; not held while a thread waits for netq
        self._changed = threading.Condition(self._lock)  # the inbox has changed, or this is over
        self._asking = threading.Lock()
        self.dropped = 0  # publications that the inbox had no room for
        self._closing = False
        self._is_over = False
        self._connect()
        self._thread = threading.Thread(target=self._run, name="netq-exchange-client", daemon=True)
        self._thread.start()

    @property
    def id(self) -> uuid.UUID:
        """Its id, by which other clients send to it."""
        return self._queue.id

    def publish(self, topic: str, data: Any) -> Future[None]:
        """Send data to all clients whose filters select the topic. The future is done when the exchange has it."""
        _check("topic", topic)
        return self._ask(Envelope(Kind.PUBLISH, name=topic, data=self._dumped(data)))

    def subscribe(self, filter: str) -> Future[None]:
        """Receive what is published under the topics that a filter selects: "plant/+/temperature", "plant/#"."""
        _check("filter", filter, is_filter=True)
        with self._lock:
            self._filters[filter] = None
        return self._ask(Envelope(Kind.SUBSCRIBE, name=filter))

    def unsubscribe(self, filter: str) -> Future[None]:
        """Receive it no more."""
        _check("filter", filter, is_filter=True)
        with self._lock:
            self._filters.pop(filter, None)
        return self._ask(Envelope(Kind.UNSUBSCRIBE, name=filter))

    def get(self, timeout: float | None = None) -> Received:
        """Wait for the next publication or message, and return it.

        Raises TimeoutError; Closed when the client is closed and nothing is left; Unreadable for data that the
        serialiser cannot load, which is dropped.
        """
        check_timeout("get", timeout)
        with self._lock:
            if not self._inbox and not self._changed.wait_for(lambda: self._inbox or self._is_over, timeout):
                raise TimeoutError(f"no message within {timeout:g} s")
            if not self._inbox:
                raise Closed(self.id, "this client is closed")
            envelope = self._inbox.popleft()
        return Received(envelope.name, envelope.peer, self._loaded(envelope))

    def push(self, queue: str, data: Any) -> Future[None]:
        """Give a job to one of the workers of a queue; to another one, if that ends before it is done.

        The future is done when a worker has done the job. It fails with Failed if the worker has failed, with Busy if
        the exchange has too many jobs.
        """
        _check("queue", queue)
        return self._ask(Envelope(Kind.PUSH, name=queue, data=self._dumped(data)))

    def jobs(self, queue: str, ahead: int = 1) -> Worker:
        """Work for a queue: return an iterator over jobs.

        ahead: how many jobs the exchange may give before the first of them is done.
        """
        _check("queue", queue)
        whole("ahead", ahead, 1, 2**32 - 1)
        worker = Worker(self, queue, ahead)
        with self._lock:
            if queue in self._workers:
                raise InvalidOption(f"queue: {queue!r}; this client works for it already: iterate over that Worker")
            self._workers[queue] = worker
        worker.begun = self._ask(Envelope(Kind.WORK, name=queue, detail=ahead))
        return worker

    def serve(
        self, service: str, function: Callable[[Any], Any], *, threads: int = 1, waiting: int = 100
    ) -> Future[None]:
        """Answer calls of a service: `function` takes the data of a call, and returns that of the reply.

        threads: in which it runs. waiting: calls that may wait for one; more are refused with Busy.

        The future is done when the exchange knows the service.
        """
        _check("service", service)
        expect(callable(function), "function", function, "a function of one argument")
        whole("threads", threads, 1, 1000)
        whole("waiting", waiting, 0, 10**6)
        pool = ThreadPoolExecutor(threads, f"netq-exchange-{service}")
        with self._lock:
            if service in self._services:
                pool.shutdown()
                raise InvalidOption(f"service: {service!r}; this client offers it already")
            self._services[service] = entry = _Service(function, pool, threads + waiting)
        return self._ask(Envelope(Kind.SERVE, name=service, detail=entry.most))

    def call(self, service: str, data: Any) -> Future[Any]:
        """Call a service. The future has the reply; fails with Absent at once if no client offers the service."""
        _check("service", service)
        return self._ask(Envelope(Kind.CALL, name=service, data=self._dumped(data)))

    def send(self, client: uuid.UUID, data: Any) -> Future[None]:
        """Send data to another client, by its id. The future is done when its inbox has it."""
        expect(isinstance(client, uuid.UUID), "client", client, "a uuid.UUID, the `id` of another client")
        return self._ask(Envelope(Kind.CALL, peer=client, data=self._dumped(data)))

    def close(self, timeout: float | None = None) -> None:
        """Send what was asked, and end. What is not answered then fails with Closed. Jobs go to other workers."""
        with self._lock:
            self._closing = True
            services = list(self._services.values())
        for service in services:
            service.pool.shutdown(cancel_futures=True)
        self._queue.close(timeout)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(None if error is None else self._options.connection.linger)

    def _ask(self, envelope: Envelope) -> Future[Any]:
        """Send a request. Return the future of its answer."""
        asked = _Asked(envelope)
        with self._asking:  # so that publications leave in the order of their numbers
            number = next(self._numbers)
            with self._lock:
                self._asked[number] = asked
                if envelope.kind is Kind.PUBLISH:
                    self._published.append(number)
                queue = self._queue
            asked.delivery = queue.put(envelope._replace(number=number))
        asked.delivery.add_done_callback(functools.partial(self._was_put, number))
        return asked.future

    def _was_put(self, number: int, delivery: Future[None]) -> None:
        """Fail what could not be asked. In a thread of netq."""
        error = Closed(self.id, "it was cancelled") if delivery.cancelled() else delivery.exception()
        if error is not None:
            assert isinstance(error, Exception)
            self._settle(number, error=error)

    def _end(self, worker: Worker) -> None:
        """Get no more jobs for a worker."""
        with self._lock:
            if self._workers.get(worker.queue) is worker:
                del self._workers[worker.queue]
        self._ask(Envelope(Kind.WORK, name=worker.queue))

    def _dumped(self, data: Any) -> Stream:
        return stream_of(self._dump(data), self._dump)

    def _loaded(self, envelope: Envelope) -> Any:
        try:
            return self._load(Stream() if envelope.data is None else envelope.data)
        except Unreadable as error:
            error.peer = envelope.peer
            raise
        except Exception as error:  # the user's serialiser may raise anything
            what = envelope.name or "a message"
            unreadable = Unreadable(f"{what}: data of {envelope.peer} cannot be loaded: {error!r}")
            unreadable.peer = envelope.peer
            raise unreadable from error

    def _session_begins(self, exchange: uuid.UUID) -> None:
        """Tell the exchange what this client wants. In the communicator's loop, before any message of the exchange."""
        with self._lock:
            wanted = [Envelope(Kind.SUBSCRIBE, name=filter) for filter in self._filters]
            wanted += [Envelope(Kind.WORK, name=name, detail=each.ahead) for name, each in self._workers.items()]
            wanted += [Envelope(Kind.SERVE, name=name, detail=each.most) for name, each in self._services.items()]
        for envelope in wanted:
            self._queue.put(envelope)
        if self._ini is not None:
            self._ini(exchange)

    def _session_ends(self, exchange: uuid.UUID) -> None:
        """Fail what the exchange has got and not answered. In the communicator's loop."""
        with self._lock:
            lost = [number for number, asked in self._asked.items() if asked.was_delivered]
        for number in lost:
            self._settle(number, error=Closed(exchange, "the exchange has ended before it had answered"))
        if self._fin is not None:
            self._fin(exchange)

    # In the client's thread.

    def _run(self) -> None:
        while True:
            begin = time.monotonic()
            self._read()
            with self._lock:
                asked, self._asked = self._asked, {}
                self._published.clear()
                self._is_over = self._closing
                self._changed.notify_all()
                workers = list(self._workers.values())
            for each in asked.values():
                _settle(each.future, error=Closed(self.id, "the exchange has closed, or this client"))
            if self._is_over:
                for worker in workers:
                    worker.received(None)
                return
            over = self._queue
            time.sleep(max(0.0, begin + _PAUSE - time.monotonic()))
            self._connect()
            over.close(0)

    def _connect(self) -> None:
        with self._lock:  # the session may begin before `new` returns
            if not self._closing:
                self._queue = netq.new(self._protocol, Purpose.CLIENT, self._options)

    def _read(self) -> None:
        """Handle messages until the session is over."""
        queue = self._queue
        while True:
            try:
                first = queue.get().data
            except Closed:
                return
            self._handle_all([first, *[item[1] for item in queue.inbox.take_more(_MORE)]])

    def _handle_all(self, messages: list[Stream | bytes]) -> None:
        """Handle messages in order, publications that follow one another together."""
        publications: list[Envelope] = []
        for message in messages:
            try:
                envelope = Envelope.parse(message)
            except Unreadable as error:
                log.warning("a message of the exchange cannot be read, and is dropped: %s", error)
                continue
            if envelope.kind is Kind.PUBLICATION:
                publications.append(envelope)
                continue
            self._publications_came(publications)
            publications = []
            self._handle(envelope)
        self._publications_came(publications)

    def _handle(self, envelope: Envelope) -> None:
        kind = envelope.kind
        if kind is Kind.DONE and envelope.code == UP_TO:
            self._settle_publications(envelope.number)
        elif kind is Kind.DONE:
            self._settle(envelope.number)
        elif kind is Kind.REPLY:
            self._reply_came(envelope)
        elif kind is Kind.REFUSED:
            self._refusal_came(envelope)
        elif kind is Kind.JOB:
            self._job_came(envelope)
        elif kind is Kind.REQUEST:
            self._request_came(envelope)

    def _publications_came(self, publications: list[Envelope]) -> None:
        if not publications:
            return
        with self._lock:
            for envelope in publications:
                if len(self._inbox) >= self._most:
                    self.dropped += 1
                    if self._inbox[0].kind is not Kind.PUBLICATION:
                        continue
                    self._inbox.popleft()
                self._inbox.append(envelope)
            self._changed.notify(len(publications))

    def _request_came(self, envelope: Envelope) -> None:
        with self._lock:
            service = self._services.get(envelope.name)
            is_full = len(self._inbox) >= self._most
            if not (envelope.name or is_full):
                self._inbox.append(envelope)
                self._changed.notify()
        if not envelope.name:
            full = self._refusal(Refusal.FULL, f"its inbox has {self._most} messages")
            self._answer(envelope, full if is_full else Envelope(Kind.REPLY))
        elif service is not None:
            service.begin(functools.partial(self._serve, service.function, envelope))

    def _serve(self, function: Callable[[Any], Any], envelope: Envelope) -> None:
        """Answer a call. In a thread of the service."""
        try:
            answer = Envelope(Kind.REPLY, data=self._dumped(function(self._loaded(envelope))))
        except Exception as error:  # of the user's function
            log.exception("the service %r failed", envelope.name)
            answer = self._refusal(Refusal.FAILED, f"{type(error).__name__}: {error}")
        self._answer(envelope, answer)

    def _refusal(self, why: Refusal, reason: str) -> Envelope:
        return Envelope(Kind.REFUSED, code=why, data=Stream([printable(reason).encode()]))

    def _answer(self, envelope: Envelope, answer: Envelope) -> None:
        """Answer a job or a call. `detail` of a refusal says which of them."""
        detail = int(envelope.kind is Kind.REQUEST)
        self._queue.put(answer._replace(number=envelope.number, detail=detail), lane=_ANSWERS)

    def _job_came(self, envelope: Envelope) -> None:
        with self._lock:
            worker = self._workers.get(envelope.name)
        if worker is None:
            self._answer(envelope, Envelope(Kind.RETURN))
        else:
            worker.received(envelope)

    def _settle(self, number: int, result: Any = None, error: Exception | None = None) -> None:
        with self._lock:
            asked = self._asked.pop(number, None)
        if asked is not None:
            _settle(asked.future, result, error)

    def _settle_publications(self, last: int) -> None:
        with self._lock:
            done = []
            while self._published and self._published[0] <= last:
                done.append(self._asked.pop(self._published.popleft(), None))
        for asked in filter(None, done):
            _settle(asked.future)

    def _reply_came(self, envelope: Envelope) -> None:
        with self._lock:
            asked = self._asked.get(envelope.number)
        if asked is None:
            return
        try:
            is_message = asked.envelope.kind is Kind.CALL and not asked.envelope.name
            self._settle(envelope.number, None if is_message else self._loaded(envelope))
        except Unreadable as error:
            self._settle(envelope.number, error=error)

    def _refusal_came(self, envelope: Envelope) -> None:
        reason = printable(bytes(envelope.data or Stream()).decode(errors="replace"))
        with self._lock:
            asked = self._asked.get(envelope.number)
        if asked is None:
            log.warning("the exchange refuses: %s", reason)  # what it was told again, when it had been started again
            return
        name = asked.envelope.name or str(asked.envelope.peer)
        if envelope.peer.int:  # of a worker or a service; others come from the exchange, and name what they refuse
            reason = f"{name}: {reason}"
        self._settle(envelope.number, error=_ERRORS.get(envelope.code, Refused)(reason))


class Worker:
    """The jobs that an exchange gives to a client; an iterator, and a context manager. Made by Client.jobs.

    begun: the future of the exchange's consent: it fails with NotPermitted.
    """

    begun: Future[None]

    def __init__(self, client: Client, queue: str, ahead: int) -> None:
        self.queue = queue
        self.ahead = ahead
        self._client = client
        self._waiting: SimpleQueue[Envelope | None] = SimpleQueue()
        self._is_over = False

    def get(self, timeout: float | None = None) -> Job:
        """Wait for the next job, and return it. Raises TimeoutError; Closed when the client or this is closed."""
        check_timeout("get", timeout)
        try:
            envelope = None if self._is_over else self._waiting.get(timeout=timeout)
        except Empty:
            raise TimeoutError(f"no job within {timeout:g} s") from None
        if envelope is None:
            self._is_over = True
            self._waiting.put(None)  # for other threads
            raise Closed(self._client.id, "this client works no more for the queue")
        return Job(self._client, envelope)

    def received(self, envelope: Envelope | None) -> None:
        """Take a job; None: there are no more. Called by the client."""
        self._waiting.put(envelope)

    def close(self) -> None:
        """Work no more for the queue. Jobs that `get` has not returned go to other workers."""
        self._client._end(self)
        left = []
        with contextlib.suppress(Empty):
            while True:
                left.append(self._waiting.get_nowait())
        for envelope in reversed(left):  # each goes before those that wait
            if envelope is not None:
                self._client._answer(envelope, Envelope(Kind.RETURN))
        self._waiting.put(None)

    def __iter__(self) -> Iterator[Job]:
        while True:
            try:
                job = self.get()
            except Closed:
                return
            yield job

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Job:
    """A job. Say `done` or `fail`, or use `with job:`, which says `done` at its end, and `fail` after an exception.

    tries: how many workers have ended with it before.
    """

    def __init__(self, client: Client, envelope: Envelope) -> None:
        self.queue = envelope.name
        self.peer = envelope.peer
        self.tries = envelope.detail
        self._client = client
        self._envelope = envelope

    @property
    def data(self) -> Any:
        """What was pushed; loaded anew each time. Raises Unreadable."""
        return self._client._loaded(self._envelope)

    def done(self) -> None:
        """Tell the producer that it is done."""
        self._client._answer(self._envelope, Envelope(Kind.DONE))

    def fail(self, reason: str) -> None:
        """Tell the producer that it has failed; no other worker gets it."""
        self._client._answer(self._envelope, self._client._refusal(Refusal.FAILED, reason))

    def give_back(self) -> None:
        """Let another worker do it."""
        self._client._answer(self._envelope, Envelope(Kind.RETURN))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Answer. An Exception is logged, and goes no further, so that the worker takes the next job."""
        if error is None:
            self.done()
        elif isinstance(error, Exception):
            log.error("a job of %r failed", self.queue, exc_info=error)
            self.fail(f"{type(error).__name__}: {error}")
            return True
        else:
            self.give_back()
        return False


class _Asked:
    """A request that is not answered yet."""

    __slots__ = ("delivery", "envelope", "future")

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope._replace(data=None)
        self.future: Future[Any] = Future()
        self.delivery: Future[None] | None = None  # None: it is being put

    @property
    def was_delivered(self) -> bool:
        """Whether an exchange has got it."""
        delivery = self.delivery
        return delivery is not None and delivery.done() and not delivery.cancelled() and delivery.exception() is None


class _Service:
    """A function that answers calls, and its threads."""

    def __init__(self, function: Callable[[Any], Any], pool: ThreadPoolExecutor, most: int) -> None:
        self.function = function
        self.most = most
        self.pool = pool

    def begin(self, answer: Callable[[], None]) -> None:
        """Run `answer` in one of the threads."""
        with contextlib.suppress(RuntimeError):  # the client closes, and the exchange tells the caller
            self.pool.submit(answer)


def _settle(future: Future[Any], result: Any = None, error: Exception | None = None) -> None:
    """Let a future be done, unless its user has cancelled it."""
    if future.set_running_or_notify_cancel():
        future.set_result(result) if error is None else future.set_exception(error)


def _check(what: str, name: str, *, is_filter: bool = False) -> None:
    if wrong := why_wrong(name, is_filter=is_filter):
        raise InvalidOption(f"{what}: {name!r}; {wrong}")
