"""Puts a client's answers under masks, or encrypts them, as the server's terms and the client's policy say.

Used by a client in its thread: fl/client.py, edge/masks.py. The key of the client's certificate signs its keys, and the
authority of the certificates proves those of the others. Without certificates the server is trusted to pass keys on as
they are.
"""

from __future__ import annotations

import logging
import uuid
from typing import Any, TypeAlias

from fl.errors import InvalidUpdate
from fl.homomorphic.client import TERMS, Encrypting
from fl.homomorphic.codec import HEADER
from fl.messages import Answered, Task
from fl.secure.certified import certified
from fl.secure.options import SecurePolicy
from fl.secure.pairs import check_available
from fl.secure.participant import Masking, Participant
from fl.tensors.spec import Model
from netq.errors import InvalidOption
from netq.options import CommunicatorOptions

Protection: TypeAlias = Masking | Encrypting  # of the answer to a task

log = logging.getLogger("netq.fl")


class Masker:
    """One client's part in secure aggregation. options: of its communicator, whose certificates it uses."""

    def __init__(self, policy: SecurePolicy, options: CommunicatorOptions) -> None:
        self._policy = policy
        self._options = options
        self._participant: Participant | None = None
        self._encrypting: Encrypting | None = None
        self._client: uuid.UUID | None = None

    def is_client(self, client: uuid.UUID) -> None:
        """Note the client's id in the session that begins. Another id has no keys yet."""
        if client != self._client:
            self._client, self._participant = client, None

    def check(self) -> None:
        """Read the key of homomorphic encryption, if there is to be one. Call it first. Raises InvalidOption."""
        if self._policy.key and self._encrypting is None:
            try:
                self._encrypting = Encrypting(self._policy.key)
            except InvalidOption as error:
                raise InvalidOption(f"SecurePolicy.key: {error}") from None

    def opened(self, model: Model) -> dict[str, Any]:
        """Return the last model of a federation, decrypted if need be. Raises InvalidUpdate."""
        return self._key().model(model) if HEADER in model else dict(model)

    def _key(self) -> Encrypting:
        if self._encrypting is None:
            raise InvalidUpdate(
                "the server uses homomorphic encryption, and this client has no key: expected the clients' file of fl "
                "secure-key in SecurePolicy.key, or [secure] of a device's file"
            )
        return self._encrypting

    def begin(self, task: Task) -> Protection | Answered | None:
        """Return what masks the answer to a task; to a step, the answer itself; None: it is sent as it is.

        Raises InvalidUpdate, SecurityError: the answer is the text.
        """
        if not task.secure:
            self._policy.check_unmasked()
            return None
        if TERMS in task.secure:
            return self._key().begin(task)
        if self._policy.key:
            raise InvalidUpdate("this client answers under homomorphic encryption only, and the server uses masks")
        if self._participant is None:
            self._participant = self._new_participant()
        if task.job.purpose == "secure":
            return Answered(self._participant.step(task.secure))
        return self._participant.begin(task)

    def _new_participant(self) -> Participant:
        check_available()
        if self._client is None:
            raise InvalidUpdate("the client has no id yet")
        sign, prove = certified(self._options)
        if prove is None and self._policy.certificates:
            raise InvalidUpdate(
                "this client takes part with certificates only, and has none that prove the others' keys; expected "
                "key, certificate and authority in its SecurityOptions or SealOptions"
            )
        if prove is None:
            text = "secure aggregation without certificates: the server could give clients keys of its own; "
            log.warning(text + "certificates of clients exclude that")
        return Participant(str(self._client), sign, prove, self._policy.min_clients, self._policy.noise_multiplier)
