"""What is needed to repeat a run, as plain values: seeds, settings, versions. Called by fl/server/server.py."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from netq.version import DISTRIBUTION, VERSION


def versions() -> dict[str, str]:
    """Return the versions of what computes here."""
    found = {"python": platform.python_version(), DISTRIBUTION: VERSION, "numpy": np.__version__}
    if torch := sys.modules.get("torch"):
        found["torch"] = str(torch.__version__)
    return found


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config for JSON: numbers and texts as they are, of other values the type."""
    return {name: value if _is_plain(value) else f"<{type(value).__name__}>" for name, value in config.items()}


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | str | None) or (isinstance(value, float) and math.isfinite(value))
