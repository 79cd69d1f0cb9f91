"""The command line of `netq bench`: what may be said. checks.py holds what goes with what.

A mistake is one line on stderr and status 2. Each option's help ends with its default, as in docs/reference/bench.md.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from netq.bench import checks, plan
from netq.bench.checks import PASSWORD, PREFIX
from netq.bench.protocol import DIRECTIONS, MOST_DELAY
from netq.bench.service import CLIENTS
from netq.options import NetworkLocation, Protocol
from netq.validate import is_number

_EXPONENT = 40  # of 2: the largest message
_EPILOG = "Sizes are bytes, 64, or 2KiB, 128MiB. Without --netloc latency, throughput and load start a server here."
_EXAMPLE = "As in: iops tcp both sync --step-size 0 --max-size 21 --reps 4_000"
_SERVER = "127.0.0.1:51966"
_OWN = "of a server, also one that is started here"


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; takes no part of an option's name for it."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **more})

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return what the command line says; `plan` is what iops and throughput send. Raises SystemExit if it is wrong."""
    parser = make_parser()
    words = sys.argv[1:] if arguments is None else arguments
    said = parser.parse_args(words)
    said.given = {word.partition("=")[0] for word in words if word.startswith("--")}
    try:
        checks.check(said)
        checks.fill(said)
    except ValueError as error:
        parser.error(str(error))
    return said


def make_parser() -> Parser:
    """Return what reads the command line."""
    parser = Parser("netq bench", description="Measure what a link gives.", epilog=_EPILOG)
    works = parser.add_subparsers(dest="work", required=True, metavar="server|iops|latency|throughput|load")
    _server(works.add_parser("server", help="wait for clients, and serve whatever they ask, until Ctrl-C or SIGTERM"))
    _iops(works.add_parser("iops", help="many messages each way; sizes are exponents of 2", epilog=_EXAMPLE))
    _latency(works.add_parser("latency", help="round trips, one after the other"))
    _throughput(works.add_parser("throughput", help="large messages"))
    _load(works.add_parser("load", help="messages at a rate; without one, the highest rate that holds"))
    return parser


def _add(parser: Parser, name: str, what: str, default: str | None = None, **more: Any) -> None:
    shown = what if default is None else f"{what}; default {default}"
    parser.add_argument(name, help=shown, default=default, **more)


def _word(parser: Parser, name: str, what: str, choices: list[str]) -> None:
    parser.add_argument(name, help=f"{'|'.join(choices)}: {what}", choices=choices, metavar=name.upper())


def _flag(parser: Parser, name: str, what: str) -> None:
    parser.add_argument(name, help=what, action="store_true")


def _server(parser: Parser) -> None:
    _add(parser, "--max-message", "the largest message that it takes, or makes", "1GiB", type=_size, metavar="SIZE")
    _add(parser, "--core", "stay on this core", type=_whole(0), metavar="N")
    _flag(parser, "--until-eof", "end when stdin does, too")
    parser.set_defaults(purpose="server", clients=None)  # it serves without end
    _communicator(parser)
    _protocol(parser)
    _link(parser, "where to listen; with mqtt, the broker's", _SERVER)


def _iops(parser: Parser) -> None:
    _word(parser, "protocol", "what carries the messages", [protocol.value for protocol in Protocol])
    _word(parser, "purpose", "serve, measure, or both in two processes on this machine", ["server", "client", "both"])
    _word(parser, "mode", "one direction after the other, or both at once", ["sync", "async"])
    exponent: Any = {"type": _whole(0, _EXPONENT), "metavar": "EXP"}
    _add(parser, "--max-size", "the largest messages: 2^EXP bytes", "21", **exponent)
    _add(parser, "--step-size", "the next smaller ones, and so on; 0: only the largest", "0", **exponent)
    _add(parser, "--min-size", "with --step-size: not below these", "0", **exponent)
    _add(parser, "--step-expo", "with --step-size: (2^max / 2^i)^X of 2^i bytes", "1", type=_number(0, 4), metavar="X")
    _add(parser, "--seed", "with --step-size: of the order in which sizes come", "0", type=int, metavar="N")
    _add(parser, "--reps", "so often; default 4000, with --step-size 1", type=_whole(1), metavar="N")
    _add(
        parser,
        "--clients",
        "so many at once; of a server: to serve, then end",
        "1",
        type=_whole(1, CLIENTS),
        metavar="N",
    )
    pause: Any = {"type": _number(0, MOST_DELAY), "metavar": "S"}
    _add(parser, "--delay", "seconds that a sender pauses before each message", "0", **pause)
    _flag(parser, "--secure", "TLS with a certificate for this run alone; with both, on tcp and grpc")
    parser.set_defaults(core=None, until_eof=False)
    _communicator(parser)
    _finding(parser)
    _link(parser, "where the server listens, with both a free port; with mqtt, the broker's", _SERVER)


def _latency(parser: Parser) -> None:
    _add(parser, "--size", "of a message", "64", type=_size, metavar="SIZE")
    _add(parser, "--count", "round trips", "10000", type=_whole(1, plan.MOST_MESSAGES), metavar="N")
    _client(parser)


def _throughput(parser: Parser) -> None:
    _add(parser, "--size", "of a message", "128MiB", type=_size, metavar="SIZE")
    _add(parser, "--count", "messages each way", "10", type=_whole(1), metavar="N")
    _add(
        parser,
        "--direction",
        "to the server, from it, or both at once",
        "up",
        choices=DIRECTIONS,
        metavar="|".join(DIRECTIONS),
    )
    _client(parser)


def _load(parser: Parser) -> None:
    _add(parser, "--size", "of a message", "64", type=_size, metavar="SIZE")
    _add(
        parser,
        "--rate",
        "messages a second; without it the highest is searched for",
        type=_number(0.1, 1e7),
        metavar="N",
    )
    _add(parser, "--seconds", "for each rate that is tried", "3", type=_number(0.01, 3600), metavar="S")
    _add(parser, "--limit", "of p99.9 in a search, in milliseconds", "5", type=_number(0.01, 1e6), metavar="MS")
    _client(parser)


def _client(parser: Parser) -> None:
    _flag(parser, "--spawn", "start a server here also with --netloc")
    parser.set_defaults(clients=1)
    _finding(parser)
    _protocol(parser)
    _link(parser, "where the server listens; with mqtt, the broker's", None)


def _finding(parser: Parser) -> None:
    _add(parser, "--timeout", "seconds to find the server", "10", type=_number(0.1, 3600), metavar="S")
    _flag(parser, "--no-pin", "do not keep client and own server on a core each")


def _communicator(parser: Parser) -> None:
    """Add the options of netq's communicators and connections. The default of a pair of flags is None: netq's own."""
    _add(parser, "--workers", "threads of a communicator that move bytes", "1", type=_whole(1, 256), metavar="N")
    _add(parser, "--transport-size", "the largest chunk of a message in one frame", "16MiB", type=_size, metavar="SIZE")
    pair: Any = {"action": argparse.BooleanOptionalAction}
    parser.add_argument("--put-merge", help="join small buffers before sending; default --put-merge", **pair)
    parser.add_argument("--get-merge", help="put a message together in one block; default --get-merge", **pair)


def _protocol(parser: Parser) -> None:
    names = [protocol.value for protocol in Protocol]
    _add(parser, "--protocol", "the same on both sides", "tcp", choices=names, metavar="|".join(names))


def _link(parser: Parser, where: str, netloc: str | None) -> None:
    _add(parser, "--netloc", where, netloc, type=_netloc, metavar="HOST:PORT")
    _add(parser, "--tls", "of a client, with mqtt of both: use TLS, trust these", type=Path, metavar="CA.pem")
    _add(parser, "--key", f"{_OWN}: use TLS, with this private key", type=Path, metavar="PEM")
    _add(parser, "--certificate", f"{_OWN}: and this certificate", type=Path, metavar="PEM")
    _add(parser, "--prefix", "mqtt: of the topics", PREFIX, metavar="TEXT")
    _add(parser, "--user", "mqtt: by which the broker knows us", metavar="NAME")
    _add(parser, "--password", f"mqtt, with --user; rather in the environment, {PASSWORD}", metavar="TEXT")
    _flag(parser, "--json", "print one JSON object")


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


def _whole(least: int, most: int = 10**9) -> Callable[[str], float]:
    return _between(int, least, most, f"a whole number from {least} to {most}")


def _number(least: float, most: float) -> Callable[[str], float]:
    return _between(float, least, most, f"a number from {least:g} to {most:g}")


def _between(read: Callable[[str], float], least: float, most: float, expected: str) -> Callable[[str], float]:
    def value(text: str) -> float:
        with contextlib.suppress(ValueError):
            if is_number(number := read(text), least, most):
                return number
        raise argparse.ArgumentTypeError(f"{text!r}; expected {expected}")

    return value
