"""The agent's part in secure aggregation and homomorphic encryption: the keys are in its process, and not in that of
the training. That runs as the same user, though, and can read the file of a homomorphic key.

Imports numpy and cryptography when a server asks for it first, and numpy and TenSEAL if the device has a key. Does not
import torch.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from edge.outgoing import PASSED
from fl.envelope import Finished
from fl.errors import InvalidUpdate
from fl.secure.options import SecurePolicy
from fl.tensors.storage import Passed
from netq.errors import SecurityError, Unreadable
from netq.options import CommunicatorOptions
from netq.utils.stream import Stream

if TYPE_CHECKING:
    from fl.messages import Task
    from fl.secure.masker import Masker, Protection

log = logging.getLogger("edge")


class Reading(NamedTuple):
    """How the messages of a kind of work are read and written here. All raise InvalidUpdate and Unreadable.

    task:     makes fl's task of a message.
    content:  returns what the training process has replied, which these masks cover; a text: why there is none.
    finished: returns what is sent, for the job of a message.
    """

    task: Callable[[Stream], Task]
    content: Callable[[Stream, Any], Any]
    finished: Callable[[Any, Any], Finished | str]


class Masks:
    """Puts the replies of a device under masks, or encrypts them, as the server's terms and the device's policy say.

    reading: of the messages; called when a server asks for masks first.
    """

    def __init__(self, policy: SecurePolicy, options: CommunicatorOptions, reading: Callable[[], Reading]) -> None:
        self._policy = policy
        self._options = options
        self._reading = reading
        self._masker: Masker | None = None

    def check(self) -> None:
        """Read the key of homomorphic encryption, if there is to be one. Raises InvalidOption, before it takes part."""
        if self._policy.key:
            self._made().check()

    def begin(self, task: Any, client: uuid.UUID) -> Protection | Finished | str | None:
        """Return what masks the reply to a task; the reply itself, or why there is none; None: it is sent as it is."""
        try:
            if not task.is_secure:
                if task.job is not None:  # else it brings an app's files
                    self._policy.check_unmasked()
                return None
            from fl.messages import Answered

            reading, masker = self._reading(), self._made()
            masker.is_client(client)
            begun = masker.begin(reading.task(task.stream))
            return reading.finished(task.job, begun) if isinstance(begun, Answered) else begun
        except (InvalidUpdate, SecurityError, Unreadable, ImportError) as error:
            # A step has a number of its own, and the server says what comes of it.
            level = logging.INFO if task.is_step else logging.ERROR
            log.log(level, "%s: not done: %s", task.title, error)
            return str(error)

    def opened(self, masking: Protection, task: Any) -> Any:
        """Return the task that the child gets, with its model decrypted, or why there is none."""
        from fl.homomorphic.client import Encrypting
        from fl.messages import MESSAGES, with_fields
        from fl.tensors.serialization import dump

        if not isinstance(masking, Encrypting):
            return task
        message = MESSAGES.load(task.stream)
        try:
            opened = masking.opened(message)
        except InvalidUpdate as error:
            log.error("%s: not done: %s", task.title, error)
            return str(error)
        if opened is message:
            return task

        came = PASSED.load(task.stream)["model"]  # this process may not know which of them are torch's

        def as_sent(name: str, tensor: Any) -> Any:
            if name in came:
                return came[name]
            if not masking.is_torch(name) or hasattr(tensor, "detach"):  # which it has if this process knows torch
                return tensor
            _, storage, _, shape, _, _ = cast(Any, dump(tensor))
            return Passed(("torch", storage, tensor.dtype.name, shape, None, False))

        model = {name: as_sent(name, tensor) for name, tensor in opened.model.items()}
        return task._replace(stream=MESSAGES.dump(with_fields(opened, model=model)))

    def final(self, stream: Stream) -> Stream:
        """Return the last model, decrypted if need be. Raises InvalidUpdate."""
        if not self._policy.key:
            return Stream(list(stream.buffers))  # which the child's side empties
        from fl.messages import MESSAGES, Final

        found: Stream = MESSAGES.dump(Final(self._made().opened(MESSAGES.load(stream).model)))
        return found

    def _made(self) -> Masker:
        from fl.secure.masker import Masker

        if self._masker is None:
            self._masker = Masker(self._policy, self._options)
        return self._masker

    def masked(self, masking: Protection, task: Any, reply: Stream) -> Finished | str:
        """Return a reply of the child under masks, or why there is none."""
        reading = self._reading()
        try:
            content = reading.content(reply, masking)
            return content if isinstance(content, str) else reading.finished(task.job, masking.mask(content))
        except (InvalidUpdate, Unreadable) as error:
            log.error("%s: no update: it cannot be put under masks, or encrypted: %s", task.title, str(error))
            return f"it cannot be put under masks, or encrypted: {error}"
