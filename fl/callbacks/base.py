"""The callbacks of a server, and the calls that it makes to them.

Made by users; called by the server's thread, which waits for each of them. A callback that raises in a round is logged,
and changes nothing in it. `check` is called before the first round, and its error is the server's.
"""

from __future__ import annotations

import enum
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from fl.report import RoundReport
from fl.status import ClientStatus, Refusal
from fl.tensors.spec import Model
from netq.text import describe

log = logging.getLogger("netq.fl")


class ClientState(enum.Enum):
    """What a client is doing, as far as the server knows."""

    TRAINING = "training"  # it has a task: to train, or to evaluate
    WAITING = "waiting"  # its update is ready, and the server has no room for it yet
    SENDING = "sending"  # the server has admitted its update
    DONE = "done"  # its answer has arrived
    FAILED = "failed"  # it will not answer, or its answer was refused
    SUSPENDED = "suspended"  # its last tasks had no good answer: rounds do not wait for it


class Observed(Protocol):
    """A server, as callbacks see it."""

    @property
    def number(self) -> int:
        """The last round that counted."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What it is, as plain values: federation, strategy, rounds_done, min_clients."""

    def members(self) -> Sequence[ClientStatus]:
        """Where each client stands."""

    @property
    def refusals(self) -> Sequence[Refusal]:
        """The last connections that were turned away."""


class Callback:
    """Receives the progress of rounds. Subclass it, and override the methods that you need.

    stop: set it to True to end `Server.rounds` after this round.
    """

    stop = False

    def check(self, model: Model) -> None:
        """Raise InvalidOption if this callback cannot work with such models. Called before a server listens."""

    def listens(self, server: Observed) -> None:
        """The server listens. `server`: where its clients stand; any thread may ask it, until the server is closed."""

    def client_joins(self, client: uuid.UUID, name: str) -> None:
        """A client has begun a session, and says what it is called; `name` is empty if it has none."""

    def federation_begins(self, details: Mapping[str, Any]) -> None:
        """The server runs its first round. `details`: what is needed to repeat the run, as plain values."""

    def round_begins(self, number: int, clients: Sequence[uuid.UUID]) -> None:
        """Round `number` begins; these clients are there, or away for a moment, and some of them will get a task."""

    def client_is(self, client: uuid.UUID, state: ClientState, size: int) -> None:
        """A client's state has changed; `size`: bytes of its update's tensors, 0 while they are not known."""

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """The round has ended with this report and this model. Do not change the model."""


class Callbacks(Callback):
    """Several callbacks as one: each method calls that of each."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = tuple(callbacks)

    @property
    def stop(self) -> bool:  # type: ignore[override]  # of those that it calls
        """Whether one of them wants no further round."""
        return any(callback.stop for callback in self._callbacks)

    def wants(self, method: Callable[..., None]) -> bool:
        """Return whether one of them overrides a method of Callback: calls of it for each client cost time."""
        return any(getattr(type(each), method.__name__) is not method for each in self._callbacks)

    def check(self, model: Model) -> None:
        """Raise what they raise."""
        for callback in self._callbacks:
            callback.check(model)

    def listens(self, server: Observed) -> None:
        """Tell each."""
        for callback in self._callbacks:
            _call(callback.listens, server)

    def client_joins(self, client: uuid.UUID, name: str) -> None:
        """Tell each."""
        for callback in self._callbacks:
            _call(callback.client_joins, client, name)

    def federation_begins(self, details: Mapping[str, Any]) -> None:
        """Tell each."""
        for callback in self._callbacks:
            _call(callback.federation_begins, details)

    def round_begins(self, number: int, clients: Sequence[uuid.UUID]) -> None:
        """Tell each."""
        for callback in self._callbacks:
            _call(callback.round_begins, number, clients)

    def client_is(self, client: uuid.UUID, state: ClientState, size: int = 0) -> None:
        """Tell each."""
        for callback in self._callbacks:
            _call(callback.client_is, client, state, size)

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Tell each."""
        for callback in self._callbacks:
            _call(callback.round_ends, report, model)


def _call(function: Callable[..., None], *arguments: Any) -> None:
    try:
        function(*arguments)
    except OSError as error:  # a full disk, in each round until there is room: a line each, and no traceback
        log.error("%s failed: %s", getattr(function, "__qualname__", function), describe(error))
        log.debug("where it happened", exc_info=error)
    except Exception:  # an error of the user's code must not end the round
        log.exception("%s failed", getattr(function, "__qualname__", function))
