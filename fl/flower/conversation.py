"""A node's conversation with its grid: a message, a reply, … Moves messages, and does not read models.

Used by fl/flower/node.py and edge/agent.py, in their caller's thread. Needs neither Flower nor numpy. It is the
counterpart of fl/conversation.py: a grid may have several messages open at a node, and each gets its reply.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import netq
from fl.envelope import End, Finished, Leave
from fl.flower.envelope import UNAVAILABLE, Ask, Failure, Fetch, Files, OtherApp
from fl.membership import Membership
from netq.runtime.log_dedup import LogDedup

log = logging.getLogger("netq.fl")


# What waits at most for the files of an app, besides the first message. A strategy has one message open at a node, and
# an app of its own may have some.
_MESSAGES = 100
_BYTES = 2**26


class Conversation:
    """The messages of one session. Its communicator has the serialisation fl.flower.envelope.ENVELOPES.

    version: of the node's app; "" if unknown.
    has:     whether a version of the app is here. None: the node has an app of its own, for all versions.
    room:    bytes of messages that may wait for the files of an app (the `memory` of the connection).
    """

    is_sending = False
    final = None

    def __init__(
        self,
        grid: netq.Communicator,
        membership: Membership,
        version: str,
        has: Callable[[str], bool] | None,
        room: int = _BYTES,
    ) -> None:
        self._grid = grid
        self._membership = membership
        self._version = version
        self._has = has
        self._room = min(room, _BYTES)
        self._log_dedup = LogDedup()
        self._ready: deque[Ask | Files] = deque()
        self._waiting: list[Ask] = []  # for an app whose files this node has asked for
        self._reported = ""  # version of the server's app, if the difference was reported
        self.delivered: tuple[int, int] | None = None  # the last job whose reply the grid has

    def next_task(self, idle: Callable[[], float | None] | None = None) -> Ask | Files | None:
        """Wait for a message to which the node can reply, and return it. Return None when run or session is over.

        idle: called before each wait; returns after how many seconds it wants to be called again, None: never. What it
              raises is raised here.
        """
        while not self._ready:
            try:
                peer, message = self._grid.get(timeout=idle() if idle is not None else None)
            except TimeoutError:
                continue
            except netq.Closed as error:
                self._membership.session_ended(error)
                return None
            except netq.Unreadable as error:
                self._refuse(error)
                continue
            if isinstance(message, End):
                if self._membership.ended(peer):
                    return None
            elif isinstance(message, Files):
                self._arrived(message)
            else:
                self._membership.asked(peer)
                self._compare(message.app)
                self._add(message)
        return self._ready.popleft()

    def reply(self, task: Ask | Files, answer: Finished | str) -> Future[None] | None:
        """Send the reply to a message, or the reason why there is none. Return its delivery.

        The answer to Files says whether they are stored.
        """
        if isinstance(task, Files):
            self._stored(task.version, answer)
            return None
        if isinstance(answer, str):
            return self._grid.put(Failure(task.job[1], answer))
        job = task.job

        def check(delivery: Future[None]) -> None:
            error = delivery.exception()
            if error is None:
                self.delivered = job
            elif isinstance(error, netq.MessageTooLarge):
                self._grid.put(Failure(job[1], f"its reply cannot be sent: {error}"))

        delivery = self._grid.put(answer.message)
        delivery.add_done_callback(check)
        return delivery

    def leave(self, reason: str) -> None:
        """Announce that the session is going to be closed by this side."""
        self._grid.put(Leave(reason))

    def _refuse(self, error: netq.Unreadable) -> None:
        """Reply to a message that cannot be read, and may be any of the open ones."""
        self._log(logging.ERROR, "a message of the grid cannot be read: %s", error)
        reason = f"node {self._grid.id}: cannot read what it was sent: {error}"
        self._grid.put(Failure(None, reason, UNAVAILABLE))

    def _log(self, level: int, text: str, *args: object) -> None:
        """Log a line about the grid. Lines with the same `text` follow at DEBUG: it may send without end."""
        is_new = self._log_dedup.is_new("grid", text, time.monotonic())
        log.log(level if is_new else logging.DEBUG, text, *args)

    def _compare(self, version: str) -> None:
        """Report once that the server's app has another version than this node's."""
        if version and self._version and version not in (self._version, self._reported):
            self._reported = version
            log.warning("the server's app has version %s, this node's %s; update one of them", version, self._version)
            self._grid.put(OtherApp(self._version))

    def _add(self, ask: Ask) -> None:
        """Make a message ready to be answered; if its app is not here, ask for the files first."""
        if self._has is None or self._has(ask.app):
            self._ready.append(ask)
            return
        size = sum(each.stream.nbytes for each in self._waiting)
        if self._waiting and (len(self._waiting) >= _MESSAGES or size + ask.stream.nbytes > self._room):
            reason = f"{len(self._waiting)} messages of {size} bytes wait here for the files of apps already"
            self._grid.put(Failure(ask.job[1], f"node {self._grid.id}: {reason}", UNAVAILABLE))
            return
        if all(each.app != ask.app for each in self._waiting):
            log.info("the server's app has version %s, which is not here: asking for its files", ask.app)
            self._grid.put(Fetch(ask.app))
        self._waiting.append(ask)

    def _arrived(self, files: Files) -> None:
        if any(ask.app == files.version for ask in self._waiting):
            self._ready.append(files)
        else:
            text = "the grid has sent the files of the app %s, for which this node did not ask"
            self._log(logging.WARNING, text, files.version)

    def _stored(self, version: str, answer: Finished | str) -> None:
        """Make the messages ready that wait for an app, or reply to them that it was refused."""
        asks = [ask for ask in self._waiting if ask.app == version]
        self._waiting = [ask for ask in self._waiting if ask.app != version]
        if isinstance(answer, str):
            for ask in asks:
                self.reply(ask, answer)
        else:
            self._ready += asks
