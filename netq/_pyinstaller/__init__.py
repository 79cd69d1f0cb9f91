"""Hooks for PyInstaller: they name the modules that netq and fl import by a text, which it cannot see.

PyInstaller finds `folders` by the entry point in pyproject.toml, and runs hook-netq.py if a program imports netq.
"""

from __future__ import annotations

from pathlib import Path


def folders() -> list[str]:
    """Return the folder of the hooks."""
    return [str(Path(__file__).parent)]
