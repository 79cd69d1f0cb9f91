"""What an agent does: take part in a federation of fl, or in a run of Flower.

edge/agent.py moves the messages of both in the same way. `federation` makes the Work of a device's file, and
edge/flower.py that of a Flower app. Imports neither numpy nor Flower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import netq
from edge.config import Config
from fl import conversation
from fl.conversation import KnownServer
from fl.envelope import ENVELOPES, Final, Finished
from fl.membership import Membership
from netq.utils.stream import Stream


class Task(Protocol):
    """A message that wants a reply."""

    @property
    def job(self) -> Any:
        """What the reply is to."""

    @property
    def key(self) -> str:
        """The name of the job in a record."""

    @property
    def title(self) -> str:
        """What the log calls it."""

    @property
    def stream(self) -> Stream:
        """The whole message."""


class Conversation(Protocol):
    """The messages of one session: fl.conversation.Conversation, or fl.flower.conversation.Conversation."""

    @property
    def is_sending(self) -> bool:
        """Whether a reply waits for the server."""

    @property
    def delivered(self) -> Any:
        """The last job whose reply the server has."""

    @property
    def final(self) -> Final | None:
        """The last model, after the end of the federation; None if there is none, or none was wanted."""

    def next_task(self, idle: Callable[[], float | None]) -> Any:
        """Wait for a task, and return it. Return None when the session is over."""

    def reply(self, task: Any, answer: Finished | str) -> object:
        """Send the reply to a task, or the reason why there is none."""

    def leave(self, reason: str) -> None:
        """Announce the end of the session."""


class Work(NamedTuple):
    """The kind of an agent.

    noun:      what the agent takes part in, for the log.
    messages:  the serialisation of its communicator.
    converse:  begins the conversation of a session.
    tasks:     "module:class" of what does the tasks, in the child process.
    arguments: of this class.
    title:     what the child imports for the user.
    """

    noun: str
    messages: netq.SerializationOptions
    converse: Callable[[netq.Communicator, Membership, KnownServer], Conversation]
    tasks: str
    arguments: Mapping[str, Any]
    title: str


def federation(config: Config) -> Work:
    """Return the work of a device with functions of its own."""
    names = ("train", "evaluate", "compression", "settings", "model")
    return Work(
        noun="federation",
        messages=ENVELOPES,
        converse=partial(conversation.Conversation, properties=config.properties, wants_final=config.model is not None),
        tasks="edge.tasks:TrainingTasks",
        arguments={name: getattr(config, name) for name in names},
        title=", ".join(name for name in (config.train, config.evaluate) if name is not None),
    )
