"""The client's part: opens the model of a task, and encrypts the update. Used by fl/secure/masker.py and edge/masks.py.

The client's own file says which tensors are encrypted, whatever the server does. The others, the number of examples and
the metrics travel as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from typing import Any

from fl.compression.packed import Packed
from fl.errors import InvalidUpdate
from fl.homomorphic.codec import CIPHERTEXTS, HEADER, Header, decrypt, encrypt, update_name
from fl.homomorphic.context import Key
from fl.homomorphic.options import KeyFile
from fl.messages import Answered, Content, Task, Update, with_fields
from fl.tensors.blocks import check_names
from fl.tensors.model import place_of
from fl.tensors.roles import SENT, matching, of_role
from fl.tensors.spec import Model, Spec, specs_of
from netq.errors import InvalidOption
from netq.validate import is_whole

TERMS = "homomorphic"  # in Task.secure
_FILES = ": give both the files of one call of fl secure-key"


class Encrypting:
    """One client's key. Raises InvalidOption for a file that has none."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        file = KeyFile.read(path, is_secret=True)
        self._key, self._patterns = Key(file), file.encrypt
        self._specs: Mapping[str, Spec] = {}  # of the tensors that are encrypted
        self._plain: Mapping[str, Spec] = {}
        self._most = self._clients = 1

    def begin(self, task: Task) -> Encrypting:
        """Take the terms of a task. Raises InvalidUpdate."""
        if task.job.purpose == "statistics":  # which would be plain
            raise InvalidUpdate("this client has a homomorphic key, with which it gives no statistics of its data")
        if task.job.purpose == "secure":
            raise InvalidUpdate("the server asks for a step of masks, and homomorphic encryption has none")
        if task.deltas:  # tensors in the same memory would be differences in memory of their own
            raise InvalidUpdate("the server asks for a difference of models; this client encrypts models only")
        terms = task.secure[TERMS]
        right = isinstance(terms, dict) and all(is_whole(terms.get(name), 1, 2**53) for name in ("clients", "most"))
        if not right:
            raise InvalidUpdate("the terms of homomorphic encryption are not valid: expected key, clients and most")
        if terms.get("key") != self._key.key:
            raise InvalidUpdate(
                f"this client has the homomorphic key {self._key.key}, and its server {terms.get('key')!r:.40}{_FILES}"
            )
        if terms.get("encrypt") != list(self._patterns):  # the server's file was changed by hand
            raise InvalidUpdate(
                f"this client's key encrypts {', '.join(map(repr, self._patterns))}, and its server "
                f"{terms.get('encrypt')!r:.100}{_FILES}"
            )
        self._most, self._clients = terms["most"], terms["clients"]
        sent = {name: tensor for name, tensor in task.model.items() if name not in (CIPHERTEXTS, HEADER)}
        sent = of_role(sent, task.roles, *SENT)
        came = specs_of(sent)
        self._specs = Header.load(task.model[HEADER]).specs if HEADER in task.model else {}
        try:
            hidden = matching("this client's key", self._patterns, came.keys() | self._specs.keys())
        except InvalidOption as error:
            raise InvalidUpdate(str(error)) from None
        self._plain = {name: spec for name, spec in came.items() if name not in hidden}
        if HEADER not in task.model:
            self._specs = {name: spec for name, spec in came.items() if name in hidden}
        elif wrong := self._specs.keys() - hidden:  # what is decrypted would be sent in plain
            raise InvalidUpdate(f"the server encrypts {min(wrong)!r}, and this client's key does not{_FILES}")
        elif wrong := came.keys() & hidden:
            raise InvalidUpdate(f"the server has {min(wrong)!r} in plain, and this client's key encrypts it{_FILES}")
        _check_apart(task.model, self._plain)  # with constant and local tensors, which training may write into, too
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
            raise InvalidUpdate(
                "the update is packed by a compression, the task's or this client's: it cannot be encrypted"
            )
        check_names(content.model, {**self._specs, **self._plain})  # no tensor leaves under a name that is not known
        _check_apart(content.model, self._plain)
        examples = min(content.num_examples, self._most)
        hidden, plain = ({name: content.model[name] for name in part} for part in (self._specs, self._plain))
        ciphertexts = encrypt(self._key, hidden, self._specs, examples, self._clients)
        return with_fields(content, model={update_name(self._key.key): ciphertexts, **plain}, num_examples=examples)


def _check_apart(model: Model, plain: Collection[str]) -> None:
    """Raise InvalidUpdate if a tensor that is sent in plain has the memory of another one, and would have its values.

    plain: the names of those that are sent in plain.
    """
    filled = [name for name, spec in specs_of(model).items() if spec.size]
    places = {place_of(model[name]): name for name in filled if name in plain}
    for name in filled:
        if name not in plain and (other := places.get(place_of(model[name]))) is not None:
            raise InvalidUpdate(
                f"{name!r} is not sent in plain, and has the same memory as {other!r}, which is; expected a key for "
                "both (fl secure-key --encrypt)"
            )


def _of_kind(array: Any, spec: Spec) -> Any:
    torch = None if spec.device is None else sys.modules.get("torch")
    return array if torch is None else torch.from_numpy(array)
