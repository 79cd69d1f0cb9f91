"""netq doctor: prints what this machine can do and, given an address, whether a server answers there."""

from __future__ import annotations

import argparse
import importlib
import logging
import math
import platform
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

import netq
from netq.cli import client_hello
from netq.cli.terminal import sentence
from netq.identity import is_post_quantum
from netq.options import PostQuantum, SecurityOptions
from netq.protocol import codec
from netq.security.processor import has_aes
from netq.security.tls import client_side
from netq.text import format_netloc, parse_netloc
from netq.version import DISTRIBUTION, VERSION

_LIBRARIES = {  # by extra
    "mqtt": "paho.mqtt.client",
    "grpc": "grpc",
    "msgpack": "msgspec",
    "protobuf": "google.protobuf",
}
_GOODBYE = 1.0  # seconds to end the session: one that is left would make the next client with its id wait
_OPTION = re.compile(r"^SecurityOptions\.(\w+): ")
_EXAMPLE = "example: netq doctor aggregator.local:51966 --authority authority.pem"


class Reached(NamedTuple):
    """A server that has answered."""

    seconds: float
    proxy: str  # on the way to it, as in " through http://proxy:3128"; empty: none
    security: netq.Security | None  # of the link; with MQTT, of the link to the broker
    seal: netq.Security | None  # from end to end


def main(arguments: Sequence[str]) -> int:
    """Print a line for each fact; return 0, 1 if the server does not answer, or 2 if a certificate is wrong."""
    options = _parser().parse_args(arguments)
    for name, fact in _facts():
        print(f"{name:<9} {fact}")
    if options.server is None:
        return 0
    connection = netq.CommunicatorOptions(netloc=options.server, security=_security(options))
    try:
        answer = reach(netq.Protocol(options.protocol), connection, options.timeout)
    except netq.SecurityError as error:
        print(f"netq doctor: {_OPTION.sub(_argument, sentence(error), count=1)}", file=sys.stderr)
        return 2
    except (netq.NetqError, ImportError) as error:
        answer = sentence(error)
    where = format_netloc(*options.server)
    if isinstance(answer, str):
        print(f"server    {where} {answer}")
        return 1
    print(f"server    {where}{answer.proxy} answers in {answer.seconds * 1000:.1f} ms")
    broker = "to the broker: " if options.protocol == "mqtt" else ""
    print(f"link      {broker}{describe(answer.security)}")
    if answer.security is not None:
        identity = answer.security.identity
        print(f"identity  a certificate for {options.server.host}" + (f", id {identity}" if identity else ""))
    return 0


def reach(
    protocol: netq.Protocol,
    options: netq.CommunicatorOptions,
    timeout: float,
    ask: Callable[[netq.Communicator], object] = lambda queue: None,
) -> Reached | str:
    """Connect as a client and disconnect; return what was found, or why the server did not answer.

    The server sees a client that connects and leaves. `ask` is called in between, with the client.
    """
    connected = threading.Event()
    begin = time.monotonic()
    where = "{}:{}".format(*options.netloc)
    with _LastWarning(where) as warning:
        events = netq.EventOptions(ini=lambda peer: connected.set())
        queue = netq.new(protocol, netq.Purpose.CLIENT, replace(options, events=events))
        try:
            if connected.wait(timeout):
                seconds = time.monotonic() - begin
                ask(queue)
                for each in queue.statistics().values():
                    return Reached(seconds, each.address.removeprefix(where), each.security, each.seal)
                return Reached(seconds, "", None, None)  # it has left meanwhile
        finally:
            queue.close(timeout=_GOODBYE if connected.is_set() else 0)
    reason = warning.text.removeprefix(where).removeprefix(": ").removesuffix("; trying again until it answers")
    return f"does not answer within {timeout:g} s" + (f" ({reason})" if reason else "")


def describe(security: netq.Security | None) -> str:
    """Return how a link is protected, in words."""
    if security is None:
        return "not encrypted"
    strength = "post-quantum" if is_post_quantum(security.group) else "not post-quantum"
    group = f"{security.group} ({strength})" if security.group else "key exchange not known"
    return ", ".join(filter(None, (security.version, security.cipher, group)))


class _LastWarning(logging.Handler):
    """Keeps the last warning of netq about an address, and all out of stderr, within a `with` statement."""

    def __init__(self, address: str) -> None:
        super().__init__(logging.WARNING)
        self._address = address
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if (text := record.getMessage()).startswith(self._address):
            self.text = text

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
    yield "version", f"netq {VERSION}, Python {platform.python_version()}, {platform.platform()}"
    compiled = codec.take.__module__ == "netq.protocol._codec"
    yield "codec", "compiled" if compiled else "Python: no C compiler at installation, or NETQ_PURE is set"
    yield "ssl", _tls("standard", "off")
    try:
        yield "security", _tls("openssl", "prefer")
    except ImportError:
        yield "security", f"missing: pip install '{DISTRIBUTION}[security]'"
    yield "aes", "by instructions of the processor" if has_aes() else "in software: the processor has no instructions"
    yield "shm", "usable" if sys.platform == "linux" else "missing: it needs Linux"
    for extra, library in _LIBRARIES.items():
        try:
            importlib.import_module(library)
            yield extra, "usable"
        except ImportError:
            yield extra, f"missing: pip install '{DISTRIBUTION}[{extra}]'"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield "files", f"{soft} open files, {hard} after `ulimit -n {hard}`: one for each connection"


def _tls(module: str, post_quantum: PostQuantum) -> str:
    """Return a TLS library of netq, and what it offers to a server, the preferred first."""
    library: str = importlib.import_module(f"netq.security.{module}").library()
    offer = client_hello.parse(client_side(SecurityOptions(post_quantum=post_quantum), "localhost")().to_send())
    return f"{library}; prefers {offer.ciphers[0]}; key exchange {', '.join(offer.groups)}"


def _security(options: argparse.Namespace) -> SecurityOptions | None:
    if options.certificate is None and options.authority is None and options.key is None:
        return None
    return SecurityOptions(options.key, options.certificate, options.authority, options.post_quantum)


def _argument(option: re.Match[str]) -> str:
    """Return a field of SecurityOptions as the argument of the command line."""
    return f"argument --{option[1].replace('_', '-')}: "


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("netq doctor", description="Show what this machine can do.", epilog=_EXAMPLE)
    parser.add_argument("server", nargs="?", type=_address, metavar="HOST:PORT", help="a server to connect to")
    parser.add_argument("--protocol", choices=[each.value for each in netq.Protocol], default="tcp")
    parser.add_argument(
        "--certificate",
        type=Path,
        metavar="PEM",
        help="the authority to trust; with --authority and --key, the certificate to show. Turns TLS on",
    )
    parser.add_argument("--authority", type=Path, metavar="PEM", help="the authority to trust. Turns TLS on")
    parser.add_argument("--key", type=Path, metavar="PEM", help="the key of the certificate to show")
    parser.add_argument(
        "--post-quantum", choices=get_args(PostQuantum), default="prefer", help="key exchange; default: %(default)s"
    )
    parser.add_argument("--timeout", type=_seconds, default=5.0, metavar="SECONDS", help="default: %(default)s")
    return parser


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
