"""A server and its clients in one process, for tests. Models are small, and their means exact floats."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

import fl
import netq
from fl.envelope import End, Introduction, Offer
from fl.messages import MESSAGES, Reply, Task, Update
from fl.tensors.serialization import messages
from netq.utils.stream import Stream

A, B, C, D = IDS = [uuid.UUID(int=n) for n in range(1, 5)]
SOON = 10.0  # seconds in which all happens that does happen
SHORT = 0.4  # seconds, where time must pass
QUICK = netq.ConnectionOptions(retry_min=0.01, retry_max=0.1, linger=SHORT)
Train = Callable[[Any, Mapping[str, Any]], Any]


def zeros() -> dict[str, NDArray[Any]]:
    return {"w": np.zeros(3, np.float32)}


def filled(value: float) -> dict[str, NDArray[Any]]:
    return {"w": np.full(3, value, np.float32)}


def gives(value: float, number: int = 1, **metrics: float) -> Train:
    return lambda model, config: Update(filled(value), number, metrics)


def adds(value: float) -> Train:
    """A client that adds to the model that it was sent."""
    return lambda model, config: Update({"w": model["w"] + np.float32(value)}, 1)


def at(
    netloc: netq.NetworkLocation, id: uuid.UUID | None = None, connection: netq.ConnectionOptions = QUICK
) -> netq.CommunicatorOptions:
    return netq.CommunicatorOptions(id=id or uuid.uuid4(), netloc=netloc, connection=connection)


def grouped(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of fl.Server, with the fields of fl.Patience among them as one."""
    names = {each.name for each in fields(fl.Patience)} & settings.keys()
    others = {name: value for name, value in settings.items() if name not in names}
    return {**others, "patience": fl.Patience(**{name: settings[name] for name in names})}


class Federation:
    """A server, and its clients in threads, which end with the server."""

    def __init__(
        self, model: Any = None, port: int = 0, connection: Any = QUICK, security: Any = None, **settings: Any
    ) -> None:
        options = replace(at(netq.NetworkLocation("127.0.0.1", port), connection=connection), security=security)
        self.server = fl.Server(model or zeros(), options, **grouped({"deadline": 3 * SOON, **settings}))
        self._pool = ThreadPoolExecutor(16)
        self._runs: list[Future[None]] = []

    def join(
        self, id: uuid.UUID, train: Train, evaluate: Any = None, connection: netq.ConnectionOptions = QUICK
    ) -> Future[None]:
        """Start a client."""
        return self.start(fl.Client(train, evaluate).run, at(self.server.netloc, id, connection))

    def join_raw(self, id: uuid.UUID, answer: Callable[[Task], Sequence[Any]]) -> Future[None]:
        """Start a client that puts the messages that `answer` returns."""
        return self.start(_raw, at(self.server.netloc, id), answer)

    def start(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        self._runs.append(self._pool.submit(function, *args))
        return self._runs[-1]

    def round(self, clients: int) -> fl.RoundReport:
        """Run a round when `clients` are connected. It must end long before its deadline."""
        self.server.wait(clients, SOON)
        report = self.server.round()
        assert report.seconds < SOON
        return report

    def set_deadline(self, seconds: float) -> None:
        """Set the deadline of the next rounds."""
        self.server._federation.patience = replace(self.server._federation.patience, deadline=seconds)

    @property
    def w(self) -> list[float]:
        found: list[float] = self.server.model["w"].tolist()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.server.close(SOON)
            for run in self._runs:
                run.result(SOON)
        finally:
            self._pool.shutdown()


def _raw(options: netq.CommunicatorOptions, answer: Callable[[Task], Sequence[Any]]) -> None:
    plain = messages()

    def dump(message: Any) -> Stream:
        if isinstance(message, (Introduction, Task, Offer, Reply)):
            stream: Stream = MESSAGES.dump(message)
            return stream
        return Stream([message]) if isinstance(message, bytes) else plain.dump(message)

    options = netq.CommunicatorOptions(
        options.id, options.netloc, options.connection, netq.SerializationOptions(MESSAGES.load, dump)
    )
    with netq.new(purpose=netq.Purpose.CLIENT, options=options) as server:
        server.put(Introduction({}))
        while True:
            try:
                task = server.get().data
            except netq.Closed:
                return
            if isinstance(task, End):
                continue
            for message in answer(task):
                server.put(message)


def reasons(report: fl.RoundReport) -> dict[uuid.UUID, str]:
    return {peer: str(refusal) for peer, refusal in report.failures.items()}


def reply(task: Task, content: Any) -> Reply:
    return Reply(task.job, content)
