"""Flower's private names that fl.flower uses. They move between Flower's releases, so they are all imported here.

Imported by the modules of fl/flower/ only, and before anything else of Flower: an unknown release is refused here, with
an error that names the known ones. Owns the process's identity in Flower (`identity`), which is one run at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from netq.errors import Closed

KNOWN = "flwr>=1.39,<2"
_INSTALL = f"pip install '{KNOWN}'"


def check_version(version: str) -> None:
    """Raise ImportError unless this is a release of flwr from 1.39 on and before 2."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    if major != "1" or not minor.isdigit() or int(minor) < 39:
        raise ImportError(f"fl.flower: flwr {version} is installed; expected {KNOWN}: {_INSTALL}")


try:
    check_version(metadata.version("flwr"))
except metadata.PackageNotFoundError:
    raise ImportError(f"fl.flower needs Flower, and there is no flwr here: {_INSTALL}") from None

try:
    from flwr.app import Error, Message, Metadata, RecordDict
    from flwr.app.message import make_message as _make_message
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode, SType
    from flwr.compat.common.recorddict_compat import EMPTY_TENSOR_KEY
    from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
    from flwr.supercore.run import Run, RunNotRunningException
    from flwr.supercore.task_identity import TaskIdentity
except ImportError as error:
    raise ImportError(
        f"fl.flower: flwr {metadata.version('flwr')} keeps elsewhere what 1.39 to 1.41 had in one place ({error}); "
        "install one of these, and tell the authors of netq"
    ) from error

__all__ = [
    "EMPTY_TENSOR_KEY",
    "ErrorCode",
    "Run",
    "RunIsOver",
    "SType",
    "SUPERLINK_NODE_ID",
    "SYSTEM_MESSAGE_TYPE",
    "identity",
    "make_message",
    "set_message_id",
]


class RunIsOver(Closed, RunNotRunningException):
    """The grid is closed. Users catch it as Closed; Flower's own threads end by it."""


def make_message(metadata: Metadata, content: RecordDict | None = None, error: Error | None = None) -> Message:
    """Return a message with these metadata."""
    metadata.delivered_at = ""  # Metadata gives it no value, and a reply may read it
    return _make_message(metadata=metadata, content=content, error=error)


def set_message_id(message: Message, id: str) -> None:
    """Set the id of a message, as grids do."""
    message.metadata.__dict__["_message_id"] = id


_one_run = threading.Lock()


@contextmanager
def identity(run: int) -> Iterator[None]:
    """Make this process the server of a run in Flower, whose `Message()` looks up the sender's identity.

    The identity is the process's, so there is one run at a time: raises RuntimeError if another one is open.
    """
    if not _one_run.acquire(blocking=False):
        raise RuntimeError(
            "fl.flower: another Grid is open in this process; Flower has one run a process: close it first"
        )
    before = {name: getattr(TaskIdentity, f"_{name}") for name in ("task_id", "run_id", "node_id")}
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, SUPERLINK_NODE_ID
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, f"_{name}", value)
        _one_run.release()
