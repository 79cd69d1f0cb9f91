"""The exchange: the server through which clients publish and subscribe, share work, call services and send messages.

    client ── put ──► Exchange._handle ──► Subscriptions, Jobs, Calls (which say who gets what) ── put ──► clients

Owns a server's communicator, and one thread, which reads its messages and alone uses what is in the other modules of
this package. Reads heads of messages only: data goes on as it came, without a copy. Nothing survives its end: clients
connect again by themselves, and are told what was lost (netq/exchange/client.py).
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import netq
from netq.errors import Closed, InvalidOption, MessageTooLarge, QueueFull, Unreadable
from netq.exchange.calls import Call, Calls
from netq.exchange.envelope import UP_TO, Envelope, Kind, Refusal
from netq.exchange.jobs import Counts, Job, Jobs
from netq.exchange.permissions import Permission, Permissions
from netq.exchange.topics import Subscriptions, why_wrong
from netq.options import CommunicatorOptions, EventOptions, NetworkLocation, Protocol, Purpose, SerializationOptions
from netq.text import printable
from netq.utils.stream import Stream
from netq.validate import seconds, whole

log = logging.getLogger("netq")

_CONTROL = 1  # a lane: what has an answer, and answers, pass publications
_TICK = 0.25  # seconds between looks at the connections of all clients
_NAMES = 10_000  # filters, queues, and services, of each client at most
_ABSENT = "this client is not here"
_SERIALIZATION = SerializationOptions(Envelope.parse, Envelope.pack)


@dataclass(frozen=True)
class ExchangeStatistics:
    """The figures of an exchange, from its start; `queues` and `services` are those of now."""

    clients: int  # that are connected
    published: int  # publications that came
    copies: int  # that went to subscribers
    dropped: int  # copies for subscribers whose queue was full (ConnectionOptions.queue_size, queue_bytes)
    done: int  # jobs
    repeated: int  # times that a job was given to another worker, because its first one had ended
    queues: dict[str, Counts]
    services: dict[str, int]  # how many clients offer each


class Exchange:
    """An exchange that runs until it is closed. Thread-safe; a context manager.

    permissions: what clients may do. None: anything.
    jobs, job_memory: jobs that are not done, and bytes of their data, that it holds at most; more are refused.
    tries:       workers that may end with a job; then the job has failed.
    calls:       messages that may be on their way to one client, and not be answered.
    grace:       seconds without a connection, after which a client's jobs go to others, and calls to it fail.

    Raises InvalidOption, and what netq.new raises.
    """

    def __init__(
        self,
        options: CommunicatorOptions | None = None,
        protocol: Protocol | str = Protocol.TCP,
        *,
        permissions: Iterable[Permission] | None = None,
        jobs: int = 100_000,
        job_memory: int = 1 << 30,
        tries: int = 5,
        calls: int = 1000,
        grace: float = 3.0,
    ) -> None:
        whole("Exchange.jobs", jobs, 1)
        whole("Exchange.job_memory", job_memory, 1)
        whole("Exchange.tries", tries, 1)
        whole("Exchange.calls", calls, 1)
        seconds("Exchange.grace", grace, 0.0, 86400.0)
        self._grace = grace
        self._permissions = Permissions(permissions)
        self._subscriptions = Subscriptions()
        self._jobs = Jobs(jobs, job_memory, tries)
        self._calls = Calls(calls)
        self._away: set[uuid.UUID] = set()  # clients without a connection for longer than `grace`
        self._acknowledged: dict[uuid.UUID, int] = {}  # by client: its last publication, if that is to be answered
        self._warned: set[uuid.UUID] = set()  # clients that have sent what cannot be read
        self._published = self._copies = self._done = 0
        # Written by the communicator's threads.
        self._dropped = 0
        self._counting = threading.Lock()  # guards `_dropped`
        self._ended: deque[uuid.UUID] = deque()  # clients whose session is over
        self._undelivered: deque[tuple[Envelope, uuid.UUID, Exception]] = deque()
        options = options or CommunicatorOptions()
        if not isinstance(options, CommunicatorOptions):
            raise InvalidOption(f"options: a {type(options).__name__}; expected CommunicatorOptions")
        fin = options.events.fin

        def ended(client: uuid.UUID) -> None:
            self._ended.append(client)
            if fin is not None:
                fin(client)

        events = EventOptions(options.events.ini, ended)
        self._queue = netq.new(protocol, Purpose.SERVER, replace(options, events=events, serialization=_SERIALIZATION))
        self._lock = threading.Lock()  # guards all but the deques: `statistics` reads in other threads
        self._thread = threading.Thread(target=self._run, name="netq-exchange", daemon=True)
        self._thread.start()

    @property
    def id(self) -> uuid.UUID:
        """The id of its communicator."""
        return self._queue.id

    @property
    def netloc(self) -> NetworkLocation:
        """Where it listens."""
        return self._queue.netloc

    def statistics(self) -> ExchangeStatistics:
        """Return the figures of now."""
        clients = sum(each.connected for each in self._queue.statistics().values())
        with self._lock:
            return ExchangeStatistics(
                clients,
                self._published,
                self._copies,
                self._dropped,
                self._done,
                self._jobs.repeated,
                self._jobs.counts(),
                self._calls.services(),
            )

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is closed; return whether it is."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def close(self, timeout: float | None = None) -> None:
        """Deliver what is on its way, and end. Jobs that are not done are lost: their producers get Closed."""
        self._queue.close(timeout)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(None if error is None else self._queue.options.connection.linger)

    # In the exchange's thread.

    def _run(self) -> None:
        next_look = 0.0
        while True:
            try:
                client, envelope = self._queue.get(timeout=0 if self._acknowledged else _TICK)
            except TimeoutError:
                self._acknowledge()
            except Unreadable as error:
                self._warn(error)
            except Closed:
                return
            else:
                with self._lock:
                    self._handle(client, envelope)
            if self._ended or self._undelivered or time.monotonic() >= next_look:
                with self._lock:
                    self._look()
                next_look = time.monotonic() + _TICK

    def _warn(self, error: Unreadable) -> None:
        if error.peer is not None and error.peer not in self._warned:
            self._warned.add(error.peer)
            log.warning("%s: a message cannot be read, and is dropped: %s", error.peer, error)

    def _acknowledge(self) -> None:
        """Answer the publications that came since the last time, all of a client with one message."""
        while self._acknowledged:
            client, number = self._acknowledged.popitem()
            self._send(client, Envelope(Kind.DONE, number, code=UP_TO))

    def _handle(self, client: uuid.UUID, envelope: Envelope) -> None:
        if (handler := _HANDLERS.get(envelope.kind)) is None:
            self._refuse(client, envelope.number, Refusal.WRONG, f"{envelope.kind.name}: not a client's message")
            return
        action, function = handler
        name = envelope.name
        if action:
            is_message = envelope.kind is Kind.CALL and not name
            action, name = ("send", str(envelope.peer)) if is_message else (action, name)
            wrong = "" if is_message else why_wrong(name, is_filter=action == "subscribe")
            if wrong:
                self._refuse(client, envelope.number, Refusal.WRONG, f"{action}: '{printable(name)}': {wrong}")
                return
            if not self._permissions.allow(client, action, name):
                reason = f"{action}: '{printable(name)}': not permitted to {client}"
                self._refuse(client, envelope.number, Refusal.NOT_PERMITTED, reason)
                return
        function(self, client, envelope)

    def _publish(self, client: uuid.UUID, envelope: Envelope) -> None:
        self._published += 1
        self._acknowledged[client] = envelope.number
        if subscribers := self._subscriptions.of(envelope.name):
            self._copies += len(subscribers)
            copy = Envelope(Kind.PUBLICATION, 0, envelope.name, client, data=envelope.data)
            self._queue.spread(copy, subscribers, self._not_published_to)

    def _not_published_to(self, client: uuid.UUID, error: Exception) -> None:
        """Count a copy for a subscriber whose queue was full. In a thread of netq."""
        if isinstance(error, QueueFull):
            with self._counting:
                self._dropped += 1

    def _subscribe(self, client: uuid.UUID, envelope: Envelope) -> None:
        if self._subscriptions.count(client) >= _NAMES:
            self._refuse(client, envelope.number, Refusal.FULL, f"subscribe: {_NAMES} filters are the most")
            return
        self._subscriptions.add(client, envelope.name)
        self._send(client, Envelope(Kind.DONE, envelope.number))

    def _unsubscribe(self, client: uuid.UUID, envelope: Envelope) -> None:
        self._subscriptions.remove(client, envelope.name)
        self._send(client, Envelope(Kind.DONE, envelope.number))

    def _push(self, client: uuid.UUID, envelope: Envelope) -> None:
        assert envelope.data is not None
        if full := self._jobs.why_full(envelope.data.nbytes):
            self._refuse(client, envelope.number, Refusal.FULL, f"push: '{printable(envelope.name)}': {full}")
            return
        self._give(self._jobs.push(envelope.name, client, envelope.number, envelope.data))

    def _work(self, client: uuid.UUID, envelope: Envelope) -> None:
        if self._jobs.queues_of(client) >= _NAMES:
            self._refuse(client, envelope.number, Refusal.FULL, f"work: {_NAMES} queues are the most")
            return
        self._send(client, Envelope(Kind.DONE, envelope.number))
        self._give(self._jobs.work(envelope.name, client, envelope.detail))

    def _serve(self, client: uuid.UUID, envelope: Envelope) -> None:
        if self._calls.services_of(client) >= _NAMES:
            self._refuse(client, envelope.number, Refusal.FULL, f"serve: {_NAMES} services are the most")
            return
        self._calls.serve(envelope.name, client, envelope.detail)
        self._send(client, Envelope(Kind.DONE, envelope.number))

    def _call(self, client: uuid.UUID, envelope: Envelope) -> None:
        if envelope.name:
            found = self._calls.call(envelope.name, client, envelope.number)
            what = f"call: '{printable(envelope.name)}'"
        else:
            is_away = envelope.peer in self._away
            found = _ABSENT if is_away else self._calls.send(envelope.peer, client, envelope.number)
            what = f"send: {envelope.peer}"
        if isinstance(found, Call):
            self._send(found.server, Envelope(Kind.REQUEST, found.number, envelope.name, client, data=envelope.data))
        elif found:
            self._refuse(client, envelope.number, Refusal.ABSENT, f"{what}: {found}")
        else:
            self._refuse(client, envelope.number, Refusal.FULL, f"{what}: too many calls are open there")

    def _answer(self, client: uuid.UUID, envelope: Envelope) -> None:
        """Pass the answer of a worker or a service on. A job and a call never have the same kind of answer."""
        if envelope.kind is Kind.REPLY or (envelope.kind is Kind.REFUSED and envelope.detail):
            call = self._calls.finish(envelope.number, client)
            if call is not None:
                self._send(call.caller, envelope._replace(number=call.request, peer=client, detail=0))
            return
        job, more = self._jobs.finish(envelope.number, client)
        if job is not None:
            self._done += envelope.kind is Kind.DONE
            self._send(job.producer, envelope._replace(number=job.request, peer=client))
        self._give(more)

    def _return(self, client: uuid.UUID, envelope: Envelope) -> None:
        self._give(self._jobs.give_back(envelope.number, client))

    def _give(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            assert job.worker is not None
            envelope = Envelope(Kind.JOB, job.number, job.queue, job.producer, detail=job.tries, data=job.data)
            self._send(job.worker, envelope)

    def _refuse(self, client: uuid.UUID, number: int, why: Refusal, reason: str) -> None:
        self._send(client, Envelope(Kind.REFUSED, number, code=why, data=Stream([reason.encode()])))

    def _send(self, client: uuid.UUID, envelope: Envelope) -> None:
        delivery = self._queue.put(envelope, client, lane=_CONTROL)
        delivery.add_done_callback(functools.partial(self._sent, envelope, client))

    def _sent(self, envelope: Envelope, client: uuid.UUID, delivery: Future[None]) -> None:
        """Note an envelope that its client has not got. In a thread of netq."""
        try:
            error = delivery.exception()
        except CancelledError:
            return
        if isinstance(error, (QueueFull, MessageTooLarge, Closed)):
            self._undelivered.append((envelope, client, error))

    def _look(self) -> None:
        """Handle what has changed since the last look: sessions that are over, connections, full queues."""
        while self._ended:
            self._leave(self._ended.popleft(), returns=False)
        known: dict[uuid.UUID, Any] = self._queue.statistics() if self._jobs.counts() or self._calls.services() else {}
        for client, each in known.items():
            if each.absent > self._grace and client not in self._away:
                self._away.add(client)
                self._leave(client, returns=True)
            elif each.connected and client in self._away:
                self._away.discard(client)
                self._calls.come_back(client)
                self._give(self._jobs.come_back(client))
        for _ in range(len(self._undelivered)):
            self._send_again(*self._undelivered.popleft())

    def _leave(self, client: uuid.UUID, *, returns: bool) -> None:
        """Give a client's jobs to others, and answer the calls to it."""
        if not returns:
            self._away.discard(client)
            self._warned.discard(client)
            self._acknowledged.pop(client, None)
            self._subscriptions.remove_client(client)
        failed, given = self._jobs.leave(client, returns=returns)
        for job in failed:
            reason = f"push: '{printable(job.queue)}': {job.tries} workers ended with this job"
            self._refuse(job.producer, job.request, Refusal.FAILED, reason)
        self._give(given)
        for call in self._calls.leave(client, returns=returns):
            what = f"call: '{printable(call.service)}'" if call.service else "send"
            self._refuse(call.caller, call.request, Refusal.ABSENT, f"{what}: {client} has gone, and has not answered")

    def _send_again(self, envelope: Envelope, client: uuid.UUID, error: Exception) -> None:
        """Send again what did not fit the client's queue. Refuse what is too large, or for a client that is gone."""
        if isinstance(error, QueueFull):
            self._send(client, envelope)
        elif isinstance(error, Closed):
            if envelope.kind is Kind.REQUEST and (call := self._calls.finish(envelope.number, client)) is not None:
                self._refuse(call.caller, call.request, Refusal.ABSENT, f"{client}: {_ABSENT}")
        elif envelope.kind is Kind.REPLY:
            self._refuse(client, envelope.number, Refusal.FAILED, f"the reply is too large: {error}")
        elif envelope.kind in (Kind.JOB, Kind.REQUEST):
            refusal = Envelope(Kind.REFUSED, envelope.number, code=Refusal.FAILED, detail=envelope.kind is Kind.REQUEST)
            self._answer(client, refusal._replace(data=Stream([str(error).encode()])))


_HANDLERS = {  # by kind: the action that permissions name, and what handles it
    Kind.PUBLISH: ("publish", Exchange._publish),
    Kind.SUBSCRIBE: ("subscribe", Exchange._subscribe),
    Kind.UNSUBSCRIBE: ("", Exchange._unsubscribe),
    Kind.PUSH: ("push", Exchange._push),
    Kind.WORK: ("work", Exchange._work),
    Kind.CALL: ("call", Exchange._call),
    Kind.SERVE: ("serve", Exchange._serve),
    Kind.RETURN: ("", Exchange._return),
    Kind.DONE: ("", Exchange._answer),
    Kind.REPLY: ("", Exchange._answer),
    Kind.REFUSED: ("", Exchange._answer),
}
