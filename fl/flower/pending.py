"""Questions that were put to peers, until each is answered: by the peer, or by what happened to it.

Owned by a grid (fl/flower/grid.py), whose threads may call anything at any time. Nothing is read unless somebody waits:
one of those who do takes messages from the queue, the others wait for it. So what nobody wants yet stays with the
queue, within its bounds, and no thread is needed. That a peer is over netq tells in its loop, which must not wait: it
is noted, and seen by whoever reads. Owns the communicator. Knows of Flower only what an answer is: a RecordDict or an
Error.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from flwr.app import Error, RecordDict

import netq
from fl.flower._compat import ErrorCode
from fl.flower.wire import MESSAGES, message_id, node_id, read_reply

log = logging.getLogger("netq.fl")

Answer: TypeAlias = "RecordDict | Error"

_TICK = 0.1  # seconds of one wait for a message, after which it is seen that a peer is over
_LOOK = 1.0  # seconds between looks at who is still connected


@dataclass(frozen=True)
class _Question:
    peer: uuid.UUID
    number: int  # of the batch, in the order in which they were put
    ttl: float
    until: float  # by time.monotonic(); nobody wants the answer any more
    delivery: netq.Delivery


class Pending:
    """A server, and what it has asked. `grace`: seconds without a connection after which a peer is not waited for."""

    def __init__(self, options: netq.CommunicatorOptions, protocol: netq.Protocol, grace: float) -> None:
        self.stirred = threading.Event()  # somebody has come or gone
        self._grace = grace
        self._changed = threading.Condition()
        self._questions: dict[str, _Question] = {}
        self._answers: dict[str, Answer] = {}
        self._reading = False  # whether somebody does
        self._number = 0  # of the last batch
        self._over: deque[tuple[uuid.UUID, int]] = deque()  # whose sessions ended, and what was put by then
        self._next_look = -math.inf
        options = replace(options, serialization=MESSAGES, events=self._events(options.events))
        self.queue = netq.new(protocol, netq.Purpose.SERVER, options)

    def peers(self, *, connected: bool) -> dict[int, uuid.UUID]:
        """Return those who have a session, by Flower's number for them; `connected`: if they have a link now."""
        known = self.queue.statistics().items()
        return {node_id(peer): peer for peer, each in known if each.connected or not connected}

    def ask(self, data: Any, batch: int, peers: Collection[uuid.UUID], ttl: float) -> None:
        """Put `data` to peers, serialised once. What cannot be serialised raises here, and nothing is asked."""
        with self._changed:  # nobody may see an answer before the question; `put` never waits
            self._number += 1
            delivery = self.queue.put(data, *peers)
            until = time.monotonic() + ttl
            for peer, part in zip(peers, delivery.futures, strict=True):
                id = message_id(batch, node_id(peer))
                self._questions[id] = _Question(peer, self._number, ttl, until, part)

    def answer(self, id: str, answer: Answer) -> None:
        """Answer in place of a peer."""
        with self._changed:
            self._answers[id] = answer
            self._changed.notify_all()

    def knows(self, id: str) -> bool:
        """Return whether it was asked, and its answer not taken yet."""
        return id in self._questions or id in self._answers

    def take(self, ids: Collection[str], until: float) -> dict[str, Answer]:
        """Wait until some of `ids` are answered, and return them; none at the time `until`, or if none is asked."""
        while True:
            with self._changed:
                if found := {id: self._answers.pop(id) for id in ids if id in self._answers}:
                    return found
                if not any(id in self._questions for id in ids):
                    return {}
                left = until - time.monotonic()
                if self._reading:
                    if left <= 0:
                        return {}
                    self._changed.wait(min(left, _LOOK))
                    continue
                self._reading = True
            try:
                came = self._read(max(0.0, min(left, _TICK)))
            finally:
                with self._changed:
                    self._reading = False
                    self._changed.notify_all()
            if left <= (0 if not came else -_TICK):  # what has come counts; but a peer that never ends is not heard out
                return {}

    def forget(self, ids: Collection[str]) -> None:
        """Want no answer any more: who has not got the question need not get it."""
        with self._changed:
            questions = [self._questions.pop(id) for id in ids if id in self._questions]
            for id in ids:
                self._answers.pop(id, None)
        for question in questions:
            question.delivery.cancel()

    # For the one who reads.

    def _read(self, timeout: float) -> bool:
        """Take a message, and see what else answers a question; return whether anything has happened."""
        try:
            came = self._get(timeout=timeout)
        except netq.Closed as error:
            return self._fail({id: Error(ErrorCode.NODE_UNAVAILABLE, str(error)) for id in list(self._questions)})
        now = time.monotonic()
        if (self._over and not came) or now >= self._next_look:
            self._next_look = now + _LOOK
            return self._look() or came
        return came

    def _get(self, *peers: uuid.UUID, timeout: float) -> bool:
        """Take a message, and count it as the answer to a question; False if none comes."""
        peer = None
        try:
            peer, data = self.queue.get(*peers, timeout=timeout)
            reply = read_reply(data)
        except TimeoutError:
            return False
        except netq.Unreadable as error:
            sender = peer or error.peer
            assert sender is not None
            reason = f"node {node_id(sender)} ({sender}): its message cannot be read: {error}"
            self._fail_peer(sender, Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason))
            return True
        if reply.batch is None:
            assert isinstance(reply.content, Error)
            self._fail_peer(peer, reply.content)
        elif not self._fail({message_id(reply.batch, node_id(peer)): reply.content}):
            log.warning("node %d (%s): its answer is not waited for (any more)", node_id(peer), peer)
        return True

    def _look(self) -> bool:
        """Answer for those who cannot; return whether there are any."""
        over, known = self._take_over(), self.queue.statistics()
        questions = list(self._questions.items())
        lost = {id: (each.peer, error) for id, each in questions if (error := self._lost(each, over, known))}
        for peer in {peer for peer, _ in lost.values()}:
            self._drain(peer)  # what it said last counts
        return self._fail({id: error for id, (_, error) in lost.items()})

    def _take_over(self) -> dict[uuid.UUID, int]:
        over: dict[uuid.UUID, int] = {}
        while self._over:
            peer, number = self._over.popleft()
            over[peer] = max(number, over.get(peer, 0))
        return over

    def _lost(
        self, question: _Question, over: Mapping[uuid.UUID, int], known: Mapping[uuid.UUID, netq.Statistics]
    ) -> Error | None:
        who = f"node {node_id(question.peer)} ({question.peer})"
        if time.monotonic() >= question.until:
            return Error(ErrorCode.MESSAGE_UNAVAILABLE, f"{who}: no answer within {question.ttl:g} s (ttl)")
        if why := self._why_lost(question, over.get(question.peer, 0), known.get(question.peer)):
            return Error(ErrorCode.NODE_UNAVAILABLE, f"{who}: {why}")
        return None

    def _why_lost(self, question: _Question, over: int, statistics: netq.Statistics | None) -> str:
        """Why this question will have no answer; empty if it may have one."""
        part = question.delivery
        if part.done() and not part.cancelled() and (error := part.exception()) is not None:
            return f"the message cannot be sent to it: {error}"
        if question.number <= over:
            return "it has gone" if statistics is None else "it was started again, and knows nothing of the message"
        if statistics is None:
            return "it has gone"
        if statistics.absent > self._grace:
            return f"no connection for {statistics.absent:.1f} s (grace {self._grace:g} s)"
        return ""

    def _events(self, theirs: netq.EventOptions) -> netq.EventOptions:
        """Events that tell the user's, too. They are called in a loop."""

        def ini(peer: uuid.UUID) -> None:
            self.stirred.set()
            if theirs.ini is not None:
                theirs.ini(peer)

        def fin(peer: uuid.UUID) -> None:
            self._over.append((peer, self._number))
            self.stirred.set()
            if theirs.fin is not None:
                theirs.fin(peer)

        return netq.EventOptions(ini, fin)

    def _drain(self, peer: uuid.UUID) -> None:
        try:
            while self._get(peer, timeout=0.0):
                pass
        except netq.Closed:
            return

    def _fail_peer(self, peer: uuid.UUID, error: Error) -> None:
        log.warning("%s", error.reason)
        self._fail({id: error for id, question in list(self._questions.items()) if question.peer == peer})

    def _fail(self, answers: Mapping[str, Answer]) -> bool:
        """Count answers to questions that are still open; return whether there are any."""
        with self._changed:
            open_ids = [id for id in answers if self._questions.pop(id, None) is not None]
            self._answers.update({id: answers[id] for id in open_ids})
            self._changed.notify_all()
        return bool(open_ids)
