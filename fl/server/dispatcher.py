"""Tracks the tasks that peers were given, until each task has an answer or can no longer get one.

Used by fl/server/members.py in the server's thread, and by fl/flower/grid.py in any thread. Owns the communicator.
Its user knows what a task asks and what a reply says; the dispatcher knows neither.

A task fails, with a ClientFailure as its answer, if

    LATE        the peer has not answered within the task's time limit; or, if its late answer is accepted, it has had
                no connection for longer than `grace`
    LOST        the peer has left, or has had no connection for longer than `grace`; or the task cannot be sent to it
    FAILED      the task is larger than the peer takes
    UNREADABLE  the peer sent a message that cannot be read, or so many others that it was cut off

A peer that was started again gets its task again, 3 times at most, if it is one of the last `ask`: earlier ones are
LOST. So the dispatcher keeps the data of one `ask`, and no old model.

A peer that takes too much of the reader's time with messages that cannot be read, or that were not asked for, is cut
off for a while (fl/server/allowance.py).

docs/reference/fl.md ("When the server gives a client up") has these rules for users.

Messages are read only while a thread waits in `take`, and in `read`. If several threads wait, one of them reads for
all. Unread messages stay in the communicator, where its flow control bounds them, so the dispatcher needs no thread of
its own.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import netq
from fl.report import ClientFailure, FailureKind
from fl.server.allowance import Allowance
from netq.utils.stream import Stream

log = logging.getLogger("netq.fl")

Key = TypeVar("Key", bound=Hashable)

_END = Stream([b""])  # stands behind the last message of each session
_TICK = 0.1  # seconds; how long one read waits, and so how soon a peer that has left is noticed
_ANNOUNCEMENTS = 1  # a lane: tasks have lane 0
_REPEATS = 3  # how often a peer that was started again gets a task again
_CHECK = 1.0  # seconds between checks of the connections of all peers that have tasks
_RECEIVE = 1e-9  # seconds of the communicator's loop that each byte of a message takes, about


@dataclass(eq=False)
class _Part:
    """Data for the peers of an open task. None: there was an `ask` after it."""

    data: Any


class _Task(NamedTuple):
    peer: uuid.UUID
    part: _Part
    number: int  # of its `ask`: 1, 2, …
    limit: float  # seconds
    until: float  # end of the time limit, by time.monotonic()
    delivery: netq.Delivery
    keep_late: bool
    is_late: bool = False
    repeats: int = 0  # how often it was sent again


class TaskDispatcher(Generic[Key]):
    """Gives tasks to peers, and returns the answer to each. Thread-safe.

    grace:   seconds without a connection after which a peer is lost.
    receive: called with each message, by the thread that reads it. Calls `answer` if the message answers a task.
             Returns whether a task or a session calls for such a message. Raises Unreadable for one that is not valid.
    begins:  called with each peer whose session begins, in the communicator's loop, which must not wait.
    over:    called as `receive` is when a peer's session is over, behind the last message of the session.
    title:   what the log calls a peer.
    noun:    what a task is called in the reasons of failures.
    limit:   what its time limit is called there.
    """

    def __init__(
        self,
        options: netq.CommunicatorOptions,
        protocol: netq.Protocol,
        grace: float,
        receive: Callable[[uuid.UUID, Any], bool],
        begins: Callable[[uuid.UUID], object] = lambda peer: None,
        over: Callable[[uuid.UUID], object] = lambda peer: None,
        *,
        title: Callable[[uuid.UUID], object] = str,
        noun: str = "task",
        limit: str = "deadline",
    ) -> None:
        # From the caller: fixed from the start.
        self._grace = grace
        self._receive = receive
        self._begins = begins
        self._over = over
        self._title = title
        self._noun = noun
        self._limit = limit
        # Tasks and their answers. Any thread may ask; one of those that wait reads for all.
        self._changed = threading.Condition()  # guards all that follows
        self._tasks: dict[Key, _Task] = {}
        self._late: set[Key] = set()  # the open ones whose time limit has passed
        self._answers: dict[Key, Any] = {}  # not taken yet
        self._reader: int | None = None  # the thread that reads
        self._number = 0  # of the last `ask`
        self._parts = weakref.WeakSet[_Part]()  # of the last `ask`, while tasks of it are open
        self._next_check = -math.inf  # by time.monotonic()
        # What each message costs, for the thread that reads.
        self._allowance = Allowance()
        self._load_time = 0.0  # seconds of processor time that the last message took to receive and load
        # The peers' sessions.
        self.sessions_changed = threading.Event()  # a session began or ended
        self._closed = False
        self._ended: deque[tuple[uuid.UUID, int]] = deque()  # sessions that ended, each with the `_number` of that time
        options = replace(
            options, events=self._events(options.events), serialization=self._timed(options.serialization)
        )
        self.queue = netq.new(protocol, netq.Purpose.SERVER, options)

    def ask(
        self, parts: Iterable[tuple[Any, Mapping[uuid.UUID, Key]]], limit: float, *, keep_late: bool = False
    ) -> None:
        """Send data to peers; each peer's task gets a key. Never waits.

        parts:     data, serialised once, and the keys of the peers that get it.
        limit:     seconds; a task without an answer by then is answered with LATE.
        keep_late: the task stays open then, and a second answer may follow.

        If the serialisation of a part raises, its peers are not asked, nor those of the parts after it.
        """
        with self._changed:  # so that no answer is read before its task is known
            self._number += 1
            for part in self._parts:
                part.data = None
            self._parts.clear()
            until = time.monotonic() + limit
            self._next_check = min(self._next_check, until)
            for data, tasks in parts:
                deliveries, part = self.queue.put(data, *tasks).futures, _Part(data)
                self._parts.add(part)
                for (peer, key), delivery in zip(tasks.items(), deliveries, strict=True):
                    self._tasks[key] = _Task(peer, part, self._number, limit, until, delivery, keep_late)

    def announce(self, data: Any, peers: Collection[uuid.UUID]) -> None:
        """Send data to peers, on a lane of its own: it passes a task that is being sent."""
        if peers:
            self.queue.put(data, *peers, lane=_ANNOUNCEMENTS)

    def present(self, peers: Collection[uuid.UUID] | None = None) -> set[uuid.UUID]:
        """Return those of the peers that are not lost. None: of all."""
        absences = self.queue.absences() if peers is None else self.queue.absences(*peers) if peers else {}
        return {peer for peer, absent in absences.items() if absent <= self._grace}

    def answer(self, key: Key, content: Any) -> bool:
        """Answer an open task. Return False, and do nothing, if the task is not open."""
        with self._changed:
            if self._tasks.pop(key, None) is None:
                return False
            self._late.discard(key)
            self._answers[key] = content
            self._changed.notify_all()
            return True

    def answer_all(self, peer: uuid.UUID, content: Any) -> None:
        """Answer all open tasks of a peer."""
        with self._changed:
            for key in [key for key, task in self._tasks.items() if task.peer == peer]:
                self.answer(key, content)

    def add_answer(self, key: Key, content: Any) -> None:
        """Add an answer that is not to an open task. An answer that is there already stays."""
        with self._changed:
            self._answers.setdefault(key, content)
            self._changed.notify_all()

    def drop_answer(self, key: Key) -> bool:
        """Drop an answer. Return False, and do nothing, if there is none, or it was taken."""
        with self._changed:
            return self._answers.pop(key, None) is not None

    def take(self, wanted: Callable[[Key], bool], until: float) -> tuple[Key, Any] | None:
        """Wait for the answer to one of the wanted tasks, and return its key and the answer.

        Return None at the time `until`, or if no wanted task is open. Raises Closed.
        """
        is_over = False
        while True:
            with self._changed:
                for key in self._answers:
                    if wanted(key):
                        return key, self._answers.pop(key)
                if is_over or not any(wanted(key) for key in self._tasks):
                    return None
                left = until - time.monotonic()
                if self._is_read_elsewhere():
                    if left <= 0:
                        return None
                    self._changed.wait(min(left, _CHECK))
                    continue
                self._reader = threading.get_ident()
            try:
                something_came = self._read(max(0.0, min(left, _TICK)))
            finally:
                with self._changed:
                    self._reader = None
                    self._changed.notify_all()
            # A message that is here at the time `until` still counts. But a peer that sends without end must not keep
            # us here, so reading stops one tick later.
            is_over = left <= (-_TICK if something_came else 0)

    def read(self) -> None:
        """Read the messages that are here, for one tick at most, unless a thread waits in `take`. Raises Closed."""
        with self._changed:
            if self._is_read_elsewhere():
                return
            self._reader = threading.get_ident()
        until = time.monotonic() + _TICK
        try:
            while self._read(0.0) and time.monotonic() < until:
                pass
        finally:
            with self._changed:
                self._reader = None
                self._changed.notify_all()

    def is_known(self, key: Key) -> bool:
        """Return whether the task is open, or its answer not taken yet."""
        with self._changed:
            return key in self._tasks or key in self._answers

    def is_open(self, key: Key) -> bool:
        """Return whether the task waits for an answer, a late one too."""
        with self._changed:  # else an answer may be read before `ask` has noted its task
            return key in self._tasks

    def late(self) -> set[Key]:
        """Return the open tasks whose time limit has passed."""
        with self._changed:
            return set(self._late)

    @property
    def late_count(self) -> int:
        """The number of those tasks."""
        return len(self._late)

    def undelivered(self) -> set[Key]:
        """Return the open tasks that their peers have not received yet."""
        with self._changed:
            return {key for key, task in self._tasks.items() if not task.delivery.done()}

    def forget(self, keys: Collection[Key]) -> None:
        """Wait for no answer to these tasks. Cancel those that are not delivered."""
        with self._changed:
            tasks = [task for key in keys if (task := self._tasks.pop(key, None)) is not None]
            for key in keys:
                self._late.discard(key)
                self._answers.pop(key, None)
        for task in tasks:
            task.delivery.cancel()

    def forget_all(self) -> None:
        """Forget all tasks and answers."""
        with self._changed:
            keys = [*self._tasks, *self._answers]
        self.forget(keys)

    def end(self) -> None:
        """Make all calls of `take` raise Closed, now and later. Call it before the communicator is closed."""
        self._closed = True  # else the peers, who leave because we close, would count as lost

    # For the thread that reads.

    def _is_read_elsewhere(self) -> bool:
        """Return whether another thread reads. That this one does is left from a call that Ctrl-C has interrupted."""
        return self._reader not in (None, threading.get_ident())

    def _read(self, timeout: float) -> bool:
        """Read a message, and check all tasks if it is time. Return whether there is a message or a new answer."""
        if self._closed:
            raise netq.Closed(self.queue.id, "this server is closed")
        came = self._get(timeout=timeout)
        if (self._ended and not came) or time.monotonic() >= self._next_check:
            return self._check() or came
        return came

    def _get(self, *peers: uuid.UUID, timeout: float) -> bool:
        """Read a message, of these peers or of any. Return False if none comes."""
        try:
            peer, message = self.queue.get(*peers, timeout=timeout)
        except TimeoutError:
            return False
        except netq.Closed:
            if peers:  # the peer has left, and all its messages are read
                return False
            raise
        except netq.Unreadable as error:
            if error.peer is not None:
                self._fail_unreadable(error.peer, error)
            return True
        if message is _END:
            self._over(peer)
            return True
        begin = time.thread_time()
        try:
            is_wanted = self._receive(peer, message)
        except netq.Unreadable as error:
            self._fail_unreadable(peer, error)
        else:
            if not is_wanted:
                seconds = self._load_time + time.thread_time() - begin
                self.charge(peer, seconds, "it sends messages that were not asked for")
        return True

    def _fail_unreadable(self, peer: uuid.UUID, error: netq.Unreadable) -> None:
        reason = f"its message cannot be read: {error}"
        self.answer_all(peer, ClientFailure(FailureKind.UNREADABLE, reason))
        self.charge(peer, self._load_time, reason, readable=False)

    def charge(self, peer: uuid.UUID, seconds: float, reason: str, *, readable: bool = True) -> None:
        """Count the server's time that a peer has cost for nothing, and cut the peer off if it is too much."""
        pause = self._allowance.spend(peer, seconds, time.monotonic(), readable=readable)
        if pause:
            self.answer_all(peer, ClientFailure(FailureKind.UNREADABLE, f"cut off for {pause:g} s: {reason}"))
            log.warning("%s: cut off for %g s: %s", self._title(peer), pause, reason)
            self.queue.expel(peer, reason, pause)

    def _timed(self, serialization: netq.SerializationOptions) -> netq.SerializationOptions:
        """Return options that note what each message costs. Waiting for the interpreter does not count."""

        def load(stream: Stream) -> Any:
            if stream is _END:
                return _END
            size, begin = stream.nbytes, time.thread_time()
            try:
                return serialization.load(stream)
            finally:
                self._load_time = time.thread_time() - begin + size * _RECEIVE

        return replace(serialization, load=load)

    def _check(self) -> bool:
        """Answer the tasks that have failed. Return whether there are any."""
        now, ended = time.monotonic(), self._take_ended()
        with self._changed:
            tasks = list(self._tasks.items())
        peers = {task.peer for _, task in tasks}
        known = self.queue.absences(*peers) if peers else {}  # without peers it returns all
        again = {key for key, task in tasks if task.peer in known and self._may_repeat(task, ended.get(task.peer, 0))}
        failures = {
            key: failure
            for key, task in tasks
            if key not in again and (failure := self._failure(task, now, known.get(task.peer), ended.get(task.peer, 0)))
        }
        # A failed peer may have sent its answer before. Read its messages first, so that the answer counts.
        for peer in {task.peer for key, task in tasks if key in failures or key in again}:
            self._drain(peer)
        with self._changed:
            for key, failure in failures.items():
                self._fail(key, failure)
            for key in again:
                self._repeat(key)
            limits = [task.until for task in self._tasks.values() if not task.is_late]
            self._next_check = min([now + _CHECK, *limits])
        return bool(failures)

    def _take_ended(self) -> dict[uuid.UUID, int]:
        ended: dict[uuid.UUID, int] = {}
        while self._ended:
            peer, number = self._ended.popleft()
            ended[peer] = max(number, ended.get(peer, 0))
        return ended

    def _failure(self, task: _Task, now: float, absent: float | None, ended: int) -> ClientFailure | None:
        """Return why a task has failed, None if it has not.

        absent: seconds for which its peer has had no connection; None: it has no session.
        ended:  the last `ask` before its session ended.
        """
        part = task.delivery
        reason = ""
        if absent is None:
            reason = "it has gone"
        elif task.number <= ended:
            reason = f"it was started again, and knows nothing of the {self._noun}"
        elif absent > self._grace and not task.is_late:
            reason = f"no connection for {absent:.1f} s (grace {self._grace:g} s)"
            if task.keep_late:  # its answer may follow when it is back
                return ClientFailure(FailureKind.LATE, reason)
        elif part.done() and not part.cancelled() and (error := part.exception()) is not None:
            if isinstance(error, netq.MessageTooLarge):
                size, most = error.args[1:]
                what = f"the {self._noun} has {size} bytes, and it takes {most} at most"
                hint = "use a smaller model, or raise its connection.message_size or training.memory"
                return ClientFailure(FailureKind.FAILED, f"{what}: {hint}")
            reason = f"the {self._noun} cannot be sent to it: {error}"
        elif now >= task.until and not task.is_late:
            return ClientFailure(FailureKind.LATE, f"no answer within {task.limit:g} s ({self._limit})")
        return ClientFailure(FailureKind.LOST, reason) if reason else None

    def _may_repeat(self, task: _Task, ended: int) -> bool:
        return task.number <= ended and task.number == self._number and task.repeats < _REPEATS

    def _repeat(self, key: Key) -> None:
        """Send a task to the new session of its peer."""
        task = self._tasks.get(key)
        if task is None:  # answered, or forgotten, since the check
            return
        task.delivery.cancel()
        log.info("%s: was started again, and gets its %s again", self._title(task.peer), self._noun)
        (delivery,) = self.queue.put(task.part.data, task.peer).futures
        self._tasks[key] = task._replace(delivery=delivery, repeats=task.repeats + 1)

    def _fail(self, key: Key, failure: ClientFailure) -> None:
        task = self._tasks.get(key)
        if task is None:  # answered, or forgotten, since the check
            return
        if failure.why is FailureKind.LATE and task.keep_late:
            self._tasks[key] = task._replace(is_late=True)
            self._late.add(key)
            self._answers[key] = failure
        else:
            task.delivery.cancel()
            self.answer(key, failure)

    def _drain(self, peer: uuid.UUID) -> None:
        """Read the messages of a peer, for one tick at most: it may send without end."""
        until = time.monotonic() + _TICK
        while self._get(peer, timeout=0.0) and time.monotonic() < until:
            pass

    def _events(self, user: netq.EventOptions) -> netq.EventOptions:
        """Return events that call the user's too. They run in the communicator's loop, which must not wait."""

        def ini(peer: uuid.UUID) -> None:
            self._begins(peer)
            self.sessions_changed.set()
            if user.ini is not None:
                user.ini(peer)

        def fin(peer: uuid.UUID) -> None:
            self._ended.append((peer, self._number))
            self.sessions_changed.set()
            if user.fin is not None:
                user.fin(peer)

        return netq.EventOptions(ini, fin, _END, user.refused)
