"""A server, relays and clients in one process, for tests."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self

import fl
import netq
from netq.testing.fixtures import LIMIT
from tests.fl.federation import Train, at, zeros

HERE = netq.NetworkLocation("127.0.0.1", 0)
Shape = Sequence[Any]  # a number is a client, a list a relay with what is below it


class Listens(fl.Callback):
    """Says where a relay listens, and when so many clients have joined it."""

    def __init__(self, place: Future[netq.NetworkLocation], clients: int = 0) -> None:
        self._place = place
        self._left = clients
        self.has_all = threading.Event()

    def listens(self, server: Any) -> None:
        self._place.set_result(server.netloc)
        self._look()

    def client_joins(self, client: uuid.UUID, name: str) -> None:
        self._left -= 1
        self._look()

    def _look(self) -> None:
        if self._left <= 0:
            self.has_all.set()


class Tree:
    """A server, and below it relays and clients as a shape says, in threads, which end with the server.

    strategy: makes the strategy of the server and of each relay.
    train:    makes a client's function of its number.
    client:   makes the other arguments of a client of its number.
    """

    def __init__(
        self,
        shape: Shape,
        train: Callable[[int], Train],
        model: Any = None,
        strategy: Callable[[], fl.Strategy] = fl.FedAvg,
        evaluate: Callable[[int], Any] | None = None,
        relay: dict[str, Any] | None = None,
        client: Callable[[int], dict[str, Any]] = lambda number: {},
        **settings: Any,
    ) -> None:
        self._train, self._evaluate, self._strategy, self._of_relay = train, evaluate, strategy, relay or {}
        self._of_client = client
        settings = {"min_clients": len(shape), "relays": True, "evaluate": evaluate is not None, **settings}
        self.server = fl.Server(model or zeros(), at(HERE), strategy=strategy(), **settings)
        self.relays: list[fl.Relay] = []
        self._places: list[Future[netq.NetworkLocation]] = []  # of the relays
        self._listens: list[Listens] = []
        self._children = len(shape)
        self._pool = ThreadPoolExecutor(32)
        self.runs: list[Future[Any]] = []
        self._grow(shape, lambda: self.server.netloc)

    def _grow(self, shape: Shape, parent: Callable[[], netq.NetworkLocation]) -> None:
        for each in shape:
            if isinstance(each, int):
                function = self._evaluate(each) if self._evaluate else None
                client = fl.Client(self._train(each), function, name=f"c{each}", **self._of_client(each))
                self.start(self._client, client, each, parent)
            else:
                number = len(self.relays)
                self.relays.append(None)  # type: ignore[arg-type]  # until the parent has an address
                self._places.append(Future())
                self._listens.append(Listens(self._places[number], len(each)))
                self.start(self._relay, number, len(each), parent)
                self._grow(each, lambda number=number: self.netloc_of(number))  # type: ignore[misc]

    def netloc_of(self, number: int) -> netq.NetworkLocation:
        """Wait until a relay listens. Return where."""
        return self._places[number].result(LIMIT)

    def _client(self, client: fl.Client, number: int, parent: Callable[[], netq.NetworkLocation]) -> Any:
        return client.run(at(parent(), uuid.UUID(int=number)))

    def _relay(self, number: int, children: int, parent: Callable[[], netq.NetworkLocation]) -> None:
        options = {"relays": True, "min_clients": children, "strategy": self._strategy(), **self._of_relay}
        options["callbacks"] = [self._listens[number]]
        self.relays[number] = relay = fl.Relay(at(parent()), at(HERE), name=f"r{number}", **options)
        relay.run()

    def start(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        self.runs.append(self._pool.submit(function, *args))
        return self.runs[-1]

    def rounds(self, count: int) -> list[fl.RoundReport]:
        """Run rounds until so many have counted."""
        return [report for report in self.server.rounds(count) if report.clients]

    def __enter__(self) -> Self:
        """Wait until the server and each relay have their clients: a round that begins before does without some."""
        try:
            self.server.wait(self._children, LIMIT)
            for each in self._listens:
                assert each.has_all.wait(LIMIT)
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        try:
            self.server.__exit__(kind, *error)
            if kind is not None:  # else threads would wait for the next server
                for relay in self.relays:
                    if relay is not None and relay.server is not None:
                        relay.server.close(LIMIT)
            for run in self.runs:
                with suppress(Exception if kind is not None else InterruptedError):
                    run.result(LIMIT)
        finally:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)
