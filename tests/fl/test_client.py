"""A client replies once to each task, whatever the user's function does."""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fl
import netq
from fl.envelope import End, Introduction, Job
from fl.messages import MESSAGES, Reply, Report, Task, Update
from fl.tensors.serialization import messages
from fl.trainer import Trainer
from netq.utils.stream import Stream

SOON = 10.0  # seconds in which all happens that does happen
LOCAL = netq.NetworkLocation("127.0.0.1", 0)


def echo(model: Any, config: Mapping[str, Any]) -> Update:
    return Update(model, 1, {"round": config["round"]})


def score(model: Any, config: Mapping[str, Any]) -> Report:
    return Report(2, {"accuracy": 0.5})


class ControlledServer:
    """A server that the test controls, and one client in a thread."""

    def __init__(self, queue: netq.Communicator, run: Future[Any]) -> None:
        self.queue = queue
        self.run = run

    def __call__(self, purpose: Any = "train", round: int = 1, run: int = 7, **config: Any) -> Any:
        """Give the client a task, and return the content of its reply."""
        self.put(Task(Job(run, round, purpose), {"w": np.arange(4.0)}, config))
        return self.answer(purpose, round, run)

    def put(self, message: Any) -> None:
        self.queue.put(message).result(SOON)

    def next(self) -> Any:
        """Return the next message, but for what the client says of itself at the begin of a session."""
        while True:
            self.peer, message = self.queue.get(timeout=SOON)
            if not isinstance(message, Introduction):
                return message

    def answer(self, purpose: str = "train", round: int = 1, run: int = 7) -> Any:
        reply = self.next()
        assert type(reply) is Reply
        assert reply.job == Job(run, round, purpose)  # type: ignore[arg-type]
        return reply.content

    def close(self) -> None:
        """End the federation. There must be no further messages."""
        self.put(End(1))
        assert self.queue.close(SOON) == 0
        self.run.result(SOON)
        with pytest.raises(netq.Closed):
            self.next()


@contextlib.contextmanager
def serving(
    client: fl.Client, message_size: int = 2**30, options: netq.CommunicatorOptions | None = None
) -> Iterator[ControlledServer]:
    mine = options or netq.CommunicatorOptions()
    came = threading.Event()
    plain = messages()

    def dump(message: Any) -> Stream:
        if isinstance(message, Stream):
            return message
        return MESSAGES.dump(message) if isinstance(message, (Task, Reply, End)) else plain.dump(message)

    options = netq.CommunicatorOptions(
        netloc=LOCAL,
        connection=netq.ConnectionOptions(linger=1.0, message_size=message_size),
        serialization=netq.SerializationOptions(MESSAGES.load, dump),
        events=netq.EventOptions(ini=lambda peer: came.set()),
    )
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as queue, ThreadPoolExecutor() as pool:
        try:
            run = pool.submit(client.run, replace(mine, netloc=queue.netloc))
            assert came.wait(SOON)
            server = ControlledServer(queue, run)
            yield server
            server.close()
        finally:
            queue.close(SOON)


def test_tasks_are_answered_in_order_until_the_server_ends() -> None:
    with serving(fl.Client(echo, score)) as server:
        for round in (1, 2, 5):
            update = server("train", round)
            assert type(update) is Update
            np.testing.assert_array_equal(update.model["w"], np.arange(4.0))
            assert update.metrics == {"round": round}
            assert server("evaluate", round, run=round) == Report(2, {"accuracy": 0.5})


def test_only_the_newest_of_waiting_tasks_is_done() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(model: Any, config: Mapping[str, Any]) -> Update:
        begun.set()
        assert go_on.wait(SOON)
        return echo(model, config)

    with serving(fl.Client(slow)) as server:
        server.put(Task(Job(7, 1, "train"), {}, {}))
        assert begun.wait(SOON)
        for round in range(2, 6):
            server.put(Task(Job(7, round, "train"), {}, {}))
        go_on.set()
        assert server.answer(round=1).metrics == {"round": 1}
        assert server.answer(round=5).metrics == {"round": 5}


def test_the_config_has_the_round_and_the_servers_values() -> None:
    told: list[Mapping[str, Any]] = []

    def train(model: Any, config: Mapping[str, Any]) -> Update:
        told.append(config)
        return Update(model, 1)

    with serving(fl.Client(train)) as server:
        server(round=3, rate=0.1, nested={"on": [1, 2]})
    assert told == [{"round": 3, "state": {}, "rate": 0.1, "nested": {"on": [1, 2]}}]


def test_the_function_may_change_the_model() -> None:
    def train(model: Any, config: Mapping[str, Any]) -> Update:
        assert type(model) is dict
        model["w"] *= 2
        model["w"][0] = 9
        return Update(model, 1)

    with serving(fl.Client(train)) as server:
        for _ in range(2):
            assert server().model["w"].tolist() == [9, 2, 4, 6]


def test_a_model_is_freed_after_the_reply() -> None:
    freed = threading.Event()

    def train(model: Any, config: Mapping[str, Any]) -> Update:
        weakref.finalize(model["w"], freed.set)
        return Update({"w": np.zeros(1)}, 1)

    with serving(fl.Client(train)) as server:
        server()
        assert freed.wait(SOON)


def _raise(error: BaseException) -> Any:
    raise error


def _holding(value: Any) -> Update:
    return Update({"w": value}, 1)


class _Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


FAILS: dict[str, tuple[Callable[[], Any], str]] = {
    "an error": (lambda: _raise(RuntimeError("no memory left")), "RuntimeError: no memory left"),
    "an error of no words": (lambda: _raise(KeyError("w")), "KeyError: 'w'"),
    "an error whose text raises": (lambda: _raise(_Mute()), "_Mute: it has no text, because its __str__ raises"),
    "a failed assertion": (lambda: _raise(AssertionError()), "AssertionError: "),
    "nothing": (lambda: None, "returned NoneType; expected fl.Update"),
    "a report": (lambda: Report(1), "returned Report; expected fl.Update"),
    "the class": (lambda: Update, "returned type; expected fl.Update"),
    "-5 examples": (lambda: Update({}, -5), "InvalidUpdate: num_examples: int -5; expected"),
    "a text": (lambda: Update({}, 1, {"loss": "low"}), "InvalidUpdate: metrics['loss']: str 'low'"),
    "a lambda": (lambda: _holding(lambda: 0), "SerializationError: 'w': a builtins.function"),
    "a lock": (lambda: _holding(threading.Lock()), "SerializationError: 'w': a _thread.lock"),
    "much": (lambda: Update({"w": np.zeros(10_000)}, 1), "its answer cannot be sent: "),
}


@pytest.mark.parametrize(
    ("skips", "reason"),
    [
        (lambda: fl.Skip("no data yet"), "no data yet"),
        (lambda: _raise(fl.Skip("no data yet")), "no data yet"),
        (lambda: Update({}, 0), "it has no examples"),
    ],
    ids=["returned", "raised", "no examples"],
)
def test_a_skip_is_replied_and_what_changed_in_the_state_stays(
    skips: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    def train(model: Any, config: Mapping[str, Any]) -> Any:
        config["state"]["seen"] = config["state"].get("seen", 0) + 1
        return skips() if config["round"] == 1 else Update(model, 1, {"seen": config["state"]["seen"]})

    def evaluate(model: Any, config: Mapping[str, Any]) -> Any:
        return Report(0)

    with serving(fl.Client(train, evaluate, compression="int8")) as server:
        content = server(round=1)
        assert type(content) is fl.Skip
        assert content.reason == reason
        assert server(round=2).metrics == {"seen": 2}
        assert type(server("evaluate", 2)) is fl.Skip
    assert "failed" not in caplog.text


def test_a_raised_skip_keeps_no_model() -> None:
    models: list[Any] = []

    def train(model: Any, config: Mapping[str, Any]) -> Any:
        models.append(weakref.ref(model["w"]))
        raise fl.Skip("no data")

    task = Task(Job(1, 1, "train"), {"w": np.zeros(3)}, {})
    content = Trainer(train).do(task)
    del task
    assert models[0]() is None
    assert str(content) == "no data"


@pytest.mark.parametrize("case", FAILS)
def test_a_failure_is_replied_and_the_client_goes_on(case: str, caplog: pytest.LogCaptureFixture) -> None:
    fails, reason = FAILS[case]

    def train(model: Any, config: Mapping[str, Any]) -> Any:
        return fails() if config["round"] == 1 else echo(model, config)

    with serving(fl.Client(train), message_size=20_000) as server:
        failure = server(round=1)
        assert type(failure) is str
        assert reason in failure
        assert type(server(round=2)) is Update
    if case == "an error":
        assert "round 1: train failed" in caplog.text
        assert "Traceback" in caplog.text


def test_a_client_without_evaluate_replies_with_a_failure() -> None:
    with serving(fl.Client(echo)) as server:
        assert server("evaluate") == "this client has no function to evaluate"
        assert type(server("train", 2)) is Update


def test_an_evaluation_must_be_a_report() -> None:
    with serving(fl.Client(echo, echo)) as server:  # type: ignore[arg-type]
        assert "returned Update; expected fl.Report" in server("evaluate")


def test_other_messages_are_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with serving(fl.Client(echo)) as server, caplog.at_level(logging.DEBUG, "netq.fl"):
        server.put(Reply(Job(7, 1, "train"), "x"))
        for junk in ("hello", None, [7, 1, "train"], {"type": "Report", "num_examples": 1}, b"junk"):
            server.put(junk)
        assert type(server()) is Update
    assert caplog.text.count("expected a Task, a Permit, an End, a Final or a Description") == 6
    assert caplog.text.count("a message of the server cannot be read") == 6
    assert [record.levelno for record in caplog.records if record.levelno > logging.INFO] == [logging.ERROR]


def test_an_interrupt_ends_the_run() -> None:
    class Stop(BaseException):
        pass

    with contextlib.suppress(Stop), serving(fl.Client(lambda model, config: _raise(Stop()))) as server:
        server.put(Task(Job(7, 1, "train"), {}, {}))
        assert type(server.run.exception(SOON)) is Stop


def test_options_are_used_except_the_serialisation() -> None:
    def unused(data: Any) -> Any:
        raise AssertionError("the serialisation of the options is used")

    mine = netq.CommunicatorOptions(id=uuid.UUID(int=5), serialization=netq.SerializationOptions(unused, unused))
    with serving(fl.Client(echo), options=mine) as server:
        assert type(server()) is Update
        assert server.peer == mine.id


def test_async_functions_are_refused() -> None:
    async def train(model: Any, config: Any) -> Any: ...

    for functions in ({"train": train}, {"train": len, "evaluate": train}):
        with pytest.raises(netq.InvalidOption, match="expected a function of a model and a config, not an async one"):
            fl.Client(**functions)
