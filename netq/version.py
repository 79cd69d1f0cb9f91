"""The version of netq, fl and edge: they are one distribution. pyproject.toml takes it from here."""

from __future__ import annotations

DISTRIBUTION = "netq-fl"  # the name on the package index; `netq` is another project there
VERSION = "0.1.0"
