"""What an agent does: take part in a federation of fl, or in a run of Flower.

edge/agent.py moves the messages of both in the same way. `federation` makes the Work of a device's file, and
edge/flower.py that of a Flower app. Imports neither numpy nor Flower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import netq
from edge.approvals import of_tasks
from edge.config import Config
from edge.guard import Rules
from edge.masks import Reading
from edge.outgoing import of_federation
from edge.policy import Policy
from fl.conversation import Conversation, KnownServer
from fl.envelope import ENVELOPES, Introduction
from fl.errors import InvalidUpdate
from fl.membership import Membership
from netq.utils.stream import Stream


class Work(NamedTuple):
    """The kind of an agent.

    noun:      what the agent takes part in, for the log.
    messages:  the serialisation of its communicator.
    converse:  begins the conversation of a session; the text is its question.
    tasks:     "module:class" of what does the tasks, in the child process.
    arguments: of this class.
    title:     what the child imports for the user.
    rules:     how the device's policy reads the messages.
    reading:   how masks do.
    """

    noun: str
    messages: netq.SerializationOptions
    converse: Callable[[netq.Communicator, Membership, KnownServer, str], Conversation]
    tasks: str
    arguments: Mapping[str, Any]
    title: str
    rules: Rules
    reading: Callable[[], Reading]


def _noised(policy: Policy, task: Stream, reply: Stream) -> Stream:
    from edge import noising  # numpy

    return noising.of_federation(policy, task, reply)


def _reading() -> Reading:
    from fl.messages import MESSAGES, Reply  # numpy
    from fl.trainer import finished

    def content(reply: Stream, masking: Any) -> Any:
        answer = MESSAGES.load(reply)
        if not isinstance(answer, Reply):
            raise InvalidUpdate(f"the training process has left a {type(answer).__name__}")
        return answer.content

    return Reading(MESSAGES.load, content, finished)


def federation(config: Config) -> Work:
    """Return the work of a device with functions of its own."""
    introduction = Introduction(config.properties, config.model is not None, config.name)
    names = ("train", "evaluate", "compression", "settings", "model", "columns", "min_count")
    return Work(
        noun="federation",
        messages=ENVELOPES,
        converse=lambda queue, membership, link, question: Conversation(
            queue, membership, link, introduction, question=question
        ),
        tasks="edge.tasks:TrainingTasks",
        arguments={**{name: getattr(config, name) for name in names}, "largest": config.largest},
        title=", ".join(name for name in (config.train, config.evaluate, config.columns) if name is not None),
        rules=Rules(lambda task, plain: of_tasks(config.netloc.host, plain), of_federation, _noised),
        reading=_reading,
    )
