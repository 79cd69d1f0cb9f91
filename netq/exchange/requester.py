"""Sends the requests of a client to its exchange, and the answers to jobs and calls.

    ask, register ───► Turns ──► lane 0 ──► exchange ──► handle_answer ──► the future is done
    answer, refuse ────────────► lane 1 ──► exchange

Owns the client's communicator, the open requests, and the registrations: the filters, queues and services that the
client announces in each session. A request that no exchange has got when the communicator ends waits for the next
communicator. Reads no messages: netq/exchange/client.py does, and calls `handle_answer`, `deliver` and the methods for
its thread. Any thread may call the other methods, and none of them waits. Finalizers and signal handlers may call those
that ask and answer on top of any other code, because they take no lock but the communicator's baton.
"""

from __future__ import annotations

import functools
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, cast

from netq import Communicator, Delivery, errors
from netq.errors import Closed, Unreadable
from netq.exchange.envelope import UP_TO, Envelope, EnvelopeKind, Refusal
from netq.exchange.requests import Request, Requests, UserCode
from netq.exchange.turns import Turns
from netq.io.interrupts import raised_by_handler
from netq.log import log
from netq.options import SerializationOptions
from netq.text import describe, printable
from netq.utils.serializer import Serializer
from netq.utils.stream import Stream
from netq.validate import check_not_forked

_REQUESTS, _ANSWERS = 0, 1  # lanes: answers pass publications and jobs
_ERRORS: dict[int, type[errors.Refused]] = {
    Refusal.NOT_PERMITTED: errors.NotPermitted,
    Refusal.FULL: errors.Busy,
    Refusal.ABSENT: errors.Absent,
    Refusal.FAILED: errors.Failed,
}


class Consumer(Protocol):
    """Takes the jobs of a queue, or the calls of a service."""

    def take(self, envelope: Envelope) -> None:
        """Take a job or a call. After `end`, give the job back, or refuse the call. Must not wait."""

    def end(self, error: Exception) -> None:
        """Take no more. The error says why. Harmless if it has ended."""


class _Registration(NamedTuple):
    """A filter, a queue or a service that the client announces in each session."""

    envelope: Envelope  # SUBSCRIBE, WORK or SERVE
    consumer: Consumer | None


class Requester:
    """The requests and answers of a client. `queue`: its communicator. Only a thread that holds `turns` replaces it."""

    queue: Communicator

    def __init__(self, serialization: SerializationOptions) -> None:
        self._serializer = Serializer(serialization.dump, serialization.load)
        self.turns = Turns()  # requests are put in turn, so that they leave in the order of their numbers
        self.user_code = UserCode()
        self._requests = Requests(self.user_code)
        self._registrations: dict[tuple[EnvelopeKind, str], _Registration] = {}  # by kind, and name
        self._unsent: deque[Request] = deque()  # that no exchange has got, and whose communicator has ended
        self._resends: deque[Callable[[], object]] = deque()  # send messages again for which the queue had no room
        self.is_over = False  # there will be no other communicator: what this one does not deliver fails

    # Requests.

    def ask(
        self,
        envelope: Envelope,
        failed: Callable[[Exception], bool] | None = None,
        is_due: Callable[[], bool] | None = None,
    ) -> Future[Any]:
        """Send a request, and return the future of its answer. `failed` and `is_due` are those of Request."""
        self.check_not_forked("put()")
        request = Request(envelope, self.queue, failed, is_due)
        future = request.future  # referred to here, because it may fail before the caller has it
        self.turns.add(functools.partial(self._put, request))
        return future

    def register(self, envelope: Envelope, consumer: Consumer | None = None) -> Future[Any] | None:
        """Announce a filter, a queue or a service, now and in each session. Return the future of the first answer.

        `consumer` takes the jobs or calls. It ends if the exchange refuses the registration, and with the client.
        Return None if there is a consumer already.
        """
        key, registration = (envelope.kind, envelope.name), _Registration(envelope, consumer)
        found = self._registrations.setdefault(key, registration)
        if found is not registration and consumer is not None:
            return None
        if self.is_over:
            self._end_consumers()
        return self.ask(envelope, functools.partial(self._refused, found))

    def unregister(self, kind: EnvelopeKind, envelope: Envelope) -> Future[Any]:
        """Remove a registration of a kind, and send the exchange a request that ends it.

        The request is not sent if the same is registered again before its turn comes.
        """
        key = kind, envelope.name
        self._registrations.pop(key, None)
        return self.ask(envelope, is_due=lambda: key not in self._registrations)

    def registered(self, kind: EnvelopeKind) -> list[str]:
        """Return the names that are registered of a kind: SUBSCRIBE, WORK or SERVE."""
        return [name for each, name in list(self._registrations) if each is kind]

    def consumer(self, kind: EnvelopeKind, name: str) -> Consumer | None:
        """Return the consumer of the jobs of a queue (WORK), or of the calls of a service (SERVE)."""
        found = self._registrations.get((kind, name))
        return None if found is None else found.consumer

    def check_not_forked(self, name: str) -> None:
        """Raise RuntimeError in a fork of the client's process."""
        check_not_forked(name, self.queue.forked)

    def is_unanswered(self) -> bool:
        """Return whether the exchange owes an answer to a request that it answers at once."""
        return self._requests.is_late()

    def _refused(self, registration: _Registration, error: Exception) -> bool:
        """Remove a registration that has failed, unless the session was lost: the next one announces it again.

        Return whether the user learns of the error without the future.
        """
        if isinstance(error, Closed):
            return True
        key = registration.envelope.kind, registration.envelope.name
        if self._registrations.get(key) is registration:
            self._registrations.pop(key, None)
        if registration.consumer is not None:
            registration.consumer.end(error)
        return registration.envelope.kind is EnvelopeKind.WORK  # Worker.get raises it

    def _not_announced(self, registration: _Registration, error: Exception) -> bool:
        """Handle the failure of an announcement in a later session, which has no future of the user."""
        if isinstance(error, errors.QueueFull):
            self._resends.append(functools.partial(self.turns.add, functools.partial(self._announce, registration)))
        elif not isinstance(error, Closed):
            self._refused(registration, error)
            log.warning("the exchange refuses: %s", error)
        return True

    # In turn: one at a time.

    def _put(self, request: Request) -> None:
        """Put a request, if it is still due."""
        if request.is_due is not None and not request.is_due():
            self._settle_later(request.settle)
            return
        request.future.queue, request.delivery = self.queue, None
        number = self._requests.add(request)
        try:
            envelope = request.envelope._replace(number=number)
            request.delivery = delivery = self.queue.put(envelope, lane=_REQUESTS)
            delivery.add_done_callback(functools.partial(self._was_put, request))
        except BaseException as error:  # of a signal handler; the caller may run the request of another thread
            self._settle_later(
                self._requests.settle, request, None, Closed(self.queue.id, f"it was interrupted: {describe(error)}")
            )
            raise

    def _announce(self, registration: _Registration) -> None:
        """Put a registration, if it is still there."""
        if self._registrations.get((registration.envelope.kind, registration.envelope.name)) is registration:
            self._put(Request(registration.envelope, self.queue, functools.partial(self._not_announced, registration)))

    def _session_begun(self) -> None:
        for key in list(self._registrations):
            if (registration := self._registrations.get(key)) is not None:
                self._announce(registration)
        self._put_unsent(None)

    def _put_unsent(self, over: Communicator | None) -> None:
        """Put the requests again that no exchange has got, but not those that the communicator `over` has put."""
        unsent = [self._unsent.popleft() for _ in range(len(self._unsent))]
        for request in sorted(unsent, key=attrgetter("number")):
            if request.future.queue is over:
                self._unsent.append(request)
            else:
                self._put(request)

    def _session_over(self, exchange: uuid.UUID) -> None:
        for request in self._requests.delivered():
            error = Closed(exchange, "the exchange has ended before it had answered")
            self._settle_later(self._requests.settle, request, None, error)

    # When a delivery is done: in a thread of netq, or in the thread of the turn.

    def _was_put(self, request: Request, put: Future[None]) -> None:
        """Release the data of a request that was delivered. Put one again that no exchange has got; fail others."""
        delivery = cast(Delivery, put)
        error = Closed(self.queue.id, "it was cancelled") if delivery.cancelled() else delivery.exception()
        if error is None:
            if request.envelope.kind is not EnvelopeKind.PUBLISH:  # which is answered at once
                request.envelope = request.envelope._replace(data=None)
        elif isinstance(error, Closed) and not delivery.left and self._requests.forget(request):
            self._unsent.append(request)
            if self.is_over:
                self._fail_unsent()
            else:
                self.turns.add(lambda: self._put_unsent(self.queue))
        else:
            # Not here: the thread of the turn may hold a baton, or locks of a user who has made another request.
            self._settle_later(self._requests.settle, request, None, error)
        self._resend_if_room(error)

    def _fail_unsent(self) -> None:
        while self._unsent:
            request = self._unsent.popleft()
            self._settle_later(request.settle, None, self._closed())

    def _settle_later(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function that settles a future, and so may run the user's callbacks, in a thread of netq.

        Out of turn: `close` of a client waits for the turn, and a callback may block.
        """
        self.queue.call_soon(self.turns.add_later, functools.partial(self._call, function, arguments))

    def _call(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        with self.user_code.here():
            function(*arguments)

    # For messages of the exchange.

    def handle_answer(self, envelope: Envelope) -> None:
        """Settle the future that a DONE, REPLY or REFUSED answers."""
        number = envelope.number
        if envelope.kind is EnvelopeKind.DONE and envelope.code == UP_TO:
            self._requests.settle_publications(number)
        elif (request := self._requests.get(number)) is None:
            return
        elif envelope.kind is EnvelopeKind.REFUSED:
            self._requests.settle(request, error=_error(request.envelope, envelope))
        elif envelope.kind is EnvelopeKind.REPLY and request.envelope.name:
            reply = envelope._replace(name=request.envelope.name)
            try:
                data = self.loaded(reply)
            except BaseException as error:  # the user's serialiser: not even sys.exit may end the client's thread
                unreadable = error if isinstance(error, Unreadable) else _unreadable(reply, error)
                self._requests.settle(request, error=unreadable)
            else:
                self._requests.settle(request, data)
        else:
            self._requests.settle(request)

    def deliver(self, kind: EnvelopeKind, envelope: Envelope) -> bool:
        """Give a job (WORK) or a call (SERVE) to its consumer; return False if there is none."""
        consumer = self.consumer(kind, envelope.name)
        if consumer is not None:
            consumer.take(envelope)
        return consumer is not None

    def session_begins(self) -> None:
        """Announce the registrations. Called before any message of the exchange is read."""
        self.turns.add(self._session_begun)

    def session_ends(self, exchange: uuid.UUID) -> None:
        """Fail the requests that the exchange has got and not answered."""
        # In turn: no request is being put, so the delivery of each is known.
        self.turns.add(functools.partial(self._session_over, exchange))

    def wait_for_answers(self, timeout: float | None) -> None:
        """Wait for the answers to requests that the exchange answers at once, while there is a connection."""
        self._requests.wait(lambda: not self.queue.connected, timeout)

    # For the client's thread, while it holds `turns`.

    def close(self, timeout: float) -> None:
        """Close the communicator, and fail the requests that the exchange has got and not answered."""
        self.queue.close(timeout)
        for request in self._requests.delivered():
            error = Closed(self.queue.id, "the exchange has closed, or this client")
            self._settle_later(self._requests.settle, request, None, error)

    def use(self, queue: Communicator) -> None:
        """Use a new communicator from now on."""
        self.queue = queue
        self._put_unsent(None)

    def end(self) -> None:
        """End all consumers, and fail the requests that no exchange has got: there will be no other communicator."""
        self.is_over = True
        self._end_consumers()
        self._fail_unsent()

    def _end_consumers(self) -> None:
        for key in list(self._registrations):
            registration = self._registrations.pop(key, None)
            if registration is not None and registration.consumer is not None:
                registration.consumer.end(self._closed())

    def _closed(self) -> Closed:
        return Closed(self.queue.id, "this client is closed")

    # Answers to jobs and calls.

    def answer(self, request: Envelope, answer: Envelope) -> None:
        """Answer a job or a call."""
        # `detail` of a REFUSED says whether it is for a call.
        envelope = answer._replace(number=request.number, detail=int(request.kind is EnvelopeKind.REQUEST))
        if envelope.kind is EnvelopeKind.RETURN:  # behind the WORK that ends its worker, or the job would come back
            self.turns.add(functools.partial(self._send, envelope, _REQUESTS))
        else:
            self._send(envelope, _ANSWERS)

    def refuse(self, request: Envelope, why: Refusal, reason: str) -> None:
        """Refuse a job or a call."""
        self.answer(request, Envelope(EnvelopeKind.REFUSED, code=why, data=Stream([printable(reason).encode()])))

    def _send(self, envelope: Envelope, lane: int) -> None:
        self.queue.put(envelope, lane=lane).add_done_callback(functools.partial(self._was_sent, envelope, lane))

    def _was_sent(self, envelope: Envelope, lane: int, delivery: Future[None]) -> None:
        """Have an answer sent again that had no room. Send a refusal in place of one that is too large."""
        error = None if delivery.cancelled() else delivery.exception()
        if isinstance(error, errors.MessageTooLarge):
            reason = Stream([f"the reply is too large: {error}".encode()])
            self._send(envelope._replace(kind=EnvelopeKind.REFUSED, code=Refusal.FAILED, data=reason), lane)
        elif isinstance(error, errors.QueueFull):
            self._resends.append(functools.partial(self._send, envelope, lane))
        self._resend_if_room(error)

    def _resend_if_room(self, error: BaseException | None) -> None:
        if error is None and self._resends:
            self.resend()

    def resend(self) -> None:
        """Send the messages again that had no room. Called when a message was delivered, and each second or so."""
        for _ in range(len(self._resends)):
            try:
                send = self._resends.popleft()
            except IndexError:  # another thread was faster
                return
            send()

    # The user's data.

    def dumped(self, data: Any) -> Stream:
        """Serialise. Raises what the user's serialiser raises."""
        return self._serializer.dump(data)

    def loaded(self, envelope: Envelope) -> Any:
        """Load the data of a message. Raises Unreadable (or NotAllowed), which names the message and its sender."""
        try:
            return self._serializer.load(Stream() if envelope.data is None else envelope.data)
        except Exception as error:  # the user's serialiser may raise anything
            if (interruption := raised_by_handler(error)) is not None:
                raise interruption from interruption.__cause__
            raise _unreadable(envelope, error) from error


def _unreadable(envelope: Envelope, error: BaseException) -> Unreadable:
    kind = errors.NotAllowed if isinstance(error, errors.NotAllowed) else Unreadable
    reason = error if isinstance(error, Unreadable) else describe(error)
    what = f"'{printable(envelope.name)}'" if envelope.name else "a message"
    unreadable = kind(f"{what}: data of {envelope.peer} cannot be loaded: {reason}")
    unreadable.peer = envelope.peer
    return unreadable


def _error(request: Envelope, refusal: Envelope) -> errors.Refused:
    reason = printable(bytes(refusal.data or Stream()).decode(errors="replace"))
    if refusal.peer.int:  # a worker or a service refuses; a reason of the exchange itself names the request
        reason = f"{printable(request.name) or request.peer}: {reason}"
    return _ERRORS.get(refusal.code, errors.Refused)(reason)
