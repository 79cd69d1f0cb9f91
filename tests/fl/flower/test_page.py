"""docs/how-to/flower.md: its code runs as it stands there, each block that begins with a file's name as that file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest

import edge.flower
from tests.servers import ports

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "flower.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
LIMIT = 60.0  # seconds

# The port that the examples use by default may be taken on this machine: here they get another.
PROLOGUE = """
import netq.options
netq.options.NetworkLocation.__new__.__defaults__ = ("127.0.0.1", {port})
"""


@pytest.mark.slow
def test_the_example_runs(tmp_path: Path) -> None:
    assert set(BLOCKS) == {"client_app.py", "server_app.py", "server.py", "device.py"}
    prologue = PROLOGUE.format(port=ports.free().port)
    for name, text in BLOCKS.items():
        (tmp_path / name).write_text(prologue + text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with ExitStack() as stack:

        def start(*arguments: str) -> subprocess.Popen[str]:
            command = [sys.executable, *arguments]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        server, *devices = start("server.py"), start("device.py", "1"), start("device.py", "2")
        out, errors = server.communicate(timeout=LIMIT)
        assert out == "[4.5 4.5 4.5]\n", errors
        assert [device.wait(LIMIT) for device in devices] == [0, 0]


def test_the_file_is_one_that_the_agent_takes(tmp_path: Path) -> None:
    text = PAGE.split("```toml")[1].split("```")[0]
    (tmp_path / "client.toml").write_text(text)
    device = edge.flower.Device.load(tmp_path / "client.toml", "tests.fl.flower.apps:app")
    assert device.config.settings == tomllib.loads(text)["flower"] == {"partition-id": 0, "num-partitions": 2}
