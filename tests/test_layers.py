"""Imports go down only. The table is the design: a module may import what lies in a layer above it in this list."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

LAYERS = [  # the lowest first; a name with * is a folder, within which all may import each other
    ["netq.bench.percentiles", "netq.bench.search"],
    ["netq.budget", "netq.bell", "netq.complaints", "netq.appetite", "netq.handlers", "netq.timers", "netq.selector"],
    ["netq.errors", "netq.memory", "netq.loop", "netq.shm.ring", "netq.utils"],
    ["netq.wire", "netq.validate"],
    ["netq.utils.stream"],
    ["netq._codec"],  # in C
    ["netq.codec"],
    ["netq.lane", "netq.options"],
    ["netq.delivery", "netq.inbox"],
    ["netq.session", "netq.security*"],
    ["netq.events"],
    ["netq.connection"],
    ["netq.link", "netq.dial", "netq.pipe"],
    ["netq.peer"],
    ["netq.hub"],
    ["netq.core"],
    ["netq.mqtt.packet", "netq.mqtt.pace", "netq.mqtt.topic"],
    ["netq.mqtt.window"],
    ["netq.mqtt.multicast.group", "netq.mqtt.multicast.reorder"],
    ["netq.mqtt.multicast.groups"],
    ["netq.tcp*", "netq.mqtt*", "netq.grpc*", "netq.shm*"],
    ["netq"],
    ["netq.aio", "netq.testing*", "netq.bench*"],
    ["netq.__main__"],
    ["fl*"],
    ["edge*"],
]
PLACES = {name: rank for rank, names in enumerate(LAYERS) for name in names}
PURE = [
    "appetite",
    "timers",
    "budget",
    "complaints",
    "wire",
    "lane",
    "session",
    "events",
    "connection",
    "memory",
    "validate",
    "utils.stream",
    "shm.ring",
    "mqtt.packet",
    "mqtt.pace",
    "mqtt.topic",
    "mqtt.window",
    "mqtt.multicast.group",
    "mqtt.multicast.groups",
    "mqtt.multicast.reorder",
    "bench.percentiles",
    "bench.search",
]
IMPURE = {"socket", "selectors", "ssl", "threading", "asyncio", "time", "random", "logging", "os"}
THIRD_PARTY = {  # by module or folder; netq else has the standard library only
    "netq.security.certificates": {"cryptography"},
    "netq.bench.progress": {"rich"},
    "netq.mqtt": {"paho"},
    "netq.grpc": {"grpc"},
}


def place(module: str) -> str | None:
    """The entry of the table that a module falls under: its own name before a folder's."""
    return module if module in PLACES else next((p for p in PLACES if fnmatchcase(module, p)), None)


def imports(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from inside & modules
            if inside - modules:
                yield "." if node.level else str(node.module)


def violations(root: Path) -> list[str]:
    files = {
        path: path.relative_to(root).with_suffix("")
        for top in ("netq", "fl", "edge")
        for path in root.glob(f"{top}/**/*.py")
    }
    named = {path: ".".join(name.parts).removesuffix(".__init__") for path, name in files.items()}
    found = [f"{module} has no place in LAYERS" for module in named.values() if place(module) is None]
    for path, module in named.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        reasons = {imported: wrong(module, imported) for imported in imports(tree, set(named.values()))}
        found += [f"{module} imports {imported}: {why}" for imported, why in reasons.items() if why]
    return found


def wrong(module: str, imported: str) -> str | None:
    """Why this module may not import that, if so."""
    top = imported.partition(".")[0]
    if imported == ".":
        return "a relative import"
    if module in {f"netq.{name}" for name in PURE} and top in IMPURE:
        return "it is pure"
    if top not in ("netq", "fl", "edge"):
        folder = module.rpartition(".")[0]
        allowed = sys.stdlib_module_names.union(*[THIRD_PARTY.get(name, set()) for name in (module, folder)])
        return "not in the standard library" if module.startswith("netq") and top not in allowed else None
    here, there = place(module), place(imported)
    if here is None or there is None or here == there or PLACES[there] < PLACES[here]:
        return None
    return "imports go down only"


def test_imports_go_down_only() -> None:
    assert violations(Path(__file__).parents[1]) == []


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("netq/wire.py", "from netq.session import Session", "netq.wire imports netq.session: imports go down only"),
        (
            "netq/lane.py",
            "def f():\n    from netq import options",
            "netq.lane imports netq.options: imports go down only",
        ),
        ("netq/tcp/link.py", "import netq.mqtt.link", "netq.tcp.link imports netq.mqtt.link: imports go down only"),
        (
            "netq/mqtt/multicast/group.py",
            "from netq.mqtt.port import Port",
            "netq.mqtt.multicast.group imports netq.mqtt.port: imports go down only",
        ),
        ("netq/core.py", "import netq", "netq.core imports netq: imports go down only"),
        ("netq/core.py", "import fl", "netq.core imports fl: imports go down only"),
        ("fl/server.py", "from edge.config import load", "fl.server imports edge.config: imports go down only"),
        ("netq/memory.py", "import time", "netq.memory imports time: it is pure"),
        ("netq/utils/stream.py", "import os.path", "netq.utils.stream imports os.path: it is pure"),
        ("netq/link.py", "import numpy as np", "netq.link imports numpy: not in the standard library"),
        ("netq/link.py", "from . import core", "netq.link imports .: a relative import"),
        ("netq/surprise.py", "", "netq.surprise has no place in LAYERS"),
        (
            "netq/shm/ring.py",
            "from netq.shm.link import Link",
            "netq.shm.ring imports netq.shm.link: imports go down only",
        ),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, text: str, why: str) -> None:
    files = {
        "netq/options.py": "",
        "netq/mqtt/port.py": "",
        "netq/tcp/server.py": "from netq.tcp import link\nimport netq.core",
        file: text,
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert violations(tmp_path) == [why]


def test_every_pure_module_has_a_place() -> None:
    assert {f"netq.{name}" for name in PURE} <= set(PLACES)
