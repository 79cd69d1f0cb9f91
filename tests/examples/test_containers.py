"""The container files: the commands of the compose file run as processes, and the image has what they need."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.examples.test_readmes import assert_prints, prepare
from tests.pages import ROOT, Page

yaml = pytest.importorskip("yaml")

FOLDER = ROOT / "examples/containers"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
LIMIT = 100.0


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
def test_the_services_learn_together(tmp_path: Path) -> None:
    if shutil.which("mosquitto", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("no mosquitto here")
    folder = tmp_path / "containers"
    prepare("containers", folder)
    for path in folder.glob("*.toml"):
        path.write_text(re.sub(rf'"({"|".join(SERVICES)}|0\.0\.0\.0)"(?=.*$)', _here, path.read_text(), flags=re.M))
    programs = f"{Path(sys.executable).parent}:/usr/sbin:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "PYTHONPATH": f"{folder}:{ROOT}"}
    with ExitStack() as stack:
        started: dict[str, subprocess.Popen[str]] = {}
        for name, service in SERVICES.items():
            process = subprocess.Popen(
                shlex.split(service["command"]), cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
            )
            started[name] = stack.enter_context(process)
            stack.callback(process.kill)
        _, said = started["aggregator"].communicate(timeout=LIMIT)
        for name in ("relay", "device-1", "device-2"):
            assert started[name].wait(LIMIT) == 0
    assert started["aggregator"].returncode == 0
    assert_prints(
        Page("examples/containers/README.md"), "\n".join(line.partition("fl: ")[2] for line in said.split("\n"))
    )


def _here(found: re.Match[str]) -> str:
    """Return the address of this machine in the place of a service's name, but for the relay's own name."""
    return found[0] if found[1] == "relay" else '"127.0.0.1"'


def test_the_image_has_what_the_services_need() -> None:
    lines = (FOLDER / "Containerfile").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    extras = [set(found.split(",")) for line in lines for found in re.findall(r"\[([\w,]+)\]", line)]
    assert len(extras) == 2
    assert all(each == extras[0] <= known.keys() for each in extras)
    for service in SERVICES.values():
        build = service.get("build")
        assert build is None or (FOLDER / build["context"] / build["dockerfile"]).resolve() == FOLDER / "Containerfile"
