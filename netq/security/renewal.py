"""Reads keys, certificates and authorities again when one of their files changes.

Called for each new connection by netq/security/tls.py, netq/security/seal.py and netq/grpc. Never touches a connection
that is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from netq.errors import SecurityError
from netq.log import log
from netq.security.files import state

T = TypeVar("T")


class Renewed(Generic[T]):
    """What `make` returns, made again when a file changes. The constructor raises the SecurityError of `make`."""

    def __init__(self, make: Callable[[], T], paths: Iterable[Path | None]) -> None:
        self._make = make
        self._paths = [path for path in paths if path is not None]
        self._seen = self._warned = self._state()
        self._made = make()

    def current(self) -> T:
        """Return what the files say. Unusable files are told once and tried again; what was before stays."""
        # The state is taken before the files are read: a change meanwhile is another state.
        seen = self._state()
        if seen != self._seen:
            try:
                self._made, self._seen = self._make(), seen
            except SecurityError as error:  # a file is half written, or only one of a pair
                if seen != self._warned:
                    self._warned = seen
                    log.warning("%s; the files as they were before stay in force", error)
        return self._made

    def _state(self) -> list[tuple[int, ...] | None]:
        return [state(path) for path in self._paths]
