"""The checkpoint file, from which a server goes on after its process was killed.

Written by fl/server/server.py after each round that counts. A new file is written as `….new`, synchronised to the disk,
and then renamed; the checkpoint before is kept as `….previous`. So one of the two is whole, whenever the machine stops.
`….lock` excludes a second server. Only their owner may read these files, and none of them is a link. The layout:

    8 bytes "NETQFL01"   8 bytes length of the body, little-endian   body   32 bytes BLAKE2b of all before (RFC 7693)

The body is a dict of plain values, arrays and tensors, serialised as in messages (fl/tensors/serialization.py). Loading
it runs no code.
"""

from __future__ import annotations

import copy
import fcntl
import hashlib
import logging
import os
import reprlib
import stat
import struct
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fl.errors import CheckpointError, InvalidUpdate
from fl.strategies.base import Strategy
from fl.tensors.roles import State, are_roles, assign
from fl.tensors.serialization import own_file, unserializable
from netq.buffers import Buffer
from netq.errors import InvalidOption, Unreadable
from netq.protocol.memory import Memory
from netq.text import describe, printable
from netq.utils.files import open_regular, replacing
from netq.utils.stream import Stream
from netq.validate import is_whole

log = logging.getLogger("netq.fl")

_HEAD = struct.Struct("<8sQ")
_MAGIC = b"NETQFL01"
_DIGEST = 32  # bytes
_PLAIN = own_file()
_OPEN: set[Path] = set()  # files that this process writes; a POSIX lock excludes other processes only


class Checkpoint:
    """A checkpoint file, locked for this process until `close` or the end of the process.

    Raises CheckpointError if the file cannot be written, or another server writes it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = _resolved(path)
        if not os.access(self._path.parent, os.W_OK):
            raise CheckpointError(f"{path}: its folder is not there, or cannot be written to; make it, or name another")
        if self._path in _OPEN:
            raise CheckpointError(f"{path}: another server of this process writes it; give each a file of its own")
        try:
            _beside(self._path, "previous").exists()  # raises for a name that is too long
            lock = open_regular(_beside(self._path, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written ({error.strerror}); name another") from None
        self._lock = os.fdopen(lock, "r+b")
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock, whose lock forked children inherit
        except BlockingIOError:
            self._lock.close()
            raise CheckpointError(f"{path}: another process writes it; give each server a file of its own") from None
        _OPEN.add(self._path)

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, and keep the one before as `….previous`.

        Raises OSError, or CheckpointError for a state that could not be loaded again. Then the file is unchanged.
        """
        if wrong := unserializable(state):
            raise CheckpointError(f"{self._path}: cannot be written: {wrong}; a strategy's `state` returns such")
        with replacing(self._path, keep=_beside(self._path, "previous")) as file:
            _write(file, _PLAIN.dump(dict(state)))

    def close(self) -> None:
        """Release the lock. Harmless if repeated."""
        if not self._lock.closed:
            self._lock.close()
            _OPEN.discard(self._path)


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint. If it is missing or damaged, read the one before. Raises CheckpointError.

    The arrays are views of the memory into which the file was read.
    """
    return _load(path)[0]


def _load(path: str | os.PathLike[str]) -> tuple[dict[str, Any], bool]:
    """Return what `load` does, and whether it is the one before."""
    path = _resolved(path)
    previous = _beside(path, "previous")
    try:
        return _read(path), False
    except CheckpointError as error:
        try:
            state = _read(previous)
        except CheckpointError:
            raise error from None
        log.warning("%s; going on from %s", error, previous)
        return state, True


def is_there(path: str | os.PathLike[str]) -> bool:
    """Return whether there is a checkpoint, or only the one before: a machine may stop between the two renames."""
    found = _resolved(path)
    return found.exists() or _beside(found, "previous").exists()


def _resolved(path: str | os.PathLike[str]) -> Path:
    """Return the path with the links to its folder followed. Raises CheckpointError for what is there and no file."""
    found = Path(path).parent.resolve() / Path(path).name
    try:
        kind = found.lstat().st_mode
    except OSError:  # it will be made
        return found
    if stat.S_ISDIR(kind):
        raise CheckpointError(f"{path}: is a folder; expected the name of a file, which will be made")
    if stat.S_ISLNK(kind):
        raise CheckpointError(f"{path}: is a link to {os.readlink(found)!r}; give the name of the file itself")
    if not stat.S_ISREG(kind):
        raise CheckpointError(f"{path}: is a pipe or a device; expected the name of a file, which will be made")
    return found


def _beside(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.{name}")


def _write(file: BinaryIO, body: Stream) -> None:
    digest = hashlib.blake2b(digest_size=_DIGEST)
    parts: list[Buffer] = [_HEAD.pack(_MAGIC, body.nbytes), *body.buffers]
    for part in parts:
        digest.update(part)
        file.write(part)
    file.write(digest.digest())


def _read(path: Path) -> dict[str, Any]:
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            body = _read_body(path, file)
        state = _PLAIN.load(Stream([body]))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); expected a checkpoint") from error
    except Unreadable as error:
        raise CheckpointError(f"{path}: {error}; expected a checkpoint of this version") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds a {type(state).__name__}; expected a checkpoint of this version")
    return state


def _read_body(path: Path, file: BinaryIO) -> memoryview:
    head, size = file.read(_HEAD.size), os.fstat(file.fileno()).st_size
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise CheckpointError(
            f"{path}: is no checkpoint; it begins with {head[:8]!r}: name another file, or move it away"
        )
    length = _HEAD.unpack(head)[1]
    if _HEAD.size + length + _DIGEST != size:
        raise CheckpointError(f"{path}: has {size} bytes; expected {_HEAD.size + length + _DIGEST}: it was cut off")
    body = Memory().take(length)
    file.readinto(body)  # type: ignore[attr-defined]
    digest = hashlib.blake2b(head, digest_size=_DIGEST)
    digest.update(body)
    if digest.digest() != file.read(_DIGEST):
        raise CheckpointError(f"{path}: is damaged: its bytes have changed since they were written")
    return body


def spent_in(path: str | os.PathLike[str]) -> int:
    """Return how many rounds with noise a checkpoint has; 0 if there is none, or a file that is none."""
    if not is_there(path):
        return 0
    try:
        state = load(path)
    except CheckpointError:
        return 0
    match state:
        case {"privacy": {"ledger": list(rounds)}}:
            return sum(count for *_, count in rounds)
    return 0


class Saved(NamedTuple):
    """What a checkpoint has besides the strategy's state."""

    federation: uuid.UUID
    number: int
    is_over: bool
    standings: Mapping[str, Any]  # of its clients
    model: State
    privacy: Mapping[str, Any]  # what the models have said; empty: there was no noise
    is_older: bool  # whether it is the checkpoint before the last one, which is damaged


def restored(path: str | os.PathLike[str], strategy: Strategy) -> Saved:
    """Restore a strategy from a checkpoint, and return the rest. Raises CheckpointError."""
    state, is_older = _load(path)
    match state:
        case {
            "federation": bytes(federation),
            "number": int(number),
            "is_over": bool(is_over),
            "standings": dict(standings),
            "model": dict(model),
            "roles": dict(roles),
            "strategy": {"name": str(name), "state": dict(own)},
            "privacy": dict(privacy),
        } if len(federation) == 16 and is_whole(number, 0, 2**62) and model and are_roles(roles):
            ours = type(strategy).__name__
            if name != ours:
                raise CheckpointError(
                    f"{path}: is of the strategy {printable(name)}, and this is {ours}; give the one it is of"
                )
            try:
                strategy.restore(copy.deepcopy(own))  # a view would keep the memory of the whole file
            except KeyError as error:
                raise CheckpointError(
                    f"{path}: its strategy has no {error}; give the strategy as it was made"
                ) from error
            except CheckpointError as error:
                raise CheckpointError(f"{path}: {error}") from error
            except Exception as error:  # of the strategy, whose state may be anything
                raise CheckpointError(
                    f"{path}: {ours} cannot restore its state: {printable(describe(error))}"
                ) from error
            try:
                assign(found := State(model, roles), None)
                found.is_restored = True
            except (InvalidOption, InvalidUpdate) as error:
                raise CheckpointError(f"{path}: {error}; expected a checkpoint of this version") from error
            return Saved(uuid.UUID(bytes=federation), number, is_over, standings, found, privacy, is_older)
        case _:
            has = reprlib.repr(list(state))[1:-1]
            raise CheckpointError(
                f"{path}: is not of a server: it has {has}; expected federation, number, is_over, standings, "
                "model, roles, strategy and privacy"
            )
