"""Runs the programs of iproute2. Its error is that of everything that keeps boards from being made."""

from __future__ import annotations

import shutil
import subprocess

PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "setpriv": "util-linux", "mount": "mount"}  # with Debian's packages
_TIMEOUT = 30.0  # seconds


class CannotSimulate(RuntimeError):
    """This machine, or this user's rights, do not allow boards; the text says what to do."""


def check_programs() -> None:
    """Raise CannotSimulate if programs are missing."""
    if absent := [name for name in PROGRAMS if shutil.which(name) is None]:
        packages = " ".join(sorted({PROGRAMS[name] for name in absent}))
        raise CannotSimulate(f"not installed: {', '.join(absent)}; install it, as in: apt-get install {packages}")


def run(*command: str) -> str:
    """Run a program and return its output. Raises CannotSimulate with the program's error."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
    if done.returncode:
        raise CannotSimulate(
            f"{' '.join(command)}: {done.stderr.strip() or f'status {done.returncode}'}; expected a kernel with "
            "network namespaces, veth and sch_tbf, and the right to use them: run on the machine itself or in a "
            "privileged container"
        )
    return done.stdout
