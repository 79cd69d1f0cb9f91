"""The communicators of both sides, made from the command line; and a server process on the client's machine.

The server process ends when its stdin does, so it ends with the client, even if the client is killed. Called by
command.py; `options` is what cli.py returns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import netq
from netq.bench import checks, cli
from netq.bench.protocol import HEAD, serialization
from netq.bench.resources import cores
from netq.options import NetworkLocation, Protocol
from netq.text import format_netloc

SESSION_TIMEOUT = 10.0  # seconds: a lost link ends a run, after a time in which it may come back
_LINGER = 0.2  # seconds that `close` waits for messages that are due, after Ctrl-C
_QUEUED = 2**62  # bytes that may wait at a sender: its messages share one buffer, so they take no memory
_PATIENCE = 5.0  # seconds for the server process to end before it is killed
_CONNECTION = ("transport_size", "put_merge", "get_merge")  # options with the names of netq.ConnectionOptions


class ServerFailed(Exception):
    """The server process ended before it listened. It has printed why; `status` is its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server process ended with status {status}")
        self.status = status


class Server(NamedTuple):
    """Where the server listens, and the certificates that a client trusts."""

    netloc: NetworkLocation
    tls: Path | None


class _Files(NamedTuple):
    """The PEM files of a run; those of certificates.Files, but each may be None."""

    tls: Path | None = None
    key: Path | None = None
    certificate: Path | None = None


def server_options(options: argparse.Namespace) -> netq.CommunicatorOptions:
    """Return the options of a server's communicator."""
    security = None
    if options.key or options.certificate or options.tls:  # --tls: of the broker
        security = netq.SecurityOptions(options.key, options.certificate or options.tls)
    return _communicator_options(options, options.netloc, security)


def client_options(options: argparse.Namespace, server: Server) -> netq.CommunicatorOptions:
    """Return the options of a client's communicator, with a new id."""
    security = netq.SecurityOptions(certificate=server.tls) if server.tls else None
    return _communicator_options(options, server.netloc, security)


@contextlib.contextmanager
def server(options: argparse.Namespace, core: int | None) -> Iterator[Server]:
    """Yield the server for a with statement. With the purpose "both", start it here, on this core."""
    if options.purpose != "both":
        yield Server(options.netloc, options.tls)
        return
    netloc = options.netloc or NetworkLocation(port=0)
    environment = {} if options.password is None else {checks.PASSWORD: options.password}
    with (
        _files(options, netloc.host) as files,
        server_process(_arguments(options, netloc, files, core), environment) as listening,
    ):
        yield Server(listening, files.tls)


def both_cores(options: argparse.Namespace) -> tuple[int | None, int | None]:
    """Return the core of each side; None if they run on two machines, on one core, or with --no-pin."""
    own = cores()
    return (own[0], own[1]) if options.purpose == "both" and not options.no_pin and len(own) > 1 else (None, None)


@contextlib.contextmanager
def server_process(arguments: Sequence[str], environment: Mapping[str, str]) -> Iterator[NetworkLocation]:
    """Run `netq bench server` with these arguments for a with statement; yield where it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "netq", "bench", "server", "--json", "--until-eof", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        process_group=0,  # Ctrl-C reaches the client only, which then ends the server
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            line = process.stdout.readline()
            if not line:
                raise ServerFailed(process.wait())
            yield NetworkLocation(**json.loads(line))
        finally:
            process.stdin.close()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for_eof() -> None:
    """Wait until the process that started this one has closed its end of stdin, or has ended."""
    while os.read(0, 1024):  # not sys.stdin: a daemon thread that holds its lock would block the interpreter's exit
        continue


@contextlib.contextmanager
def _files(options: argparse.Namespace, host: str) -> Iterator[_Files]:
    """Yield the files for a with statement; with --secure new ones, which are removed at the end."""
    if not options.secure:
        yield _Files(options.tls)
        return
    from netq.security import certificates  # needs cryptography

    with tempfile.TemporaryDirectory(prefix="netq-bench-") as folder:
        yield _Files(*certificates.init(Path(folder), [host]))


def _arguments(options: argparse.Namespace, netloc: NetworkLocation, files: _Files, core: int | None) -> list[str]:
    """Return the arguments of `netq bench server`."""
    given: dict[str, Any] = {
        "protocol": options.protocol.value,
        "netloc": format_netloc(*netloc),
        "key": files.key,
        "certificate": files.certificate,
        "core": core,
        "max-message": cli.largest(options),
        "workers": getattr(options, "workers", None),
        "transport-size": getattr(options, "transport_size", None),
    }
    if options.protocol is Protocol.MQTT:
        given |= {"tls": files.tls, "prefix": options.prefix, "user": options.user}
    without = [f"--no-{name}-merge" for name in ("put", "get") if getattr(options, f"{name}_merge", None) is False]
    return [f"--{name}={value}" for name, value in given.items() if value is not None] + without


def _communicator_options(
    options: argparse.Namespace, netloc: NetworkLocation, security: netq.SecurityOptions | None
) -> netq.CommunicatorOptions:
    given = {name: value for name in _CONNECTION if (value := getattr(options, name, None)) is not None}
    connection = netq.ConnectionOptions(
        message_size=cli.largest(options) + HEAD,
        queue_bytes=_QUEUED,
        session_timeout=SESSION_TIMEOUT,
        linger=_LINGER,
        **given,
    )
    return netq.CommunicatorOptions(
        netloc=netloc,
        connection=connection,
        serialization=serialization(),
        security=security,
        workers=getattr(options, "workers", 1),
        mqtt=netq.MqttOptions(prefix=options.prefix, user=options.user, password=options.password),
    )
