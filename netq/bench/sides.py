"""The communicators of both sides, as the command line describes them, and a server process of the client's own.

Called by command.py. `said` is what arguments.py has read.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import netq
from netq.bench import checks, local, words
from netq.bench.protocol import HEAD, serialization
from netq.bench.usage import cores
from netq.options import NetworkLocation, Protocol

GONE = 10.0  # seconds: a session without a link is not waited for longer
_LINGER = 0.2  # seconds in which Ctrl-C lets what is due arrive
_CONNECTION = ("transport_size", "put_merge", "get_merge")


class Server(NamedTuple):
    """Where it is, and the certificates that a client trusts."""

    netloc: NetworkLocation
    tls: Path | None


class _Files(NamedTuple):
    """PEM files; those of certificates.Files, but each may be missing."""

    tls: Path | None
    key: Path | None
    certificate: Path | None


def server_options(said: argparse.Namespace) -> netq.CommunicatorOptions:
    """Return what a server is made of."""
    return _options(said, said.netloc, None if said.key is None else netq.SecurityOptions(said.key, said.certificate))


def client_options(said: argparse.Namespace, server: Server) -> netq.CommunicatorOptions:
    """Return what a client of this server is made of, with an id of its own."""
    return _options(said, server.netloc, None if server.tls is None else netq.SecurityOptions(certificate=server.tls))


@contextlib.contextmanager
def server(said: argparse.Namespace, core: int | None) -> Iterator[Server]:
    """Yield where the server is. Start it on this core, within a with statement, if it is to be this machine's."""
    if said.purpose != "both":
        yield Server(said.netloc, said.tls)
        return
    netloc = said.netloc or NetworkLocation(port=0)
    environment = {} if said.password is None else {checks.PASSWORD: said.password}
    with (
        _files(said, netloc.host) as files,
        local.own_server(_arguments(said, netloc, files, core), environment) as where,
    ):
        yield Server(where, files.tls)


def both_cores(said: argparse.Namespace) -> tuple[int | None, int | None]:
    """Return the core of each side: where both are here, and there are two."""
    own = cores()
    return (own[0], own[1]) if said.purpose == "both" and not said.no_pin and len(own) > 1 else (None, None)


def is_mqtt(said: argparse.Namespace) -> bool:
    """Return whether `--netloc` and `--tls` are the broker's."""
    return said.protocol is Protocol.MQTT


@contextlib.contextmanager
def _files(said: argparse.Namespace, host: str) -> Iterator[_Files]:
    """Yield the files that the command line names; with --secure, new ones, which are removed at the end."""
    if not getattr(said, "secure", False):
        yield _Files(said.tls, said.key, said.certificate)
        return
    from netq.security import certificates  # needs cryptography

    with tempfile.TemporaryDirectory(prefix="netq-bench-") as folder:
        yield _Files(*certificates.make(Path(folder), [host]))


def _arguments(said: argparse.Namespace, netloc: NetworkLocation, files: _Files, core: int | None) -> list[str]:
    """Return what `bench server` is told."""
    given: dict[str, Any] = {
        "protocol": said.protocol.value,
        "netloc": words.place(netloc),
        "key": files.key,
        "certificate": files.certificate,
        "core": core,
        "max-message": checks.largest(said),
        "workers": getattr(said, "workers", None),
        "transport-size": getattr(said, "transport_size", None),
    }
    if is_mqtt(said):
        given |= {"tls": files.tls, "prefix": said.prefix, "user": said.user}
    without = [f"--no-{name}-merge" for name in ("put", "get") if getattr(said, f"{name}_merge", None) is False]
    return [f"--{name}={value}" for name, value in given.items() if value is not None] + without


def _options(
    said: argparse.Namespace, netloc: NetworkLocation, security: netq.SecurityOptions | None
) -> netq.CommunicatorOptions:
    if is_mqtt(said) and said.tls is not None:
        security = netq.SecurityOptions(certificate=said.tls)
    given = {name: value for name in _CONNECTION if (value := getattr(said, name, None)) is not None}
    size = checks.largest(said) + HEAD
    return netq.CommunicatorOptions(
        netloc=netloc,
        connection=netq.ConnectionOptions(message_size=size, session_timeout=GONE, linger=_LINGER, **given),
        serialization=serialization(),
        security=security,
        workers=getattr(said, "workers", 1),
        mqtt=netq.MqttOptions(prefix=said.prefix, user=said.user, password=said.password),
    )
