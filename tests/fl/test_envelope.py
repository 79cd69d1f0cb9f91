"""An envelope of each message of a server, without numpy; and hostile messages."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fl import envelope, messages
from fl.envelope import ENVELOPES, End, Failure, Introduction, Leave, Offer, Permit, Task
from fl.messages import MESSAGES
from fl.tensors.json_format import JsonSerializer
from netq.errors import Unreadable
from netq.utils.stream import PickleSerializer, Stream

JOB = envelope.Job(7, 3, "train")
MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(7)}


def arrived(stream: Stream) -> Any:
    return ENVELOPES.load(Stream([bytearray(bytes(stream))]))


def test_task_keeps_its_bytes() -> None:
    sent = MESSAGES.dump(messages.Task(JOB, MODEL, {"rate": 0.1}, unasked=100, answered=2))
    task = arrived(sent)
    assert isinstance(task, Task)
    assert (task.job, task.unasked, task.answered, task.deadline) == (JOB, 100, 2, math.inf)
    again = MESSAGES.load(task.stream)
    np.testing.assert_array_equal(again.model["w"], MODEL["w"])
    assert again.config == {"rate": 0.1}


@pytest.mark.slow
def test_a_task_of_70_000_tensors() -> None:
    model = {f"{number:070}": np.zeros(1, np.float32) for number in range(70_000)}
    assert arrived(MESSAGES.dump(messages.Task(JOB, model, {}))).job == JOB


def test_permit_and_end() -> None:
    assert arrived(MESSAGES.dump(envelope.Permit(JOB))) == Permit(JOB)
    assert arrived(MESSAGES.dump(envelope.End(5))) == End(5, False)
    assert arrived(MESSAGES.dump(envelope.End(5, final=True))) == End(5, True)
    assert arrived(JsonSerializer().dump({"type": "End", "round": 5})) == End(5, False)


def test_final_keeps_its_bytes() -> None:
    final = arrived(MESSAGES.dump(messages.Final(MODEL)))
    assert isinstance(final, envelope.Final)
    np.testing.assert_array_equal(MESSAGES.load(final.stream).model["w"], MODEL["w"])


def test_what_is_put_is_a_message_of_fl() -> None:
    def at_the_server(message: Any) -> Any:
        return MESSAGES.load(Stream([bytearray(bytes(ENVELOPES.dump(message)))]))

    for message in (Offer(JOB, 5), Leave("no power"), Introduction({"n": 3}, True), Permit(JOB), End(2)):
        assert at_the_server(message) == message
    assert at_the_server(Failure(JOB, "no memory")) == messages.Reply(JOB, "no memory")
    reply = messages.Reply(JOB, messages.Report(5, {"loss": 0.5}))
    assert at_the_server(MESSAGES.dump(reply)) == reply


TASK = {
    "type": "Task",
    "job": [7, 3, "train"],
    "model": {},
    "config": {},
    "unasked": 1,
    "counted": 0,
    "answered": 0,
    "deadline": 9.0,
}


@pytest.mark.parametrize(
    "bad",
    [
        "hello",
        [],
        {"type": "Task"},
        {**TASK, "counted": -1},
        {**TASK, "answered": -1},
        {**TASK, "deadline": -1.0},
        {**TASK, "deadline": "soon"},
        {name: value for name, value in TASK.items() if name != "unasked"},
        {**TASK, "unasked": -1},
        {**TASK, "unasked": 2**63},
        {**TASK, "job": [7, 3, "test"]},
        {**TASK, "job": [7, True, "train"]},
        {**TASK, "job": {"run": 7}},
        {**TASK, "job": [7, 3, ["train"]]},
        ["End", 5],
        {"type": "End", "round": "5", "final": False},
        {"type": "End", "round": 5, "final": 1},
        {"type": "Permit", "job": None},
        {"type": "Offer", "job": [7, 3, "train"], "size": 5},
        {"type": "Reply", "job": [7, 3, "train"], "content": "x"},
    ],
)
def test_other_messages_are_refused(bad: Any) -> None:
    assert isinstance(arrived(JsonSerializer().dump(TASK)), Task)
    with pytest.raises(Unreadable):
        arrived(JsonSerializer().dump(bad))


def test_pickles_are_refused() -> None:
    for obj in (JOB, ValueError("x"), {"type": "End", "round": 5}):
        with pytest.raises(Unreadable):
            arrived(PickleSerializer().dump(obj))


def test_it_needs_no_numpy() -> None:
    script = "import sys, fl.conversation, fl.envelope; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
