"""The list of certificates that a server refuses: a text file, which the server reads again when it changes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from netq.errors import SecurityError

log = logging.getLogger("netq")

_MAX_DIGITS = 40  # of a serial number: 20 bytes (RFC 5280, 4.1.2.2)


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
        seen = self._state()
        if seen == self._seen:
            return self._serials
        self._seen = seen  # also if what follows fails: one log line for each state of the file
        if seen is None:
            raise SecurityError(f"{self._option}: {self._path}: not readable: there is no such file")
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SecurityError(f"{self._option}: {self._path}: not readable: {error}") from error
        return frozenset(
            self._serial(number, line) for number, line in enumerate(lines, 1) if line.split("#")[0].strip()
        )

    def _serial(self, number: int, line: str) -> int:
        text = line.split("#")[0].strip().replace(":", "")
        if not text.isascii() or not text.isalnum() or len(text) > _MAX_DIGITS:
            text = ""
        try:
            return int(text, 16)
        except ValueError:
            raise SecurityError(
                f"{self._option}: {self._path}: line {number} is no serial number; expected hexadecimal digits, as "
                "`netq certs show` prints them"
            ) from None

    def _state(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
