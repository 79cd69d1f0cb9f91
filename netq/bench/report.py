"""How figures are shown: one JSON object, or a table of a line a figure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_UNITS = {
    "bytes": (1e6, "MB"),
    "gb_per_second": (1, "GB/s"),
    "gbit_per_second": (1, "Gbit/s"),
    "rate": (1, "/s"),
    "answered_per_second": (1, "/s"),
    "resident_bytes": (1e6, "MB"),
    "extra_bytes": (1e6, "MB"),
    "cpu_seconds_per_gb": (1, "s"),
    "extra_per_message": (1, "x message"),
    "seconds": (1, "s"),
    "cpu_seconds": (1, "s"),
    "limit_milliseconds": (1, "ms"),
}
_WHOLE = {"messages"}


def as_json(report: dict[str, Any]) -> str:
    """Return the whole report as one line."""
    return json.dumps(report)


def as_table(report: dict[str, Any]) -> str:
    """Return what it was, both sides, and the figures, aligned."""
    given = " ".join(f"{name}={value}" for name, value in report["arguments"].items() if value is not None)
    lines = [f"{report['work']}: {given}"]
    for name, facts in report["platform"].items():
        lines.append(
            f"{name}: python {facts['python']}, netq {facts['netq']}, {facts['machine']}, {facts['cores']} cores"
        )
    rows = list(_rows(report["figures"]))
    width = max(len(name) for name, _, _ in rows)
    return "\n".join(lines + [f"{name:{width}}  {value:>14}  {unit}".rstrip() for name, value, unit in rows])


def _rows(figures: dict[str, Any], above: str = "", unit: str = "") -> Iterator[tuple[str, str, str]]:
    for name, value in figures.items():
        if isinstance(value, dict):
            is_unit = name == "microseconds"
            yield from _rows(value, above if is_unit else f"{name} ", "µs" if is_unit else "")
        elif not isinstance(value, list):
            yield _row(above + name.removesuffix("_bytes").replace("_", " "), name, value, unit)


def _row(shown: str, name: str, value: float | None, unit: str) -> tuple[str, str, str]:
    divisor, its_unit = _UNITS.get(name, (1, unit))
    if value is None:
        return shown, "-", ""
    return shown, f"{value:,}" if name in _WHOLE else f"{value / divisor:,.3f}", its_unit
