"""Each example's README: its commands run, in a copy of its folder, and print what it says."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT, Page
from tests.servers import ports

EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/README.md"))
PORTS = ("51966", "18830")  # of the examples; each run gets free ones instead
LIMIT = 600.0  # seconds
ELSEWHERE = {  # what runs these
    "containers": "tests/examples/test_containers.py",
    "digits": "tests/examples/test_digits_model.py",
    "digits_torch": "tests/examples/test_digits_model.py",
    "flower_app": "tests/fl/flower/test_example.py",
    "notebooks": "tests/examples/test_notebooks.py",
}


def prepare(name: str, folder: Path) -> dict[str, str]:
    """Copy an example, with free ports in the place of its own; return these by the others."""
    shutil.copytree(ROOT / "examples" / name, folder, ignore=shutil.ignore_patterns("__pycache__", "build"))
    chosen = {port: str(ports.free().port) for port in PORTS}
    for port, free in chosen.items():
        for path in filter(Path.is_file, folder.rglob("*")):
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(port, free), encoding="utf-8")
    return chosen


def run(commands: str, folder: Path) -> str:
    """Return what the commands print. They end with all that they have started."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:/usr/sbin:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(ROOT)
    with subprocess.Popen(
        ["bash", "-ec", commands],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=LIMIT)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, printed
    return printed


def test_every_example_has_a_readme_and_is_in_the_list() -> None:
    folders = {path.name for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name != "__pycache__"}
    listed = set(re.findall(r"^\| \[(\w+)\]", (ROOT / "examples/README.md").read_text(), re.MULTILINE))
    assert folders == set(EXAMPLES) == listed


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ELSEWHERE])
def test_commands_of_the_readme_run(name: str, tmp_path: Path) -> None:
    if name == "mqtt_access" and shutil.which("mosquitto", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("no mosquitto here")
    check(name, tmp_path)


def check(name: str, tmp_path: Path) -> None:
    """Run the commands of an example, and look for the lines that its README shows."""
    page = Page(f"examples/{name}/README.md")
    (commands,) = page.blocks("sh")
    folder = tmp_path / name
    for port, free in prepare(name, folder).items():
        commands = commands.replace(port, free)
    assert_prints(page, run(commands, folder))


def assert_prints(page: Page, printed: str) -> None:
    """Look for the lines that a README shows; … stands for any text."""
    for line in "".join(page.blocks("text")).splitlines():
        pattern = ".*".join(map(re.escape, line.split("…")))
        assert re.search(f"^{pattern}", printed, re.MULTILINE), f"{line!r} is not in\n{printed}"
