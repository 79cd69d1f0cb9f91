"""Messages between server and clients: round trips, checks of the fields, and hostile pickles."""

from __future__ import annotations

import copy
import operator
import os
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fl
from fl.compression.packed import Packed
from fl.messages import (
    MESSAGES,
    Describe,
    Description,
    End,
    Job,
    Leave,
    Offer,
    Permit,
    Reply,
    Report,
    Task,
    Update,
    build,
)
from fl.tensors.storage import STORAGE
from netq.errors import NotAllowed, Unreadable
from netq.utils.stream import PickleSerializer, Stream

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(7)}
UPDATE = Update(MODEL, 5, {"loss": 0.5})
KINDS = (Job, Task, Offer, Permit, Reply, Update, Report, Packed)
JOB = (1, 1, "train")  # as it travels


def arrived(stream: Stream) -> Any:
    return MESSAGES.load(Stream([bytearray(bytes(stream))]))


def pickled(opcodes: bytes) -> Stream:
    """A message of a pickle written by hand."""
    return Stream([struct.pack("<QQ", len(opcodes), 0) + opcodes])


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def name(full: str, module: str = "fl.messages") -> bytes:
    return text(module) + text(full) + b"\x93"


class Call:
    """Pickled as a call of `function`, then a setting of `state`."""

    def __init__(self, function: Callable[..., Any], *args: Any, state: Any = None) -> None:
        self.reduced = (function, args) if state is None else (function, args, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def hostile(obj: Any) -> Stream:
    return PickleSerializer().dump(obj)


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
        Description(3, {"w": ((2, 3), "float32", False)}, {"rate": 0.1}, True, {"dtype": "int8"}, 1.5e9),
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


WRONG_NUMBERS = [0, -5, True, False, 1.0, 1.5, float("nan"), "5", None, np.float32(5), np.True_, 2**53 + 1, 10**5000]


@pytest.mark.parametrize("number", WRONG_NUMBERS, ids=[f"{type(n).__name__}{i}" for i, n in enumerate(WRONG_NUMBERS)])
@pytest.mark.parametrize("make", [lambda n: Update({}, n), Report], ids=["Update", "Report"])
def test_num_examples_is_an_integer_above_0(make: Callable[[Any], Any], number: object) -> None:
    with pytest.raises(fl.InvalidUpdate, match=r"num_examples: .*expected a whole number above 0"):
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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "much", None, 10**400, 1j, [1.0]])
@pytest.mark.parametrize("make", [lambda m: Update({}, 1, m), lambda m: Report(1, m)], ids=["Update", "Report"])
def test_a_metric_is_a_finite_number(make: Callable[[Any], Any], value: object) -> None:
    with pytest.raises(fl.InvalidUpdate, match=r"metrics\['loss'\]: .*expected a (finite )?number"):
        make({"loss": value})


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


class TestHostile:
    def test_foreign_names_are_refused_and_nothing_runs(self, tmp_path: Path) -> None:
        mark = tmp_path / "executed"
        code = f"open({str(mark)!r}, 'w')"
        attacks: list[tuple[str, Any]] = [
            (r"posix\.system", Call(os.system, f"touch {mark}")),
            (r"builtins\.eval", Call(eval, code)),
            (r"builtins\.exec", Call(exec, code)),
            (r"io\.open", Call(open, str(mark), "w")),
            (r"builtins\.getattr", Call(getattr, "text", "upper")),
            (r"numpy.*", Call(np.savetxt, str(mark), [1.0])),
            (r"numpy.*", Call(np.zeros, 3)),
            (r"operator\.", Call(operator.attrgetter, "model")),
            (r"pathlib", Call(Path, str(mark))),
            (r"collections\.OrderedDict", OrderedDict()),
        ]
        for named, attack in attacks:
            for message in (attack, [attack], ("Reply", JOB, attack), ("Reply", JOB, ("Update", {"w": attack}, 1))):
                with pytest.raises(NotAllowed, match=named):
                    arrived(hostile(message))
        assert not mark.exists()

    @pytest.mark.parametrize(
        "full",
        [
            *("pickle", "numpy", "math", "math.floor", "Any", "serialization", "MESSAGES", "MESSAGES.load", "_check"),
            *("Update.__init__", "Update.__class__", "Update.__reduce__", "Update.__init__.__globals__", "_Plain"),
            *("Mapping", "InvalidUpdate", "Unreadable", "numbers", "reprlib.repr"),
        ],
    )
    def test_nothing_in_the_module_can_be_named(self, full: str) -> None:
        with pytest.raises(Unreadable):
            arrived(pickled(b"\x80\x05" + name(full) + b"."))

    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
    def test_message_classes_cannot_be_named(self, kind: type) -> None:
        poison = b"N}" + text("poison") + text("x") + b"s\x86b"  # BUILD with (None, {"poison": "x"})
        named = b"\x80\x05" + name(kind.__name__, kind.__module__)
        for opcodes in (named + b".", named + b")\x81.", named + b")}\x92.", named + poison + b"."):
            with pytest.raises(NotAllowed, match=kind.__name__):
                arrived(pickled(opcodes))
        with pytest.raises(Unreadable, match="the opcode INST"):
            arrived(pickled(f"\x80\x05(i{kind.__module__}\n{kind.__name__}\n.".encode("latin1")))
        assert not hasattr(kind, "poison")

    @pytest.mark.parametrize("function", ["build", "_load", "Job.__init__"])
    def test_functions_that_make_messages_cannot_be_named(self, function: str) -> None:
        poison = b"N}" + text("__qualname__") + text("x") + b"s\x86b"
        with pytest.raises(NotAllowed):
            arrived(pickled(b"\x80\x05" + name(function) + poison + b"."))
        assert build.__qualname__ == "build"

    @pytest.mark.parametrize(
        "good",
        [
            UPDATE,
            Report(1),
            Reply(Job(1, 1, "train"), "x"),
            Task(Job(1, 1, "train"), {}, {}),
            Job(1, 1, "train"),
            Offer(Job(1, 1, "train"), 5),
            Permit(Job(1, 1, "train")),
        ],
        ids=lambda good: type(good).__name__,
    )
    def test_pickled_message_objects_are_refused(self, good: Any) -> None:
        with pytest.raises(Unreadable):
            arrived(hostile(good))
        with pytest.raises(Unreadable):
            arrived(hostile(Call(type(good), *vars(good).values(), state={"metrics": None})))

    @pytest.mark.parametrize(
        "bad",
        [
            "hello",
            None,
            (),
            ("Reply",),
            ("Reply", JOB),
            ("Reply", JOB, 5),
            ("Reply", JOB, None),
            ("Reply", JOB, ()),
            ("Reply", JOB, ("Failure", "x")),
            ("Reply", JOB, ("Task", {}, 1)),
            ("Reply", JOB, "x", "y"),
            ("Reply", (1, 1, ["train"]), "x"),
            ("Reply", (1, 1, "train", 4), "x"),
            ("Reply", (1, 1), "x"),
            ("Reply", "train", "x"),
            ("Reply", None, "x"),
            ("Reply", (1, 1, np.array([1, 2])), "x"),
            ["Reply", JOB, "x"],
            (["Reply"], JOB, "x"),
            ("Update", {}, 1),
            ("build", JOB),
            ("Offer", JOB, -1),
            ("Offer", JOB, 10**5000),
            ("Offer", 5, 1),
            ("Permit", None),
            ("Permit", (-2, 1, "train")),
            ("Task", 5, {}, {}),
            ("Task", JOB, {}, {}, -1),
            ("Leave", 5),
            ("Describe", None),
            ("Description", -1, {}, {}, False, {}, 1.0),
            ("Description", 1, [], {}, False, {}, 1.0),
            ("Description", 1, {}, {}, False, {}, float("nan")),
            ("Description", 1, {"w": ((2, -3), "float32", False)}, {}, False, {}, 1.0),
            ("Description", 1, {"w": ((2, 3), None, False)}, {}, False, {}, 1.0),
            ("Description", 1, {"w": ((2, 3), "float32")}, {}, False, {}, 1.0),
            ("Description", 1, {5: ((2, 3), "float32", False)}, {}, False, {}, 1.0),
        ],
    )
    def test_invalid_messages_are_refused(self, bad: object) -> None:
        with pytest.raises(Unreadable):
            arrived(hostile(bad))

    @pytest.mark.parametrize(
        ("bad", "named"),
        [
            (("Update", {}, -5), "num_examples"),
            (("Update", {}, 1, {"loss": float("nan")}), "loss"),
            (("Update", {}, 1, {}, [1]), "extra"),
            (("Update", [1], 1), "model"),
            (("Update", {}), "missing"),
            (("Update", {"w": ("float32", (3,))}, 1), "missing"),
            (("Update", {"w": ("float32", (3,), "int3", 0, False, b"")}, 1), "coding"),
            (("Update", {"w": ()}, 1), "missing"),
            (("Report", 10, {"loss": 10**5000}), "loss"),
            (("Report", 10, {"loss": 1.0}, 1), "arguments"),
        ],
    )
    def test_invalid_contents_are_refused(self, bad: object, named: str) -> None:
        with pytest.raises(Unreadable, match=named):
            arrived(hostile(("Reply", JOB, bad)))

    def test_the_storage_class_cannot_be_changed(self) -> None:
        module, _, full = STORAGE.rpartition(".")
        state = b"N}" + text("poison") + text("x") + b"s\x86b"
        with pytest.raises(Unreadable):
            arrived(pickled(b"\x80\x05" + name(full, module) + state + b"."))

    def test_a_truncated_message_is_unreadable(self) -> None:
        whole = bytes(MESSAGES.dump(Reply(Job(1, 1, "train"), "no memory")))
        for size in range(len(whole)):
            with pytest.raises(Unreadable):
                arrived(Stream([whole[:size]]))


def test_an_update_can_be_pickled_and_copied() -> None:
    update = Update({"w": np.ones(2)}, 3, {"loss": 0.5})
    for other in (pickle.loads(pickle.dumps(update)), copy.copy(update), copy.deepcopy(update)):
        assert (other.num_examples, other.metrics) == (3, {"loss": 0.5})
        np.testing.assert_array_equal(other.model["w"], np.ones(2))
