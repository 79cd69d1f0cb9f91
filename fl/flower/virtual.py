"""A grid of virtual nodes: an engine (fl/simulation/pool.py, fl/simulation/ray_pool.py) has the ClientApp answer.

Made by fl/flower/runner.py. Nodes have no connection; a node is its number and its context, which lies here as bytes
between two messages: so any worker answers for any node. The messages are those of a real grid (fl/flower/messages.py),
and a node's app sees what it would see in a deployment.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import flwr.serverapp
from flwr.app import Error, Message, Metadata, RecordDict

from fl.flower._compat import ErrorCode, Run, identity, set_message_id
from fl.flower.apps import ClientApp
from fl.flower.envelope import RAISED, Failure
from fl.flower.messages import MESSAGES, WITH_VALUES, Ask, Reply, check_config, message_id, node_id, read, title_of
from fl.flower.node_tasks import NodeTasks
from fl.flower.replies import Replies, Streamed, reply, reply_to_nothing
from fl.simulation.calls import Calls
from fl.simulation.chunks import PICKLES, Chunk, Engine, chunk_size
from netq.utils.stream import Stream


@dataclass
class Answers:
    """What has come of a chunk: the bytes of replies, or why there is none; and the contexts that nodes keep."""

    replies: dict[int, bytes | str] = field(default_factory=dict)
    kept: dict[int, bytes] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)


class NodeWorker:
    """Has the app answer for nodes. See fl.simulation.chunks.Worker."""

    def __init__(self, app: ClientApp, nodes: int, calls: Calls) -> None:
        self._app = app
        self._nodes = nodes
        self._calls = calls
        self._task: Any = None

    def begin(self, task: bytes) -> None:
        """Take the bytes of an Ask."""
        self._task = WITH_VALUES.load(Stream([task]))

    def do(self, chunk: Chunk) -> Answers:
        """Answer for each node of a chunk."""
        answers = Answers()
        for number, count in zip(chunk.clients, chunk.calls, strict=True):
            threading.current_thread().name = f"client {number}"  # which prints and logs
            config = {"partition-id": number, "num-partitions": self._nodes}
            tasks = NodeTasks(self._app, node_id(uuid.UUID(int=number)), config)
            if number in chunk.kept:
                tasks.restore(PICKLES.load(chunk.kept[number]))
            with self._calls.alone(number, self._task.title, count):
                answer = tasks.answer(self._task)
            if isinstance(answer, str):
                answers.replies[number] = answer
            else:
                answers.replies[number] = bytes(answer.message)
                answers.kept[number] = bytes(PICKLES.dump(tasks.save()))
        return answers

    def lost(self, chunk: Chunk, why: str) -> Answers:
        """See Worker."""
        return Answers(lost=dict.fromkeys(chunk.clients, why))


class _Batch(NamedTuple):
    """Messages with one content that no worker has had yet. Metadata by node."""

    id: int
    ask: Ask | bytes  # bytes of one: the app may change the content before it asks for the replies
    messages: dict[int, Metadata]


class VirtualGrid(flwr.serverapp.Grid):
    """Flower's Grid over virtual nodes. A context manager, for one thread.

    A message is answered when its reply is asked for, and a node does not miss a `timeout`. Raises Unreadable for an
    invalid config, and RuntimeError for a second grid in this process.
    """

    def __init__(self, engine: Engine, nodes: int, run_config: Mapping[str, bool | int | float | str] | None) -> None:
        self.run_config = dict(run_config or {})
        check_config(self.run_config)
        self._engine = engine
        self._numbers = {node_id(uuid.UUID(int=number)): number for number in range(nodes)}
        self._run = Run.create_empty(secrets.randbits(62) + 1)
        self._counts: Counter[int] = Counter()  # messages that each node has had
        self._kept: dict[int, bytes] = {}
        self._waiting: dict[str, _Batch] = {}  # by the id of each message
        self._arrived: dict[str, Message] = {}
        self._under_way: Iterator[Message] = iter(())  # the replies of a batch that the workers have
        with ExitStack() as undo:
            undo.enter_context(identity(self._run.run_id))
            self._end = undo.pop_all()

    def close(self) -> None:
        """End the run."""
        self._end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # The interface of Flower's Grid.

    def set_run(self, run: Run) -> None:
        """Raise RuntimeError: a grid makes its own run."""
        raise RuntimeError(f"VirtualGrid.set_run: this grid has its run ({self._run.run_id}), and keeps it")

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
        """Return all nodes."""
        return list(self._numbers)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep messages for the nodes, and return their ids, in order."""
        return self._push(messages, as_bytes=True)

    def _push(self, messages: Iterable[Message], *, as_bytes: bool) -> list[str]:
        batches: dict[tuple[Any, ...], _Batch] = {}
        messages = list(messages)
        for message in messages:
            metadata = message.metadata
            key: tuple[Any, ...] = (id(message.content), metadata.message_type, metadata.group_id, metadata.ttl)
            while key in batches and metadata.dst_node_id in batches[key].messages:
                key = (*key, 0)  # a batch has one message to each node
            if key not in batches:
                ask = self._ask(message)
                batches[key] = _Batch(ask.batch, bytes(MESSAGES.dump(ask)) if as_bytes else ask, {})
            batch = batches[key]
            set_message_id(message, message_id(batch.id, metadata.dst_node_id))
            if metadata.dst_node_id in self._numbers:
                batch.messages[metadata.dst_node_id] = message.metadata
                self._waiting[message.metadata.message_id] = batch
            else:
                absent = Error(ErrorCode.NODE_UNAVAILABLE, f"node {metadata.dst_node_id}: there is none")
                self._arrived[message.metadata.message_id] = reply(message.metadata, absent)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Have the nodes answer. Return the replies, and an error for each unknown id."""
        return list(self._replies(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Have the nodes answer messages, and return their replies. For Streamed messages, return Replies at once."""
        replies = self._replies(self._push(messages, as_bytes=False))  # bytes of all at once may be many
        return Replies(replies) if isinstance(messages, Streamed) else list(replies)

    def _replies(self, ids: Iterable[str]) -> Iterator[Message]:
        left = dict.fromkeys(ids)
        try:
            for id in [*left]:
                while id in self._waiting:
                    self._go_on(self._waiting[id])
                del left[id]
                yield self._arrived.pop(id, None) or reply_to_nothing(self._run.run_id, id)
        finally:
            for id in left:  # no one reads them
                self._waiting.pop(id, None)
                self._arrived.pop(id, None)

    def _go_on(self, batch: _Batch) -> None:
        """Wait for a reply of the batch under way, which may be another one. If there is none, begin this one."""
        found = next(self._under_way, None)
        if found is None:
            self._under_way = self._answer(batch)
        elif self._waiting.pop(found.metadata.reply_to_message_id, None) is not None:
            self._arrived[found.metadata.reply_to_message_id] = found

    def _ask(self, message: Message) -> Ask:
        metadata = message.metadata
        title = title_of(metadata.message_type, metadata.group_id, message.content)
        what = (metadata.message_type, metadata.group_id, metadata.created_at, metadata.ttl)
        return Ask(secrets.randbits(63), self._run.run_id, self.run_config, *what, "", message.content, title)

    def _answer(self, batch: _Batch) -> Iterator[Message]:
        """Have the nodes of a batch answer. Yield their replies in the order of their messages."""
        numbers = {self._numbers[node]: metadata for node, metadata in batch.messages.items()}
        ask = batch.ask if isinstance(batch.ask, bytes) else bytes(MESSAGES.dump(batch.ask))
        for _, answers in self._engine.run(ask, self._chunks([*numbers])):
            self._kept |= answers.kept
            for number, answer in answers.replies.items():
                yield reply(numbers[number], _content(answer))
            for number, why in answers.lost.items():
                reason = f"node {numbers[number].dst_node_id} (client {number}): {why}"
                yield reply(numbers[number], Error(ErrorCode.NODE_UNAVAILABLE, reason))

    def _chunks(self, numbers: Sequence[int]) -> Iterator[Chunk]:
        size = chunk_size(len(numbers))
        for start in range(0, len(numbers), size):
            part = numbers[start : start + size]
            self._counts.update(part)
            kept = {each: self._kept[each] for each in part if each in self._kept}
            yield Chunk(part, [self._counts[each] for each in part], kept, {})


def _content(answer: bytes | str) -> RecordDict | Error:
    if isinstance(answer, str):  # the app has raised
        return Error(RAISED, answer)
    message = read(MESSAGES.load(Stream([answer])))
    if isinstance(message, Failure):
        return Error(message.code, message.reason)
    assert isinstance(message, Reply)
    return message.content
