"""The list of certificates that a server refuses: a text file, which the server reads again when it changes."""

from __future__ import annotations

import re
from pathlib import Path

from netq.errors import SecurityError
from netq.log import log
from netq.security.files import read, state

_HEX = re.compile("[0-9A-Fa-f]{1,40}")  # a serial number has at most 20 bytes (RFC 5280, 4.1.2.2)


def serials(text: str) -> frozenset[int]:
    """Return the serial numbers of a list. Raises ValueError, which names the line."""
    lines = [(number, line.split("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1)]
    return frozenset(_serial(number, entry) for number, entry in lines if entry)


def _serial(number: int, entry: str) -> int:
    digits = entry.replace(":", "")
    if _HEX.fullmatch(digits) is None:
        raise ValueError(
            f"line {number} is no serial number; expected hexadecimal digits, as `netq certs show` prints them"
        )
    return int(digits, 16)


class RevocationList:
    """The serial numbers in a file: hexadecimal, one a line. "#" begins a comment. Raises SecurityError."""

    def __init__(self, option: str, path: Path) -> None:
        self._option = option
        self._path = path
        self._seen: tuple[int, ...] | None = ()  # which state of the file was read last; None: it was missing
        self._serials = self._read()

    def __contains__(self, serial: int) -> bool:
        return serial in self._serials

    def refresh(self) -> None:
        """Read the file again if it has changed. A file that cannot be used is logged, and the last list stays."""
        try:
            self._serials = self._read()
        except SecurityError as error:
            log.warning("%s; the list as it was before stays in force", error)

    def _read(self) -> frozenset[int]:
        seen = state(self._path)
        if seen == self._seen:
            return self._serials
        self._seen = seen  # also if what follows fails: one log line for each state of the file
        if seen is None:
            raise SecurityError(f"{self._option}: {self._path}: not readable: there is no such file")
        try:
            return serials(read(self._option, self._path).decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise SecurityError(f"{self._option}: {self._path}: not readable: {error}") from error
        except ValueError as error:
            raise SecurityError(f"{self._option}: {self._path}: {error}") from None
