"""docs/how-to/flower.md: its code runs as it stands there, each block that begins with a file's name as that file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import edge.flower
from tests.pages import Page, Scripts

PAGE = Page("docs/how-to/flower.md")
LIMIT = 60.0  # seconds


@pytest.mark.slow
def test_the_example_runs(tmp_path: Path) -> None:
    assert set(PAGE.scripts()) == {"client_app.py", "server_app.py", "server.py", "device.py"}
    with Scripts(PAGE, tmp_path) as scripts:
        server, *devices = [scripts.start(*line.split()) for line in ("server.py", "device.py 1", "device.py 2")]
        out, errors = server.communicate(timeout=LIMIT)
        assert out == "[4.5 4.5 4.5]\n", errors
        assert [device.wait(LIMIT) for device in devices] == [0, 0]


def test_the_agent_accepts_the_file(tmp_path: Path) -> None:
    (text,) = PAGE.blocks("toml")
    (tmp_path / "client.toml").write_text(text)
    device = edge.flower.Device.load(tmp_path / "client.toml", "tests.fl.flower.apps:app")
    assert device.config.settings == tomllib.loads(text)["flower"] == {"partition-id": 0, "num-partitions": 2}
