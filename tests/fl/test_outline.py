"""An outline of each message of a server, without numpy; and hostile messages."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fl import messages, outline
from fl.messages import MESSAGES
from fl.outline import OUTLINES, End, Permit, Task
from netq.errors import Unreadable
from netq.utils.stream import PickleSerializer, Stream

JOB = messages.Job(7, 3, "train")
MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(7)}


def arrived(stream: Stream) -> Any:
    return OUTLINES.load(Stream([bytearray(bytes(stream))]))


def test_task_keeps_its_bytes() -> None:
    sent = MESSAGES.dump(messages.Task(JOB, MODEL, {"rate": 0.1}, unasked=100))
    task = arrived(sent)
    assert isinstance(task, Task)
    assert (task.job, task.unasked) == ((7, 3, "train"), 100)
    again = MESSAGES.load(task.stream)
    np.testing.assert_array_equal(again.model["w"], MODEL["w"])
    assert again.config == {"rate": 0.1}


def test_permit_and_end() -> None:
    assert arrived(MESSAGES.dump(messages.Permit(JOB))) == Permit((7, 3, "train"))
    assert arrived(MESSAGES.dump(messages.End(5))) == End(5)


def test_what_is_put_is_a_message_of_fl() -> None:
    def at_the_server(message: Any) -> Any:
        return MESSAGES.load(Stream([bytearray(bytes(OUTLINES.dump(message)))]))

    job: outline.Job = (7, 3, "train")
    assert at_the_server(outline.offer(job, 5)) == messages.Offer(JOB, 5)
    assert at_the_server(outline.failure(job, "no memory")) == messages.Reply(JOB, "no memory")
    reply = messages.Reply(JOB, messages.Report(5, {"loss": 0.5}))
    assert at_the_server(MESSAGES.dump(reply)) == reply


@pytest.mark.parametrize(
    "bad",
    [
        "hello",
        (),
        ("Task",),
        ("Task", (7, 3, "train"), {}, {}, 1, False, {}, -1),
        ("Task", (7, 3, "train"), {}, {}),
        ("Task", (7, 3, "train"), {}, {}, -1, False, {}),
        ("Task", (7, 3, "train"), {}, {}, 2**63, False, {}),
        ("Task", (7, 3, "test"), {}, {}, 1, False, {}),
        ("Task", (7, True, "train"), {}, {}, 1, False, {}),
        ("Task", [7, 3, "train"], {}, {}, 1, False, {}),
        ("Task", (7, 3, ["train"]), {}, {}, 1, False, {}),
        ["End", 5],
        ("End", "5"),
        ("End", 5, 6),
        ("Permit", None),
        ("Offer", (7, 3, "train"), 5),
        ("Reply", (7, 3, "train"), "x"),
    ],
)
def test_other_messages_are_refused(bad: Any) -> None:
    with pytest.raises(Unreadable):
        arrived(PickleSerializer().dump(bad))


def test_pickled_objects_are_refused() -> None:
    for obj in (JOB, ValueError("x"), ("End", np.int64(5))):
        with pytest.raises(Unreadable):
            arrived(PickleSerializer().dump(obj))


def test_it_needs_no_numpy() -> None:
    script = "import sys, fl.conversation, fl.outline; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
