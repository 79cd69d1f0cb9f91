"""A relay: takes the tasks of its parent, has its own clients do them, and answers with one sum.

    server ──Task──► relay ──Task──► its clients       the model's bytes as they came, with a shorter deadline
    server ◄Subtotal relay ◄─Update─ its clients       folded as they arrive, in the memory of one model

Runs in the caller's thread. fl/relay/below.py is the server of its clients. A parent may be a relay itself.
docs/how-to/relay.md says what a relay does for each strategy.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import netq
from fl.callbacks.base import Callback
from fl.conversation import Conversation, KnownServer
from fl.envelope import ENVELOPES, Described, Finished, Introduction
from fl.envelope import Task as Envelope
from fl.errors import RelayError
from fl.membership import Membership, checked_addresses, take_part
from fl.messages import MESSAGES, PASSED, Description, Task, build
from fl.properties import Properties, checked, checked_name
from fl.relay.below import Below
from fl.server.federation import Void
from fl.server.patience import Patience
from fl.server.validation import check_relays
from fl.strategies.base import Strategy
from fl.strategies.fedavg import FedAvg
from fl.trainer import finished
from netq.errors import InvalidOption, SecurityError, Unreadable
from netq.text import format_netloc
from netq.validate import expect, is_whole

log = logging.getLogger("netq.fl")

_LOOK = 0.25  # seconds between looks: at what clients send without a task, and at what the parent sends meanwhile
_ALONE = 30.0  # seconds without a word of the parent, until a warning


class Relay:
    """A client of a server, or of another relay, that answers for clients of its own.

    parent:      the communicator's options on the way up: where the server is. Their id is what the server calls this
                 relay. The server's `relays` has to allow it.
    options:     those of the server that its clients connect to. It listens when the parent has said what its tasks are
                 like, and has the id of the parent's communicator: so clients may move from one relay to another.
    strategy:    folds, and selects clients, as that of the server: the same class and options. None: FedAvg, which
                 folds for FedProx and the strategies with optimizers, too.
    min_clients: clients that it needs, and updates of theirs that make a sum. With fewer it has none.
    patience:    how long it waits for its clients (fl.Patience). A round's deadline is 0.8 of what the parent leaves,
                 or this one, if it is shorter.
    memory_limit, relays, callbacks, protocol: as of fl.Server, for its clients.
    parent_protocol: the transport on the way up.
    fallback:    further addresses of parents, as of fl.Client.run.
    properties, name: as of fl.Client.

    Raises InvalidOption.
    """

    def __init__(
        self,
        parent: netq.CommunicatorOptions,
        options: netq.CommunicatorOptions,
        *,
        strategy: Strategy | None = None,
        min_clients: int = 1,
        patience: Patience | None = None,
        memory_limit: int | None = None,
        relays: bool | Collection[str] = False,
        callbacks: Iterable[Callback] = (),
        protocol: netq.Protocol = netq.Protocol.TCP,
        parent_protocol: netq.Protocol = netq.Protocol.TCP,
        fallback: Sequence[tuple[str, int]] = (),
        properties: Properties | None = None,
        name: str = "",
    ) -> None:
        for what, value in (("parent", parent), ("options", options)):
            known = isinstance(value, netq.CommunicatorOptions)
            expect(known, f"Relay.{what}", value, "a netq.CommunicatorOptions, as in CommunicatorOptions(netloc=…)")
        right = isinstance(strategy, Strategy | None)
        expect(right, "Relay.strategy", strategy, "an object, as in fl.FedAvg()")
        expect(is_whole(min_clients, 1), "Relay.min_clients", min_clients, "1 or more, a whole number")
        check_relays(relays, "Relay.relays")
        self._strategy = strategy or FedAvg()
        if self._strategy.staleness is not None:
            raise InvalidOption(
                f"Relay.strategy: {type(self._strategy).__name__} has the option staleness, and a relay's sum is of "
                "one round: leave it out here; late updates of its clients are refused"
            )
        if not self._strategy.merges:
            raise InvalidOption(f"Relay.strategy: {_refused(type(self._strategy).__name__)}")
        self._addresses = checked_addresses(fallback, "Relay")
        if protocol is parent_protocol and options.netloc in (parent.netloc, *self._addresses) and options.netloc.port:
            here = format_netloc(*options.netloc)
            raise InvalidOption(f"Relay.parent: {here} is where this relay listens; expected the address of its parent")
        self._parent = replace(parent, serialization=ENVELOPES)
        self._options = options
        self._parent_protocol = parent_protocol
        self._settings: dict[str, Any] = {
            "strategy": self._strategy,
            "min_clients": min_clients,
            "patience": patience,
            "memory_limit": memory_limit,
            "relays": relays,
            "callbacks": tuple(callbacks),
            "protocol": protocol,
        }
        says = checked({} if properties is None else properties, "Relay.properties")
        self._introduction = Introduction(says, True, checked_name(name, "Relay.name"))
        self._link = KnownServer()
        self._stack = ExitStack()
        self._below: Below | None = None

    @property
    def server(self) -> Below | None:
        """The server of its clients; None until the parent has said what its tasks are like."""
        return self._below

    def run(self) -> None:
        """Take part until the federation is over: its clients' run returns, too. Waits for a parent that is absent.

        Raises RelayError if this relay cannot fold what the server wants, or is not allowed to; SecurityError,
        AddressError, and what callbacks raise. Then, and after Ctrl-C, its clients wait for another server or relay.
        """
        with self._stack:
            take_part(self._parent, self._parent_protocol, "federation", self._serve, fallback=self._addresses)

    def _serve(self, queue: netq.Communicator, membership: Membership) -> None:
        """One session: the first asks what tasks are like, the next ones do them."""
        if self._below is None:
            self._begin(queue, membership)
            return
        below = self._below
        conversation = Conversation(queue, membership, self._link, self._introduction)

        def idle() -> float:
            below.read()
            return _LOOK

        while (task := conversation.next_task(idle)) is not None:
            answer = self._answer(queue, below, task)
            if isinstance(answer, str):
                log.warning("%s: the parent is told: %s", task.title, answer)
            conversation.reply(task, answer)
            del task, answer  # free their memory before the next task arrives
        if membership.over:
            final = conversation.final
            model = None if final is None else build(PASSED.load(final.stream)).model  # type: ignore[union-attr]
            self._stack.pop_all()
            below.end(conversation.last, model)

    def _begin(self, queue: netq.Communicator, membership: Membership) -> None:
        """Ask the parent what its tasks are like, and listen."""
        reason = "it is a relay, and asks what it is to fold"
        conversation = Conversation(queue, membership, self._link, self._introduction, question=reason)
        begin, warned = time.monotonic(), False

        def idle() -> float:
            nonlocal warned
            if not warned and time.monotonic() - begin > _ALONE:
                warned = True
                text = "%s: no word of the parent after %g s, and this relay listens only when there is one; "
                text += "check that no relay below this one is its parent: that is a cycle"
                log.warning(text, format_netloc(*membership.addresses[0]), _ALONE)
            return _LOOK

        described = conversation.next_task(idle)
        if not isinstance(described, Described):
            return
        description = MESSAGES.load(described.stream)
        assert isinstance(description, Description)
        us = str(queue.id)
        if us in description.path:
            raise RelayError(f"{us}: this relay is above its own parent: a cycle; give it the address of the server")
        if not description.relays:
            raise RelayError(
                f"the server takes no relay that is named {self._introduction.name!r} or {us}: name it in its `relays`"
            )
        self._check(description.folding)
        (server,) = queue.absences()
        try:
            below = Below(description, [us, *description.path], replace(self._options, id=server), **self._settings)
        except (InvalidOption, SecurityError) as error:  # of this side, not of the way up
            raise type(error)(f"Relay.options: {error}") from error
        self._stack.callback(below.close, 0.0)
        self._below, membership.rests = below, False
        log.info("relay of %s, listening at %s", format_netloc(*membership.addresses[0]), format_netloc(*below.netloc))

    def _check(self, folding: Any) -> None:
        """Raise RelayError unless this relay folds as its server."""
        ours = self._strategy.folding
        if folding == ours:
            return
        if not folding:
            raise RelayError("the server does not say how it folds: it is of another version; install the same netq")
        if not folding.get("merges"):
            raise RelayError(_refused(str(folding.get("fold"))))
        raise RelayError(
            f"this relay folds by {_shown(ours)}, its server by {_shown(folding)}: give the relay the server's strategy"
        )

    def _answer(self, queue: netq.Communicator, below: Below, envelope: Envelope) -> Finished | str:
        """Have the clients do a task. Return the sum as bytes, or the reason why there is none."""
        try:
            task = build(PASSED.load(envelope.stream))
            assert isinstance(task, Task)
            self._check(task.folding)
            return finished(task.job, below.do(task, _watch(queue)))
        except (Void, Unreadable) as error:
            return str(error)


def _watch(queue: netq.Communicator) -> Callable[[], bool]:
    """Return what says whether the parent has sent anything since now: a newer task, or the end."""

    def came() -> int:
        return sum(each.messages_in for each in queue.statistics().values())

    before, next_look, has_come = came(), 0.0, False

    def is_over() -> bool:
        nonlocal next_look, has_come
        if not has_come and (now := time.monotonic()) >= next_look:
            has_come, next_look = came() != before, now + _LOOK
        return has_come

    return is_over


def _shown(folding: Any) -> str:
    options = ", ".join(f"{name}={value!r}" for name, value in folding.items() if name not in ("fold", "merges"))
    return f"{folding.get('fold')}({options})"


def _refused(strategy: str) -> str:
    return f"{strategy} needs each update, and a relay sends one sum: connect its clients to the server itself"
