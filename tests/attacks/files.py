"""Files that were written by others: a device's folder for `edge install`, and a node's folder of signed Flower apps.

    python -m tests.attacks.files [ATTACK…]

    unit      paths in a device's folder with which lines of the unit begin or end, or that systemd expands
    cached    __pycache__ of another module, whose hash Python does not check
    package   a compiled package of the name of a module
    project   pyproject.toml names another app, until the files are read whose signature is checked
    more      a module comes after the check
    late      a module changes between the check and its import
    source    as late, and the app compiles the module's source again, as torch.jit.script does
    spawn     as late, in a process that the app starts by multiprocessing; and so for fork and forkserver

For each: its seconds; by how many MiB the process grows, at most; what of the attacker came through; and what the
honest side got. Each runs in a process of its own. Those of apps need Flower.
"""

from __future__ import annotations

import importlib.util
import json
import py_compile
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import netq
from netq.security import certificates
from tests.attacks.serialisers import _peak

NAMES = ("k\nExecStartPre=+true\n#", "k\rUser=root", "k\\", "k\u2028User=root", "k %n $HOME", "k ", "k\x7f")
APP = """
import inspect
import multiprocessing


def work():
    try:
        from farm.more import value
    except ImportError:
        from farm.task import value
    return value


def client(message, context):
    if message is None:
        return work()
    if message == "source":
        from farm import task

        scope = {{}}
        exec(inspect.getsource(task), scope)
        return scope["value"]
    with multiprocessing.get_context(message).Pool(1) as pool:
        return pool.apply(work)


def other(message, context):
    return "of the attacker"


# {}
"""
_DEVICE = '[server]\nhost = "10.0.0.1"\nport = 1\n[security]\nkey = {}\ncertificate = "{}"\nauthority = "{}"\n'
_FOREIGN = "value = 'of the attacker'\n"


class Found(NamedTuple):
    """What an attack has led to."""

    came_through: str  # "" for nothing
    honest: str
    seconds: float = 0.0
    mib: float = 0.0


def unit(folder: Path) -> Found:
    """Install devices that have each name in the path of their key, and as their folder."""
    from edge.install import install

    own = certificates.init(folder / "certificates")

    def options(device: Path, key: str) -> Counter[str]:
        device.mkdir(parents=True, exist_ok=True)
        file = device / "client.toml"
        file.write_text(_DEVICE.format(json.dumps(key), own.certificate, own.authority))
        (device / key).touch()
        install(file, name="edge", folder=folder, memory="80%", devices=[], container=False)
        return _options((folder / "edge.service").read_text())

    good, through, refused = options(folder / "good", "key.pem"), [], 0
    for name in NAMES:
        for device, key in ((folder / "device", name), (folder / name, "key.pem")):
            try:
                found = options(device, key)
            except netq.InvalidOption as error:
                refused += "a path without control characters" in str(error)
            else:
                through += [*(found - good), *(f"without {option}" for option in good - found)]
    return Found(", ".join(through), f"a good device is installed, {refused} of {2 * len(NAMES)} others are refused")


def _options(unit: str) -> Counter[str]:
    """Return the options of a unit, and what systemd would expand in their values."""
    text = re.sub(r"\\\n|%%|\$\$", "", unit)
    names = [line.partition("=")[0] for line in text.split("\n") if line and line[0] not in "#;"]
    return Counter([*names, *re.findall("%n", text), *re.findall(r"^ExecStart=.*(\$HOME)", text, re.MULTILINE)])


def app(before: Callable[[Path], None], after: Callable[[Path], None], message: str | None, folder: Path) -> Found:
    """Change the folder of a stored app before it is loaded, and after; then ask the app."""
    from tests.fl.flower.author import Author

    author = Author(folder)
    signed, board = author.signed(0, value=7, module=APP), author.board()
    board.store(signed)
    stored = folder / "apps" / signed.version
    before(stored)
    try:
        client = board.client_app(signed.version)
        assert client is not None
        after(stored)
        value = str(client(message, None))
    except (netq.NetqError, ImportError) as error:
        return Found("", f"{type(error).__name__}: {error}")
    return Found("", value) if value == "7" else Found(f"a value {value}", "")


def nothing(stored: Path) -> None:
    pass


def late(stored: Path) -> None:
    (stored / "farm/task.py").write_text(_FOREIGN)


def more(stored: Path) -> None:
    (stored / "farm/more.py").write_text(_FOREIGN)


def _compile(stored: Path, path: Path) -> None:
    source = stored.parent / "foreign.py"
    source.write_text(_FOREIGN)
    py_compile.compile(str(source), str(path), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def cached(stored: Path) -> None:
    _compile(stored, Path(importlib.util.cache_from_source(str(stored / "farm/task.py"))))


def package(stored: Path) -> None:
    (stored / "farm/task").mkdir()
    _compile(stored, stored / "farm/task/__init__.pyc")


def project(stored: Path) -> None:
    """Write the signed file again just before its signature is checked: as a process does that tries often enough."""
    from fl.flower import app_folder

    file, sources = stored / "pyproject.toml", app_folder._sources
    signed = file.read_text()
    file.write_text(signed.replace("farm.app:client", "farm.app:other"))

    def changed(folder: Path) -> object:
        file.write_text(signed)
        return sources(folder)

    app_folder._sources = changed  # type: ignore[assignment]


APPS: dict[str, Callable[[Path], Found]] = {
    "cached": partial(app, cached, nothing, None),
    "package": partial(app, package, nothing, None),
    "project": partial(app, project, nothing, None),
    "more": partial(app, nothing, more, None),
    "late": partial(app, nothing, late, None),
    "source": partial(app, nothing, late, "source"),
    **{start: partial(app, nothing, late, start) for start in ("fork", "forkserver", "spawn")},
}
ATTACKS = {"unit": unit, **APPS}


def run(attack: str) -> Found:
    """Run an attack in a process of its own."""
    command = [sys.executable, "-m", "tests.attacks.files", "measure", attack]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    return Found(*json.loads(done.stdout.splitlines()[-1]))


def measure(attack: str) -> None:
    """Print what an attack finds and takes, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        before, start = _peak(), time.perf_counter()
        found = ATTACKS[attack](Path(folder))
        seconds = time.perf_counter() - start
        print(json.dumps(found._replace(seconds=seconds, mib=(_peak() - before) / 1024)))


def main() -> None:
    """Print the table."""
    print("| attack | seconds | MiB | came through | the honest side |\n|---|---|---|---|---|")
    for attack in sys.argv[1:] or ATTACKS:
        found = run(attack)
        through = found.came_through or "nothing"
        print(f"| {attack} | {found.seconds:.2f} | {found.mib:.1f} | {through} | {found.honest:.90} |", flush=True)


if __name__ == "__main__":
    measure(sys.argv[2]) if sys.argv[1:2] == ["measure"] else main()
