"""The console scripts `fl` and `edge`: report in one sentence that an extra is not installed.

The packages fl and edge cannot do that themselves: their import fails before any code of the command runs.
"""

from __future__ import annotations

import importlib
import sys

from netq.version import DISTRIBUTION


def fl() -> int:
    """Run the command `fl`; return the exit status."""
    return _launch("fl", "serve")


def edge() -> int:
    """Run the command `edge`; return the exit status."""
    return _launch("edge", "fl")


def _launch(package: str, extra: str) -> int:
    sys.path.insert(0, "")  # find the user's modules in the current folder, as `python -m` does
    try:
        command = importlib.import_module(f"{package}.__main__")
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] in ("netq", "fl", "edge"):
            raise  # a defect of ours, not a missing extra
        print(f"{package}: {error}: pip install '{DISTRIBUTION}[{extra}]'", file=sys.stderr)
        return 2
    status: int = command.main()
    return status
