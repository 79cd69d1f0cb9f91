"""What a client sends to its exchange: requests, and answers to jobs and calls.

    ask, want ──► Turns ──► lane 0 ──► exchange ──► answered ──► the future is done
    answer, refuse ──────► lane 1 ──► exchange

Owns the communicator of the moment, and what the client wants (filters, workers, services), which is told again in each
session. What no exchange has got when the communicator ends waits for the next one. Reads nothing:
netq/exchange/client.py does, and calls `answered`, `give` and the rest. All methods are for any thread, and none but
`close` waits. Those that ask and answer take no lock but the baton of the communicator, so finalizers and signal
handlers may call them on top of any other code.
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


class Taker(Protocol):
    """Takes what the exchange sends because the client wants it: the jobs of a queue, or the calls of a service."""

    def take(self, envelope: Envelope) -> None:
        """Take a job or a call; refuse it or give it back after `end`. Must not wait."""

    def end(self, error: Exception) -> None:
        """Take no more. The error says why. Harmless if it has ended."""


class _Wanted(NamedTuple):
    """What is told to the exchange in each session, and what takes what comes of it."""

    envelope: Envelope
    taker: Taker | None


class Uplink:
    """The requests and answers of a client. `queue`: its communicator, replaced by a thread that holds `turns`."""

    queue: Communicator

    def __init__(self, serialization: SerializationOptions) -> None:
        self._serializer = Serializer(serialization.dump, serialization.load)
        self.turns = Turns()  # requests are put in turn, so that they leave in the order of their numbers
        self.user_code = UserCode()
        self._requests = Requests(self.user_code)
        self._wanted: dict[tuple[EnvelopeKind, str], _Wanted] = {}
        self._unsent: deque[Request] = deque()  # which no exchange has got, and whose communicator has ended
        self._later: deque[Callable[[], object]] = deque()  # what resends what had no room
        self.is_over = False  # there will be no further communicator: what the present one cannot deliver fails

    # Requests.

    def ask(
        self,
        envelope: Envelope,
        failed: Callable[[Exception], bool] | None = None,
        is_due: Callable[[], bool] | None = None,
    ) -> Future[Any]:
        """Send a request. Return the future of its answer; `failed` is called before that has an error.

        If `is_due` returns False when its turn comes, it is not sent, and done.
        """
        self.check_not_forked("put()")
        request = Request(envelope, self.queue, failed, is_due)
        future = request.future  # referred to here, because it may fail before the caller has it
        self.turns.add(functools.partial(self._put, request))
        return future

    def want(self, envelope: Envelope, taker: Taker | None = None) -> Future[Any] | None:
        """Ask for something, now and in each session. `taker` ends if the exchange refuses it, or with the client.

        Return None if there is a taker for it already.
        """
        key, wanted = (envelope.kind, envelope.name), _Wanted(envelope, taker)
        found = self._wanted.setdefault(key, wanted)
        if found is not wanted and taker is not None:
            return None
        if self.is_over:
            self._end_takers()
        return self.ask(envelope, functools.partial(self._not_wanted, found))

    def withdraw(self, kind: EnvelopeKind, envelope: Envelope) -> Future[Any]:
        """Want something no more, and ask the exchange for that, unless it is wanted again by then."""
        key = kind, envelope.name
        self._wanted.pop(key, None)
        return self.ask(envelope, is_due=lambda: key not in self._wanted)

    def wanted(self, kind: EnvelopeKind) -> list[str]:
        """Return the names of what is wanted of a kind: SUBSCRIBE, WORK or SERVE."""
        return [name for of, name in list(self._wanted) if of is kind]

    def taker(self, kind: EnvelopeKind, name: str) -> Taker | None:
        """Return what takes the jobs of this queue (WORK), or the calls of this service (SERVE)."""
        found = self._wanted.get((kind, name))
        return None if found is None else found.taker

    def check_not_forked(self, name: str) -> None:
        """Raise RuntimeError in a fork of the client's process."""
        check_not_forked(name, self.queue.forked)

    def is_unanswered(self) -> bool:
        """Return whether the exchange has got a request that it answers at once, and has not answered it."""
        return self._requests.is_late()

    def _not_wanted(self, wanted: _Wanted, error: Exception) -> bool:
        """Forget what the exchange has refused. After Closed it is told to the next one."""
        if isinstance(error, Closed):
            return True
        key = wanted.envelope.kind, wanted.envelope.name
        if self._wanted.get(key) is wanted:
            self._wanted.pop(key, None)
        if wanted.taker is not None:
            wanted.taker.end(error)
        return wanted.envelope.kind is EnvelopeKind.WORK  # Worker.get raises it

    def _not_told(self, wanted: _Wanted, error: Exception) -> bool:
        if isinstance(error, errors.QueueFull):
            self._later.append(functools.partial(self.turns.add, functools.partial(self._tell, wanted)))
        elif not isinstance(error, Closed):
            self._not_wanted(wanted, error)
            log.warning("the exchange refuses: %s", error)
        return True

    # In turn: one at a time.

    def _put(self, request: Request) -> None:
        """Put a request, if it is still due."""
        if request.is_due is not None and not request.is_due():
            self._defer(request.settle)
            return
        request.future.queue, request.delivery = self.queue, None
        number = self._requests.add(request)
        try:
            envelope = request.envelope._replace(number=number)
            request.delivery = delivery = self.queue.put(envelope, lane=_REQUESTS)
            delivery.add_done_callback(functools.partial(self._was_put, request))
        except BaseException as error:  # of a signal handler; the caller may not be the one who has asked
            self._defer(
                self._requests.settle, request, None, Closed(self.queue.id, f"it was interrupted: {describe(error)}")
            )
            raise

    def _tell(self, wanted: _Wanted) -> None:
        """Tell the exchange what is wanted, if it still is."""
        if self._wanted.get((wanted.envelope.kind, wanted.envelope.name)) is wanted:
            self._put(Request(wanted.envelope, self.queue, functools.partial(self._not_told, wanted)))

    def _session_begun(self) -> None:
        for key in list(self._wanted):
            if (wanted := self._wanted.get(key)) is not None:
                self._tell(wanted)
        self._put_unsent(None)

    def _put_unsent(self, over: Communicator | None) -> None:
        """Put again what no exchange has got. What was put by the communicator `over` waits for the next one."""
        unsent = [self._unsent.popleft() for _ in range(len(self._unsent))]
        for request in sorted(unsent, key=attrgetter("number")):
            if request.future.queue is over:
                self._unsent.append(request)
            else:
                self._put(request)

    def _session_over(self, exchange: uuid.UUID) -> None:
        for request in self._requests.delivered():
            error = Closed(exchange, "the exchange has ended before it had answered")
            self._defer(self._requests.settle, request, None, error)

    # How puts have ended: in a thread of netq, or in that of the turn.

    def _was_put(self, request: Request, put: Future[None]) -> None:
        """Release the data of a request that an exchange has got. Ask the next one if it has not; or fail."""
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
            # The thread of the turn may hold a baton, or locks of a user who has not asked this.
            self._defer(self._requests.settle, request, None, error)
        self._room_came(error)

    def _fail_unsent(self) -> None:
        while self._unsent:
            request = self._unsent.popleft()
            self._defer(request.settle, None, self._closed())

    def _defer(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function, which may run the user's callbacks, in a thread of netq; here if there is none any more.

        Not in turn: `close` of a client waits for that, and a callback may block.
        """
        self.queue.call_soon(self.turns.add_later, functools.partial(self._call, function, arguments))

    def _call(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        with self.user_code.here():
            function(*arguments)

    # What comes from the exchange.

    def answered(self, envelope: Envelope) -> None:
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

    def give(self, kind: EnvelopeKind, envelope: Envelope) -> bool:
        """Give a job or a call to what takes it; return whether there is such a thing."""
        taker = self.taker(kind, envelope.name)
        if taker is not None:
            taker.take(envelope)
        return taker is not None

    def session_begins(self) -> None:
        """Tell the exchange what is wanted. Before any message of the exchange."""
        self.turns.add(self._session_begun)

    def session_ends(self, exchange: uuid.UUID) -> None:
        """Fail what the exchange has got and not answered."""
        # In turn: the delivery of each request is known.
        self.turns.add(functools.partial(self._session_over, exchange))

    def wait_for_answers(self, timeout: float | None) -> None:
        """Wait until the exchange has answered all that it answers at once, while it is connected."""
        self._requests.wait(lambda: not self.queue.connected, timeout)

    # For the client's thread, while it holds `turns`.

    def close(self, timeout: float) -> None:
        """Close the communicator, and fail what the exchange has got and not answered."""
        self.queue.close(timeout)
        for request in self._requests.delivered():
            error = Closed(self.queue.id, "the exchange has closed, or this client")
            self._defer(self._requests.settle, request, None, error)

    def connected(self, queue: Communicator) -> None:
        """Use a new communicator from now on."""
        self.queue = queue
        self._put_unsent(None)

    def end(self) -> None:
        """Let all takers end: there will be no exchange any more."""
        self.is_over = True
        self._end_takers()
        self._fail_unsent()

    def _end_takers(self) -> None:
        for key in list(self._wanted):
            wanted = self._wanted.pop(key, None)
            if wanted is not None and wanted.taker is not None:
                wanted.taker.end(self._closed())

    def _closed(self) -> Closed:
        return Closed(self.queue.id, "this client is closed")

    # Answers.

    def answer(self, request: Envelope, answer: Envelope) -> None:
        """Answer a job or a call. `detail` of a refusal says which of them."""
        envelope = answer._replace(number=request.number, detail=int(request.kind is EnvelopeKind.REQUEST))
        if (
            envelope.kind is EnvelopeKind.RETURN
        ):  # follows the WORK that ends its worker, or the job comes to this client again
            self.turns.add(functools.partial(self._send, envelope, _REQUESTS))
        else:
            self._send(envelope, _ANSWERS)

    def refuse(self, request: Envelope, why: Refusal, reason: str) -> None:
        """Refuse a job or a call."""
        self.answer(request, Envelope(EnvelopeKind.REFUSED, code=why, data=Stream([printable(reason).encode()])))

    def _send(self, envelope: Envelope, lane: int) -> None:
        self.queue.put(envelope, lane=lane).add_done_callback(functools.partial(self._was_sent, envelope, lane))

    def _was_sent(self, envelope: Envelope, lane: int, delivery: Future[None]) -> None:
        """Send an answer again that had no room, and a refusal for one that is too large."""
        error = None if delivery.cancelled() else delivery.exception()
        if isinstance(error, errors.MessageTooLarge):
            reason = Stream([f"the reply is too large: {error}".encode()])
            self._send(envelope._replace(kind=EnvelopeKind.REFUSED, code=Refusal.FAILED, data=reason), lane)
        elif isinstance(error, errors.QueueFull):
            self._later.append(functools.partial(self._send, envelope, lane))
        self._room_came(error)

    def _room_came(self, error: BaseException | None) -> None:
        if error is None and self._later:
            self.send_again()

    def send_again(self) -> None:
        """Send again what had no room. Called when something was delivered, and each second or so."""
        for _ in range(len(self._later)):
            try:
                send = self._later.popleft()
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
    if refusal.peer.int:  # of a worker or a service; others come from the exchange, and name what they refuse
        reason = f"{printable(request.name) or request.peer}: {reason}"
    return _ERRORS.get(refusal.code, errors.Refused)(reason)
