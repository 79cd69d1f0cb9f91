"""Whether this machine's processor computes AES by instructions of its own."""

from __future__ import annotations

import functools
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


@functools.cache
def has_aes() -> bool:
    """Return False on Linux if the processor's features lack "aes": a Raspberry Pi 4, for one. Else True."""
    return _has_aes(_CPUINFO.read_text(errors="replace")) if _CPUINFO.exists() else True


def _has_aes(cpuinfo: str) -> bool:
    lines = [line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))]
    return not lines or any("aes" in line.split() for line in lines)
