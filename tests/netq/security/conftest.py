"""Makers of sealed connections, for tests without a network."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from netq.options import Purpose
from netq.security.seal import NewConnection, sealed_connections
from tests.netq.authority import Authority

Seals: TypeAlias = tuple[NewConnection, NewConnection]  # of a client and of a server


def seals_of(authority: Authority, other: Authority | None = None) -> Seals:
    """Return makers for both sides. The certificate of the client is of `other`, if that is given."""
    client = (other or authority).seal(Purpose.CLIENT, uuid.UUID(int=1), authority=authority.path)
    server = authority.seal(Purpose.SERVER, uuid.UUID(int=2))
    return sealed_connections(client, is_client=True), sealed_connections(server, is_client=False)


@pytest.fixture(scope="session")
def new_authority(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Authority]:
    """Make authorities, each with a folder of its own."""
    return lambda **options: Authority(tmp_path_factory.mktemp("authority"), **options)


@pytest.fixture(scope="session")
def authority(new_authority: Callable[..., Authority]) -> Authority:
    """An authority of P-256."""
    return new_authority()


@pytest.fixture(scope="session")
def seals(authority: Authority) -> Seals:
    """Makers of a client's and a server's connections."""
    return seals_of(authority)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test writes its own files."""
    return tmp_path
