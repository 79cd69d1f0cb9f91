"""The wheel, in an environment that has nothing else: its commands, and README's server and client."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import PROLOGUE, ROOT, Page
from tests.servers import ports

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of a new virtual environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("install")
    source = folder / "source"  # a copy: a build leaves files in its folder
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("netq", "fl", "edge"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    quiet = ["-q", "--disable-pip-version-check", "--no-deps"]
    command = [sys.executable, "-m", "pip", "wheel", *quiet, "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(command, check=True, timeout=110, env={**os.environ, "CFLAGS": "-O0"})  # compiles fast
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    [wheel] = folder.glob("*.whl")
    programs = folder / "venv" / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python")]
    subprocess.run([*pip, "install", *quiet, "--no-index", wheel], check=True, env={})
    return programs


def run(programs: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment, outside the clone."""
    arguments = [str(programs / command[0]), *command[1:]]
    return subprocess.run(arguments, cwd=programs, env={}, capture_output=True, text=True, timeout=60)


def test_netq_runs_without_extras(environment: Path) -> None:
    assert run(environment, "netq", "--version").stdout.startswith("netq 0.")
    assert "missing: pip install 'netq-fl[grpc]'" in run(environment, "netq", "doctor").stdout
    wrong = run(environment, "netq", "nonsense")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("netq: nonsense: no such command\nusage: netq COMMAND")
    assert all(f"\n  {name} " in wrong.stderr for name in ("bench", "certs", "doctor"))


@pytest.mark.parametrize(("command", "extra"), [("fl", "serve"), ("edge", "fl")])
def test_missing_extra_is_named_in_one_line(environment: Path, command: str, extra: str) -> None:
    for line in ([command], ["python", "-m", command]):
        done = run(environment, *line)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"{command}: No module named 'numpy': pip install 'netq-fl[{extra}]'\n"


def test_readme_server_and_client_talk(environment: Path) -> None:
    scripts = Page("README.md").scripts()
    prologue = PROLOGUE.format(port=ports.free().port)
    command = [str(environment / "python"), "-c", prologue + scripts["server.py"]]
    with subprocess.Popen(command, cwd=environment, env={}) as server:
        client = run(environment, "python", "-c", prologue + scripts["client.py"])
        assert (client.stdout, server.wait(timeout=60)) == ("Hello, server! Hello, client!\n", 0)
