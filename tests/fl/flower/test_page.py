"""docs/how-to/flower.md: its code runs as it stands there, each block that begins with a file's name as that file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import edge.flower
from edge.flower_tasks import FlowerTasks
from netq.security import certificates
from tests.fl.flower import test_kinds, test_legacy, test_strategies
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
    _, text = PAGE.blocks("toml")
    (tmp_path / "client.toml").write_text(text)
    config, _ = edge.flower.load(tmp_path / "client.toml", "tests.fl.flower.apps:app")
    assert config.settings == tomllib.loads(text)["flower"] == {"partition-id": 0, "num-partitions": 2}


def test_the_agent_accepts_the_file_of_a_device_that_gets_its_app(tmp_path: Path) -> None:
    text, _ = PAGE.blocks("toml")
    (tmp_path / "client.toml").write_text(text)
    certificates.init(tmp_path)
    certificates.issue(tmp_path, "author")
    _, work = edge.flower.load(tmp_path / "client.toml", None)
    FlowerTasks(**work.arguments)
    assert (tmp_path / "apps").is_dir()


def test_the_table_of_what_runs_is_that_of_the_tests() -> None:
    rows = {", ".join(re.findall(r"`(\w+)`", names)): over for names, over in PAGE.rows("unmodified", "over")}
    everywhere = "TCP, MQTT, gRPC, shared memory"
    listed = {name for names, over in rows.items() if over == everywhere for name in names.split(", ")}
    assert listed == {type(make()).__name__ for name, make in test_strategies.STRATEGIES.items() if name != "ours"}
    used = {name for module in (test_kinds, test_legacy, test_strategies) for name in vars(module)}
    assert {name for names in rows for name in names.split(", ")} - used == set()
