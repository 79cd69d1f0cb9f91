"""The commands `fl` and `edge`: report in one sentence that an extra is not installed.

The packages need numpy, also where they import it later. The console scripts begin here. `python -m fl` imports the
package first, whose __init__ therefore calls `check_extra` before its imports.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

from netq.version import DISTRIBUTION

_EXTRAS = {"fl": "serve", "edge": "fl"}  # what a command needs of pyproject.toml


def fl() -> int:
    """Run the command `fl`; return the exit status."""
    return _launch("fl")


def edge() -> int:
    """Run the command `edge`; return the exit status."""
    return _launch("edge")


def check_extra(package: str) -> None:
    """Exit with status 2 if numpy is missing. Does not import it."""
    if importlib.util.find_spec("numpy") is None:
        _exit(package, "No module named 'numpy'")


def _launch(package: str) -> int:
    sys.path.insert(0, "")  # find the user's modules in the current folder, as `python -m` does
    check_extra(package)
    main: Callable[[], int] = _load(package, f"{package}.__main__").main
    return main()


def _load(package: str, module: str) -> ModuleType:
    """Import a module. If a library is missing, print the extra that brings it, and exit with status 2."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] in ("netq", "fl", "edge"):
            raise  # a defect of ours, not a missing extra
        _exit(package, str(error))


def _exit(package: str, reason: str) -> NoReturn:
    print(f"{package}: {reason}: pip install '{DISTRIBUTION}[{_EXTRAS[package]}]'", file=sys.stderr)
    sys.exit(2)
