"""The agent's part in secure aggregation: the keys are in its process, so that the training cannot reach them.

Imports numpy and cryptography when a server asks for it first.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from fl.envelope import Finished
from fl.errors import InvalidUpdate
from fl.secure.options import SecurePolicy
from netq.errors import SecurityError, Unreadable
from netq.options import CommunicatorOptions
from netq.utils.stream import Stream

if TYPE_CHECKING:
    from fl.messages import Task
    from fl.secure.masker import Masker
    from fl.secure.participant import Masking

log = logging.getLogger("edge")


class Reading(NamedTuple):
    """How the messages of a kind of work are read and written here. All raise InvalidUpdate and Unreadable.

    task:     makes fl's task of a message.
    content:  returns what the training process has replied, for a task with this model; a text: why there is none.
    finished: returns what is sent, for the job of a message.
    """

    task: Callable[[Stream], Task]
    content: Callable[[Stream, Any], Any]
    finished: Callable[[Any, Any], Finished | str]


class Masks:
    """Puts the replies of a device under masks, as the server's terms and the device's policy say.

    reading: of the messages; called when a server asks for masks first.
    """

    def __init__(self, policy: SecurePolicy, options: CommunicatorOptions, reading: Callable[[], Reading]) -> None:
        self._policy = policy
        self._options = options
        self._reading = reading
        self._masker: Masker | None = None

    def begin(self, task: Any, client: uuid.UUID) -> Masking | Finished | str | None:
        """Return what masks the reply to a task; the reply itself, or why there is none; None: it is sent as it is."""
        try:
            if not task.is_secure:
                if task.job is not None:  # else it brings an app's files
                    self._policy.check_unmasked()
                return None
            from fl.messages import Answered
            from fl.secure.masker import Masker

            reading = self._reading()
            if self._masker is None:
                self._masker = Masker(self._policy, self._options)
            self._masker.is_client(client)
            begun = self._masker.begin(reading.task(task.stream))
            return reading.finished(task.job, begun) if isinstance(begun, Answered) else begun
        except (InvalidUpdate, SecurityError, Unreadable, ImportError) as error:
            # A step has a number of its own, and the server says what comes of it.
            level = logging.INFO if task.is_step else logging.ERROR
            log.log(level, "%s: not done: %s", task.title, error)
            return str(error)

    def masked(self, masking: Masking, task: Any, reply: Stream) -> Finished | str:
        """Return a reply of the child under masks, or why there is none."""
        reading = self._reading()
        try:
            content = reading.content(reply, masking.start)
            return content if isinstance(content, str) else reading.finished(task.job, masking.mask(content))
        except (InvalidUpdate, Unreadable) as error:
            log.error("%s: no update: it cannot be put under masks: %s", task.title, error)
            return f"it cannot be put under masks: {error}"
