"""What a client sends to its exchange: requests, and answers to jobs and calls.

    ask, want ──► lane 0 ──► exchange ──► answered ──► the future is done
    answer, refuse ──► lane 1 ──► exchange

Owns the communicator of the moment, and what the client wants (filters, workers, services), which is told again in each
session. Reads nothing: netq/exchange/client.py does, and calls `answered`, `give` and the rest. All methods are for any
thread, and none but `close` waits.
"""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from netq import errors
from netq.core import Communicator
from netq.errors import Closed, Unreadable
from netq.exchange.envelope import UP_TO, Envelope, Kind, Refusal
from netq.exchange.requests import Request, Requests, UserCode
from netq.log import log
from netq.options import SerializationOptions
from netq.text import printable
from netq.utils.stream import Stream, stream_of

_REQUESTS, _ANSWERS = 0, 1  # lanes: answers pass publications and jobs
_AGAIN = 0.1  # seconds after which is sent again what the communicator's queue had no room for
_ERRORS: dict[int, type[errors.Refused]] = {
    Refusal.NOT_PERMITTED: errors.NotPermitted,
    Refusal.FULL: errors.Busy,
    Refusal.ABSENT: errors.Absent,
    Refusal.FAILED: errors.Failed,
}


class Taker(Protocol):
    """Takes what the exchange sends because the client wants it: the jobs of a queue, or the calls of a service."""

    def take(self, envelope: Envelope) -> None:
        """Take a job or a call. Must not wait."""

    def end(self, error: Exception) -> None:
        """Take no more. The error says why. Harmless if it has ended."""


class _Wanted(NamedTuple):
    """What is told to the exchange in each session, and what takes what comes of it."""

    envelope: Envelope
    taker: Taker | None


class Uplink:
    """The requests and answers of a client. `queue`: its communicator, which the client replaces."""

    queue: Communicator

    def __init__(self, serialization: SerializationOptions) -> None:
        self._dump, self._load = serialization.dump, serialization.load
        # Held while requests are put, so that they leave in the order of their numbers, and while what is wanted
        # changes and is told. Reentrant: `put` may run callbacks when its loop is over. Guards `queue` and `_wanted`.
        self.sending = threading.RLock()
        self._wanted: dict[tuple[Kind, str], _Wanted] = {}
        self._is_over = False
        self.user_code = UserCode()
        self._requests = Requests(self.user_code)
        self._lock = threading.Lock()  # guards `_later`
        self._later: list[Callable[[], object]] = []  # what sends again that for which there was no room

    # Requests.

    def ask(self, envelope: Envelope, failed: Callable[[Exception], object] | None = None) -> Future[Any]:
        """Send a request. Return the future of its answer; `failed` is called before that has an error."""
        request = Request(envelope, failed)
        with self.sending:
            number = self._requests.add(request)
            request.delivery = delivery = self.queue.put(envelope._replace(number=number), lane=_REQUESTS)
        delivery.add_done_callback(functools.partial(self._was_put, number))
        return request.future

    def want(self, envelope: Envelope, taker: Taker | None = None) -> Future[Any]:
        """Ask for something, now and in each session. `taker` ends if the exchange refuses it, or with the client."""
        wanted = _Wanted(envelope, taker)
        with self.sending:
            if not self._is_over:
                self._wanted[envelope.kind, envelope.name] = wanted
            elif taker is not None:
                taker.end(self._closed())
            return self.ask(envelope, functools.partial(self._not_wanted, wanted))

    def wanted(self, kind: Kind) -> dict[str, Taker | None]:
        """Return what is wanted of a kind, by name: SUBSCRIBE, WORK or SERVE."""
        with self.sending:
            return {name: wanted.taker for (of, name), wanted in self._wanted.items() if of is kind}

    def taker(self, kind: Kind, name: str) -> Taker | None:
        """Return what takes the jobs of this queue (WORK), or the calls of this service (SERVE)."""
        with self.sending:
            found = self._wanted.get((kind, name))
            return None if found is None else found.taker

    def forget(self, kind: Kind, name: str) -> None:
        """Want something no more. The caller asks the exchange for that, and holds `sending`."""
        self._wanted.pop((kind, name), None)

    def is_unanswered(self) -> bool:
        """Return whether the exchange has got a request that it answers at once, and has not answered it."""
        return self._requests.is_late()

    def _not_wanted(self, wanted: _Wanted, error: Exception) -> None:
        """Forget what the exchange has refused. After Closed it is told to the next one."""
        if isinstance(error, Closed):
            return
        key = wanted.envelope.kind, wanted.envelope.name
        with self.sending:
            if self._wanted.get(key) is wanted:
                self.forget(*key)
        if wanted.taker is not None:
            wanted.taker.end(error)

    def _tell(self, wanted: _Wanted) -> None:
        """Tell the exchange what is wanted, if it still is."""
        with self.sending:
            if self._wanted.get((wanted.envelope.kind, wanted.envelope.name)) is wanted:
                self.ask(wanted.envelope, functools.partial(self._not_told, wanted))

    def _not_told(self, wanted: _Wanted, error: Exception) -> None:
        if isinstance(error, errors.QueueFull):
            self._try_later(functools.partial(self._tell, wanted))
        elif not isinstance(error, Closed):
            self._not_wanted(wanted, error)
            log.warning("the exchange refuses: %s", error)

    def _was_put(self, number: int, delivery: Future[None]) -> None:
        """Fail what could not be asked. In a thread of netq."""
        error = Closed(self.queue.id, "it was cancelled") if delivery.cancelled() else delivery.exception()
        if error is not None:
            assert isinstance(error, Exception)
            self._requests.settle(number, error=error)

    # What comes from the exchange.

    def answered(self, envelope: Envelope) -> None:
        """Settle the future that a DONE, REPLY or REFUSED answers."""
        number = envelope.number
        if envelope.kind is Kind.DONE and envelope.code == UP_TO:
            self._requests.settle_publications(number)
        elif (request := self._requests.get(number)) is None:
            return
        elif envelope.kind is Kind.REFUSED:
            self._requests.settle(number, error=_error(request.envelope, envelope))
        elif envelope.kind is Kind.REPLY and request.envelope.name:
            try:
                self._requests.settle(number, self.loaded(envelope._replace(name=request.envelope.name)))
            except Unreadable as error:
                self._requests.settle(number, error=error)
        else:
            self._requests.settle(number)

    def give(self, kind: Kind, envelope: Envelope) -> bool:
        """Give a job or a call to what takes it; return whether there is such a thing."""
        with self.sending:  # so that it does not end in between
            taker = self.taker(kind, envelope.name)
            if taker is not None:
                taker.take(envelope)
        return taker is not None

    def session_begins(self) -> None:
        """Tell the exchange what is wanted. Before any message of the exchange."""
        with self.sending:
            for wanted in list(self._wanted.values()):
                self._tell(wanted)

    def session_ends(self, exchange: uuid.UUID) -> None:
        """Fail what the exchange has got and not answered."""
        with self.sending:  # so that the delivery of each request is known
            lost = self._requests.delivered()
        for number in lost:
            self._requests.settle(number, error=Closed(exchange, "the exchange has ended before it had answered"))

    def close(self, timeout: float) -> None:
        """Close the communicator, and fail what is not answered."""
        self.queue.close(timeout)  # what is put from here on fails by itself
        self._requests.fail(lambda: Closed(self.queue.id, "the exchange has closed, or this client"))

    def end(self) -> None:
        """Let all takers end: there will be no exchange any more."""
        with self.sending:
            self._is_over = True
            wanted, self._wanted = self._wanted, {}
        for each in wanted.values():
            if each.taker is not None:
                each.taker.end(self._closed())

    def _closed(self) -> Closed:
        return Closed(self.queue.id, "this client is closed")

    # Answers.

    def answer(self, request: Envelope, answer: Envelope) -> None:
        """Answer a job or a call. `detail` of a refusal says which of them."""
        self._send(answer._replace(number=request.number, detail=int(request.kind is Kind.REQUEST)))

    def refuse(self, request: Envelope, why: Refusal, reason: str) -> None:
        """Refuse a job or a call."""
        self.answer(request, Envelope(Kind.REFUSED, code=why, data=Stream([printable(reason).encode()])))

    def _send(self, envelope: Envelope) -> None:
        # A RETURN follows the WORK that ends its worker, so that the exchange does not give this client the job again.
        lane = _REQUESTS if envelope.kind is Kind.RETURN else _ANSWERS
        self.queue.put(envelope, lane=lane).add_done_callback(functools.partial(self._was_sent, envelope))

    def _was_sent(self, envelope: Envelope, delivery: Future[None]) -> None:
        """Send an answer again that had no room, and a refusal for one that is too large. In a thread of netq."""
        error = None if delivery.cancelled() else delivery.exception()
        if isinstance(error, errors.MessageTooLarge):
            reason = Stream([f"the reply is too large: {error}".encode()])
            self._send(envelope._replace(kind=Kind.REFUSED, code=Refusal.FAILED, data=reason))
        elif isinstance(error, errors.QueueFull):
            self._try_later(functools.partial(self._send, envelope))

    def _try_later(self, send: Callable[[], object]) -> None:
        with self._lock:
            self._later.append(send)
            is_first = len(self._later) == 1
        if is_first:
            again = threading.Timer(_AGAIN, self._send_again)
            again.daemon = True
            again.start()

    def _send_again(self) -> None:
        with self._lock:
            later, self._later = self._later, []
        for send in later:
            send()

    # The user's data.

    def dumped(self, data: Any) -> Stream:
        """Serialise. Raises what the user's serialiser raises."""
        return stream_of(self._dump(data), self._dump)

    def loaded(self, envelope: Envelope) -> Any:
        """Load the data of a message. Raises Unreadable (or NotAllowed), which names the message and its sender."""
        try:
            return self._load(Stream() if envelope.data is None else envelope.data)
        except Exception as error:  # the user's serialiser may raise anything
            kind = errors.NotAllowed if isinstance(error, errors.NotAllowed) else Unreadable
            reason = error if isinstance(error, Unreadable) else repr(error)
            what = f"'{printable(envelope.name)}'" if envelope.name else "a message"
            unreadable = kind(f"{what}: data of {envelope.peer} cannot be loaded: {reason}")
            unreadable.peer = envelope.peer
            raise unreadable from error


def _error(request: Envelope, refusal: Envelope) -> errors.Refused:
    reason = printable(bytes(refusal.data or Stream()).decode(errors="replace"))
    if refusal.peer.int:  # of a worker or a service; others come from the exchange, and name what they refuse
        reason = f"{printable(request.name) or request.peer}: {reason}"
    return _ERRORS.get(refusal.code, errors.Refused)(reason)
