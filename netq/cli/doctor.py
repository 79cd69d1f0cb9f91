"""netq doctor: prints what this machine can do and, given an address, whether a server answers there."""

from __future__ import annotations

import argparse
import importlib
import logging
import math
import platform
import resource
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import netq
from netq.protocol import codec
from netq.text import format_netloc, parse_netloc
from netq.version import DISTRIBUTION, version

_LIBRARIES = {"mqtt": "paho.mqtt.client", "grpc": "grpc", "security": "cryptography"}  # by extra
_EXAMPLE = "example: netq doctor aggregator.local:51966 --certificate authority.pem"


def main(arguments: Sequence[str]) -> int:
    """Print a line for each fact; return 0, 1 if the server does not answer, or 2 if the certificate is wrong."""
    parser = argparse.ArgumentParser("netq doctor", description="Show what this machine can do.", epilog=_EXAMPLE)
    parser.add_argument("server", nargs="?", type=_address, metavar="HOST:PORT", help="a server to connect to")
    parser.add_argument("--protocol", choices=[each.value for each in netq.Protocol], default="tcp")
    parser.add_argument("--certificate", type=Path, metavar="PEM", help="the authority to trust; turns TLS on")
    parser.add_argument("--timeout", type=_seconds, default=5.0, metavar="SECONDS", help="default: %(default)s")
    options = parser.parse_args(arguments)
    for name, fact in _facts():
        print(f"{name:<9} {fact}")
    if options.server is None:
        return 0
    security = None if options.certificate is None else netq.SecurityOptions(certificate=options.certificate)
    connection = netq.CommunicatorOptions(netloc=options.server, security=security)
    try:
        answer = reach(netq.Protocol(options.protocol), connection, options.timeout)
    except netq.SecurityError as error:
        what = str(error).removeprefix("SecurityOptions.certificate: ")
        print(f"netq doctor: argument --certificate: {what}", file=sys.stderr)
        return 2
    except (netq.NetqError, ImportError) as error:
        answer = str(error)
    where = format_netloc(*options.server)
    print(f"server    {where} {f'answers in {answer * 1000:.1f} ms' if isinstance(answer, float) else answer}")
    return 0 if isinstance(answer, float) else 1


def reach(protocol: netq.Protocol, options: netq.CommunicatorOptions, timeout: float) -> float | str:
    """Connect as a client and disconnect; return the seconds until the server answered, or why it did not.

    The server sees a client that connects and leaves.
    """
    connected = threading.Event()
    begin = time.monotonic()
    with _LastWarning() as warning:
        events = netq.EventOptions(ini=lambda peer: connected.set())
        queue = netq.new(protocol, netq.Purpose.CLIENT, replace(options, events=events))
        try:
            if connected.wait(timeout):
                return time.monotonic() - begin
        finally:
            queue.close(timeout=0)
    host, port = options.netloc
    reason = warning.text.removeprefix(f"{host}:{port}: ").removesuffix("; trying again until it answers")
    return f"does not answer within {timeout:g} s" + (f" ({reason})" if reason else "")


class _LastWarning(logging.Handler):
    """Keeps the last warning of netq, and out of stderr, within a `with` statement."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()

    def __enter__(self) -> _LastWarning:
        log = logging.getLogger("netq")
        log.addHandler(self)
        self._propagated, log.propagate = log.propagate, False
        return self

    def __exit__(self, *error: object) -> None:
        log = logging.getLogger("netq")
        log.removeHandler(self)
        log.propagate = self._propagated


def _facts() -> Iterator[tuple[str, str]]:
    yield "version", f"netq {version()}, Python {platform.python_version()}, {platform.platform()}"
    compiled = codec.take.__module__ == "netq.protocol._codec"
    yield "codec", "compiled" if compiled else "Python: no C compiler at installation, or NETQ_PURE is set"
    yield "tcp", f"TLS by {ssl.OPENSSL_VERSION}"
    yield "shm", "usable" if sys.platform == "linux" else "missing: it needs Linux"
    for extra, library in _LIBRARIES.items():
        try:
            importlib.import_module(library)
            yield extra, "usable"
        except ImportError:
            yield extra, f"missing: pip install '{DISTRIBUTION}[{extra}]'"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield "files", f"{soft} open files, {hard} after `ulimit -n {hard}`: one for each connection"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}; expected seconds, as in 5 or 0.5")
    return seconds


def _address(text: str) -> netq.NetworkLocation:
    try:
        return netq.NetworkLocation(*parse_netloc(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
