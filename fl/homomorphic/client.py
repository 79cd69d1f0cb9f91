"""The client's part: opens the model of a task, and encrypts the update. Used by fl/secure/masker.py and edge/masks.py.

The number of examples and the metrics travel as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from fl.compression.packed import Packed
from fl.errors import InvalidUpdate
from fl.homomorphic.codec import CIPHERTEXTS, HEADER, Header, decrypt, encrypt, update_name
from fl.homomorphic.context import Key
from fl.homomorphic.options import KeyFile
from fl.messages import Answered, Content, Task, Update, with_fields
from fl.tensors.roles import SENT, of_role
from fl.tensors.spec import Model, Spec, specs_of
from netq.validate import is_whole

TERMS = "homomorphic"  # in Task.secure


class Encrypting:
    """One client's key. Raises InvalidOption for a file that has none."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._key = Key(KeyFile.read(path, is_secret=True))
        self._specs: Mapping[str, Spec] = {}
        self._most = self._clients = 1

    def begin(self, task: Task) -> Encrypting:
        """Take the terms of a task. Raises InvalidUpdate."""
        if task.job.purpose == "statistics":  # which would be plain
            raise InvalidUpdate("this client has a homomorphic key, with which it gives no statistics of its data")
        terms = task.secure[TERMS]
        right = isinstance(terms, dict) and all(is_whole(terms.get(name), 1) for name in ("clients", "most"))
        if not right:
            raise InvalidUpdate("the terms of homomorphic encryption are not valid: expected key, clients and most")
        if terms.get("key") != self._key.key:
            raise InvalidUpdate(
                f"this client has the homomorphic key {self._key.key}, and its server {terms.get('key')!r:.40}: give "
                "both the files of one call of fl secure-key"
            )
        self._most, self._clients = terms["most"], terms["clients"]
        is_plain = HEADER not in task.model
        sent = of_role(task.model, task.roles, *SENT)
        self._specs = specs_of(sent) if is_plain else Header.load(task.model[HEADER]).specs
        return self

    def opened(self, task: Task) -> Task:
        """Return a task with its model decrypted. Raises InvalidUpdate."""
        if HEADER not in task.model:
            return task
        return with_fields(task, model=self.model(task.model))

    def model(self, model: Model) -> dict[str, Any]:
        """Return a model of ciphertexts decrypted; arrays are torch's if the server's are, and torch is imported.

        Raises InvalidUpdate.
        """
        header = Header.load(model[HEADER])
        found = decrypt(self._key, model.get(CIPHERTEXTS), header)
        others = {name: tensor for name, tensor in model.items() if name not in (CIPHERTEXTS, HEADER)}
        return {**{name: _of_kind(array, header.specs[name]) for name, array in found.items()}, **others}

    def is_torch(self, name: str) -> bool:
        """Return whether a tensor of the task is torch's at the server."""
        return name in self._specs and self._specs[name].device is not None

    def mask(self, content: Content | Answered) -> Content | Answered:
        """Return what is sent of a result: the model of an update is encrypted. Raises InvalidUpdate."""
        if not isinstance(content, Update):
            return content
        if content.extra:
            raise InvalidUpdate(f"extra: {', '.join(content.extra)}; expected none: the model only is encrypted")
        if any(isinstance(each, Packed) for each in content.model.values()):
            raise InvalidUpdate("this client has a compression of its own, and packed updates cannot be encrypted")
        examples = min(content.num_examples, self._most)
        ciphertexts = encrypt(self._key, content.model, self._specs, examples, self._clients)
        return with_fields(content, model={update_name(self._key.key): ciphertexts}, num_examples=examples)


def _of_kind(array: Any, spec: Spec) -> Any:
    torch = None if spec.device is None else sys.modules.get("torch")
    return array if torch is None else torch.from_numpy(array)
