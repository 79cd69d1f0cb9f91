"""The exchange: the server through which clients publish and subscribe, share work, call services and send messages.

    client ── put ──► Exchange._handle ──► Subscriptions, Jobs, Calls: who gets it? ──► Publications, Outbox ──► clients

Owns a server's communicator, and one thread. The thread reads the messages, and no other thread uses the state in the
other modules of this package. The end of a session comes in the order of its messages (EventOptions.end). So the
exchange handles all requests of a session before its end, and those of the client's next session after it. It reads the
heads of messages only, and passes the data on without a copy. It stores nothing: when it ends, clients connect again by
themselves, and the futures of their requests fail (netq/exchange/client.py).
"""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import netq
from netq import Delivery
from netq.errors import Closed, InvalidOption, Unreadable
from netq.exchange.calls import Call, Calls
from netq.exchange.envelope import Envelope, EnvelopeKind, Refusal, Rejected
from netq.exchange.jobs import Counts, Job, Jobs
from netq.exchange.outbox import Outbox, Unsent, size_of
from netq.exchange.permissions import Permission, Permissions
from netq.exchange.publications import Publications
from netq.exchange.topics import Subscriptions, check_name
from netq.io.condition import bounded
from netq.log import log
from netq.log import thread as log_thread
from netq.options import (
    MIB,
    CommunicatorOptions,
    ConnectionOptions,
    NetworkLocation,
    Protocol,
    Purpose,
    SerializationOptions,
)
from netq.text import printable
from netq.utils.stream import Stream
from netq.validate import check_not_forked, check_timeout, seconds, whole

_TICK = 0.25  # seconds between two checks of the connections of all clients, at least
_CHECKING = 0.02  # the part of its time that the exchange spends on these checks: with 16,000 clients one takes 50 ms
_COPIES = 100_000  # publications that may wait for one subscriber, unless the user has set queue_size
_REASON = 1024  # bytes of the reason of a refusal that are passed on
_NAMED = 250_000  # filters of all clients; and as many queues, and services
_NOUNS = {EnvelopeKind.SUBSCRIBE: "filters", EnvelopeKind.WORK: "queues", EnvelopeKind.SERVE: "services"}
_ALWAYS = 16  # filters, queues and services that a client may have, however many others have
_LOG_PERIOD = 60.0  # seconds between two lines in the log about jobs that were dropped, at least
_TAKEN = "given up for a client that holds less; ask again when there is room"
_ABSENT = "this client is not here"
_LOG_TIME = 1.0  # seconds for which `close` waits for the log's handlers, which are the user's
_END = Stream()  # EventOptions.end: stands for the end of a session


def _parse(data: Stream) -> Envelope | None:
    return None if data is _END else Envelope.parse(data)


@dataclass(frozen=True)
class ExchangeStatistics:
    """The figures of an exchange, from its start; `queues` and `services` are those of now."""

    clients: int  # that are connected
    published: int  # publications that came
    copies: int  # that went to subscribers
    dropped: int  # copies for subscribers whose queue was full (queue_size, queue_bytes), or too large for them
    done: int  # jobs
    repeated: int  # times that a job was given to another worker, because the one that had got it had ended
    queues: dict[str, Counts]
    services: dict[str, int]  # how many clients offer each


class Exchange:
    """An exchange that runs until it is closed. Thread-safe; a context manager.

    permissions: what clients may do. None: anything.
    jobs, job_memory: jobs that are not done, and bytes of their data, that it holds at most; more are refused. As many
                 bytes of calls, messages and answers may wait for all clients.
    tries:       workers that may end with a job; then the job has failed.
    calls:       messages that may be on their way to one client, and not be answered. In all 100 times as many calls.
    names:       filters, queues and services of one client, of each kind at most.
    answers:     messages that may wait for one client, besides publications and jobs; a client with more does not read,
                 and is ended. For all clients 4 times as many.
    keep:        seconds for which jobs of a client that has gone wait for a worker.
    grace:       seconds without a connection, after which a client's jobs go to others, and calls to it fail.

    Where something is bounded in all, no client is refused while another one holds more: that one's newest job or call
    is refused instead.

    Up to ConnectionOptions.queue_size and queue_bytes of publications wait for a subscriber; queue_size is 100,000 here
    unless it is set. Raises InvalidOption, and what netq.new raises.
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
        names: int = 500,
        answers: int = 100_000,
        keep: float = 3600.0,
        grace: float = 3.0,
    ) -> None:
        whole("Exchange.jobs", jobs, 1)
        whole("Exchange.job_memory", job_memory, 1)
        whole("Exchange.tries", tries, 1)
        whole("Exchange.calls", calls, 1)
        whole("Exchange.names", names, 1)
        whole("Exchange.answers", answers, 1)
        seconds("Exchange.keep", keep, 0.0)
        seconds("Exchange.grace", grace, 0.0, 86400.0)
        self._grace = grace
        self._keep = keep
        self._names = names
        self._lost = 0  # jobs that were dropped, whose producers have gone, since the last line in the log
        self._next_line = 0.0  # time.monotonic() of the next line about them
        self._permissions = Permissions(permissions)
        self._subscriptions = Subscriptions()
        self._jobs = Jobs(jobs, job_memory, tries)
        self._calls = Calls(calls)
        self._away: set[uuid.UUID] = set()  # clients without a connection for longer than `grace`
        self._warned: set[uuid.UUID] = set()  # clients about whose messages the log has a warning, in this session
        self._done = 0  # jobs
        self._next_check = 0.0  # time.monotonic() of the next check of the connections
        self._queue = netq.new(protocol, Purpose.SERVER, _own_options(options))
        self._outbox = Outbox(self._queue, answers, self._queue.options.connection.queue_bytes, job_memory)
        self._publications = Publications(self._queue, self._outbox)
        # Guards the state: `statistics` reads it in other threads. Reentrant for a signal handler on top of that.
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="netq-exchange", daemon=True)
        log_thread.attach()  # so that no handler of the user runs in this one
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
                self._publications.count,
                self._publications.copies,
                self._publications.dropped,
                self._done,
                self._jobs.repeated,
                self._jobs.counts(),
                self._calls.services(),
            )

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is closed; return whether it is."""
        check_timeout("wait", timeout)
        check_not_forked("wait()", self._queue.forked)
        self._thread.join(bounded(timeout))
        return not self._thread.is_alive()

    def close(self, timeout: float | None = None) -> None:
        """Deliver what is on its way, and end. Jobs that are not done are lost: their producers get Closed."""
        self._queue.close(timeout)
        self._thread.join()
        log_thread.flush(_LOG_TIME if timeout is None else min(timeout, _LOG_TIME))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(None if error is None else self._queue.options.connection.linger)

    # In the exchange's thread.

    def _run(self) -> None:
        while True:
            self._do_periodic_work(time.monotonic())
            try:
                client, envelope = self._queue.get(timeout=0 if self._publications.to_acknowledge else _TICK)
            except TimeoutError:
                self._publications.acknowledge_now()
            except Unreadable as error:
                self._warn(error.peer, f"a message cannot be read, and is dropped: {error}")
            except Closed:
                self._log_undone()
                return
            else:
                self._take(client, envelope)

    def _log_undone(self) -> None:
        if undone := len(self._jobs) + self._lost:
            log.warning("the exchange has closed, and its jobs that were not done are lost: %d", undone)
        log_thread.detach()

    def _do_periodic_work(self, now: float) -> None:
        for unsent in self._outbox.settle():
            with self._lock:
                self._not_sent(unsent)
        self._publications.acknowledge(now)
        if now >= self._next_check:
            self._check_connections()
            done = time.monotonic()
            self._next_check = done + max(_TICK, (done - now) / _CHECKING)

    def _take(self, client: uuid.UUID, envelope: Envelope | None) -> None:
        """Handle a message; None: the end of a session. A bug of the exchange costs one message."""
        try:
            with self._lock:
                if envelope is None:
                    self._leave(client, returns=False)
                    self._calls.caller_leaves(client, time.monotonic())
                    self._jobs.producer_leaves(client, time.monotonic())
                else:
                    self._handle(client, envelope)
        except Exception:
            what = "the end of its session" if envelope is None else envelope.kind.name
            log.exception("%s: %s cannot be handled: a defect of the exchange", client, what)
            if envelope is not None:
                self._refuse(client, envelope.number, Refusal.FAILED, "a defect of the exchange: see its log")

    def _warn(self, client: uuid.UUID | None, what: str) -> None:
        """Log a warning about a client, one for each session."""
        if client is not None and client not in self._warned:
            self._warned.add(client)
            log.warning("%s: %s", client, what)

    def _handle(self, client: uuid.UUID, envelope: Envelope) -> None:
        """Handle a message of a client. A request that is rejected is answered with REFUSED."""
        action, function = _HANDLERS.get(envelope.kind, ("", Exchange._misunderstand))
        name = envelope.name
        if is_message := envelope.kind is EnvelopeKind.CALL and not name:
            action, name = "send", str(envelope.peer)
        try:
            if action:
                if not is_message:
                    check_name(name, is_filter=action == "subscribe")
                self._permissions.check(client, action, name)
            function(self, client, envelope)
        except Rejected as rejection:
            what = f"{action}: '{printable(name)}'" if action else envelope.kind.name
            self._refuse(client, envelope.number, rejection.code, f"{what}: {rejection}")

    def _misunderstand(self, client: uuid.UUID, envelope: Envelope) -> None:
        raise Rejected(Refusal.WRONG, "not a client's message")

    def _publish(self, client: uuid.UUID, envelope: Envelope) -> None:
        self._publications.send(client, envelope, self._subscriptions.of(envelope.name))

    def _subscribe(self, client: uuid.UUID, envelope: Envelope) -> None:
        self._check_names(envelope, self._subscriptions.filters_of(client), self._subscriptions.total)
        self._subscriptions.add(client, envelope.name)
        self._confirm(client, envelope)

    def _check_names(self, envelope: Envelope, names: Collection[str], total: int) -> None:
        """Raise Rejected if a client with these filters, queues or services, of a `total`, may not have a new one."""
        if envelope.name in names:
            return
        has, noun = len(names), _NOUNS[envelope.kind]
        if has >= self._names:
            raise Rejected(Refusal.FULL, f"{self._names} {noun} are the most (names); give one up first")
        if has >= _ALWAYS and total >= _NAMED:
            raise Rejected(Refusal.FULL, f"all clients have {_NAMED} {noun}, and this one {has}; give one up first")

    def _unsubscribe(self, client: uuid.UUID, envelope: Envelope) -> None:
        self._subscriptions.remove(client, envelope.name)
        self._confirm(client, envelope)

    def _push(self, client: uuid.UUID, envelope: Envelope) -> None:
        assert envelope.data is not None
        lost, given = self._jobs.make_room(envelope.name, client, envelope.data.nbytes)
        for job in lost:
            self._lose(job)
        self._send_jobs(given)
        self._send_jobs(self._jobs.push(envelope.name, client, envelope.number, envelope.data))

    def _work(self, client: uuid.UUID, envelope: Envelope) -> None:
        if envelope.detail:
            self._check_names(envelope, self._jobs.queues_of(client), self._jobs.workers)
        self._confirm(client, envelope)
        self._send_jobs(self._jobs.work(envelope.name, client, envelope.detail))

    def _serve(self, client: uuid.UUID, envelope: Envelope) -> None:
        if envelope.detail:
            self._check_names(envelope, self._calls.services_of(client), self._calls.offers)
        self._calls.serve(envelope.name, client, envelope.detail)
        self._confirm(client, envelope)

    def _call(self, client: uuid.UUID, envelope: Envelope) -> None:
        for lost in self._calls.make_room(client):
            self._refuse_call(lost, Refusal.FULL, f"call: '{printable(lost.service)}': {_TAKEN} (calls)")
        if envelope.name:
            call = self._calls.call(envelope.name, client, envelope.number)
        elif envelope.peer in self._away:
            raise Rejected(Refusal.ABSENT, _ABSENT)
        else:
            call = self._calls.send(envelope.peer, client, envelope.number)
        try:
            self._outbox.check_room(call.server, size_of(envelope))
        except Rejected:
            self._calls.finish(call.number, call.server)
            raise
        self._send(call.server, Envelope(EnvelopeKind.REQUEST, call.number, envelope.name, client, data=envelope.data))

    def _answer(self, client: uuid.UUID, envelope: Envelope) -> None:
        """Pass the answer of a worker or a service on: the kind, or `detail` of a REFUSED, says which of the two."""
        is_refused = envelope.kind is EnvelopeKind.REFUSED
        if envelope.kind is EnvelopeKind.REPLY or (is_refused and envelope.detail):
            call = self._calls.finish(envelope.number, client)
            if call is not None and call.is_awaited:
                self._pass_on(envelope, client, call.caller, call.request)
            return
        job, more = self._jobs.finish(envelope.number, client)
        if job is not None:
            self._done += not is_refused
            if job.is_awaited:
                self._pass_on(envelope, client, job.producer, job.request)
        self._send_jobs(more)

    def _pass_on(self, answer: Envelope, client: uuid.UUID, asker: uuid.UUID, request: int) -> None:
        """Send the answer of a client to the client that has asked, if there is room for its data."""
        code, data = 0, answer.data
        if answer.kind is EnvelopeKind.DONE:
            data = None
        elif answer.kind is EnvelopeKind.REFUSED:
            code = answer.code
            if data is not None and data.nbytes > _REASON:
                data = Stream([data.read(_REASON)])  # a text for people: the rest of it is dropped
        envelope = Envelope(answer.kind, request, peer=client, code=code, data=data)
        try:
            self._outbox.check_room(asker, size_of(envelope))
        except Rejected as rejection:
            self._refuse(asker, request, rejection.code, f"the answer of {client} is dropped: {rejection}")
        else:
            self._send(asker, envelope)

    def _return(self, client: uuid.UUID, envelope: Envelope) -> None:
        self._send_jobs(self._jobs.give_back(envelope.number, client))

    def _send_jobs(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            assert job.worker is not None
            envelope = Envelope(EnvelopeKind.JOB, job.number, job.queue, job.producer, detail=job.tries, data=job.data)
            job.recall = functools.partial(_recall, self._send(job.worker, envelope))

    def _confirm(self, client: uuid.UUID, envelope: Envelope) -> None:
        self._send(client, Envelope(EnvelopeKind.DONE, envelope.number))

    def _refuse(self, client: uuid.UUID, number: int, why: Refusal, reason: str) -> None:
        self._send(client, Envelope(EnvelopeKind.REFUSED, number, code=why, data=Stream([reason.encode()])))

    def _send(self, client: uuid.UUID, envelope: Envelope) -> Delivery:
        return self._outbox.send(client, envelope)

    def _not_sent(self, unsent: Unsent) -> None:
        """Answer for a client that has not got a message, because it is too large, or the client is not here.

        Jobs for a client that is not here go to other workers at the end of its session.
        """
        client, envelope, error = unsent
        if isinstance(error, Closed):
            if (
                envelope.kind is EnvelopeKind.REQUEST
                and (call := self._calls.finish(envelope.number, client)) is not None
            ):
                self._refuse_call(call, Refusal.ABSENT, f"{client}: {_ABSENT}")
        elif envelope.kind is EnvelopeKind.REPLY:
            self._refuse(client, envelope.number, Refusal.FAILED, f"the reply is too large: {error}")
        elif envelope.kind in (EnvelopeKind.JOB, EnvelopeKind.REQUEST):
            refusal = Envelope(
                EnvelopeKind.REFUSED, envelope.number, code=Refusal.FAILED, detail=envelope.kind is EnvelopeKind.REQUEST
            )
            self._answer(client, refusal._replace(data=Stream([str(error).encode()])))

    def _check_connections(self) -> None:
        """Treat clients without a connection for more than `grace` as gone, and note those that have come back.

        Drop the jobs and calls of clients that have gone before `keep` seconds.
        """
        now = time.monotonic()
        with self._lock:
            lost, given = self._jobs.expire(now - self._keep)
            self._calls.expire(now - self._keep)
            self._send_jobs(given)
            self._lost += lost
            if self._lost and now >= self._next_line:
                log.warning(
                    "%d jobs of clients that have gone are dropped: no worker has come (keep, jobs)", self._lost
                )
                self._lost, self._next_line = 0, now + _LOG_PERIOD
        for client, each in self._queue.statistics().items():
            with self._lock:
                if each.absent > self._grace and client not in self._away:
                    self._away.add(client)
                    self._leave(client, returns=True)
                elif each.connected and client in self._away:
                    self._away.discard(client)
                    self._calls.come_back(client)
                    self._send_jobs(self._jobs.come_back(client))

    def _leave(self, client: uuid.UUID, *, returns: bool) -> None:
        """Give a client's jobs to other workers, and refuse the calls to it. `returns`: whether it may come back."""
        if not returns:
            self._away.discard(client)
            self._warned.discard(client)
            self._outbox.forget(client)
            self._publications.leave(client)
            self._subscriptions.remove_client(client)
        failed, given = self._jobs.leave(client, returns=returns)
        for job in failed:
            reason = f"push: '{printable(job.queue)}': {job.tries} workers ended with this job"
            if job.is_awaited:
                self._refuse(job.producer, job.request, Refusal.FAILED, reason)
        self._send_jobs(given)
        for call in self._calls.leave(client, returns=returns):
            what = f"call: '{printable(call.service)}'" if call.service else "send"
            self._refuse_call(call, Refusal.ABSENT, f"{what}: {client} has gone, and has not answered")

    def _refuse_call(self, call: Call, why: Refusal, reason: str) -> None:
        if call.is_awaited:
            self._refuse(call.caller, call.request, why, reason)

    def _lose(self, job: Job) -> None:
        """Refuse a job that was dropped; or count it for the log, if its producer has gone."""
        if job.is_awaited:
            reason = f"push: '{printable(job.queue)}': {_TAKEN} (jobs, job_memory)"
            self._refuse(job.producer, job.request, Refusal.FULL, reason)
        else:
            self._lost += 1


def _own_options(options: CommunicatorOptions | None) -> CommunicatorOptions:
    """Return the options of an exchange's communicator."""
    options = options or CommunicatorOptions()
    if not isinstance(options, CommunicatorOptions):
        raise InvalidOption(f"options: a {type(options).__name__}; expected CommunicatorOptions")
    connection = options.connection.with_queue_bytes(256 * MIB)
    if connection.queue_size == ConnectionOptions.queue_size:
        connection = replace(connection, queue_size=_COPIES)
    events = replace(options.events, end=_END)
    serialization = SerializationOptions(_parse, Envelope.pack)
    return replace(options, connection=connection, events=events, serialization=serialization)


def _recall(delivery: Delivery) -> bool:
    """Take a message back; return False if its client may have got it."""
    return delivery.cancel() or not delivery.left


_HANDLERS = {  # by kind: the action that permissions name, and the method that handles it
    EnvelopeKind.PUBLISH: ("publish", Exchange._publish),
    EnvelopeKind.SUBSCRIBE: ("subscribe", Exchange._subscribe),
    EnvelopeKind.UNSUBSCRIBE: ("", Exchange._unsubscribe),
    EnvelopeKind.PUSH: ("push", Exchange._push),
    EnvelopeKind.WORK: ("work", Exchange._work),
    EnvelopeKind.CALL: ("call", Exchange._call),
    EnvelopeKind.SERVE: ("serve", Exchange._serve),
    EnvelopeKind.RETURN: ("", Exchange._return),
    EnvelopeKind.DONE: ("", Exchange._answer),
    EnvelopeKind.REPLY: ("", Exchange._answer),
    EnvelopeKind.REFUSED: ("", Exchange._answer),
}
