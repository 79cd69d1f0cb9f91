"""The command line of `netq bench`: its options. checks.py has what depends on several of them.

A mistake is one line on stderr and status 2. netq checks the values of its own options, and its errors are shown as
they are. Each option's help ends with its default, as in docs/reference/bench.md.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from netq.bench import load, plan
from netq.bench.checks import PASSWORD, PREFIX, TIMEOUT, check, fill, settle
from netq.bench.protocol import DIRECTIONS
from netq.options import NetworkLocation, Protocol
from netq.text import parse_netloc
from netq.validate import is_number

_EXPONENT = 40  # of 2: the largest message
_PROTOCOLS = [protocol.value for protocol in Protocol]
_EPILOG = """\
Sizes are bytes, 64, or 2KiB, 128MiB. Without --netloc latency, throughput, sweep and load start a server here.

Example:
  netq bench server --netloc 0.0.0.0:51966
  netq bench latency --netloc aggregator.local:51966
"""
_SWEEP_EPILOG = "Example: netq bench sweep --max-size 16MiB --csv sizes.csv --plot sizes.svg"
_IOPS_EPILOG = "Example: netq bench iops tcp both sync --step-size 0 --max-size 21 --reps 4_000"


class Parser(argparse.ArgumentParser):
    """Reports an error in one line. Accepts no abbreviated options."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **more})

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options. Raises SystemExit if they are wrong."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        settle(options)
        check(options)
        fill(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def make_parser() -> Parser:
    """Return the parser of the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser("netq bench", description="Measure what a link gives.", epilog=_EPILOG, formatter_class=raw)
    works = parser.add_subparsers(dest="work", required=True, metavar="server|iops|latency|throughput|sweep|load")
    _server(works.add_parser("server", help="wait for clients, and serve whatever they ask, until Ctrl-C or SIGTERM"))
    _iops(works.add_parser("iops", help="many messages each way; sizes are exponents of 2", epilog=_IOPS_EPILOG))
    _latency(works.add_parser("latency", help="round trips, one after the other"))
    _throughput(works.add_parser("throughput", help="large messages"))
    _sweep(works.add_parser("sweep", help="round trips and messages one way, by size", epilog=_SWEEP_EPILOG))
    _load(works.add_parser("load", help="messages at a rate; without one, the highest rate that holds"))
    return parser


def largest(options: argparse.Namespace) -> int:
    """Return the bytes of the largest message that a client asks for, or that a server accepts."""
    if options.work == "server":
        return int(options.max_message)
    if options.work == "sweep":
        return int(options.sizes[-1])
    return int(options.plan.largest if options.plan else options.size)


def size_option(options: argparse.Namespace) -> str:
    """Return the name of the option that sets the size of messages."""
    return "--max-size" if options.work in ("iops", "sweep") else "--size"


def copies(options: argparse.Namespace) -> int:
    """Return the number of largest messages that this machine holds at once, at least. An echo has its own memory."""
    is_echo = options.work in ("latency", "sweep", "load")
    is_both = getattr(options, "direction", None) == "both" or getattr(options, "mode", None) == "async"
    here = 2 if is_echo or is_both else 1
    in_server = 2 if is_both else 1
    return here + (in_server if options.purpose == "both" else 0)


def _server(parser: Parser) -> None:
    _add(parser, "--max-message", "the largest message that it takes, or makes", "1GiB", type=_size, metavar="SIZE")
    _add(parser, "--core", "stay on this core", type=_whole(0), metavar="N")
    _flag(parser, "--until-eof", "end when stdin does, too")
    parser.set_defaults(purpose="server")
    _communicator(parser)
    _add(parser, "--protocol", "the same on both sides", "tcp", choices=_PROTOCOLS, metavar="|".join(_PROTOCOLS))
    _netloc(parser, "where to listen; with mqtt, the broker's; default 127.0.0.1:51966")
    _add(parser, "--tls", "with mqtt: use TLS to the broker, trust these", type=Path, metavar="CA.pem")
    _own_certificate(parser)
    _broker(parser)


def _iops(parser: Parser) -> None:
    _choice(parser, "protocol", "what carries the messages", _PROTOCOLS)
    _choice(parser, "purpose", "serve, measure, or both in two processes on this machine", ["server", "client", "both"])
    _choice(parser, "mode", "one direction after the other, or both at once", ["sync", "async"])
    exponent: Any = {"type": _whole(0, _EXPONENT), "metavar": "EXP"}
    _add(parser, "--max-size", "the largest messages: 2^EXP bytes", "21", **exponent)
    _add(parser, "--step-size", "the next smaller ones, and so on; 0: only the largest", "0", **exponent)
    _add(parser, "--min-size", "with --step-size: not below these; default 0", **exponent)
    counts = "with --step-size: (2^max / 2^i)^X of 2^i bytes; default 1"
    _add(parser, "--step-expo", counts, type=_number(0, 4), metavar="X")
    _add(parser, "--seed", "with --step-size: of the order in which sizes come; default 0", type=int, metavar="N")
    _add(parser, "--reps", "so often; default 4000, with --step-size 1", type=_whole(1), metavar="N")
    parser.set_defaults(core=None, until_eof=False)
    _communicator(parser)
    _search(parser)
    _secure(parser)
    where = "where the server listens; with mqtt, the broker's; default 127.0.0.1:51966, with both a free port"
    _netloc(parser, where)
    _add(parser, "--tls", "of a client, with mqtt of both: use TLS, trust these", type=Path, metavar="CA.pem")
    _own_certificate(parser)
    _broker(parser)


def _latency(parser: Parser) -> None:
    _add(parser, "--size", "of a message", "64", type=_size, metavar="SIZE")
    _add(parser, "--count", "round trips", "10000", type=_whole(1, plan.MOST_MESSAGES), metavar="N")
    _client(parser)


def _throughput(parser: Parser) -> None:
    _add(parser, "--size", "of a message", "128MiB", type=_size, metavar="SIZE")
    _add(parser, "--count", "messages each way", "10", type=_whole(1), metavar="N")
    directions: Any = {"choices": DIRECTIONS, "metavar": "|".join(DIRECTIONS)}
    _add(parser, "--direction", "to the server, from it, or both at once", "up", **directions)
    _client(parser)


def _sweep(parser: Parser) -> None:
    _add(parser, "--min-size", "the smallest messages", "1B", type=_size, metavar="SIZE")
    _add(parser, "--max-size", "the largest messages", "256MiB", type=_size, metavar="SIZE")
    _add(parser, "--step", "each size is so many times the size before", "4", type=_whole(2, 2**20), metavar="N")
    _add(
        parser, "--seconds", "of round trips for each size, and of messages", "2", type=_number(0.01, 3600), metavar="S"
    )
    _client(parser)
    _communicator(parser)
    _add(parser, "--csv", "write the table", type=Path, metavar="FILE")
    _add(parser, "--plot", "draw the table, as SVG or PNG by its suffix; needs matplotlib", type=Path, metavar="FILE")


def _load(parser: Parser) -> None:
    _add(parser, "--size", "of a message", "64", type=_size, metavar="SIZE")
    either: Any = parser.add_mutually_exclusive_group()
    rate: Any = {"type": _number(0.1, 1e7), "metavar": "N"}
    _add(either, "--rate", "messages a second; without it the highest is searched for", **rate)
    _add(either, "--rates", "latency at one rate after the other, until one is not reached", type=_rates, metavar="N,…")
    milliseconds: Any = {"type": _number(0.01, 1e6), "metavar": "MS"}
    _add(either, "--limit", "of p99.9 in a search, in milliseconds", "5", **milliseconds)
    _add(parser, "--seconds", "for each rate that is tried", "3", type=_number(0.01, 3600), metavar="S")
    _add(parser, "--csv", "write the table of --rates", type=Path, metavar="FILE")
    _add(parser, "--plot", "draw it, as SVG or PNG by its suffix; needs matplotlib", type=Path, metavar="FILE")
    _client(parser)


def _client(parser: Parser) -> None:
    """Add the options of a work that starts a server here, if there is none."""
    _flag(parser, "--spawn", "start a server here also with --netloc")
    _search(parser)
    _secure(parser)
    _add(parser, "--protocol", "the same on both sides", "tcp", choices=_PROTOCOLS, metavar="|".join(_PROTOCOLS))
    _netloc(parser, "where the server listens; with mqtt, the broker's")
    _add(parser, "--tls", "use TLS, trust these", type=Path, metavar="CA.pem")
    _broker(parser)


def _search(parser: Parser) -> None:
    _add(parser, "--timeout", f"seconds to find the server; default {TIMEOUT}", type=_number(0.1, 3600), metavar="S")
    _flag(parser, "--no-pin", "do not keep client and own server on a core each")


def _secure(parser: Parser) -> None:
    _flag(parser, "--secure", "TLS with a certificate for this run alone, to a server that is started here")


def _communicator(parser: Parser) -> None:
    """Add options of netq's communicators and connections. A pair of flags has the default None: netq's default."""
    _add(parser, "--workers", "threads of a communicator that move bytes", "1", type=_whole(1, 256), metavar="N")
    _add(parser, "--transport-size", "the largest chunk of a message in one frame", "16MiB", type=_size, metavar="SIZE")
    pair: Any = {"action": argparse.BooleanOptionalAction}
    parser.add_argument("--put-merge", help="join small buffers before sending; default --put-merge", **pair)
    parser.add_argument("--get-merge", help="put a message together in one block; default --get-merge", **pair)


def _netloc(parser: Parser, where: str) -> None:
    _add(parser, "--netloc", where, type=_address, metavar="HOST:PORT")


def _own_certificate(parser: Parser) -> None:
    _add(parser, "--key", "of a server: use TLS, with this private key", type=Path, metavar="PEM")
    _add(parser, "--certificate", "of a server: and this certificate", type=Path, metavar="PEM")


def _broker(parser: Parser) -> None:
    _add(parser, "--prefix", f"mqtt: of the topics; default {PREFIX}", metavar="TEXT")
    _add(parser, "--user", "mqtt: by which the broker knows us", metavar="NAME")
    _add(parser, "--password", f"mqtt, with --user; rather in the environment, {PASSWORD}", metavar="TEXT")
    _flag(parser, "--json", "print one JSON object")


def _add(parser: Any, name: str, what: str, default: str | None = None, **more: Any) -> None:
    shown = what if default is None else f"{what}; default {default}"
    parser.add_argument(name, help=shown, default=default, **more)


def _choice(parser: Parser, name: str, what: str, choices: list[str]) -> None:
    parser.add_argument(name, help=f"{'|'.join(choices)}: {what}", choices=choices, metavar=name.upper())


def _flag(parser: Parser, name: str, what: str) -> None:
    parser.add_argument(name, help=what, action="store_true")


def _size(text: str) -> int:
    try:
        return plan.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _address(text: str) -> NetworkLocation:
    try:
        return NetworkLocation(*parse_netloc(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _whole(least: int, most: int = 10**9) -> Callable[[str], float]:
    return _between(int, least, most, f"a whole number from {least} to {most}")


def _number(least: float, most: float) -> Callable[[str], float]:
    return _between(float, least, most, f"a number from {least:g} to {most:g}")


def _rates(text: str) -> list[float]:
    rates = [_number(0.1, 1e7)(each) for each in text.split(",")]
    if len(rates) > load.MOST_RATES or any(low >= high for low, high in pairwise(rates)):
        raise argparse.ArgumentTypeError(
            f"{text!r}; expected at most {load.MOST_RATES} rates, each above the one before"
        )
    return rates


def _between(read: Callable[[str], float], least: float, most: float, expected: str) -> Callable[[str], float]:
    def value(text: str) -> float:
        with contextlib.suppress(ValueError):
            if is_number(number := read(text), least, most):
                return number
        raise argparse.ArgumentTypeError(f"{text!r}; expected {expected}")

    return value
