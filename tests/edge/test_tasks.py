"""The functions of a device in its child process: what is imported, what they get, and what they keep."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
import netq
from edge.tasks import TrainingTasks
from fl.compression.packed import Packed
from fl.envelope import Finished, Job
from fl.messages import MESSAGES, Reply, Task
from netq.utils.stream import Stream

HERE = __name__


def counts(model: Any, config: Mapping[str, Any]) -> fl.Update:
    config["state"]["count"] = config["state"].get("count", 0) + 1
    if config.get("skips"):
        raise fl.Skip("no new pictures")
    if config.get("fails"):
        raise OSError("the sensor does not answer")
    return fl.Update(model, 1, {"count": config["state"]["count"], "batch": config.get("batch", 0)})


def adds_thirds(model: Any, config: Mapping[str, Any]) -> fl.Update:
    return fl.Update({"w": model["w"] + np.array([1 / 3, 0.01, 0.02, 0.03], np.float32)}, 1)


def made(train: str = f"{HERE}:counts", evaluate: str | None = None, compression: Any = None, **settings: Any) -> Any:
    return TrainingTasks(train, evaluate, compression, settings)


def bytes_of(stream: Stream) -> Stream:
    """Return a copy in one writable buffer, as a message has."""
    return Stream([bytearray(bytes(stream))])


def answer(tasks: TrainingTasks, number: int = 1, **config: Any) -> Any:
    task = Task(Job(5, number, "train"), {"w": np.zeros(4, np.float32)}, config)
    found = tasks.answer(bytes_of(MESSAGES.dump(task)))
    if isinstance(found, str):
        return found
    assert isinstance(found, Finished)
    assert found.job == Job(5, number, "train")
    reply = MESSAGES.load(bytes_of(found.message))
    assert isinstance(reply, Reply)
    return reply.content


def test_a_model_that_the_owners_file_cannot_hold_is_refused_before_training(tmp_path: Path) -> None:
    tasks = TrainingTasks(f"{HERE}:counts", None, None, {}, tmp_path / "model.npz")
    message = MESSAGES.dump(Task(Job(5, 1, "train"), {"w.npy": np.zeros(4, np.float32)}, {}))
    reason = (
        "InvalidOption: model.path: 'w.npy': no name that .npz can have; expected a printable text that does not end"
    )
    assert str(tasks.answer(bytes_of(message))).startswith(reason)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(netq.InvalidOption, match=r"model\.path: .*; expected a name that ends in \.npz or"):
        TrainingTasks(f"{HERE}:counts", None, None, {}, tmp_path / "model.pt")


def test_settings_override_the_config_of_the_server() -> None:
    metrics = answer(made(batch=8), batch=32).metrics
    assert (metrics["count"], metrics["batch"]) == (1, 8)


def test_metrics_have_what_was_used() -> None:
    metrics = answer(made()).metrics
    assert 0 <= metrics["usage.cpu_seconds"] < 60
    assert 10 < metrics["usage.memory_mb"] < 10_000


def test_state_lasts_from_round_to_round() -> None:
    tasks = made()
    assert [answer(tasks, number).metrics["count"] for number in (1, 2, 3)] == [1, 2, 3]


def test_a_skip_is_kept_with_the_state() -> None:
    tasks = made()
    assert str(answer(tasks, skips=True)) == "no new pictures"
    assert answer(tasks, 2).metrics["count"] == 2
    assert tasks.keeps(Finished(Job(5, 1, "train"), Stream(), 0))


def test_a_failure_does_not_change_the_state() -> None:
    tasks = made()
    assert answer(tasks, fails=True) == "OSError: the sensor does not answer"
    assert answer(tasks, 2).metrics["count"] == 1


def test_state_is_saved_and_restored() -> None:
    before = made()
    answer(before)
    after = made()
    after.restore(bytes_of(before.save()))
    assert answer(after, 2).metrics["count"] == 2


def test_residual_of_compression_is_saved_and_restored() -> None:
    train, compression = f"{HERE}:adds_thirds", {"top_k": 0.25}
    kept = made(train, compression=compression)
    sent = [answer(kept, number).model["w"] for number in range(1, 9)]
    cold = made(train, compression=compression)
    again = []
    for number in range(1, 9):
        again.append(answer(cold, number).model["w"])
        state = bytes_of(cold.save())
        cold = made(train, compression=compression)
        cold.restore(state)
    assert all(isinstance(each, Packed) for each in sent)
    assert [bytes(each.data) for each in again] == [bytes(each.data) for each in sent]


def test_nothing_to_keep_is_an_empty_stream() -> None:
    assert made(f"{HERE}:adds_thirds").save().nbytes == 0


def test_other_values_are_no_state() -> None:
    with pytest.raises(ValueError, match="these are no values of a Trainer"):
        made().restore(bytes_of(fl.serialization().dump({"state": 7})))


def keeps_a_function(model: Any, config: Mapping[str, Any]) -> fl.Update:
    config["state"]["sensor"] = {"open": open}
    return fl.Update({**model, "head": np.ones(1)}, 1)


def test_state_of_other_objects_is_an_error() -> None:
    tasks = made(f"{HERE}:keeps_a_function")
    task = Task(Job(5, 1, "train"), {"w": np.zeros(4, np.float32)}, {}, roles={"head": "local"})
    said = tasks.answer(bytes_of(MESSAGES.dump(task)))
    assert str(said).startswith("config['state'] cannot be kept: 'sensor': has a ")
    assert tasks.save().nbytes == 0


@pytest.mark.parametrize(
    ("arguments", "key", "expectation"),
    [
        ({"train": "numpy"}, "client.train: 'numpy'", 'expected "module:function"'),
        ({"train": ":mean"}, "client.train: ':mean'", 'expected "module:function"'),
        ({"train": "nunpy:mean"}, "client.train: 'nunpy:mean'", "No module named 'nunpy'"),
        ({"evaluate": "numpy:meen"}, "client.evaluate: 'numpy:meen'", "did you mean mean?"),
        ({"train": "numpy:qqqqqq"}, "client.train: 'numpy:qqqqqq'", "define it in"),
        ({"train": "numpy:pi"}, "client.train: 'numpy:pi'", "pi is a float"),
        ({"compression": "int3"}, "client.compression: dtype: 'int3'", "bfloat16, int8, int4"),
        ({"compression": {"dtyp": "int8"}}, "client.compression: ", "did you mean dtype?"),
        ({"compression": {"zstd": 3}}, "client.compression: {'zstd': 3}; ", "zstd needs zstandard: pip install "),
    ],
)
def test_wrong_names_are_refused(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], key: str, expectation: str
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(netq.InvalidOption) as caught:
        made(**arguments)
    assert str(caught.value).startswith(key)
    assert expectation in str(caught.value)


def test_failing_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_training.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(netq.InvalidOption, match="ZeroDivisionError: division by zero"):
        made("broken_training:train")
