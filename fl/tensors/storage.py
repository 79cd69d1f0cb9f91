"""The memory of tensors in a message. Needs no numpy: a process that does not read models loads messages, too."""

from __future__ import annotations

import pickle
from typing import Any


class Storage:
    """The memory of one or more tensors. Pickle's memo sends each Storage once per message.

    `memory` keeps the owner of the memory alive in the sender. In the receiver it is a view of the message.
    """

    __slots__ = ("__weakref__", "are_bools", "loaded", "memory", "torch_storage")

    def __init__(self, memory: Any) -> None:
        # An array is kept as it is: a memoryview of a memoryview does not keep the owner alive through the garbage
        # collector.
        self.memory: Any = memory if hasattr(memory, "__array_interface__") else memoryview(memory)
        self.are_bools = False  # whether the memory was found to hold 0 and 1 only
        self.loaded: dict[str, Any] = {}  # tensors built on this memory; the same fields give the same object
        self.torch_storage: Any = None  # of `memory`; torch recognises tied weights by a common storage

    def __reduce__(self) -> tuple[type[Storage], tuple[pickle.PickleBuffer]]:
        return Storage, (pickle.PickleBuffer(self.memory),)


class Passed:
    """A tensor that a message has, as it came: a process that passes messages on does not read it.

    identifier: of fl/tensors/serialization.py.
    """

    __slots__ = ("identifier",)

    def __init__(self, identifier: Any) -> None:
        self.identifier = identifier


STORAGE = f"{Storage.__module__}.{Storage.__qualname__}"
