"""Imports go down only. The table is the design: a module may import what lies in a layer above it in this list."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import netq

LAYERS = [  # the lowest first; a name with * is a folder, within which all may import each other
    ["netq.errors", "netq.text", "netq.version", "netq.buffers"],
    ["netq.io", "netq.io.interrupts", "netq.io.locks"],
    ["netq.io.condition"],
    ["netq.log"],
    ["netq.validate"],
    ["netq.utils", "netq.utils.files", "netq.utils.secret"],
    ["netq.utils.forms", "netq.utils.large"],
    ["netq.utils.data_values"],
    ["netq.utils.data_classes"],
    ["netq.utils.data_pickle"],
    ["netq.utils.stream"],
    ["netq.utils.serializer"],
    ["netq.utils.msgpack_keys"],
    ["netq.utils.msgpack", "netq.utils.protobuf"],
    ["netq.proxy"],
    ["netq.options"],
    ["netq.identity", "netq.toml_file"],
    ["netq.protocol"],
    ["netq.protocol.destination"],
    ["netq.protocol.flow_control", "netq.protocol.wire", "netq.protocol._codec"],  # _codec: in C
    ["netq.protocol.memory", "netq.protocol.codec"],
    ["netq.protocol.sender", "netq.protocol.receiver"],
    ["netq.protocol.session"],
    ["netq.protocol.events"],
    ["netq.protocol.connection"],
    ["netq.security*"],
    ["netq.io.receive_size", "netq.io.selector", "netq.io.spin"],
    ["netq.io.timers", "netq.io.poller", "netq.io.process_end"],
    ["netq.io.baton"],
    ["netq.io.loop"],
    ["netq.io.tunnel"],
    ["netq.io.accept", "netq.io.connect", "netq.io.sockets"],
    ["netq.runtime", "netq.runtime.undelivered"],
    ["netq.runtime.delivery", "netq.runtime.inbox", "netq.runtime.link", "netq.runtime.log_dedup"],
    ["netq.runtime.send_batch"],
    ["netq.runtime.statistics", "netq.runtime.pending_links", "netq.runtime.stream_link"],
    ["netq.runtime.peer"],
    ["netq.runtime.reconnect", "netq.runtime.stalls"],
    ["netq.runtime.endpoint"],
    ["netq.core"],
    ["netq.polling", "netq.promise"],
    ["netq.shm.ring", "netq.mqtt.packet", "netq.mqtt.congestion", "netq.mqtt.topic"],
    ["netq.mqtt.window"],
    ["netq.mqtt.multicast.group", "netq.mqtt.multicast.reorder"],
    ["netq.mqtt.multicast.groups"],
    ["netq.tcp*", "netq.mqtt*", "netq.grpc*", "netq.shm*"],
    ["netq"],
    ["netq.fronts"],
    ["netq.aio", "netq.trio", "netq.exchange*", "netq.testing*", "netq.bench*"],
    ["netq.cli*"],
    ["netq.__main__"],
    ["fl.errors", "fl.data", "fl.schedules", "fl.tensors.dtypes"],
    ["fl.checks"],
    ["fl.tensors.storage"],
    ["fl.tensors.json_format"],
    ["fl.tensors", "fl.tensors.spec", "fl.tensors.serialization"],
    ["fl.tensors*"],
    ["fl.aggregation*"],
    ["fl.compression*"],
    ["fl.properties"],
    ["fl.envelope"],
    ["fl.metrics"],
    ["fl.report", "fl.membership", "fl.status"],
    ["fl.subtotal", "fl.column_statistics"],
    ["fl.messages"],
    ["fl.privacy*"],
    ["fl.homomorphic*"],
    ["fl.secure*"],
    ["fl.conversation"],
    ["fl.callbacks*"],
    ["fl.page", "fl.page.history"],
    ["fl.page.overview"],
    ["fl.page.server"],
    ["fl.page*"],
    ["fl.strategies", "fl.strategies.base"],
    ["fl.strategies*"],
    ["fl.server*"],
    ["fl.trainer"],
    ["fl.client"],
    ["fl.simulation*", "fl.relay*"],
    ["fl"],
    ["fl.config*"],
    ["fl.flower*"],
    ["fl.__main__"],
    ["edge*"],
    ["netq._pyinstaller*"],
]
PLACES = {name: rank for rank, names in enumerate(LAYERS) for name in names}
PURE = [
    "text",
    "buffers",
    "validate",
    "utils.data_values",
    "utils.data_classes",
    "utils.data_pickle",
    "utils.stream",
    "utils.serializer",
    "utils.msgpack_keys",
    "utils.msgpack",
    "utils.protobuf",
    "protocol.flow_control",
    "protocol.wire",
    "protocol.memory",
    "protocol.sender",
    "protocol.receiver",
    "protocol.session",
    "protocol.events",
    "protocol.connection",
    "io.receive_size",
    "io.timers",
    "runtime.log_dedup",
    "runtime.pending_links",
    "runtime.send_batch",
    "shm.ring",
    "mqtt.packet",
    "mqtt.congestion",
    "mqtt.topic",
    "mqtt.window",
    "mqtt.multicast.group",
    "mqtt.multicast.groups",
    "mqtt.multicast.reorder",
]
IMPURE = {"socket", "selectors", "ssl", "threading", "asyncio", "time", "random", "logging", "os"}
THIRD_PARTY = {  # by module or folder; netq else has the standard library only
    "netq.security.authority": {"cryptography"},
    "netq.security.certificates": {"cryptography"},
    "netq.security.files": {"cryptography"},
    "netq.security.handshake": {"cryptography"},
    "netq.security.keys": {"cryptography", "OpenSSL"},
    "netq.security.records": {"cryptography"},
    "netq.security.seal": {"cryptography"},
    "netq.security.shared": {"cryptography"},
    "netq.security.openssl": {"cryptography", "OpenSSL", "service_identity"},
    "netq.bench.output": {"matplotlib"},
    "netq.utils.forms": {"numpy", "torch"},
    "netq.utils.msgpack": {"msgspec", "numpy"},
    "netq.utils.msgpack_keys": {"msgspec"},
    "netq.utils.protobuf": {"google"},
    "netq.mqtt": {"paho"},
    "netq.grpc": {"grpc"},
    "netq.trio": {"trio", "outcome"},
}

# netq/exchange stands on the public API: `netq` itself, and these modules.
EXCHANGE_USES = {
    "netq.errors",
    "netq.options",
    "netq.utils.serializer",
    "netq.utils.stream",
    # Small utilities, which know nothing of communicators.
    "netq.buffers",
    "netq.io.condition",
    "netq.io.interrupts",
    "netq.io.locks",
    "netq.io.process_end",
    "netq.log",
    "netq.text",
    "netq.validate",
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


@pytest.mark.slow
def test_imports_go_down_only() -> None:
    assert violations(Path(__file__).parents[1]) == []


def private_uses(text: str) -> list[str]:
    """What a module of netq/exchange uses of netq besides the public API: modules and names, attributes of others."""
    tree, used = ast.parse(text), list[str]()
    nodes = list(ast.walk(tree))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef)} | {"_replace"}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    own |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            module = str(node.module)
            used += [f"netq.{each.name}" for each in node.names] if module == "netq" else [module]
        elif isinstance(node, ast.Import):
            used += [each.name for each in node.names]
    used += [ast.unparse(node) for node in attributes if ast.unparse(node.value) == "netq"]
    public = EXCHANGE_USES | {"netq"} | {f"netq.{name}" for name in netq.__all__}
    wrong = [each for each in used if each.startswith("netq") and not each.startswith("netq.exchange")]
    private = [node for node in attributes if re.match("_(?!_)", node.attr) and node.attr not in own]
    return [each for each in wrong if each not in public] + [ast.unparse(node) for node in private]


FILES = sorted(Path(__file__).parents[1].glob("netq/exchange/*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_exchange_stands_on_the_public_api(path: Path) -> None:
    assert private_uses(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from netq.core import Communicator", ["netq.core"]),
        ("from netq import Communicator, errors, core", ["netq.core"]),
        ("import netq\nnetq.new(netq.core.Message)", ["netq.core"]),
        ("import netq.io.baton", ["netq.io.baton"]),
        ("def f(self): self.queue._baton.defer(f)", ["self.queue._baton"]),
        ("from netq.log import log\ndef f(self): self._own = self._own._replace()", []),
    ],
)
def test_private_use_of_netq_in_the_exchange_is_found(text: str, found: list[str]) -> None:
    assert private_uses(text) == found


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        (
            "netq/protocol/wire.py",
            "from netq.protocol.session import Session",
            "netq.protocol.wire imports netq.protocol.session: imports go down only",
        ),
        (
            "netq/protocol/sender.py",
            "def f():\n    from netq.protocol import session",
            "netq.protocol.sender imports netq.protocol.session: imports go down only",
        ),
        ("netq/tcp/client.py", "import netq.mqtt.link", "netq.tcp.client imports netq.mqtt.link: imports go down only"),
        (
            "netq/mqtt/multicast/group.py",
            "from netq.mqtt.channel import Channel",
            "netq.mqtt.multicast.group imports netq.mqtt.channel: imports go down only",
        ),
        ("netq/core.py", "import netq", "netq.core imports netq: imports go down only"),
        ("netq/core.py", "import fl", "netq.core imports fl: imports go down only"),
        ("fl/client.py", "from edge.config import load", "fl.client imports edge.config: imports go down only"),
        (
            "fl/aggregation/mean.py",
            "from fl.strategies.base import Strategy",
            "fl.aggregation.mean imports fl.strategies.base: imports go down only",
        ),
        ("netq/protocol/memory.py", "import time", "netq.protocol.memory imports time: it is pure"),
        ("netq/utils/stream.py", "import os.path", "netq.utils.stream imports os.path: it is pure"),
        ("netq/runtime/link.py", "import numpy as np", "netq.runtime.link imports numpy: not in the standard library"),
        ("netq/runtime/link.py", "from . import core", "netq.runtime.link imports .: a relative import"),
        ("netq/surprise.py", "", "netq.surprise has no place in LAYERS"),
        (
            "netq/shm/ring.py",
            "from netq.shm.stream import RingStream",
            "netq.shm.ring imports netq.shm.stream: imports go down only",
        ),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, text: str, why: str) -> None:
    files = {
        "netq/protocol/session.py": "",
        "netq/mqtt/channel.py": "",
        "netq/tcp/server.py": "from netq.tcp import link\nimport netq.core",
        "fl/strategies/base.py": "",
        file: text,
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert violations(tmp_path) == [why]


def test_every_pure_module_has_a_place() -> None:
    assert {f"netq.{name}" for name in PURE} <= set(PLACES)
