"""The audit log of a device: a line for each decision of its policy, each with the hash of the line before.

    {"at": …, …, "before": "HASH of the line before", "hash": "SHA-256 of this line up to here"}

A line is on the disk before the reply leaves. A change, a removal and an insertion of lines are found by `verify`; an
end that was cut off is not, nor a file that was computed anew: note the last hash elsewhere. The file may be renamed at
any time (logrotate): the first line of the next one has the last hash. Owned by edge/guard.py, in the agent's thread.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from netq.errors import InvalidOption, NotNow
from netq.utils.files import open_regular, sync

_NONE = "0" * 64  # the hash before the first line
_LINE = re.compile(rb'(\{.*"before": "([0-9a-f]{64})"), "hash": "([0-9a-f]{64})"\}', re.DOTALL)
_BEGIN = b'{"at": "'
_FAULTS = 10  # that are named


class Audit:
    """A log that is written to. Raises NotNow if its end is that of no log, OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = self._continue()

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append a line, and wait for the disk. Raises OSError: then the line may be there, or its begin."""
        body = json.dumps({"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry, "before": self._last})
        digest = hashlib.sha256(body[:-1].encode()).hexdigest()
        line = f'{body[:-1]}, "hash": "{digest}"}}\n'.encode()
        is_new = not self._path.exists()
        fd = open_regular(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        try:
            size = os.fstat(fd).st_size
            try:
                written = os.write(fd, line)
                if written < len(line):
                    raise OSError(0, "the disk may be full")
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, size)  # no half line, before which the next one would begin
                raise
        finally:
            os.close(fd)
        if is_new:
            sync(self._path.parent)
        self._last = digest

    def _continue(self) -> str:
        """Return the last hash, after removing the begin of a line that a loss of power has left."""
        try:
            fd = open_regular(self._path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            return _NONE
        with os.fdopen(fd, "r+b") as file:
            whole, last, rest = 0, b"", b""
            for rest in file:
                if rest.endswith(b"\n"):
                    whole, last, rest = whole + len(rest), rest[:-1], b""
            found = _LINE.fullmatch(last)
            if found is None and (last or rest[: len(_BEGIN)] != _BEGIN[: len(rest)]):
                raise NotNow(f"policy.audit: {self._path}: its last line is none of an audit log; move the file away")
            file.truncate(whole)
        return found[3].decode() if found else _NONE


def verify(path: Path) -> tuple[bool, list[str]]:
    """Return whether all lines of a log are whole and in order, and what to say of it. Raises InvalidOption."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InvalidOption(f"{path}: cannot be read ({error.strerror}); give the path of an audit log") from None
    faults = list(_faults(lines))
    if faults:
        return False, [*faults[:_FAULTS], *(["…"] if len(faults) > _FAULTS else [])]
    last = _LINE.fullmatch(lines[-2]) if len(lines) > 1 else None
    if last is None:
        return True, ["no line"]
    first = _LINE.fullmatch(lines[0])
    assert first is not None
    begin = "" if first[2].decode() == _NONE else f"; the file before ends with {first[2].decode()}"
    return True, [f"all {len(lines) - 1} lines are whole{begin}; the last hash is {last[3].decode()}"]


def _faults(lines: list[bytes]) -> Iterator[str]:
    """Yield what is wrong with the lines of a file; the last one is what follows the last end of a line."""
    found = [_LINE.fullmatch(line) for line in lines[:-1]]
    places = {line[3]: number for number, line in enumerate(found, 1) if line is not None}
    before: bytes | None = None  # None: unknown, since the line before was changed
    for number, line in enumerate(found, 1):
        if line is None or hashlib.sha256(line[1]).hexdigest().encode() != line[3]:
            yield f"line {number}: was changed: its hash is not that of its text"
        elif number > 1 and before is not None and line[2] != before:
            where = f"it follows line {places[line[2]]}" if line[2] in places else "lines before it are missing"
            yield f"line {number}: does not follow line {number - 1}: lines were removed, inserted or moved; {where}"
        before = None if line is None else line[3]
    if lines[-1]:
        yield f"line {len(lines)}: has no end: it is being written, the power was lost meanwhile, or it was cut off"
