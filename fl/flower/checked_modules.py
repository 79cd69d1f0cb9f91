"""Imports the modules of an app from bytes whose signature was checked, whatever else is in its folder by then.

Python would also run what is not signed there: `__pycache__`, extension modules, files that came after the check. And
what reads a module's source again would read the folder: so no path of a module is that of a file.
Processes that multiprocessing starts get the finder, too. Used by fl/flower/signed_app.py. Reads no file.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple, Self


class _Source(NamedTuple):
    name: str  # its path in the folder of the app
    source: bytes
    is_package: bool


class CheckedModules(MetaPathFinder, InspectLoader):
    """A finder for sys.meta_path. `files` are those of the app, by their paths in `folder`."""

    def __init__(self, folder: Path, files: Mapping[str, bytes]) -> None:
        self._folder = folder
        self._files = files
        self._loaded: set[str] = set()  # names of modules
        self._entry = _Entry(folder, files)

    def install(self) -> None:
        """Become the first finder: before Python's own, which would look in the folders of sys.path."""
        sys.meta_path.insert(0, self)
        sys.path.append(self._entry)

    def remove(self) -> None:
        """Forget the modules: another app may have others of the same names."""
        sys.meta_path.remove(self)
        sys.path.remove(self._entry)
        for name in self._loaded:
            sys.modules.pop(name, None)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See MetaPathFinder."""
        found = self._find(fullname)
        if found is None:
            return None
        self._loaded.add(fullname)
        # A package has no folder where Python's own finders could look for modules: its __path__ is empty.
        spec = ModuleSpec(fullname, self, origin=self._path(found), is_package=found.is_package)
        spec.has_location = True  # for __file__, without which `inspect` and torch.jit have no source
        return spec

    def is_package(self, fullname: str) -> bool:
        """See InspectLoader."""
        return self._module(fullname).is_package

    def get_code(self, fullname: str) -> CodeType:
        """See InspectLoader."""
        found = self._module(fullname)
        return self.source_to_code(found.source, self._path(found))

    def get_source(self, fullname: str) -> str:
        """See InspectLoader."""
        return importlib.util.decode_source(self._module(fullname).source)

    def _path(self, found: _Source) -> str:
        """Return a path where no file can be: `linecache` prefers a file to `get_source`."""
        return f"{self._entry}/{found.name}"

    def _module(self, fullname: str) -> _Source:
        found = self._find(fullname)
        if found is None:
            raise ImportError(f"no module {fullname!r} in {self._folder}", name=fullname)
        return found

    def _find(self, fullname: str) -> _Source | None:
        base = fullname.replace(".", "/")
        package, module = f"{base}/__init__.py", f"{base}.py"
        if package not in self._files and module in self._files:
            return _Source(module, self._files[module], is_package=False)
        if any(name.startswith(f"{base}/") for name in self._files):
            return _Source(package, self._files.get(package, b""), is_package=True)
        return None


class _Entry(str):
    """An entry of sys.path, below which no file can be.

    multiprocessing (spawn, forkserver) pickles sys.path for its processes. There, this entry installs a finder.
    """

    _of: tuple[Path, Mapping[str, bytes]]

    def __new__(cls, folder: Path, files: Mapping[str, bytes]) -> Self:
        entry = super().__new__(cls, f"{os.devnull}/{folder.name}")
        entry._of = folder, files
        return entry

    def __reduce__(self) -> tuple[Any, ...]:
        return _install_in_process, self._of


def _install_in_process(folder: Path, files: Mapping[str, bytes]) -> _Entry:
    modules = CheckedModules(folder, files)
    modules.install()
    return modules._entry
