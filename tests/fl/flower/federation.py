"""A grid and its nodes, in threads of this process, which end with the grid."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Self

import flwr.app
from flwr.app import Context, Message, RecordDict

import fl.flower
import netq
from fl.flower.messages import MESSAGES
from netq.utils.stream import Stream

SOON = 20.0  # seconds in which all happens that does happen
SHORT = 0.4  # seconds, where time must pass
QUICK = netq.ConnectionOptions(retry_min=0.01, retry_max=0.1, linger=SHORT)


def at(netloc: tuple[str, int], id: uuid.UUID | None = None, **settings: Any) -> netq.CommunicatorOptions:
    settings = {"connection": QUICK, **settings}
    return netq.CommunicatorOptions(id=id or uuid.uuid4(), netloc=netq.NetworkLocation(*netloc), **settings)


class Federation:
    """A grid and its nodes. Errors of the nodes' threads are raised at the end."""

    def __init__(
        self,
        options: netq.CommunicatorOptions | None = None,
        protocol: netq.Protocol = netq.Protocol.TCP,
        security: netq.SecurityOptions | None = None,
        **settings: Any,
    ) -> None:
        self.grid = fl.flower.Grid(options or at(("127.0.0.1", 0)), protocol, **settings)
        self._protocol = protocol
        self._security = security
        self._pool = ThreadPoolExecutor(16)
        self._runs: list[Future[Any]] = []

    def join(
        self,
        client: fl.flower.ClientApp | fl.flower.ReceivedApps,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> uuid.UUID:
        """Start a node, and wait until it is connected."""
        id = uuid.uuid4()
        self.start(fl.flower.Node(client, config, **settings).run, self.options(id), self._protocol)
        self.wait_for(id)
        return id

    def join_all(self, client: fl.flower.ClientApp, nodes: int) -> None:
        """Start nodes, each with a partition of its own."""
        for number in range(nodes):
            options = self.options(uuid.uuid4())
            self.start(fl.flower.Node(client, {"partition-id": number}).run, options, self._protocol)
        assert len(self.grid.wait(nodes, SOON)) == nodes

    def join_raw(self, answer: Callable[[Any], Sequence[Any]]) -> uuid.UUID:
        """Start a peer that puts what `answer` returns: plain values, or bytes as they are."""
        id = uuid.uuid4()

        def dump(message: Any) -> Stream:
            return Stream([message]) if isinstance(message, bytes) else MESSAGES.dump(message)

        serialization = netq.SerializationOptions(MESSAGES.load, dump)
        self.start(_raw, replace(self.options(id), serialization=serialization), self._protocol, answer)
        self.wait_for(id)
        return id

    def options(self, id: uuid.UUID) -> netq.CommunicatorOptions:
        return at(self.grid.netloc, id, security=self._security)

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        self._runs.append(self._pool.submit(function, *args))

    def wait_for(self, id: uuid.UUID) -> None:
        count = 1
        while fl.flower.node_id(id) not in (nodes := self.grid.wait(count, SOON)):
            count = len(nodes) + 1

    def run(self, server_app: fl.flower.ServerApp) -> Context:
        """Run an app, as fl.flower.run does, on the grid that is there."""
        context = Context(self.grid.run.run_id, 1, {}, RecordDict(), dict(self.grid.run_config))
        server_app(self.grid, context)
        return context

    def ask(self, *messages: Message) -> Iterator[Message]:
        """Send messages, and return an iterator of the replies."""
        return iter(self.grid.send_and_receive(fl.flower.Streamed(messages)))

    def query(self, *ids: uuid.UUID, timeout: float | None = None, **settings: Any) -> dict[uuid.UUID, Message]:
        """Ask nodes something; return their replies by id."""
        content = settings.pop("content", None) or RecordDict()
        by_node = {fl.flower.node_id(id): id for id in ids}
        messages = [Message(content, node, "query", **settings) for node in by_node]
        replies = self.grid.send_and_receive(messages, timeout=timeout)
        return {by_node[reply.metadata.src_node_id]: reply for reply in replies}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.grid.close(SOON)
            for run in self._runs:
                run.result(SOON)
        finally:
            self._pool.shutdown()


def _raw(options: netq.CommunicatorOptions, protocol: netq.Protocol, answer: Callable[[Any], Sequence[Any]]) -> None:
    with netq.new(protocol, netq.Purpose.CLIENT, options) as server:
        while True:
            try:
                message = server.get().data
            except netq.Closed:
                return
            if message["type"] == "End":
                continue
            for reply in answer(message):
                server.put(reply)


def error_of(reply: Message) -> flwr.app.Error:
    assert reply.has_error(), reply
    return reply.error
