"""The command line of `python -m netq bench`: what may be said, and what goes with what.

A mistake is one line on stderr and status 2.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from netq.bench import plan
from netq.bench.protocol import DIRECTIONS
from netq.options import NetworkLocation, Protocol

PASSWORD = "NETQ_BENCH_PASSWORD"  # in the environment: what is on a command line, all users of the machine can read
_PREFIX = "netq-bench"  # not that of an application: a server that comes takes a prefix over
_EXPONENT = 40  # of 2: the largest message
_EPILOG = "Sizes are bytes, 64, or 2KiB, 128MiB. Without --netloc a client starts a server on this machine."


class BadInput(ValueError):
    """The command line is wrong; the text is one line."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return what the command line says; `plan` is what iops and throughput send. Raises SystemExit if it is wrong."""
    parser = _parser()
    said = parser.parse_args(arguments)
    try:
        _check(said)
        said.plan = _plan(said)
    except ValueError as error:
        parser.error(str(error))
    return said


def _parser() -> Parser:
    parser = Parser("python -m netq bench", description="Measure what a link gives.", epilog=_EPILOG)
    works = parser.add_subparsers(dest="work", required=True, metavar="server|iops|latency|throughput|load")
    _server(works.add_parser("server", help="wait for clients, and serve whatever they ask, until Ctrl-C"))
    _iops(works.add_parser("iops", help="many messages each way; sizes are exponents of 2"))
    _latency(works.add_parser("latency", help="round trips, one after the other"))
    _throughput(works.add_parser("throughput", help="large messages"))
    _load(works.add_parser("load", help="messages at a rate; without one, the highest rate that holds"))
    return parser


def _server(parser: Parser) -> None:
    parser.add_argument(
        "--max-message", type=_size, default=2**30, metavar="SIZE", help="the largest it takes; default 1GiB"
    )
    parser.add_argument("--core", type=_whole(0, (os.cpu_count() or 1) - 1), metavar="N", help="stay on this core")
    parser.add_argument("--until-eof", action="store_true", help="end when stdin does, too")
    _shared(parser)


def _iops(parser: Parser) -> None:
    parser.add_argument("mode", choices=["sync", "async"], help="one direction after the other, or both at once")
    parser.add_argument("--min-size", type=_whole(0, _EXPONENT), default=0, metavar="EXP", help="default 0: 2^0 bytes")
    parser.add_argument("--max-size", type=_whole(0, _EXPONENT), default=21, metavar="EXP", help="default 21: 2 MiB")
    parser.add_argument(
        "--step-size", type=_whole(0, _EXPONENT), default=0, metavar="EXP", help="default 0: only --max-size"
    )
    parser.add_argument(
        "--step-expo", type=_number(0, 4), default=1.0, metavar="X", help="(2^max / 2^i)^X of 2^i; default 1"
    )
    parser.add_argument("--reps", type=_whole(1), metavar="N", help="so often; default 1, of a single size 4000")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which sizes come")
    _client(parser)


def _latency(parser: Parser) -> None:
    parser.add_argument("--size", type=_size, default=64, help="default 64")
    parser.add_argument(
        "--count", type=_whole(1, plan.MOST_MESSAGES), default=10_000, metavar="N", help="default 10000"
    )
    _client(parser)


def _throughput(parser: Parser) -> None:
    parser.add_argument("--size", type=_size, default=128 * 2**20, help="default 128MiB")
    parser.add_argument("--count", type=_whole(1), default=10, metavar="N", help="default 10, each way")
    parser.add_argument("--direction", choices=DIRECTIONS, default="up", help="default up, to the server")
    _client(parser)


def _load(parser: Parser) -> None:
    parser.add_argument("--size", type=_size, default=64, help="default 64")
    parser.add_argument(
        "--rate", type=_number(0.1, 1e7), metavar="N", help="messages a second; else it is searched for"
    )
    parser.add_argument(
        "--seconds", type=_number(0.01, 3600), default=3.0, help="default 3, for each rate that is tried"
    )
    parser.add_argument(
        "--limit", type=_number(0.01, 1e6), default=5.0, metavar="MS", help="of p99.9 in a search; default 5 ms"
    )
    _client(parser)


def _client(parser: Parser) -> None:
    parser.add_argument(
        "--timeout", type=_number(0.1, 3600), default=10.0, metavar="S", help="to find the server; default 10"
    )
    parser.add_argument("--spawn", action="store_true", help="start a server here also with --netloc")
    parser.add_argument("--no-pin", action="store_true", help="do not keep client and own server on two cores")
    _shared(parser)


def _shared(parser: Parser) -> None:
    names = [protocol.value for protocol in Protocol]
    parser.add_argument("--protocol", choices=names, default="tcp", metavar="|".join(names), help="default tcp")
    parser.add_argument("--netloc", type=_netloc, metavar="HOST:PORT", help="of the server; with mqtt, the broker's")
    parser.add_argument("--tls", type=Path, metavar="CA.pem", help="use TLS, and trust these authorities")
    parser.add_argument("--key", type=Path, metavar="PEM", help="of a server: use TLS, with this private key")
    parser.add_argument("--certificate", type=Path, metavar="PEM", help="of a server: and this certificate")
    parser.add_argument("--prefix", help=f"mqtt: of the topics; {_PREFIX}, of a server that is spawned a new one")
    parser.add_argument("--user", help="mqtt: by which the broker knows us")
    parser.add_argument("--password", default=os.environ.get(PASSWORD), help=f"mqtt; or in the environment, {PASSWORD}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _check(said: argparse.Namespace) -> None:
    said.protocol = Protocol(said.protocol)
    is_server, is_mqtt = said.work == "server", said.protocol is Protocol.MQTT
    said.spawn = not is_server and (said.spawn or said.netloc is None)
    if is_mqtt and said.netloc is None:
        raise BadInput("--protocol mqtt needs --netloc, the broker's")
    if (said.key is None) != (said.certificate is None):
        raise BadInput("--key and --certificate go together")
    if said.key is not None and not (is_server or said.spawn):
        raise BadInput("--key is a server's: a client has --tls CA.pem")
    if said.key is not None and is_mqtt:
        raise BadInput("--key: with mqtt TLS is the broker's; both sides have --tls CA.pem")
    if said.tls is not None and not is_mqtt and is_server:
        raise BadInput("--tls is a client's: a server has --key and --certificate")
    if said.spawn and not is_mqtt and (said.tls is None) != (said.key is None):
        raise BadInput("--tls, --key and --certificate go together where the server is started here")
    if not is_mqtt and (said.user is not None or said.prefix is not None):
        raise BadInput("--user and --prefix are for --protocol mqtt")
    if said.user is None:
        said.password = None
    said.prefix = said.prefix or (f"{_PREFIX}/{os.urandom(8).hex()}" if said.spawn else _PREFIX)


def _plan(said: argparse.Namespace) -> plan.Plan | None:
    if said.work == "throughput":
        return plan.Plan(((said.size, said.count),))
    if said.work == "load" and said.rate is not None and said.rate * said.seconds > plan.MOST_MESSAGES:
        raise BadInput(f"{said.rate * said.seconds:,.0f} messages; expected {plan.MOST_MESSAGES:,} at most")
    if said.work != "iops":
        return None
    said.reps = said.reps or (1 if said.step_size else 4000)
    smallest = said.min_size if said.step_size else said.max_size
    return plan.powers(smallest, said.max_size, said.step_size, said.step_expo, said.reps, said.seed)


def _size(text: str) -> int:
    try:
        return plan.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _netloc(text: str) -> NetworkLocation:
    if text.startswith("/"):  # a socket's path, for shared memory
        return NetworkLocation(text, 0)
    host, _, port = text.rpartition(":")
    if not host.strip("[]") or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}; expected HOST:PORT, as in 127.0.0.1:51966")
    return NetworkLocation(host.removeprefix("[").removesuffix("]"), int(port))


def _whole(least: int, most: int = 10**9) -> Callable[[str], int]:
    def whole(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number from {least} to {most}")
        return number

    return whole


def _number(least: float, most: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r}; expected a number from {least:g} to {most:g}")
        return value

    return number
