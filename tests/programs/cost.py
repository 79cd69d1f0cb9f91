"""The costs of this process for the machine. Imported by the programs of this folder."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
from pathlib import Path


def cost() -> dict[str, int]:
    """Return the private bytes of this process, after free memory is returned."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    rollup = Path("/proc/self/smaps_rollup").read_text()
    private = sum(int(size) * 1024 for size in re.findall(r"^Private_\w+: +(\d+) kB$", rollup, re.MULTILINE))
    return {"private": private}


def lift_limit() -> None:
    """Raise the limit of descriptors to the system's maximum."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
