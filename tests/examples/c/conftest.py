"""Builds of examples/c for its tests, and what they need to run them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.c import programs
from tests.examples.c.programs import Listener, Programs, build


@pytest.fixture(scope="session")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client under the sanitizers, with TLS where that can be built."""
    flags = [*programs.CHECKED, *(programs.TLS if programs.has_openssl() else [])]
    return build(tmp_path_factory.mktemp("checked"), flags)


@pytest.fixture(scope="session")
def openssl() -> None:
    """Skip the test where programs cannot be built with OpenSSL."""
    if not programs.has_openssl():
        pytest.skip("no header files of OpenSSL here; `apt install libssl-dev` brings them")


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parts of the client, with an input of tests."""
    flags = [*programs.CHECKED, "-Wno-unused-function"]
    return build(tmp_path_factory.mktemp("harness"), flags, programs.HARNESS)


@pytest.fixture
def clients(checked: Path) -> Iterator[Programs]:
    """Start clients, and end them with the test."""
    with Programs(checked) as clients:
        yield clients


@pytest.fixture
def listener() -> Iterator[Listener]:
    """A server that a test serves by hand."""
    with Listener() as listener:
        yield listener
