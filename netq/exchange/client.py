"""A client of an exchange (netq/exchange/server.py): topics, work queues, services, messages to other clients.

    your thread ── publish, push, call, send ──► Requester ──► exchange
                   get ◄── Inbox ◄──────────────┐
                   jobs ◄── Worker ◄────────────┼── the client's thread ◄── exchange
                   serve: threads of a Service ◄┘

Owns a thread, which reads the messages of the exchange, and gives each to one of these. When the exchange ends, the
requests that it has not answered fail with Closed. The thread then connects to the next exchange, and the client
subscribes, works and serves as before.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Self

import netq
from netq.errors import Closed, InvalidOption, Unreadable
from netq.exchange.envelope import Envelope, EnvelopeKind, Refusal, Rejected
from netq.exchange.inbox import Inbox
from netq.exchange.requester import Requester
from netq.exchange.service import GONE, Service
from netq.exchange.topics import check_name
from netq.exchange.worker import Worker
from netq.io.condition import bounded, deadline_of
from netq.io.process_end import at_end, not_at_end
from netq.log import log
from netq.options import MIB, CommunicatorOptions, EventOptions, Protocol, Purpose, SerializationOptions
from netq.text import printable
from netq.utils.stream import Stream
from netq.validate import check_timeout, expect, is_function, whole

_PAUSE = 1.0  # seconds between two connections, at least
_TICK = 1.0  # seconds after which messages that had no room are sent again
_GOODBYE = 1.0  # seconds for the end of a session whose exchange closes, at most
_SILENT = 10.0  # seconds without an answer, after which the log asks whether the server is an exchange
_TOGETHER = 256  # messages that are handled together, at most: the first waits for the last
_SHOWN = 100  # characters of a wrong name in an error
_SERIALIZATION = SerializationOptions(lambda stream: stream, Envelope.pack)  # `_handle_all` parses


class Received(NamedTuple):
    """What `get` returns: a publication, or a message of another client. The topic of a message is ""."""

    topic: str
    peer: uuid.UUID  # the client that has sent it
    data: Any


class Client:
    """A client of an exchange. Thread-safe; a context manager.

    options: as for netq.new; its serialiser is for the data.
    inbox, inbox_memory: publications and messages, and bytes of their data, that may wait for `get`. If they are full,
        the oldest publications are dropped for new ones, and messages are refused.

    Requests never wait for the exchange. Those that are made before it runs are sent when it is there. Each returns a
    concurrent.futures.Future, which fails with a Refused (NotPermitted, Busy, Absent, Failed), with Closed if the
    exchange has ended before its answer, and with what netq.Communicator.put raises. Callbacks of futures must not
    wait: they run in the thread that settles all futures, or in one of netq. After a fork the client is the parent's.

    Raises InvalidOption, and what netq.new raises.
    """

    def __init__(
        self,
        options: CommunicatorOptions | None = None,
        protocol: Protocol | str = Protocol.TCP,
        *,
        inbox: int = 10_000,
        inbox_memory: int = 1 << 28,
    ) -> None:
        whole("Client.inbox", inbox, 1)
        whole("Client.inbox_memory", inbox_memory, 1)
        options = options or CommunicatorOptions()
        if not isinstance(options, CommunicatorOptions):
            raise InvalidOption(f"options: a {type(options).__name__}; expected CommunicatorOptions")
        self._protocol = protocol
        events = EventOptions(self._session_begins, self._session_ends)
        self._ini, self._fin = options.events.ini, options.events.fin
        connection = options.connection.with_queue_bytes(256 * MIB)
        self._options = replace(options, connection=connection, serialization=_SERIALIZATION, events=events)
        self._requester = Requester(options.serialization)
        self._inbox = Inbox(inbox, inbox_memory)
        self._ended: list[Service] = []  # services that have ended, and whose functions may still run
        self._closing = threading.Event()
        self._connect()
        self._thread = threading.Thread(target=self._run, name="netq-exchange-client", daemon=True)
        self._thread.start()

    @property
    def id(self) -> uuid.UUID:
        """Its id, by which other clients send to it."""
        return self._requester.queue.id

    @property
    def dropped(self) -> int:
        """Publications that the inbox had no room for."""
        return self._inbox.dropped

    def publish(self, topic: str, data: Any) -> Future[None]:
        """Send data to all clients whose filters select the topic. The future is done when the exchange has it."""
        _check("topic", topic)
        return self._requester.ask(Envelope(EnvelopeKind.PUBLISH, name=topic, data=self._requester.dumped(data)))

    def subscribe(self, filter: str) -> Future[None]:
        """Receive what is published under the topics that a filter selects: "plant/+/temperature", "plant/#"."""
        _check("filter", filter, is_filter=True)
        future = self._requester.register(Envelope(EnvelopeKind.SUBSCRIBE, name=filter))
        assert future is not None  # it has no consumer
        return future

    def unsubscribe(self, filter: str) -> Future[None]:
        """Remove a subscription."""
        _check("filter", filter, is_filter=True)
        return self._requester.unregister(EnvelopeKind.SUBSCRIBE, Envelope(EnvelopeKind.UNSUBSCRIBE, name=filter))

    def get(self, timeout: float | None = None) -> Received:
        """Wait for the next publication or message, and return it.

        Raises TimeoutError; Closed when the client is closed and nothing is left; Unreadable for data that the
        serialiser cannot load, which is dropped.
        """
        self._requester.check_not_forked("get()")
        check_timeout("get", timeout)
        envelope = self._inbox.get(timeout)
        return Received(envelope.name, envelope.peer, self._requester.loaded(envelope))

    def push(self, queue: str, data: Any) -> Future[None]:
        """Give a job to one of the workers of a queue. If that ends before the job is done, another one gets it.

        The future is done when a worker has done the job. It fails with Failed if the worker has failed, with Busy if
        the exchange has too many jobs.
        """
        _check("queue", queue)
        return self._requester.ask(Envelope(EnvelopeKind.PUSH, name=queue, data=self._requester.dumped(data)))

    def jobs(self, queue: str, ahead: int = 1) -> Worker:
        """Work for a queue: return a Worker, an iterator over its jobs.

        ahead: how many jobs the exchange sends before the first of them is done (the prefetch count of AMQP).
        """
        _check("queue", queue)
        whole("ahead", ahead, 1, 2**32 - 1)
        worker = Worker(self._requester, queue)
        begun = self._requester.register(Envelope(EnvelopeKind.WORK, name=queue, detail=ahead), worker)
        if begun is None:
            raise InvalidOption(f"queue: {queue!r}; this client works for it already: iterate over that Worker")
        worker.begun = begun
        return worker

    def serve(
        self, service: str, function: Callable[[Any], Any], *, threads: int = 1, waiting: int = 100
    ) -> Future[None]:
        """Offer a service: `function` takes the data of a call, and returns the data of the reply.

        threads: in which the function runs. waiting: calls that may wait for a thread; more are refused with Busy.

        The future is done when the exchange knows the service.
        """
        _check("service", service)
        expect(is_function(function), "function", function, "a function of one argument, not an async one")
        whole("threads", threads, 1, 1000)
        whole("waiting", waiting, 0, 10**6)
        entry = Service(self._requester, service, function, threads)
        future = self._requester.register(Envelope(EnvelopeKind.SERVE, name=service, detail=threads + waiting), entry)
        if future is None:
            raise InvalidOption(f"service: {service!r}; this client offers it already")
        entry.start()
        return future

    def unserve(self, service: str) -> Future[None]:
        """End a service. Calls that wait for a thread are refused with Absent; those that run are answered."""
        _check("service", service)
        entry = self._requester.consumer(EnvelopeKind.SERVE, service)
        future = self._requester.unregister(EnvelopeKind.SERVE, Envelope(EnvelopeKind.SERVE, name=service))
        if isinstance(entry, Service):
            entry.end()
            self._ended = [*(each for each in self._ended if each.runs), entry]
        return future

    def call(self, service: str, data: Any) -> Future[Any]:
        """Call a service. The future has the reply; fails with Absent at once if no client offers the service."""
        _check("service", service)
        return self._requester.ask(Envelope(EnvelopeKind.CALL, name=service, data=self._requester.dumped(data)))

    def send(self, client: uuid.UUID, data: Any) -> Future[None]:
        """Send data to another client, by its id. The future is done when its inbox has it."""
        expect(isinstance(client, uuid.UUID), "client", client, "a uuid.UUID, the `id` of another client")
        return self._requester.ask(Envelope(EnvelopeKind.CALL, peer=client, data=self._requester.dumped(data)))

    def close(self, timeout: float | None = None) -> None:
        """Let functions of `serve` return, send the requests, and end. After `timeout` seconds it waits no longer.

        Requests without an answer fail with Closed. Jobs that are not done go to other workers. In a callback or a
        function of `serve` it returns at once, and the client closes when that has returned. In a fork it does nothing.
        """
        check_timeout("close", timeout)
        if self._requester.queue.forked:
            return
        if self._requester.user_code.runs:
            threading.Thread(target=self._close, args=(timeout,), name="netq-exchange-close", daemon=True).start()
        else:
            self._close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(None if error is None else self._options.connection.linger)

    def _close(self, timeout: float | None) -> None:
        deadline = deadline_of(timeout)
        self._closing.set()
        for service in self._requester.registered(EnvelopeKind.SERVE):
            self.unserve(service)
        for each in self._ended:
            each.wait(deadline)
        self._requester.wait_for_answers(self._longest_wait(deadline))
        with self._requester.turns.held():  # so no thread replaces the communicator now, nor afterwards
            queue = self._requester.queue
            self._requester.is_over = True
        queue.close(_left(deadline))
        self._thread.join(_left(deadline))

    def _longest_wait(self, deadline: float) -> float:
        """Return how long the end waits for answers, in seconds: the server may be no exchange."""
        return max(0.0, min(self._options.connection.linger, deadline - time.monotonic()))

    # Events: in the communicator's loop.

    def _session_begins(self, exchange: uuid.UUID) -> None:
        self._requester.session_begins()
        if self._ini is not None:
            with self._requester.user_code.here():
                self._ini(exchange)

    def _session_ends(self, exchange: uuid.UUID) -> None:
        self._requester.session_ends(exchange)
        if self._fin is not None:
            with self._requester.user_code.here():
                self._fin(exchange)

    # In the client's thread.

    def _run(self) -> None:
        is_over = False
        while not is_over:
            at = time.monotonic() + _PAUSE
            self._read()
            self._is_connected = False
            with self._requester.turns.held():  # requests that are made now wait for the next communicator
                self._requester.close(_GOODBYE)  # at once: an exchange that closes waits for this
            with self._requester.turns.held():  # again: in between, callbacks of failed requests have run
                is_over = not self._connect_again(at)
                if is_over:
                    self._requester.end()
        self._inbox.end(Closed(self.id, "this client is closed"))
        not_at_end(self._process_ends)

    def _process_ends(self) -> None:
        self._closing.set()
        self._requester.wait_for_answers(self._longest_wait(math.inf))
        self._requester.is_over = True
        if not self._is_connected:  # the client's thread fails the requests that wait for the next exchange
            self._thread.join(_GOODBYE)

    def _connect(self) -> None:
        with self._requester.turns.held():  # the session may begin before `new` returns
            self._requester.use(netq.new(self._protocol, Purpose.CLIENT, self._options))
            self._is_connected = True
            not_at_end(self._process_ends)
            at_end(self._process_ends)  # before the communicator closes, and logs what was not delivered

    def _connect_again(self, at: float) -> bool:
        """Connect at a time, or as soon as possible after it; return False when this client closes."""
        logged = ""
        while not self._closing.wait(max(0.0, at - time.monotonic())):
            try:
                self._connect()
                return True
            except Exception as error:  # of files, most likely: a certificate that is being replaced
                at = time.monotonic() + _PAUSE
                if str(error) != logged:
                    logged = str(error)
                    log.warning("a client of an exchange cannot connect again, and goes on trying: %s", logged)
        return False

    def _read(self) -> None:
        """Handle messages until the session is over."""
        queue = self._requester.queue
        suspect_at = time.monotonic() + _SILENT
        while True:
            try:
                first = queue.get(timeout=min(_TICK, _SILENT)).data
            except TimeoutError:
                self._requester.resend()
                if time.monotonic() >= suspect_at and self._requester.is_unanswered():
                    log.warning("%s:%s: no answer for %g s; is it an exchange?", *queue.netloc, _SILENT)
                    suspect_at = math.inf
                continue
            except Closed:
                return
            suspect_at = math.inf
            self._handle_all([first, *[message.data for message in queue.get_ready(_TOGETHER)]])

    def _handle_all(self, messages: list[Stream | bytes]) -> None:
        """Handle messages in order. Publications that follow one another go into the inbox together."""
        publications: list[Envelope] = []
        for message in messages:
            try:
                envelope = Envelope.parse(message)
            except Unreadable as error:
                log.warning("a message of the exchange cannot be read, and is dropped: %s", error)
                continue
            if envelope.kind is EnvelopeKind.PUBLICATION:
                publications.append(envelope)
                continue
            if publications:
                self._inbox.add_publications(publications)
                publications = []
            self._handle(envelope)
        if publications:
            self._inbox.add_publications(publications)

    def _handle(self, envelope: Envelope) -> None:
        if envelope.kind is EnvelopeKind.JOB:
            self._job_came(envelope)
        elif envelope.kind is EnvelopeKind.REQUEST and envelope.name:
            if not self._requester.deliver(EnvelopeKind.SERVE, envelope):
                self._requester.refuse(envelope, Refusal.ABSENT, GONE)
        elif envelope.kind is EnvelopeKind.REQUEST:
            try:
                self._inbox.add_message(envelope)
            except Rejected as rejection:
                self._requester.refuse(envelope, rejection.code, str(rejection))
            else:
                self._requester.answer(envelope, Envelope(EnvelopeKind.REPLY))
        else:
            self._requester.handle_answer(envelope)

    def _job_came(self, envelope: Envelope) -> None:
        """Give a job to its worker. Without a worker, give it back, and repeat the WORK that has ended the worker."""
        if not self._requester.deliver(EnvelopeKind.WORK, envelope):
            if self._requester.consumer(EnvelopeKind.WORK, envelope.name) is None:
                self._requester.unregister(EnvelopeKind.WORK, Envelope(EnvelopeKind.WORK, name=envelope.name))
            self._requester.answer(envelope, Envelope(EnvelopeKind.RETURN))


def _left(deadline: float) -> float | None:
    return bounded(max(0.0, deadline - time.monotonic()))


def _check(what: str, name: str, *, is_filter: bool = False) -> None:
    try:
        check_name(name, is_filter=is_filter)
    except Rejected as rejection:
        raise InvalidOption(f"{what}: {printable(repr(name), _SHOWN)}; {rejection}") from None
