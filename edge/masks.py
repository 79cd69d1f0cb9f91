"""The agent's part in secure aggregation: the keys are in its process, so that the training cannot reach them.

Imports numpy and cryptography when a server asks for it first.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

from fl.envelope import Finished, Task
from fl.errors import InvalidUpdate
from fl.secure.options import SecurePolicy
from netq.errors import SecurityError, Unreadable
from netq.options import CommunicatorOptions
from netq.utils.stream import Stream

if TYPE_CHECKING:
    from fl.secure.masker import Masker
    from fl.secure.participant import Masking

log = logging.getLogger("edge")


class Masks:
    """Puts the replies of a device under masks, as the server's terms and the device's policy say."""

    def __init__(self, policy: SecurePolicy, options: CommunicatorOptions) -> None:
        self._policy = policy
        self._options = options
        self._masker: Masker | None = None

    def begin(self, task: Task, client: uuid.UUID) -> Masking | Finished | str | None:
        """Return what masks the reply to a task; the reply itself, or why there is none; None: it is sent as it is."""
        try:
            if not task.is_secure:
                self._policy.check_unmasked()
                return None
            from fl.messages import MESSAGES, Answered
            from fl.secure.masker import Masker
            from fl.trainer import finished

            if self._masker is None:
                self._masker = Masker(self._policy, self._options)
            self._masker.is_client(client)
            begun = self._masker.begin(MESSAGES.load(task.stream))
            return finished(task.job, begun) if isinstance(begun, Answered) else begun
        except (InvalidUpdate, SecurityError, Unreadable, ImportError) as error:
            # A step has a number of its own, and the server says what comes of it.
            level = logging.INFO if task.job.purpose == "secure" else logging.ERROR
            log.log(level, "%s: not done: %s", task.title, error)
            return str(error)

    def masked(self, masking: Masking, task: Task, reply: Stream) -> Finished | str:
        """Return a reply of the child under masks, or why there is none."""
        from fl.messages import MESSAGES, Reply
        from fl.trainer import finished

        try:
            answer = MESSAGES.load(reply)
            if not isinstance(answer, Reply):
                raise InvalidUpdate(f"the training process has left a {type(answer).__name__}")
            content: Any = answer.content
            return content if isinstance(content, str) else finished(task.job, masking.mask(content))
        except (InvalidUpdate, Unreadable) as error:
            log.error("%s: no update: it cannot be put under masks: %s", task.title, error)
            return f"it cannot be put under masks: {error}"
