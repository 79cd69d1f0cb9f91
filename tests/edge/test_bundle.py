"""The script of `make bundle`, with a wheel that has a command `edge` and nothing else."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.pages import ROOT

VERSION = "{}.{}".format(*sys.version_info[:2])
NAME = "netq_fl-0.1.0"
FILES = {
    f"{NAME}.dist-info/METADATA": "Metadata-Version: 2.1\nName: netq-fl\nVersion: 0.1.0\nProvides-Extra: fl\n",
    f"{NAME}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{NAME}.dist-info/entry_points.txt": "[console_scripts]\nedge = edge_stub:main\n",
    f"{NAME}.dist-info/RECORD": "",
}


def bundle(folder: Path, machine: str = platform.machine(), pythons: str = VERSION, says: str = "edge 0.1.0") -> Path:
    """Write a bundle, as the Makefile does; its command `edge` prints `says`."""
    folder.mkdir()
    wheel = folder / f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("edge_stub.py", f"def main():\n    print({says!r})\n")
        for name, text in FILES.items():
            file.writestr(name, text)
    script = (ROOT / "edge/bundle.sh").read_text()
    for mark, value in (("@MACHINE@", machine), ("@PYTHONS@", pythons), ("@EXTRAS@", "fl")):
        script = script.replace(mark, value)
    (folder / "install.sh").write_text(script)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return folder


def install(folder: Path, target: Path, python: str | Path = sys.executable) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": str(python)}
    command = ["sh", str(folder / "install.sh"), str(target)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)


@pytest.mark.slow
def test_script_installs_from_the_folder(tmp_path: Path) -> None:
    done = install(bundle(tmp_path / "bundle"), tmp_path / "edge")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"edge 0.1.0\ninstalled in {tmp_path}/edge; next: {tmp_path}/edge/bin/edge check CLIENT.toml, "
        f"then {tmp_path}/edge/bin/edge install CLIENT.toml\n"
    )
    again = install(bundle(tmp_path / "newer", says="a newer edge, of the same version"), tmp_path / "edge")
    assert again.stdout.startswith("a newer edge, of the same version\n"), again.stderr


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("sys.maxsize = 2**31 - 1", "is a program of 32 bits; install a 64-bit system"),
        ("sys.version_info = (3, 9, 2)", f"is 3.9, and the wheels are for {VERSION}; "),
    ],
)
def test_wrong_python_is_named(tmp_path: Path, change: str, error: str) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; {change}; $2"\n')
    python.chmod(0o700)
    done = install(bundle(tmp_path / "bundle"), tmp_path / "edge", python)
    assert done.returncode == 1
    assert f"install.sh: {python} {error}" in done.stderr
    assert not (tmp_path / "edge").exists()


@pytest.mark.parametrize(
    ("options", "damage", "error"),
    [
        ({"machine": "m68k"}, False, f"this machine is {platform.machine()}, and the wheels are for m68k"),
        (
            {"pythons": "3.8 3.9"},
            False,
            f"and the wheels are for 3.8 3.9; make them with: make bundle PYTHONS={VERSION}",
        ),
        ({}, True, "a file is damaged or missing; copy the folder again"),
    ],
)
def test_wrong_board_and_damaged_file_are_named(
    tmp_path: Path, options: dict[str, str], damage: bool, error: str
) -> None:
    folder = bundle(tmp_path / "bundle", **options)
    if damage:
        (folder / f"{NAME}-py3-none-any.whl").write_bytes(b"")
    done = install(folder, tmp_path / "edge")
    assert done.returncode == 1
    assert error in done.stderr.splitlines()[-1]
    assert not (tmp_path / "edge").exists()
