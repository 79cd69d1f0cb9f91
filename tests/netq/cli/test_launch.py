"""The commands `fl` and `edge` without a library that they need: one line names the extra, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = [
    ("fl", "numpy", 2, "fl: No module named 'numpy': pip install 'netq-fl[serve]'\n"),
    ("edge", "numpy", 2, "edge: No module named 'numpy': pip install 'netq-fl[fl]'\n"),
    ("fl", "typer", 1, "fl: the command line needs typer: pip install 'netq-fl[serve]'\n"),
]


def run_without(library: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python as if the library were missing."""
    (folder / "sitecustomize.py").write_text(f"import sys; sys.modules['{library}'] = None")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "library", "status", "line"), CASES)
def test_script_and_module_name_the_missing_extra(
    tmp_path: Path, command: str, library: str, status: int, line: str
) -> None:
    script = f"import sys; from netq.cli import launch; sys.exit(launch.{command}())"
    for arguments in (["-c", script], ["-m", command, "--version"]):
        done = run_without(library, tmp_path, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (status, "", line)


def test_first_use_without_numpy_raises_import_error(tmp_path: Path) -> None:
    script = "import fl, edge\ntry:\n    fl.Server\nexcept ImportError as error:\n    print(error.name)"
    assert run_without("numpy", tmp_path, "-c", script).stdout == "numpy\n"
