"""Replies to a grid's messages in the child process: imports a Flower ClientApp, and runs it.

The grid gets what each reply has cost, but not in the reply's records (`usage` in fl/flower/messages.py): Flower's
strategies average all metrics of a reply, and refuse replies whose metrics differ. Needs Flower.
"""

from __future__ import annotations

import importlib
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.usage import Usage
from fl.envelope import Finished
from fl.flower.app_folder import AppFolder, is_folder
from netq.errors import InvalidOption, NotNow, SecurityError
from netq.toml_file import in_file_terms, named_object
from netq.utils.stream import Stream
from netq.validate import expect

if TYPE_CHECKING:
    from fl.flower.apps import ClientApp
    from fl.flower.signed_app import ReceivedApps


class FlowerTasks:
    """A Flower node. Raises InvalidOption, which names the option.

    app:    an app's folder, or "module:app". None: the server delivers its app.
    folder: of the apps that arrive; `signer`: the file with the certificates of their authors.
    node:   the device's id.
    config: the node's config.
    """

    def __init__(
        self, app: str | None, folder: str | None, signer: str | None, node: str, config: Mapping[str, Any]
    ) -> None:
        try:
            importlib.import_module("fl.flower._compat")  # first: it refuses an unknown release of Flower
            from fl.flower.messages import MESSAGES, WITH_VALUES, node_id
            from fl.flower.node_tasks import NodeTasks
        except ImportError as error:
            raise InvalidOption(str(error)) from error
        logging.getLogger("flwr").propagate = False  # Flower writes its lines to stderr itself
        self._messages, self._load = MESSAGES, WITH_VALUES.load
        self._usage = Usage()
        client_app = _received(folder, signer) if app is None else _imported(app)
        self._tasks = NodeTasks(client_app, node_id(uuid.UUID(node)), config, usage=self._usage.measured)

    def answer(self, message: Stream, rate: float | None = None) -> Finished | str:
        """Reply to a message. Return the reply as bytes, or the reason why there is none. `rate` is not used."""
        self._usage.begin()
        return self._tasks.answer(self._load(message))

    def keeps(self, answer: Finished) -> bool:
        """Return whether an answer is to be kept: each reply may have changed the app's state."""
        return answer.job is not None

    def save(self) -> Stream:
        """Return the context after the last message."""
        saved: Stream = self._messages.dump(self._tasks.save())
        return saved

    def restore(self, state: Stream) -> None:
        """Go on from a state. Raises ValueError, Unreadable."""
        self._tasks.restore(self._messages.load(state))


def _received(folder: str | None, signer: str | None) -> ReceivedApps:
    from fl.flower.signed_app import ReceivedApps

    assert folder is not None
    assert signer is not None
    try:
        return ReceivedApps(Path(folder), Path(signer))
    except (SecurityError, OSError) as error:
        raise NotNow(in_file_terms(error)) from error


def _imported(name: str) -> ClientApp:
    """Return the app that `--flower` names. Raises InvalidOption."""
    from fl.flower.apps import is_client_app

    if is_folder(name):
        return AppFolder.load(name).client_app()
    app: ClientApp = named_object("--flower", name, "farm.client_app:app", "app")
    expect(is_client_app(app), "--flower", name, f"a flwr.clientapp.ClientApp, and this is {app!r}")
    return app
