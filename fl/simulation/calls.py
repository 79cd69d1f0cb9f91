"""Calls of the clients' functions in one worker process: one at a time, each with random numbers of its own.

A fork has its parent's random state: without a new seed, clients of different processes would draw equal numbers.
Made in the parent process, before it forks, by fl/simulation/simulate.py and fl/flower/runner.py. Used in the
worker, by the threads of its clients.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import random
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import compress, filterfalse
from typing import Any

import numpy as np

from fl.messages import Update, with_fields
from fl.tensors.model import copied
from fl.tensors.spec import is_torch

_SEED = 16  # bytes
_TORCH = 8 * _SEED - 63  # bits that torch does not take
_BIT_GENERATORS = (
    *(np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM),
    *(np.random.Philox, np.random.SFC64),
)


def with_own_arrays(update: Update) -> Update:
    """Return an update whose arrays no later call changes: a function may train in one module for all its clients."""
    return with_fields(update, model=_own_arrays(update.model), extra=_own_arrays(update.extra))


def _own_arrays(model: Mapping[str, Any]) -> dict[str, Any]:
    arrays = {name: each for name, each in model.items() if is_torch(each) or isinstance(each, np.ndarray)}
    return {**model, **copied(arrays)}  # others are packed, in memory of their own, or no tensors, and refused later


class Calls:
    """Runs calls one at a time, and seeds the random generators before each of them.

    These are the global generators of Python, numpy and torch, and all other objects of `random.Random`, of numpy and
    of `torch.Generator` (on the CPU) that exist now. A generator's seed is a hash of `seed`, the client, the purpose,
    the number of the client's calls for this purpose, and the generator's name.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators = _named(_generators())
        self._one_at_a_time = threading.Lock()  # user functions need not be thread-safe

    def __reduce__(self) -> tuple[type[Calls], tuple[int]]:
        return Calls, (self._seed,)  # a spawned process finds its own generators, when it has imported the clients

    @contextlib.contextmanager
    def alone(self, client: int, purpose: str, count: int) -> Iterator[None]:
        """Run one call of a client's function in the `with` block. count: its calls for this purpose, with this one."""
        with self._one_at_a_time:
            self._seed_all(client, purpose, count)
            yield

    def rounding_seed(self, client: int, count: int = 0, own: int | None = None) -> int:
        """Return a seed for the random rounding of a client's updates. own: the client's; None: it has none."""
        return _whole(_hash(self._seed if own is None else own, client, "rounding", count))

    def _hash(self, *key: int | str) -> bytes:
        return _hash(self._seed, *key)

    def _seed_all(self, *call: int | str) -> None:
        """Seed the objects, and the global generators."""
        for name, generator in self._generators.items():
            _reseed(generator, self._hash(*call, name))
        random.seed(_whole(self._hash(*call, "random")))
        np.random.seed(np.frombuffer(self._hash(*call, "numpy"), np.uint32))
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(_whole(self._hash(*call, "torch")) >> _TORCH)  # of all devices


def _generators() -> Collection[Any]:
    """Return the generators of this process that are objects, the older ones first as far as they can be told.

    The garbage collector does not track a torch.Generator, nor a dict or tuple of nothing else (as of default
    arguments): they are found by what refers to them.
    """
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # what is frozen is not listed
    young, middle, old = gc.get_objects(0), gc.get_objects(1), gc.get_objects(2)  # an object may become older meanwhile
    if is_frozen:  # by the user's program, which wants it to stay so
        gc.freeze()
    objects = [*old, *middle, *young]
    kinds = {np.random.RandomState, *_BIT_GENERATORS, *_with_subclasses(random.Random)} - {random.SystemRandom}
    found = _of(kinds, objects)
    if "torch" in sys.modules:
        kind = sys.modules["torch"].Generator
        held = _of({kind, dict, tuple}, gc.get_referents(*objects))
        held += gc.get_referents(*filterfalse(gc.is_tracked, _of({dict, tuple}, held)))
        found += [each for each in _of({kind}, held) if each.device.type == "cpu"]
    return {id(each): each for each in found if id(each) not in _of_globals()}.values()


def _of_globals() -> set[int]:
    """Return the ids of the objects behind the functions of `random`, `np.random` and torch."""
    state = np.random.mtrand._rand
    found = [getattr(random, "_inst", None), state, state._bit_generator]
    if "torch" in sys.modules:
        found.append(sys.modules["torch"].default_generator)
    return set(map(id, found))


def _of(kinds: set[type], objects: list[Any]) -> list[Any]:
    """Return the objects of these types. There may be a million, so the loop is one in C."""
    return list(compress(objects, map(kinds.__contains__, map(type, objects))))


def _with_subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_with_subclasses, kind.__subclasses__()))


def _named(generators: Collection[Any]) -> dict[str, Any]:
    """Name a module's generator after that; number the others of each type: the only one has always the same name.

    A number changes with the other generators that exist, also those of libraries.
    """
    names = _names_of_globals({np.random.Generator, *map(type, generators)})
    numbers: Counter[str] = Counter()
    named = {}
    for generator in generators:
        kind = type(generator).__qualname__
        place = names.get(id(generator))
        if place is None:
            place = str(numbers[kind])
            numbers[kind] += 1
        named[f"{kind} {place}"] = generator
    return named


def _names_of_globals(kinds: set[type]) -> dict[int, str]:
    """Return the names of the modules' objects of these types, by the ids of the object and its bit generator."""
    names = {}
    for module, found in sorted(sys.modules.items()):  # an order that does not depend on the imports
        for name, value in list(getattr(found, "__dict__", {}).items()):
            if type(value) in kinds:
                bits = getattr(value, "bit_generator", getattr(value, "_bit_generator", value))
                names[id(value)] = names[id(bits)] = f"{module}.{name}"
    return names


def _reseed(generator: Any, seed: bytes) -> None:
    if isinstance(generator, random.Random):
        random.Random.seed(generator, _whole(seed))
    elif isinstance(generator, np.random.RandomState):
        with contextlib.suppress(TypeError):  # its bit generator is no MT19937; it is an object of the list itself
            generator.seed(np.frombuffer(seed, np.uint32))
    elif isinstance(generator, np.random.MT19937):
        np.random.RandomState(generator).seed(np.frombuffer(seed, np.uint32))  # a tenth of the time of the way below
    elif hasattr(generator, "manual_seed"):  # torch's
        generator.manual_seed(_whole(seed) >> _TORCH)
    else:
        generator.__setstate__(type(generator)(_whole(seed)).__getstate__())  # with the seeds for its spawn()


def _hash(*key: int | str) -> bytes:
    return hashlib.blake2b(repr(key).encode(), digest_size=_SEED).digest()


def _whole(seed: bytes) -> int:
    return int.from_bytes(seed, "little")
