"""Messages between server and clients: round trips, checks of the fields, and invalid messages."""

from __future__ import annotations

import copy
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fl
from fl.envelope import Describe, End, Job, Leave
from fl.messages import MESSAGES, Description, Reply, Report, Task, Update
from fl.tensors.serialization import messages
from netq.errors import Unreadable
from netq.utils.stream import PickleSerializer, Stream

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(7)}
UPDATE = Update(MODEL, 5, {"loss": 0.5})
JOB = [1, 1, "train"]  # as it travels


def arrived(stream: Stream) -> Any:
    return MESSAGES.load(Stream([bytearray(bytes(stream))]))


def sent(values: Any) -> Any:
    """What arrives of values that a peer made itself."""
    return arrived(messages().dump(values))


def message(type: str, **fields: Any) -> dict[str, Any]:
    return {"type": type, **fields}


def reply(content: Any, **others: Any) -> dict[str, Any]:
    return message("Reply", job=JOB, content=content, **others)


def description(**changed: Any) -> dict[str, Any]:
    fields = {"round": 1, "tensors": {}, "config": {}, "deltas": False, "compression": {}, "roles": {}, "time": 1.0}
    return message("Description", **{**fields, **changed})


PACKED = ["float32", [3], "int8", 0, False, np.zeros(0, np.uint8)]


@pytest.mark.parametrize(
    "message",
    [
        Task(Job(2**62, 3, "train"), {}, {"round": 3, "rates": [0.1, 0.2], "nested": {"on": True}}),
        Reply(Job(1, 3, "train"), Update({}, 5, {"loss": 0.5})),
        Reply(Job(1, 3, "evaluate"), Report(5, {"accuracy": 1})),
        Reply(Job(1, 3, "train"), "no memory"),
        End(2**62),
        Leave("too hot"),
        Describe("edge check"),
        Description(
            3, {"w": ((2, 3), "float32", False)}, {"rate": 0.1}, True, {"dtype": "int8"}, {"m": "local"}, 1.5e9
        ),
    ],
    ids=lambda message: str(message)[:40],
)
def test_a_message_round_trips(message: Any) -> None:
    assert arrived(MESSAGES.dump(message)) == message


def test_a_model_arrives_in_memory_of_its_own() -> None:
    reply = arrived(MESSAGES.dump(Reply(Job(1, 1, "train"), UPDATE)))
    moved = reply.content.model
    assert list(moved) == ["w", "steps"]
    for key, array in MODEL.items():
        np.testing.assert_array_equal(moved[key], array)
        assert moved[key].dtype == array.dtype
        assert moved[key].flags.writeable
        assert not np.shares_memory(moved[key], array)


def test_a_torch_state_dict_can_be_an_update() -> None:
    module = torch.nn.BatchNorm1d(2)
    moved = arrived(MESSAGES.dump(Reply(Job(1, 1, "train"), Update(module.state_dict(), 1)))).content.model
    assert type(moved) is dict
    assert moved["num_batches_tracked"].dtype == torch.int64
    assert list(moved) == list(module.state_dict())


def test_an_update_copies_its_dicts() -> None:
    model, metrics = {"w": np.zeros(1)}, {"loss": 1.0}
    update = Update(model, 1, metrics)
    model.clear()
    metrics.clear()
    assert (list(update.model), update.metrics) == (["w"], {"loss": 1.0})


WRONG_NUMBERS = [-5, True, False, 1.0, 1.5, float("nan"), "5", None, np.float32(5), np.True_, 2**53 + 1, 10**5000]


@pytest.mark.parametrize("number", WRONG_NUMBERS, ids=[f"{type(n).__name__}{i}" for i, n in enumerate(WRONG_NUMBERS)])
@pytest.mark.parametrize("make", [lambda n: Update({}, n), Report], ids=["Update", "Report"])
def test_num_examples_is_an_integer(make: Callable[[Any], Any], number: object) -> None:
    with pytest.raises(fl.InvalidUpdate, match=r"num_examples: .*expected a whole number, 0 to 2\*\*53"):
        make(number)


@pytest.mark.parametrize("number", [5, np.int64(5), np.uint8(5)])
def test_num_examples_becomes_an_int(number: Any) -> None:
    for made in (Update({}, number), Report(number)):
        assert (made.num_examples, type(made.num_examples)) == (5, int)


def test_a_metric_name_is_short() -> None:
    assert Update({}, 1, {"n" * 100: 1.0}).metrics == {"n" * 100: 1.0}
    with pytest.raises(fl.InvalidUpdate, match="at most 100 characters") as caught:
        Update({}, 1, {"n" * 10**6: 1.0})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", ["much", None, 10**400, 1j, {}, fl.Sum("much"), fl.Sum(fl.Sum(1))])
@pytest.mark.parametrize("make", [lambda m: Update({}, 1, m), lambda m: Report(1, m)], ids=["Update", "Report"])
def test_a_metric_is_a_number(make: Callable[[Any], Any], value: object) -> None:
    with pytest.raises(fl.InvalidUpdate, match=r"metrics\['loss'\]: .*expected a number"):
        make({"loss": value})


def test_a_metric_is_bounded_by_what_a_float32_holds() -> None:
    values = {"perplexity": 2.7e43, "low": -1.7e308, "largest": float(np.finfo(np.float32).max), "small": 1e-300}
    largest = values["largest"]
    assert Report(1, values).metrics == {"perplexity": largest, "low": -largest, "largest": largest, "small": 1e-300}


def test_a_metric_becomes_a_float() -> None:
    metrics: dict[str, Any] = {"a": 1, "b": np.float32(0.5), "c": torch.tensor(0.25), "d": True}
    report = Report(1, metrics)
    assert report.metrics == {"a": 1.0, "b": 0.5, "c": 0.25, "d": 1.0}
    assert {type(value) for value in report.metrics.values()} == {float}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Update([np.zeros(3)], 1), "model"),  # type: ignore[arg-type]
        (lambda: Update({}, 1, [0.5]), "metrics"),  # type: ignore[arg-type]
        (lambda: Reply(Job(1, 1, "train"), ValueError("x")), "content"),  # type: ignore[arg-type]
        (lambda: Job("1", 1, "train"), "run"),  # type: ignore[arg-type]
        (lambda: Job(1, 1.0, "train"), "round"),  # type: ignore[arg-type]
        (lambda: Job(1, 1, "predict"), "purpose"),  # type: ignore[arg-type]
        (lambda: Job(1, 1, np.array(["train"] * 2)), "purpose"),  # type: ignore[arg-type]
        (lambda: Reply(Job(1, 1, "train"), MODEL), "content"),  # type: ignore[arg-type]
        (lambda: Reply(Job(1, 1, "train"), Update), "content"),  # type: ignore[arg-type]
        (lambda: Task(Job(1, 1, "train"), [], {}), "model"),  # type: ignore[arg-type]
        (lambda: Task(Job(1, 1, "secure"), {}, {}), "secure"),
        (lambda: Task(Job(1, 1, "secure"), {}, {}, secure={"number": 1}), "secure"),
        (lambda: Task(Job(1, 1, "train"), {}, {}, secure={"step": "keys"}), "secure"),
    ],
)
def test_each_field_is_checked_and_named(make: Callable[[], Any], named: str) -> None:
    with pytest.raises(fl.InvalidUpdate, match=f"^{named}: .*expected"):
        make()


def test_an_error_does_not_print_a_whole_model() -> None:
    with pytest.raises(fl.InvalidUpdate) as caught:
        Update([0] * 10**6, 1)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


def test_a_reason_is_shortened() -> None:
    assert Reply(Job(1, 1, "train"), "x" * 10**6).content == "x" * 500 + "…"


def test_a_reason_has_no_control_characters() -> None:
    assert Reply(Job(1, 1, "train"), "no data\n12:00 CRITICAL fl: all is lost\x1b[2J").content == (
        "no data\\n12:00 CRITICAL fl: all is lost\\x1b[2J"
    )


class Subclass(np.ndarray[Any, Any]):
    """An array with something of its own."""


def test_subclasses_of_arrays_travel_as_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.arange(3.0))
    mapped = np.load(tmp_path / "w.npy", mmap_mode="r")
    update = Update({"w": mapped, "m": np.ones(1).view(Subclass)}, 1)
    assert [type(array) for array in update.model.values()] == [np.ndarray] * 2
    assert np.shares_memory(update.model["w"], mapped)
    assert update.nbytes == 32


class TestInvalid:
    @pytest.mark.parametrize(
        "bad",
        [
            "hello",
            None,
            [],
            {},
            message("Reply"),
            message("Reply", job=JOB),
            message("Reply", content="x"),
            reply(5),
            reply(None),
            reply({}),
            reply(message("Failure", reason="x")),
            reply(message("Task", model={}, config={})),
            reply("x", more="y"),
            reply("x", self="y"),
            message("Reply", job=[1, 1, ["train"]], content="x"),
            message("Reply", job=[1, 1, "train", 4], content="x"),
            message("Reply", job=[1, 1], content="x"),
            message("Reply", job={"run": 1}, content="x"),
            message("Reply", job="train", content="x"),
            message("Reply", job=None, content="x"),
            message("Reply", job=[1, 1, np.array([1, 2])], content="x"),
            ["Reply", JOB, "x"],
            {"job": JOB, "content": "x"},
            {"type": ["Reply"], "job": JOB, "content": "x"},
            {"type": None, "job": JOB, "content": "x"},
            message("Update", model={}, num_examples=1),
            message("build", job=JOB),
            message("Offer", job=JOB, size=-1),
            message("Offer", job=JOB, size=2**63),
            message("Offer", job=5, size=1),
            message("Permit", job=None),
            message("Permit", job=[-2, 1, "train"]),
            message("Task", job=5, model={}, config={}),
            message("Task", job=JOB, model={}, config={}, unasked=-1),
            message("Leave", reason=5),
            message("Describe", reason=None),
            description(round=-1),
            description(tensors=[]),
            description(time=float("nan")),
            description(tensors={"w": [[2, -3], "float32", False]}),
            description(tensors={"w": [[2, 3], None, False]}),
            description(tensors={"w": [[2, 3], "float32"]}),
            description(tensors={"w": 5}),
        ],
        ids=lambda bad: repr(bad)[:60],
    )
    def test_invalid_messages_are_refused(self, bad: object) -> None:
        with pytest.raises(Unreadable, match="a message is not valid"):
            sent(bad)

    @pytest.mark.parametrize(
        ("bad", "named"),
        [
            (message("Update", model={}, num_examples=-5), "num_examples"),
            (message("Update", model={}, num_examples=1, metrics={"loss": {}}), "loss"),
            (message("Update", model={}, num_examples=1, extra=[1]), "extra"),
            (message("Update", model=[1], num_examples=1), "model"),
            (message("Update", model={}), "missing"),
            (message("Update", model={"w": {"packed": PACKED[:2]}}, num_examples=1), "missing"),
            (
                message("Update", model={"w": {"packed": ["float32", [3], "int3", *PACKED[3:]]}}, num_examples=1),
                "coding",
            ),
            (message("Update", model={"w": {"packed": ["float32", 3, *PACKED[2:]]}}, num_examples=1), "shape"),
            (message("Update", model={"w": {"packed": []}}, num_examples=1), "missing"),
            (message("Report", num_examples=10, metrics={"loss": "much"}), "loss"),
            (message("Report", num_examples=10, metrics={"loss": 1.0}, more=1), "unexpected"),
        ],
        ids=lambda bad: repr(bad)[:60],
    )
    def test_invalid_contents_are_refused(self, bad: object, named: str) -> None:
        with pytest.raises(Unreadable, match=named):
            sent(reply(bad))

    def test_the_valid_forms_of_these_are_accepted(self) -> None:
        update = message("Update", model={"w": {"packed": PACKED}}, num_examples=1)
        assert sent(reply(update)).content.model["w"].shape == (3,)
        assert sent(description(tensors={"w": [[2, 3], "float32", False]})).tensors == {"w": ((2, 3), "float32", False)}

    @pytest.mark.parametrize("attack", [os.system, eval, Path, Update, OrderedDict([(1, 2)]), {1: 2}, {1, 2}, 2**64])
    def test_a_pickle_is_no_message(self, attack: Any) -> None:
        with pytest.raises(Unreadable, match="bytes cannot be loaded"):
            arrived(PickleSerializer().dump(attack))

    def test_a_truncated_message_is_unreadable(self) -> None:
        whole = bytes(MESSAGES.dump(Reply(Job(1, 1, "train"), "no memory")))
        for size in range(len(whole)):
            with pytest.raises(Unreadable):
                arrived(Stream([whole[:size]]))


def test_a_skip_arrives_with_its_reason() -> None:
    reply = Reply(Job(1, 1, "train"), fl.Skip("no data\n today"))
    content = arrived(MESSAGES.dump(reply)).content
    assert type(content) is fl.Skip
    assert (content.reason, str(content)) == (r"no data\n today", r"no data\n today")
    assert str(pickle.loads(pickle.dumps(content))) == content.reason


@pytest.mark.parametrize("kind", ["Update", "Report"])
def test_an_answer_of_no_examples_is_a_skip(kind: str) -> None:
    fields: dict[str, Any] = {"model": {}} if kind == "Update" else {}
    content = sent(
        {"type": "Reply", "job": [1, 1, "train"], "content": {"type": kind, "num_examples": 0, **fields}}
    ).content
    assert str(content) == "it has no examples"
    assert isinstance(content, fl.Skip)


@pytest.mark.parametrize("reason", [None, 5, b"no data"])
def test_the_reason_of_a_skip_is_a_text(reason: Any) -> None:
    with pytest.raises(fl.InvalidUpdate, match=r"reason: .*; expected a text"):
        fl.Skip(reason)


def test_an_update_can_be_pickled_and_copied() -> None:
    update = Update({"w": np.ones(2)}, 3, {"loss": 0.5})
    for other in (pickle.loads(pickle.dumps(update)), copy.copy(update), copy.deepcopy(update)):
        assert (other.num_examples, other.metrics) == (3, {"loss": 0.5})
        np.testing.assert_array_equal(other.model["w"], np.ones(2))
