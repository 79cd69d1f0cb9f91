"""The table [statistics] of an aggregator's file: what `fl statistics` asks the clients."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import fl
from fl.column_statistics import Query
from netq.toml_file import File

_FORM = "a table as { low = 0, high = 120, bins = 24 }; bins may be left out"


def statistics(file: File) -> dict[str, Any]:
    """Return the arguments of fl.Server.statistics_of; empty without the table. Raises InvalidOption."""
    if "statistics" not in file.tables:
        return {}
    tables = file.table("statistics").get("columns")
    file.check("statistics.columns", tables, isinstance(tables, dict), "a table of columns, [statistics.columns]")
    assert isinstance(tables, dict)
    columns = {name: _column(file, name, values) for name, values in tables.items()}
    with file.named():
        Query(columns, "statistics.columns")
    found: dict[str, Any] = {"columns": columns}
    if "min_count" in file.table("statistics"):
        found["min_count"] = file.whole("statistics", "min_count", "a whole number, 1 or more", 1)
    return found


def _column(file: File, name: str, values: object) -> fl.Column:
    where, known = f"statistics.columns.{name}", {each.name for each in fields(fl.Column)}
    right = isinstance(values, dict) and {"low", "high"} <= values.keys() <= known
    file.check(where, values, right, _FORM)
    assert isinstance(values, dict)
    return file.options(where, fl.Column, values)
