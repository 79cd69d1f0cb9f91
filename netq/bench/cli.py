"""The command line of `netq bench`: its options. checks.py has what depends on several of them.

A mistake is one line on stderr and status 2. netq checks the values of its own options, and its errors are shown as
they are. Each option's help ends with its default, as in docs/reference/bench.md.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from netq.bench import load, plan
from netq.bench.checks import PASSWORD, PREFIX, TIMEOUT, check, fill, settle
from netq.bench.protocol import DIRECTIONS
from netq.options import NetworkLocation, Protocol
from netq.text import parse_netloc
from netq.validate import is_number

_EPILOG = """\
Sizes are bytes, 64, or 2KiB, 128MiB. Without --netloc latency, throughput, sweep and load start a server here.

Example:
  netq bench server --netloc 0.0.0.0:51966
  netq bench latency --netloc aggregator.local:51966
"""


class Parser(argparse.ArgumentParser):
    """Reports an error in one line. Accepts no abbreviated options."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **more})

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


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
        expected = f"at most {load.MOST_RATES} rates, each above the one before"
        raise argparse.ArgumentTypeError(f"{text!r}; expected {expected}")
    return rates


def _between(read: Callable[[str], float], least: float, most: float, expected: str) -> Callable[[str], float]:
    def value(text: str) -> float:
        with contextlib.suppress(ValueError):
            if is_number(number := read(text), least, most):
                return number
        raise argparse.ArgumentTypeError(f"{text!r}; expected {expected}")

    return value


class Option(NamedTuple):
    """An option of some works: what its help says, its default there, and how argparse reads it."""

    name: str
    works: str
    what: str
    default: str | None
    reads: Mapping[str, Any]

    @property
    def dest(self) -> str:
        """Return its name in a namespace."""
        return self.name.removeprefix("--").replace("-", "_")


_WORKS = {  # what the help says of each, and its example
    "server": ("wait for clients, and serve whatever they ask, until Ctrl-C or SIGTERM", None),
    "iops": (
        "many messages each way; sizes are exponents of 2",
        "Example: netq bench iops tcp both sync --step-size 0 --max-size 21 --reps 4_000",
    ),
    "latency": ("round trips, one after the other", None),
    "throughput": ("large messages", None),
    "sweep": (
        "round trips and messages one way, by size",
        "Example: netq bench sweep --max-size 16MiB --csv sizes.csv --plot sizes.svg",
    ),
    "load": ("messages at a rate; without one, the highest rate that holds", None),
}
_CLIENTS, _MEASURED = "iops latency throughput sweep load", "latency throughput sweep load"
_ALL, _TUNED = f"server {_CLIENTS}", "server iops sweep"
_PROTOCOLS = [protocol.value for protocol in Protocol]
_POSITIONAL = (  # of iops
    ("protocol", "what carries the messages", _PROTOCOLS),
    ("purpose", "serve, measure, or both in two processes on this machine", ["server", "client", "both"]),
    ("mode", "one direction after the other, or both at once", ["sync", "async"]),
)
_FLAG: dict[str, Any] = {"action": "store_true", "default": False}
_PAIR: dict[str, Any] = {"action": argparse.BooleanOptionalAction}  # its default None is netq's default
_SIZE: dict[str, Any] = {"type": _size, "metavar": "SIZE"}
_EXP: dict[str, Any] = {"type": _whole(0, 40), "metavar": "EXP"}  # exponents of 2
_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
_PEM: dict[str, Any] = {"type": Path, "metavar": "PEM"}
_CA: dict[str, Any] = {"type": Path, "metavar": "CA.pem"}
_NETLOC: dict[str, Any] = {"type": _address, "metavar": "HOST:PORT"}
_TIME: dict[str, Any] = {"type": _number(0.01, 3600), "metavar": "S"}
_PATIENCE: dict[str, Any] = {"type": _number(0.1, 3600), "metavar": "S"}
_EXPO: dict[str, Any] = {"type": _number(0, 4), "metavar": "X"}
_RATE: dict[str, Any] = {"type": _number(0.1, 1e7), "metavar": "N"}
_RATES: dict[str, Any] = {"type": _rates, "metavar": "N,…"}
_TEXT: dict[str, Any] = {"metavar": "TEXT"}


def _count(kind: Callable[[str], Any]) -> dict[str, Any]:
    return {"type": kind, "metavar": "N"}


def _one(choices: Sequence[str]) -> dict[str, Any]:
    return {"choices": choices, "metavar": "|".join(choices)}


REPORTED = (  # in the order in which a report has them
    Option("--min-size", "iops", "with --step-size: not below these; default 0", None, _EXP),
    Option("--max-size", "iops", "the largest messages: 2^EXP bytes", "21", _EXP),
    Option("--step-size", "iops", "the next smaller ones, and so on; 0: only the largest", "0", _EXP),
    Option("--step-expo", "iops", "with --step-size: (2^max / 2^i)^X of 2^i bytes; default 1", None, _EXPO),
    Option("--reps", "iops", "so often; default 4000, with --step-size 1", None, _count(_whole(1))),
    Option("--seed", "iops", "with --step-size: of the order in which sizes come; default 0", None, _count(int)),
    Option("--size", "latency load", "of a message", "64", _SIZE),
    Option("--size", "throughput", "of a message", "128MiB", _SIZE),
    Option("--count", "latency", "round trips", "10000", _count(_whole(1, plan.MOST_MESSAGES))),
    Option("--count", "throughput", "messages each way", "10", _count(_whole(1))),
    Option("--direction", "throughput", "to the server, from it, or both at once", "up", _one(DIRECTIONS)),
    Option("--min-size", "sweep", "the smallest messages", "1B", _SIZE),
    Option("--max-size", "sweep", "the largest messages", "256MiB", _SIZE),
    Option("--step", "sweep", "each size is so many times the size before", "4", _count(_whole(2, 2**20))),
    Option("--seconds", "sweep", "of round trips for each size, and of messages", "2", _TIME),
    Option("--rate", "load", "messages a second; without it the highest is searched for", None, _RATE),
    Option("--rates", "load", "latency at one rate after the other, until one is not reached", None, _RATES),
    Option("--seconds", "load", "for each rate that is tried", "3", _TIME),
    Option(
        "--limit", "load", "of p99.9 in a search, in milliseconds", "5", {"type": _number(0.01, 1e6), "metavar": "MS"}
    ),
    Option("--protocol", f"server {_MEASURED}", "the same on both sides", "tcp", _one(_PROTOCOLS)),
    Option("--workers", _TUNED, "threads of a communicator that move bytes", "1", _count(_whole(1, 256))),
    Option("--transport-size", _TUNED, "the largest chunk of a message in one frame", "16MiB", _SIZE),
    Option("--put-merge", _TUNED, "join small buffers before sending; default --put-merge", None, _PAIR),
    Option("--get-merge", _TUNED, "put a message together in one block; default --get-merge", None, _PAIR),
    Option("--netloc", "server", "where to listen; with mqtt, the broker's; default 127.0.0.1:51966", None, _NETLOC),
    Option("--netloc", "iops", "where the server is; default 127.0.0.1:51966, with both a free port", None, _NETLOC),
    Option("--netloc", _MEASURED, "where the server listens; with mqtt, the broker's", None, _NETLOC),
    Option("--tls", _ALL, "of a client, with mqtt of both sides: use TLS, trust these", None, _CA),
    Option("--secure", _CLIENTS, "TLS with a certificate for this run alone, to a server started here", None, _FLAG),
)
_OTHERS = (
    Option("--csv", "sweep load", "write the table; of a load that of --rates", None, _FILE),
    Option("--plot", "sweep load", "draw the table, as SVG or PNG by its suffix; needs matplotlib", None, _FILE),
    Option("--max-message", "server", "the largest message that it takes, or makes", "1GiB", _SIZE),
    Option("--core", "server", "stay on this core", None, _count(_whole(0))),
    Option("--until-eof", "server", "end when stdin does, too", None, _FLAG),
    Option("--spawn", _MEASURED, "start a server here also with --netloc", None, _FLAG),
    Option("--timeout", _CLIENTS, f"seconds to find the server; default {TIMEOUT}", None, _PATIENCE),
    Option("--no-pin", _CLIENTS, "do not keep client and own server on a core each", None, _FLAG),
    Option("--key", "server iops", "of a server: use TLS, with this private key", None, _PEM),
    Option("--certificate", "server iops", "of a server: and this certificate", None, _PEM),
    Option("--prefix", _ALL, f"mqtt: of the topics; default {PREFIX}", None, _TEXT),
    Option("--user", _ALL, "mqtt: by which the broker knows us", None, {"metavar": "NAME"}),
    Option("--password", _ALL, f"mqtt, with --user; rather in the environment, {PASSWORD}", None, _TEXT),
    Option("--json", _ALL, "print one JSON object", None, _FLAG),
)
_EITHER = ("--rate", "--rates", "--limit")  # one of these


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
    works = parser.add_subparsers(dest="work", required=True, metavar="|".join(_WORKS))
    for work, (what, example) in _WORKS.items():
        made = works.add_parser(work, help=what, epilog=example)
        for name, purpose, choices in _POSITIONAL if work == "iops" else ():
            shown = f"{'|'.join(choices)}: {purpose}"
            made.add_argument(name, help=shown, choices=choices, metavar=name.upper())
        either: Any = made.add_mutually_exclusive_group()
        for option in (*REPORTED, *_OTHERS):
            if work in option.works.split():
                default = "" if option.default is None else f"; default {option.default}"
                group = either if option.name in _EITHER else made
                reads = {"default": option.default, **option.reads}
                group.add_argument(option.name, help=option.what + default, **reads)
    works.choices["server"].set_defaults(purpose="server")
    works.choices["iops"].set_defaults(core=None, until_eof=False)
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
