"""Flower's Grid over a netq server: a ServerApp's messages go to the connected nodes, over any transport.

Made by fl.flower.run, or by a script that uses the grid itself. Owns the run that this process is to Flower, and the
metadata of the messages that were sent. fl/server/dispatcher.py owns the communicator, and tracks which messages have
a reply. Replies are views of the memory that netq filled: the grid copies no tensor, in either direction.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, Self

import flwr.serverapp
from flwr.app import Error, Message, Metadata, RecordDict

import netq
from fl.envelope import End, Leave
from fl.flower._compat import ErrorCode, Run, RunIsOver, identity, set_message_id
from fl.flower.envelope import Failure, Fetch, OtherApp
from fl.flower.masked import Secured
from fl.flower.masked_rounds import MaskedRounds, MaxExamples, Nodes, check_secure, check_sendable
from fl.flower.messages import MESSAGES, Ask, Files, Reply, check_config, message_id, node_id, read, title_of
from fl.flower.replies import Replies, Streamed, reply, reply_to_nothing
from fl.flower.signed_app import SignedApp
from fl.flower.unpulled import Unpulled
from fl.messages import Answered, Masked
from fl.properties import title
from fl.report import ClientFailure, FailureKind
from fl.secure.certified import certified
from fl.secure.options import SecureAggregation
from fl.server.dispatcher import TaskDispatcher
from fl.server.waiting import until_connected
from netq.errors import InvalidOption
from netq.runtime.log_dedup import LogDedup
from netq.validate import expect

log = logging.getLogger("netq.fl")

_CODES = {
    FailureKind.FAILED: ErrorCode.NODE_UNAVAILABLE,
    FailureKind.LATE: ErrorCode.MESSAGE_UNAVAILABLE,
    FailureKind.LOST: ErrorCode.NODE_UNAVAILABLE,
    FailureKind.UNREADABLE: ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    FailureKind.INVALID: ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    FailureKind.VOID: ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
}


_QUIET = 600.0  # seconds until a kind of line about a node is a line again: a node may send without end
_PUSHED = 2**30  # bytes that may wait for one node at least: an app may push several models at once


class _Sent(NamedTuple):
    """A message that has no reply yet."""

    metadata: Metadata
    peer: uuid.UUID | None  # None: the node was not connected


class Grid(flwr.serverapp.Grid):
    """Sends a ServerApp's messages to the nodes (fl.flower.Node) that are connected. Thread-safe; a context manager.

    options:    the communicator's; their serialisation is replaced by that of the grid's messages.
    run_config: `context.run_config` of the apps on the server and on the nodes.
    app_version: AppFolder.version of the app's folder. If that of a node's app is another, both sides log it.
    delivery:   the files of the app, for nodes that take them from the server (ReceivedApps).
    grace:      seconds; a node without a connection for longer is lost, and not waited for.
    secure:     secure aggregation: the server learns the sum of the nodes' replies, and no reply. None: none.
    max_examples: with `secure`, the largest weight of a reply; "equal": all weigh the same.

    Replies that have arrived, and that the app does not pull, take `memory` bytes at most (ConnectionOptions): then the
    oldest is dropped, and pulling it returns an error.

    usage: what the last reply of each node has cost, by the node's id: `usage.cpu_seconds`, `usage.memory_mb` and
           `usage.joules` of nodes that run as `edge run --flower`.

    A process has one grid at a time: Flower identifies the run with the process. Raises the errors of netq.new,
    RuntimeError for a second grid, and Unreadable for an invalid config.
    """

    def __init__(
        self,
        options: netq.CommunicatorOptions | None = None,
        protocol: netq.Protocol = netq.Protocol.TCP,
        *,
        run_config: Mapping[str, bool | int | float | str] | None = None,
        app_version: str = "",
        delivery: SignedApp | None = None,
        grace: float = 10.0,
        secure: SecureAggregation | None = None,
        max_examples: MaxExamples = None,
    ) -> None:
        self.run_config = dict(run_config or {})
        check_config(self.run_config)
        self._version = app_version if delivery is None else delivery.version
        self._delivery = delivery
        self._delivering: set[uuid.UUID] = set()
        expect(grace >= 0, "Grid.grace", grace, "seconds")
        check_secure(secure, max_examples)
        prove = None if secure is None else certified(options or netq.CommunicatorOptions())[1]
        self._run = Run.create_empty(secrets.randbits(62) + 1)
        self._sent: dict[str, _Sent] = {}
        self._since: dict[uuid.UUID, float] = {}  # when the session of each node began, by time.monotonic()
        self.usage: dict[int, Mapping[str, float]] = {}
        self._closed = False
        with ExitStack() as undo:
            undo.enter_context(identity(self._run.run_id))
            options = options or netq.CommunicatorOptions()
            connection = options.connection.with_queue_bytes(_PUSHED)
            connection = replace(connection, queue_bytes=max(connection.queue_bytes, _PUSHED))
            options = replace(options, serialization=MESSAGES, connection=connection)
            self._log_dedup = LogDedup()
            self._names: dict[uuid.UUID, str] = {}
            self._unpulled = Unpulled(options.connection.memory)
            self._dispatcher: TaskDispatcher[str] = TaskDispatcher(
                *(options, protocol, grace, self._receive, self._begins),
                noun="message",
                limit="ttl",
                title=self._title,
            )
            self._masked: MaskedRounds | None = None
            if secure is not None:
                nodes = Nodes(self._dispatcher, self._run.run_id, self._since)
                self._masked = MaskedRounds(secure, max_examples, nodes, prove)
            self._end = undo.pop_all()

    @property
    def netloc(self) -> netq.NetworkLocation:
        """Where the grid listens."""
        return self._dispatcher.queue.netloc

    def wait(self, count: int, timeout: float | None = None) -> list[int]:
        """Wait until `count` nodes are connected, and return all that are. Raises TimeoutError, Closed."""
        return until_connected(count, "nodes", self.get_node_ids, self._dispatcher.sessions_changed, timeout)

    def close(self, timeout: float | None = 10.0) -> None:
        """End the run: the nodes' `run` returns. Waits for them `timeout` seconds at most. Harmless if repeated.

        With a timeout of 0 only drop the links: the nodes wait for the next grid.
        """
        self._closed = True
        self._dispatcher.end()
        self._dispatcher.sessions_changed.set()
        try:
            if timeout != 0:
                self._dispatcher.announce(End(0), self._dispatcher.present())
            self._dispatcher.queue.close(timeout)
        finally:
            self._end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """End the run. After an error, only drop the links: the nodes then wait for the next grid."""
        self.close(10.0 if kind is None else 0.0)

    # The interface of Flower's Grid.

    def set_run(self, run: Run) -> None:
        """Raise RuntimeError: a grid makes its own run."""
        raise RuntimeError(f"Grid.set_run: this grid has its run ({self._run.run_id}), and keeps it")

    @property
    def run(self) -> Run:
        """The run as Flower describes it. Only its number is set."""
        return replace(self._run)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a Message with these values. Deprecated in Flower."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are connected now. Raises Closed."""
        return list(self._nodes(connected=True))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages, and return their ids, in order. Never waits.

        Messages to several nodes with the same RecordDict are serialised and put once. A message to a node without a
        session is answered at once, with an error. Raises the errors of serialisation, and Closed.
        Under secure aggregation it raises InvalidOption.
        """
        if self._masked is not None:
            raise InvalidOption("Grid.secure: push_messages: replies come one by one; expected send_and_receive")
        nodes = self._nodes(connected=False)  # a node without a link may soon be back
        batches: dict[tuple[Any, ...], dict[int, Message]] = {}
        messages = list(messages)
        for message in messages:
            metadata = message.metadata
            key: tuple[Any, ...]
            key = id(message.content), metadata.message_type, metadata.group_id, metadata.ttl
            while metadata.dst_node_id in batches.get(key, ()):  # a batch has one message to each node
                key = (*key, 0)
            batches.setdefault(key, {})[metadata.dst_node_id] = message
        for batch in batches.values():
            self._send(batch, nodes)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived, and an error for each unknown id. Never waits."""
        ids = set(message_ids)
        unknown = {id for id in ids if not self._dispatcher.is_known(id)}
        replies = []
        while found := self._take(ids.__contains__, time.monotonic()):
            replies.append(found)
        return replies + [reply_to_nothing(self._run.run_id, id) for id in unknown]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages, wait for their replies and return them. For Streamed messages, return Replies at once.

        After `timeout` seconds, returns the replies that have arrived, and forgets the other messages. The reply of a
        lost node is an error.

        Under secure aggregation all messages have one content. Each node whose reply is in the sum gets the mean as its
        reply. Raises InvalidOption for messages, and for strategies, that masks do not fit.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        if self._masked is not None:
            return self._masked_replies(self._masked, list(messages), until)
        replies = self._replies(self.push_messages(messages), until)
        return Replies(replies) if isinstance(messages, Streamed) else list(replies)

    def _masked_replies(self, masked: MaskedRounds, messages: list[Message], until: float) -> list[Message]:
        """Do a round under masks. Return a reply to each message."""
        if not messages:
            return []
        check_sendable(messages)
        ask, nodes = self._ask_of(messages[0]), self._nodes(connected=False)
        for message in messages:
            set_message_id(message, message_id(ask.batch, message.metadata.dst_node_id))
        asked = {message.metadata.dst_node_id: message.metadata for message in messages}
        found = masked.contents(ask, [nodes[node] for node in asked if node in nodes], until)
        contents = {node: found[nodes[node]] if node in nodes else _absent(node) for node in asked}
        return [reply(asked[node], self._content(nodes.get(node), each)) for node, each in contents.items()]

    def _replies(self, ids: list[str], until: float) -> Iterator[Message]:
        waiting = set(ids)
        try:
            while found := self._take(waiting.__contains__, until):
                waiting.discard(found.metadata.reply_to_message_id)
                yield found
        finally:
            self._dispatcher.forget(waiting)
            for id in waiting:
                self._sent.pop(id, None)
                self._unpulled.remove(id)

    def _take(self, wanted: Callable[[str], bool], until: float) -> Message | None:
        """Wait for the next reply to one of the wanted messages. Once the grid is closed, replies are errors."""
        found: tuple[str, Any] | None
        try:
            found = self._dispatcher.take(wanted, until)
        except netq.Closed as error:
            unavailable = Error(ErrorCode.NODE_UNAVAILABLE, str(error))
            found = next(((id, unavailable) for id in list(self._sent) if wanted(id)), None)
        if found is None:
            return None
        id, content = found
        metadata, peer = self._sent.pop(id)
        self._unpulled.remove(id)
        return reply(metadata, self._content(peer, content))

    def _content(self, peer: uuid.UUID | None, content: Any) -> RecordDict | Error:
        """Return what a reply has: the content itself, or the error that a failure is."""
        if not isinstance(content, ClientFailure):
            found: RecordDict | Error = content
            return found
        assert peer is not None
        self._note_name(peer)
        reason = f"{self._title(peer)}: {content.reason}"
        if content.why is FailureKind.UNREADABLE:
            log.warning("%s", reason)
        return Error(_CODES[content.why], reason)

    def _receive(self, peer: uuid.UUID, data: Any) -> bool:
        """Handle a message of a node. Return whether it answers one of ours that waits for it. Raises Unreadable.

        The dispatcher calls this from `take`.
        """
        self._note_name(peer)
        match message := read(data):
            case Leave():
                self._log(logging.INFO, peer, "leaves: %s", message.reason)
            case Fetch():
                self._deliver(peer, message.app)
            case OtherApp():
                text = "its app has version %s, the server's %s; update one of them"
                self._log(logging.WARNING, peer, text, message.app, self._version)
            case Failure(batch=None):  # from a node that could not read its message
                self._log(logging.WARNING, peer, "%s", message.reason)
                self._dispatcher.answer_all(peer, Error(message.code, message.reason))
            case Reply():
                return self._answered(peer, message.batch, message.content, message.usage)
            case Secured() if message_id(message.batch, node_id(peer)) not in self._sent:
                return self._answered(peer, message.batch, message.content, {})
            case Failure(batch=int(batch)):
                return self._answered(peer, batch, Error(message.code, message.reason), {})
            case _:
                raise netq.Unreadable(f"a {type(message).__name__}; expected a Reply")
        return False

    def _answered(
        self,
        peer: uuid.UUID,
        batch: int,
        content: RecordDict | Error | Masked | Answered,
        usage: Mapping[str, float],
    ) -> bool:
        id = message_id(batch, node_id(peer))
        if not self._dispatcher.is_open(id):
            self._log(logging.WARNING, peer, "its answer is not waited for (any more)")
            return False
        if usage:
            self.usage[node_id(peer)] = usage
        dropped: list[str] = []
        if id in self._sent and isinstance(content, RecordDict | Error):  # else a masked round takes it at once
            dropped = self._unpulled.add(id, content)  # first: another thread may take the answer at once
        self._dispatcher.answer(id, content)
        for oldest in dropped:
            self._drop(oldest)
        return True

    def _log(self, level: int, peer: uuid.UUID, text: str, *args: object) -> None:
        """Log a line about a node. A line with the same `text`, and other args, follows at DEBUG for some minutes."""
        now = time.monotonic()
        if self._log_dedup.is_new(str(peer), text, now):
            self._log_dedup.forget_at(str(peer), now + _QUIET)
        else:
            level = logging.DEBUG
        log.log(level, f"%s: {text}", self._title(peer), *args)

    def _title(self, peer: uuid.UUID) -> str:
        """Return what errors and the log call a node: its id in Flower, the name of its certificate, its own id."""
        return f"node {node_id(peer)} ({title(peer, self._names.get(peer, ''))})"

    def _note_name(self, peer: uuid.UUID) -> None:
        """Note the name of a node's certificate, while there are figures of it: of one that has gone there are none."""
        if peer not in self._names:
            figures = self._dispatcher.queue.statistics(peer).get(peer)
            if figures is not None:
                layers = (figures.seal, figures.security)
                self._names[peer] = next((layer.name for layer in layers if layer is not None and layer.name), "")

    def _deliver(self, peer: uuid.UUID, version: str) -> None:
        """Send the app's files to a node that asks for them, and not again before it has them."""
        if peer in self._delivering:
            return
        app = self._delivery if self._delivery is not None and self._delivery.version == version else None
        self._log(logging.INFO, peer, "is sent the app's files" if app else "asks in vain for the app's files")
        self._delivering.add(peer)
        files = Files(version, None, b"") if app is None else Files(*app)
        put = self._dispatcher.queue.put(files, peer)
        put.add_done_callback(lambda _: self._delivering.discard(peer))

    def _drop(self, id: str) -> None:
        """Drop a reply that the app has not pulled."""
        if self._dispatcher.drop_answer(id):
            peer = self._sent.pop(id).peer
            assert peer is not None
            text = "%s: its reply is dropped: the app has not pulled it, and later ones need its memory"
            log.warning(text, self._title(peer))

    def _send(self, messages: Mapping[int, Message], nodes: Mapping[int, uuid.UUID]) -> None:
        ask = self._ask_of(next(iter(messages.values())))
        batch, ttl = ask.batch, ask.ttl
        for node, message in messages.items():
            id = message_id(batch, node)
            set_message_id(message, id)
            self._sent[id] = _Sent(message.metadata, nodes.get(node))
        present = {nodes[node]: message_id(batch, node) for node in messages if node in nodes}
        if present:
            self._dispatcher.ask([(ask, present)], ttl)
        for node in messages.keys() - nodes.keys():
            self._dispatcher.add_answer(message_id(batch, node), _absent(node))

    def _ask_of(self, message: Message) -> Ask:
        """Return what is sent of a message, with a batch of its own."""
        metadata = message.metadata
        return Ask(
            secrets.randbits(63),
            self._run.run_id,
            self.run_config,
            metadata.message_type,
            metadata.group_id,
            metadata.created_at,
            metadata.ttl,
            self._version,
            message.content,
            title_of(metadata.message_type, metadata.group_id, message.content),
        )

    def _begins(self, peer: uuid.UUID) -> None:
        self._since[peer] = time.monotonic()

    def _nodes(self, *, connected: bool) -> dict[int, uuid.UUID]:
        """Return the peers that have a session, by their node ids. `connected`: only those that have a link now."""
        if self._closed:
            raise RunIsOver(self._dispatcher.queue.id, "this grid is closed")
        absences = self._dispatcher.queue.absences()
        return {node_id(peer): peer for peer, absent in absences.items() if not (connected and absent)}


def _absent(node: int) -> Error:
    return Error(ErrorCode.NODE_UNAVAILABLE, f"node {node}: it is not connected")
