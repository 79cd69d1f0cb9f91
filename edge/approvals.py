"""What a person has approved on a device, by hash: the files of an app, or what a federation's tasks are like.

A folder below that of the state has a file for each hash, with a title: HASH.waiting, which `edge approve` renames to
HASH.approved. The agent writes the former and reads the latter, so that neither waits for the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fl.tensors.storage import Passed
from netq.errors import InvalidOption, Unreadable
from netq.text import printable
from netq.utils.files import read_regular, replacing

FOLDER = "approvals"
SHOWN = 16  # characters of a hash
_WAITING = 100  # hashes: a server may send without end
_TITLE = 500  # characters


class Source(NamedTuple):
    """What gives tasks. `title`: for people."""

    hash: str
    title: str


class Entry(NamedTuple):
    """A source that the device has seen."""

    path: Path
    title: str

    @property
    def is_approved(self) -> bool:
        """Whether its tasks are done."""
        return self.path.suffix == ".approved"


def of_tasks(host: str, task: Mapping[str, Any]) -> Source:
    """Return the source of a task of fl: server, tensors and roles; columns, if it asks for statistics.

    The config is not part of it, as it may differ in each round; nor are train and evaluate.

    task: its plain values.
    """
    tensors = {name: _form(tensor) for name, tensor in task["model"].items()}
    if task["job"][2] == "statistics":
        tensors |= {f"columns.{name}": column for name, column in task["config"]["columns"].items()}
    digest = hashlib.sha256(json.dumps([host, tensors, task.get("roles", {})], sort_keys=True).encode())
    names = ", ".join(sorted(tensors))
    return Source(digest.hexdigest(), printable(f"tasks of {host} with {len(tensors)} tensors: {names}", _TITLE))


def of_app(folder: Path, version: str) -> Source:
    """Return the source of a delivered app's messages: its files, which are in the device's folder of apps."""
    from fl.flower.app_folder import AppFolder
    from fl.flower.signed_app import SignedApp

    try:
        app = SignedApp.load(AppFolder.load(folder / version))
    except InvalidOption as error:
        raise Unreadable(f"the app {printable(version)}: {error}") from None
    title = f"the app {version} with {len(app.files)} files, in {folder / version}"
    return Source(app.digest, printable(title, _TITLE))


def _form(tensor: Any) -> Any:
    if not isinstance(tensor, Passed):
        raise Unreadable("a task's model has something else than tensors")
    _, _, dtype, shape, _, _ = tensor.identifier
    return [dtype, shape]


class Approvals:
    """The approvals of a device. `state`: its folder client.state."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER

    def missing(self, source: Source) -> str:
        """Return why the tasks of a source are not done; "" if they are. Notes that it waits."""
        try:
            if (self._folder / f"{source.hash}.approved").is_file():
                return ""
            waiting = self._folder / f"{source.hash}.waiting"
            if not waiting.exists():
                self._folder.mkdir(mode=0o700, exist_ok=True)
                if sum(not each.is_approved for each in self.entries()) >= _WAITING:
                    return f"{_WAITING} sources wait for approval already: a person looks at them by edge approve"
                with replacing(waiting) as file:
                    file.write(source.title.encode())
        except OSError as error:
            return f"the approvals of this device cannot be read or written ({error.strerror}: {self._folder})"
        shown = source.hash[:SHOWN]
        return f"waits for the approval of {source.title}; on the device: edge approve CLIENT.toml {shown}"

    def entries(self) -> Iterator[Entry]:
        """Yield the sources. Raises OSError."""
        for path in sorted(self._folder.glob("*")):
            if path.suffix in (".waiting", ".approved"):
                yield Entry(path, printable(read_regular(path).decode(errors="replace"), _TITLE))

    def decide(self, prefix: str, *, approve: bool) -> Entry:
        """Approve a source, or make it wait again. Raises InvalidOption, OSError.

        prefix: the begin of its hash, of SHOWN characters or more.
        """
        found = [each for each in self.entries() if len(prefix) >= SHOWN and each.path.name.startswith(prefix)]
        if len(found) != 1:
            raise InvalidOption(f"HASH: {prefix!r}; expected one that `edge approve CLIENT.toml` shows")
        new = found[0].path.with_suffix(".approved" if approve else ".waiting")
        found[0].path.replace(new)  # which keeps the owner: a service has a user of its own
        return Entry(new, found[0].title)


def shown(entry: Entry) -> str:
    """Return the line of a source."""
    return f"{'approved' if entry.is_approved else 'waits':<9} {entry.path.name[:SHOWN]}  {entry.title}"
