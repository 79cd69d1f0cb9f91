"""What fl.flower needs of Flower and Flower keeps private: these names move between its releases, so they stand here.

Imported by the modules of fl/flower/ alone, and before anything else of Flower: a release that it does not know is
refused here, with a sentence. Owns who this process is to Flower (`identity`), which is one run at a time.
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
    """Raise ImportError unless it is a release of flwr from 1.39 on, and before 2."""
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
    """The grid is closed. A Closed to its users, and to Flower's own threads what ends them."""


def make_message(metadata: Metadata, content: RecordDict | None = None, error: Error | None = None) -> Message:
    """Return a message of these metadata."""
    metadata.delivered_at = ""  # which Metadata leaves without a value, and a reply may ask for
    return _make_message(metadata=metadata, content=content, error=error)


def set_message_id(message: Message, id: str) -> None:
    """Name a message, which is the part of a grid."""
    message.metadata.__dict__["_message_id"] = id


_one_run = threading.Lock()


@contextmanager
def identity(run: int) -> Iterator[None]:
    """Be the server of this run to Flower, whose `Message()` asks who is writing.

    It is the whole process that is: raises RuntimeError if another run is open in it.
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
