"""A grid's messages at a node: which can be answered now, and which wait for the files of an app.

Owned by the conversation (fl/conversation.py) of fl/flower/node.py or of edge/agent.py, in its thread. Needs neither
Flower nor numpy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import netq
from fl.envelope import Finished
from fl.flower.envelope import UNAVAILABLE, Ask, Failure, Fetch, Files, OtherApp

log = logging.getLogger("netq.fl")


# What waits at most for the files of an app, besides the first message. A strategy has one message open at a node, and
# an app of its own may have some.
_MESSAGES = 100
_BYTES = 2**26


class Inbox:
    """The messages of one session.

    version: of the node's app; "" if unknown.
    has:     whether a version of the app is here. None: the node has an app of its own, for all versions.
    room:    bytes of messages that may wait for the files of an app (the `memory` of the connection).
    """

    def __init__(
        self, grid: netq.Communicator, version: str, has: Callable[[str], bool] | None, room: int = _BYTES
    ) -> None:
        self._grid = grid
        self._version = version
        self._has = has
        self._room = min(room, _BYTES)
        self._waiting: list[Ask] = []  # for an app whose files this node has asked for
        self._reported = ""  # version of the server's app, if the difference was reported
        self._logged: set[str] = set()  # texts of lines; the next ones are of DEBUG: a grid may send without end

    def add(self, message: Ask | Files) -> list[Ask | Files]:
        """Take a message. Return it if it can be answered; if its app is not here, ask for the files first."""
        if isinstance(message, Files):
            if any(ask.app == message.version for ask in self._waiting):
                return [message]
            text = "the grid has sent the files of the app %s, for which this node did not ask"
            self._log(logging.WARNING, text, message.version)
            return []
        if message.is_step:
            return [message]
        self._compare(message.app)
        if self._has is None or self._has(message.app):
            return [message]
        size = sum(each.stream.nbytes for each in self._waiting)
        if self._waiting and (len(self._waiting) >= _MESSAGES or size + message.stream.nbytes > self._room):
            reason = f"{len(self._waiting)} messages of {size} bytes wait here for the files of apps already"
            self._grid.put(Failure(message.job[1], f"node {self._grid.id}: {reason}", UNAVAILABLE))
            return []
        if all(each.app != message.app for each in self._waiting):
            log.info("the server's app has version %s, which is not here: asking for its files", message.app)
            self._grid.put(Fetch(message.app))
        self._waiting.append(message)
        return []

    def settle(self, task: Files, answer: Finished | str) -> list[Ask]:
        """Return the messages that wait for an app that is stored, or reply to them that it was refused."""
        asks = [ask for ask in self._waiting if ask.app == task.version]
        self._waiting = [ask for ask in self._waiting if ask.app != task.version]
        if not isinstance(answer, str):
            return asks
        for ask in asks:
            self._grid.put(Failure(ask.job[1], answer))
        return []

    def refuse(self, error: netq.Unreadable) -> None:
        """Reply to a message that cannot be read, and may be any of the open ones."""
        self._log(logging.ERROR, "a message of the grid cannot be read: %s", error)
        reason = f"node {self._grid.id}: cannot read what it was sent: {error}"
        self._grid.put(Failure(None, reason, UNAVAILABLE))

    def _log(self, level: int, text: str, *args: object) -> None:
        log.log(logging.DEBUG if text in self._logged else level, text, *args)
        self._logged.add(text)

    def _compare(self, version: str) -> None:
        """Report once that the server's app has another version than this node's."""
        if version and self._version and version not in (self._version, self._reported):
            self._reported = version
            log.warning("the server's app has version %s, this node's %s; update one of them", version, self._version)
            self._grid.put(OtherApp(self._version))
