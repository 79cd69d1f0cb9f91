"""What a server tells of its rounds while they run, to whoever wants to show or keep it.

Made by users, and by fl/callbacks/progress.py and others of its kind; called by the server's thread, which waits for
them. An error of theirs is logged, and changes nothing.
"""

from __future__ import annotations

import enum
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fl.report import RoundReport
from fl.tensors.spec import Model

log = logging.getLogger("netq.fl")


class ClientState(enum.Enum):
    """What a client is doing, as far as the server knows."""

    TRAINING = "training"  # it was asked to train, or to evaluate
    WAITING = "waiting"  # its update is ready, and there is no room for it yet
    SENDING = "sending"  # it may send
    DONE = "done"  # its answer is here
    FAILED = "failed"  # there is none, or it is refused


class Callback:
    """Is told how rounds go. Subclass it, and write what you want to know of."""

    def round_begins(self, number: int, clients: Sequence[uuid.UUID]) -> None:
        """These clients are connected; some of them will be asked."""

    def client_is(self, client: uuid.UUID, state: ClientState, size: int) -> None:
        """A client's state has changed; `size`: bytes of its update's tensors, 0 while they are not known."""

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """The round has ended, and this is the model now; it is not to be changed."""


class Callbacks:
    """All of a server's callbacks."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = tuple(callbacks)

    def round_begins(self, number: int, clients: Sequence[uuid.UUID]) -> None:
        """Tell them all."""
        for callback in self._callbacks:
            _tell(callback.round_begins, number, clients)

    def client_is(self, client: uuid.UUID, state: ClientState, size: int = 0) -> None:
        """Tell them all."""
        for callback in self._callbacks:
            _tell(callback.client_is, client, state, size)

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Tell them all."""
        for callback in self._callbacks:
            _tell(callback.round_ends, report, model)


def _tell(function: Callable[..., None], *facts: Any) -> None:
    try:
        function(*facts)
    except Exception:  # the user's code; the round has nothing to do with it
        log.exception("%s failed", getattr(function, "__qualname__", function))
