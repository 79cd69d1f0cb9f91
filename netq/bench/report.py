"""Prints figures: as one JSON object, or as a table with a line for each. docs/reference/bench.md lists FIGURES too."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from netq.bench import cli, load, sweep
from netq.bench.plan import format_size
from netq.text import format_netloc


class Figure(NamedTuple):
    """How a figure is printed: its name, its unit, the divisor that gives this unit, and its digits."""

    name: str
    unit: str = ""
    divisor: float = 1
    digits: int = 3


FIGURES = {  # by the key in JSON
    "messages": Figure("messages", digits=0),
    "bytes": Figure("bytes", digits=0),
    "seconds": Figure("time", "s"),
    "iops": Figure("iops", "/s", digits=0),
    "gbit_per_second": Figure("bit rate", "Gbit/s"),
    "gb_per_second": Figure("throughput", "GB/s"),
    "limit_milliseconds": Figure("limit", "ms"),
    "rate": Figure("rate", "/s", digits=1),
    "answered_per_second": Figure("answered", "/s", digits=1),
    "microseconds": Figure("", "µs", digits=1),
    "cpu_seconds": Figure("cpu", "s"),
    "cpu_seconds_per_gb": Figure("cpu per GB", "s"),
    "resident_bytes": Figure("resident", "MiB", 2**20, 1),
    "extra_bytes": Figure("extra", "MiB", 2**20, 1),
    "extra_per_message": Figure("extra in messages"),
}
_SIZES = {  # the arguments that are sizes, by workload: those of iops are exponents
    "sweep": ("min_size", "max_size", "transport_size"),
    "iops": ("transport_size",),
}
_POSITIONAL = {"iops": ("protocol", "purpose", "mode")}


def arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that were in force, with their defaults; None for those without effect."""
    names = [option.dest for option in cli.REPORTED if options.work in option.works.split()]
    given = {name: getattr(options, name) for name in (*_POSITIONAL.get(options.work, ()), *names)}
    netloc = None if options.netloc is None else format_netloc(*options.netloc)
    return given | {
        "protocol": options.protocol.value,
        "netloc": netloc,
        "tls": None if options.tls is None else str(options.tls),
    }


def as_json(report: dict[str, Any]) -> str:
    """Return the report as one line."""
    return json.dumps(report)


def as_table(report: dict[str, Any]) -> str:
    """Return the command line, a line for each side, and the figures, aligned."""
    lines = [_command(report["work"], report["arguments"])]
    for name, facts in report["platform"].items():
        lines.append(
            f"{name}: python {facts['python']}, netq {facts['netq']}, {facts['machine']}, {facts['cores']} cores"
        )
    for work, table in (("curve", load.table), ("sizes", sweep.table)):
        if work in report["figures"]:
            return "\n".join([*lines, *table(report["figures"])])
    rows = list(_rows(report["figures"]))
    width = max(len(name) for name, _, _ in rows)
    return "\n".join(lines + [f"{name:{width}}  {value:>14}  {unit}".rstrip() for name, value, unit in rows])


def _command(work: str, arguments: dict[str, Any]) -> str:
    """Return the command line that gives the same options again."""
    positional = _POSITIONAL.get(work, ())
    sizes = _SIZES.get(work, ("size",))
    named = [_option(name, value, name in sizes) for name, value in arguments.items() if name not in positional]
    return " ".join([work, *[arguments[name] for name in positional], *filter(None, named)])


def _option(name: str, value: Any, is_size: bool) -> str:
    option = name.replace("_", "-")
    if value is None or (name == "secure" and not value):
        return ""
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    if isinstance(value, list):
        return f"--{option} {','.join([f'{each:.12g}' for each in value])}"
    shown = format_size(value) if is_size else f"{value:.12g}" if type(value) is float else value
    return f"--{option} {shown}"


def _rows(figures: dict[str, Any], above: str = "") -> Iterator[tuple[str, str, str]]:
    for key, value in figures.items():
        if key == "microseconds":
            for name, each in value.items():
                yield _row(name, each, FIGURES[key])
        elif isinstance(value, dict):
            yield from _rows(value, f"{key} ")
        elif not isinstance(value, list):
            yield _row(above + FIGURES[key].name, value, FIGURES[key])


def _row(name: str, value: float | None, shown: Figure) -> tuple[str, str, str]:
    if value is None:
        return name, "-", ""
    return name, f"{value / shown.divisor:,.{shown.digits}f}", shown.unit
