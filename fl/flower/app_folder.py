"""A Flower app's folder, as `flwr new` makes it: a pyproject.toml, which names the two apps, and their modules.

[tool.flwr.app.components]   serverapp, clientapp: "module:app"
[tool.flwr.app.config]       the run's config; `a = 1` in a table [tool.flwr.app.config.x] is "x.a"

The file and the texts of --run-config and --node-config are read as `flwr run` and `flower-supernode` read them. Called
by fl/__main__.py, edge/flower.py and scripts. Opens no connection. Importing an app puts its folder first in sys.path,
where it stays, because an app may import its own modules as it runs. Needs Flower only for that.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from netq.errors import InvalidOption
from netq.text import did_you_mean, printable
from netq.toml_file import File, named_object

if TYPE_CHECKING:
    from fl.flower.apps import ClientApp, ServerApp

Scalar = bool | int | float | str

PROJECT = "pyproject.toml"  # the file that makes a folder an app's

_FILE = "a Flower app's folder"
_COMPONENTS, _CONFIG = "tool.flwr.app.components", "tool.flwr.app.config"
_PAIR = re.compile(r"""\s*([^\s=,]+)\s*=\s*('[^']*'|"[^"]*"|[^\s,]+)\s*,?""")


@dataclass(frozen=True)
class AppFolder:
    """A Flower app. `config` is its run config, without overrides."""

    path: Path
    config: Mapping[str, Scalar]
    _file: File
    _components: Mapping[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the pyproject.toml of a folder. Raises InvalidOption, which names the file and the key."""
        folder = Path(path).absolute()
        file = File(folder / PROJECT, _FILE)
        config = dict(_flat(_table(file, _CONFIG), file.check, f"{_CONFIG}."))
        return cls(folder, config, file, _table(file, _COMPONENTS))

    @property
    def version(self) -> str:
        """A hash of the app's Python files and of its components: 16 hexadecimal digits.

        The rest of pyproject.toml is left out, because its config may differ: the server sends it.
        """
        digest = hashlib.sha256(repr(sorted(self._components.items())).encode())
        for name, content in sorted(self.files.items()):
            if name != PROJECT:
                digest.update(f"{len(name)} {len(content)} {name}".encode() + content)
        return digest.hexdigest()[:16]

    @functools.cached_property
    def files(self) -> Mapping[str, bytes]:
        """The app's Python files and its pyproject.toml, by their paths in its folder. They are read once.

        Files in hidden folders, in `__pycache__` and in virtual environments are not part of the app. Links are not
        followed. Raises OSError.
        """
        files = {file.relative_to(self.path).as_posix(): file.read_bytes() for file in _sources(self.path)}
        return {**files, PROJECT: self._file.content}

    def server_app(self) -> ServerApp:
        """Import the ServerApp, and return it. Raises InvalidOption."""
        from fl.flower.apps import check_server_app

        app: ServerApp = self._import("serverapp", "farm.server_app:app", check_server_app)
        return app

    def client_app(self, *, on_path: bool = True) -> ClientApp:
        """Import the ClientApp, and return it. Raises InvalidOption.

        on_path: whether Python may look for modules in the folder itself; otherwise the caller has a finder for them.
        """
        from fl.flower.apps import check_client_app

        app: ClientApp = self._import("clientapp", "farm.client_app:app", check_client_app, on_path)
        return app

    def run_config(self, overrides: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the run config with these overrides. Raises InvalidOption for a key that the app does not have."""
        for key in overrides:
            if key not in self.config:
                hint = did_you_mean(key, self.config) if self.config else f"it has no [{_CONFIG}]"
                raise InvalidOption(f"--run-config: {printable(key)!r}; {self._file.path} has no such key: {hint}")
        return {**self.config, **overrides}

    def _import(self, component: str, example: str, check: Callable[[str, Any], None], on_path: bool = True) -> Any:
        where, name = f"{_COMPONENTS}.{component}", self._components.get(component)
        self._file.check(where, name, name is not None, f'"module:app", as in "{example}"')
        if on_path and str(self.path) not in sys.path:
            sys.path.insert(0, str(self.path))
        with self._file.named():
            app = named_object(where, name, example, "app")
            check(where, app)
        return app


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the Python files of an app."""
    for here, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name != "__pycache__" and not Path(here, name, "pyvenv.cfg").exists()
        ]
        for name in files:
            file = Path(here, name)
            if file.suffix == ".py" and file.is_file() and not file.is_symlink():
                yield file


def is_folder(name: str) -> bool:
    """Return whether an argument of a command names an app's folder; otherwise it is "module:app"."""
    return ":" not in name or Path(name).is_dir()


def parse_config(option: str, text: str) -> dict[str, Scalar]:
    """Return what an option such as --run-config says: pairs, or the path of a TOML file. Raises InvalidOption.

    The pairs are separated by spaces or commas, as in 'rounds=3 lr=0.1 name="a b"'.
    """
    if text.endswith(".toml") and "=" not in text:
        file = File(Path(text), f"a TOML file for {option}, or pairs as in 'rounds=3 lr=0.1'")
        return dict(_flat(file.tables, file.check))
    try:
        tables = tomllib.loads("\n".join(_pairs(text)))
    except (ValueError, RecursionError) as error:  # or a whole number of 5,000 digits
        raise InvalidOption(
            f"{option}: {printable(text, 200)!r} ({error}); expected pairs, as in 'rounds=3 lr=0.1 name=\"a b\"'"
        ) from None

    def check(where: str, value: object, right: bool, expected: str) -> None:
        if not right:
            raise InvalidOption(f"{option}: {where}: {printable(repr(value), 200)}; expected {expected}")

    return dict(_flat(tables, check))


def _pairs(text: str) -> Iterator[str]:
    """Yield a line of TOML for each pair. Raises ValueError for text that is no pair."""
    begin, end = 0, len(text.rstrip())
    while begin < end:
        pair = _PAIR.match(text, begin, end)
        if pair is None:
            raise ValueError(f"no key=value at {text[begin:end].strip()[:20]!r}")
        yield f"{pair[1]} = {pair[2]}"
        begin = pair.end()


def _flat(
    table: Mapping[str, Any], check: Callable[[str, object, bool, str], None], prefix: str = "", key: str = ""
) -> Iterator[tuple[str, Scalar]]:
    """Yield the values of a table and of those in it; their keys are joined with dots. `prefix`: for errors."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, check, prefix, f"{key}{name}.")
        else:
            right = isinstance(value, (bool, int, float, str))
            check(f"{prefix}{key}{name}", value, right, "a text, a number, true or false")
            yield f"{key}{name}", value


def _table(file: File, path: str) -> Mapping[str, Any]:
    """Return the table at a path such as "tool.flwr.app.config"; an empty one if the file does not have it."""
    table: Any = file.tables
    for name in path.split("."):
        table = table.get(name, {})
        file.check(path, table, isinstance(table, dict), f"a table: begin it with a line [{path}]")
    found: Mapping[str, Any] = table
    return found
