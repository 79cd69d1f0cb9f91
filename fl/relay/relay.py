"""A relay: takes the tasks of its parent, has its own clients do them, and answers with one sum.

    server ──Task──► relay ──Task──► its clients       the model's bytes as they came, with a shorter deadline
    server ◄Subtotal relay ◄─Update─ its clients       folded as they arrive, in the memory of one model

Runs in the caller's thread. fl/relay/below.py is the server of its clients. A parent may be a relay itself.
docs/how-to/relay.md says what a relay does for each strategy.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import netq
from fl.callbacks.base import Callback
from fl.conversation import Conversation, KnownServer
from fl.envelope import ENVELOPES, PURPOSES, Described, Final, Finished, Introduction
from fl.envelope import Task as Envelope
from fl.errors import InvalidUpdate, RelayError
from fl.membership import Membership, checked_addresses, take_part
from fl.messages import MESSAGES, PASSED, Description, Task, build
from fl.messages import Final as FinalModel
from fl.properties import Properties, checked, checked_name
from fl.relay.below import Below
from fl.server.federation import Void
from fl.server.patience import Patience
from fl.server.server import Server
from fl.server.validation import check_relays, not_through_relays
from fl.strategies.base import Strategy
from fl.strategies.fedavg import FedAvg
from fl.trainer import finished
from netq.errors import InvalidOption, SecurityError, Unreadable
from netq.text import describe, format_netloc, printable
from netq.validate import expect, is_number, is_whole

log = logging.getLogger("netq.fl")

_LOOK = 0.25  # seconds between looks: at what clients send without a task, and at what the parent sends meanwhile
_HERE = {"localhost", "127.0.0.1", "0.0.0.0", "::1", "::"}
_CLOSED = "the server of this relay's clients is closed: make another relay"
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
    linger:      seconds for which a relay that is started after the end of the federation tells clients so.

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
        linger: float = 60.0,
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
            raise InvalidOption(f"Relay.strategy: {not_through_relays(self._strategy)}")
        self._addresses = checked_addresses(fallback, "Relay")
        for which, place in (("parent", parent.netloc), *(("fallback", each) for each in self._addresses)):
            if protocol is parent_protocol and _is_same(place, options.netloc):
                here = format_netloc(*place)
                raise InvalidOption(
                    f"Relay.{which}: {here} is where this relay listens; expected an address of a parent"
                )
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
        self._introduction = Introduction(says, True, checked_name(name, "Relay.name"), relay=True)
        expect(is_number(linger, 0), "Relay.linger", linger, "seconds, 0 or more")
        self._linger = linger
        self._has_begun = self._has_worked = False  # it runs; it has had a task
        self._refused: set[netq.NetworkLocation] = set()  # parents that are none for this relay
        self._link = KnownServer()
        self._stack = ExitStack()
        self._below: Below | None = None

    @property
    def server(self) -> Server | None:
        """The server of its clients; None until the parent has said what its tasks are like."""
        return self._below

    def run(self) -> None:
        """Take part until the federation is over: its clients' run returns, too. Waits for a parent that is absent.

        Raises RelayError if this relay cannot fold what the server wants, or is not allowed to; SecurityError and
        AddressError. Then, and after Ctrl-C, its clients wait for another server or relay.
        """
        if self._has_begun:
            raise InvalidOption("Relay.run: this relay has run already; make another one")
        self._has_begun = True
        with self._stack:
            take_part(self._parent, self._parent_protocol, "federation", self._serve, fallback=self._addresses)

    def _serve(self, queue: netq.Communicator, membership: Membership) -> None:
        """Do the tasks of a session with the parent. First the parent says what they are like."""
        conversation = Conversation(queue, membership, self._link, self._introduction)
        alone_at = time.monotonic() + _ALONE
        if self._below is not None:
            self._below.has_parent(None)

        def idle() -> float:
            nonlocal alone_at
            try:
                if self._below is not None:
                    self._below.read()
            except netq.Closed as error:  # which the conversation would take for the parent's
                raise RelayError(_CLOSED) from error
            if time.monotonic() >= alone_at:
                alone_at = math.inf
                self._is_alone(membership)
            return _LOOK

        while (message := conversation.next_task(idle)) is not None:
            if isinstance(message, Described):
                alone_at = math.inf
                self._meet(queue, membership, message)
                if membership.moves:
                    return
                continue
            assert self._below is not None, "a Description comes first"
            self._has_worked = True
            answer = self._answer(queue, self._below, message, time.monotonic())
            if isinstance(answer, str):
                log.warning("%s: the parent is told: %s", message.title, answer)
            conversation.reply(message, answer)
            del message, answer  # free their memory before the next task arrives
        if membership.over:
            self._end(conversation)

    def _is_alone(self, membership: Membership) -> None:
        """The parent has said nothing: it is away, or has no way to the server itself."""
        why = f"it has said nothing for {_ALONE:g} s"
        if len(membership.addresses) > 1:
            membership.move(f"{why}: perhaps it has no way to the server itself")
            return
        text = "%s: %s, and a relay without a parent tells its clients nothing. If the parent runs, it has no way to "
        text += "the server itself; if this relay is its parent, that is a cycle"
        log.warning(text, format_netloc(*membership.addresses[0]), why)

    def _meet(self, queue: netq.Communicator, membership: Membership, described: Described) -> None:
        """Check what the parent says, and go on to the next address if it is none for this relay. Raises RelayError."""
        servers = [*queue.absences()]
        if not servers:  # the session is over already
            return
        try:
            description = _read(described)
            self._check_parent(queue.id, description)
        except RelayError as error:
            self._refused.add(membership.addresses[0])
            if len(self._refused) == len(set(membership.addresses)):
                raise
            membership.move(str(error))
            return
        self._refused.clear()
        path = [str(queue.id), *description.path]
        below = self._below
        if below is None:
            below = self._listen(description, servers[0])
            parent, here = format_netloc(*membership.addresses[0]), format_netloc(*below.netloc)
            log.info("relay of %s, listening at %s", parent, here)
        below.has_parent(replace(description, path=path))

    def _check_parent(self, id: uuid.UUID, description: Description) -> None:
        if str(id) in description.path:
            raise RelayError(f"{id}: this relay is above its own parent: a cycle; give it the address of the server")
        if not description.relays:
            name = f"{description.name!r}" if description.name else "only by its id, so give it a name (relay.name)"
            raise RelayError(f"the server calls this relay {name}, and has it not among its `relays`: name it there")
        self._check(description.folding)
        if self._below is not None:
            self._below.check(description.tensors, description.roles)

    def _listen(self, description: Description, server: uuid.UUID) -> Below:
        try:
            self._below = Below(description, replace(self._options, id=server), **self._settings)
        except (InvalidOption, SecurityError) as error:  # of this side, not of the way up
            raise type(error)(f"Relay.options: {error}") from error
        except (InvalidUpdate, MemoryError, TypeError, ValueError) as error:
            raise RelayError(f"the server's model is none for this relay: {printable(describe(error), 500)}") from error
        self._stack.callback(self._below.close, 0.0)
        return self._below

    def _end(self, conversation: Conversation) -> None:
        """Tell the clients that the federation is over: without a round here, those of the next seconds, too."""
        if self._below is None:
            return
        below, linger, final = self._below, 0.0 if self._has_worked else self._linger, conversation.final
        if linger:
            text = "the federation is over: for %g s, clients that connect at %s are told so"
            log.info(text, linger, format_netloc(*below.netloc))
        self._stack.pop_all()
        below.end(conversation.last, None if final is None else _model_of(final), linger)

    def _check(self, folding: Any) -> None:
        """Raise RelayError unless this relay folds as its server."""
        ours = self._strategy.folding
        if folding == ours:
            return
        if not folding:
            raise RelayError("the server does not say how it folds: it is of another version; install the same netq")
        raise RelayError(
            f"this relay folds by {_shown(ours)}, its server by {_shown(folding)}: give the relay the server's strategy"
        )

    def _answer(self, queue: netq.Communicator, below: Below, envelope: Envelope, begin: float) -> Finished | str:
        """Have the clients do a task. Return the sum as bytes, or the reason why there is none."""
        try:
            if envelope.job.purpose == "statistics" and not envelope.is_secure:
                return "a relay gives no statistics of its clients' data; connect them to the server itself"
            task = build(PASSED.load(envelope.stream))
            assert isinstance(task, Task)
            if task.job.purpose in PURPOSES:
                self._check(task.folding)
            return finished(task.job, below.do(task, begin, _watch(queue)))
        except (Void, InvalidUpdate, Unreadable) as error:
            return str(error)
        except netq.Closed as error:
            raise RelayError(_CLOSED) from error


def _read(described: Described) -> Description:
    try:
        description = MESSAGES.load(described.stream)
        assert isinstance(description, Description)
    except Unreadable as error:
        raise RelayError(f"what the parent says of its tasks cannot be read: {error}; install the same netq") from None
    return description


def _model_of(final: Final) -> Mapping[str, Any]:
    message = build(PASSED.load(final.stream))
    assert isinstance(message, FinalModel)
    return message.model


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


def _is_same(one: netq.NetworkLocation, other: netq.NetworkLocation) -> bool:
    """Return whether these are the same place, as far as the names tell."""
    hosts = {one.host, other.host}
    return 0 < one.port == other.port and (len(hosts) == 1 or hosts <= _HERE)


def _shown(folding: Any) -> str:
    options = ", ".join(f"{name}={value!r}" for name, value in folding.items() if name not in ("fold", "merges"))
    return printable(f"{folding.get('fold')}({options})", 500)
