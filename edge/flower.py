"""A device that runs a Flower ClientApp: `edge run --flower APP CLIENT.toml`; APP is an app's folder, or "module:app".

Without a file, the server is one of this machine. The file is that of edge/config.py, without the keys that a ClientApp
replaces (client.train, client.evaluate, client.compression, [settings]), and with one more table:

[flower]      the node's config, as in partition-id = 0; the app reads it from context.node_config
[app]         folder, signer: instead of --flower. The server delivers its app: `folder` is where this device keeps the
              apps that it got, `signer` a file with the certificates of those whose apps may run here

Called by edge/__main__.py. Needs Flower: `pip install 'flwr>=1.39,<2'`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fl.flower
from edge.config import FLOWER_KEYS, KEYS, Config, from_file, open_file
from fl.config.toml import File, Override, in_file_terms, named_object
from fl.flower.app_folder import AppFolder, is_folder, parse_config
from fl.flower.apps import is_client_app
from netq.errors import InvalidOption, SecurityError
from netq.options import NetworkLocation
from netq.validate import expect

log = logging.getLogger("edge")


@dataclass(frozen=True)
class Device:
    """A Flower node and its configuration; `config.settings` is the node's config."""

    app: fl.flower.ClientApp | fl.flower.ReceivedApps
    config: Config
    version: str = ""  # of the app's folder

    @classmethod
    def load(
        cls, path: str | Path | None, app: str | None, node_config: str = "", overrides: Iterable[Override] = ()
    ) -> Device:
        """Read a TOML file, and import the app. Raises InvalidOption, which says what is wrong and where.

        path:        None: there is no file; without overrides, the server is at 127.0.0.1:51966.
        app:         the app's folder, or "module:app". None: the file has the table [app].
        node_config: more of the node's config, as in "partition-id=0 num-partitions=2"; it overrides the file's.
        """
        overrides = tuple(overrides)
        is_empty = path is None and not overrides
        config, received = (Config(NetworkLocation()), None) if is_empty else _read(open_file(path, overrides), app)
        settings: Mapping[str, Any] = {**config.settings, **parse_config("--node-config", node_config)}
        client_app, version = _import(app) if received is None else (received, "")
        return cls(client_app, replace(config, settings=settings), version)

    def run(self) -> None:
        """Take part in runs until the server ends them. Raises what fl.flower.Node.run raises."""
        log.info("device %s, server %s:%d", self.config.id, *self.config.netloc)
        node = fl.flower.Node(self.app, self.config.settings, app_version=self.version)
        node.run(self.config.options(), self.config.protocol)


def _read(file: File, app: str | None) -> tuple[Config, fl.flower.ReceivedApps | None]:
    file.check_names({**KEYS, **FLOWER_KEYS})
    if "app" in file.tables and app is not None:
        raise file.wrong(f"[app]: the server delivers the app, and --flower {app} names one; leave one of them out")
    config = from_file(file, settings=_node_config(file))
    return config, _received(file) if app is None else None


def _received(file: File) -> fl.flower.ReceivedApps:
    folder = file.output("app", "folder", folder=True)
    if folder is None:
        raise file.wrong("app.folder: missing; expected a folder for the apps that arrive")
    signer = file.existing("app", "signer", "PEM")
    try:
        return fl.flower.ReceivedApps(folder, signer)
    except (SecurityError, OSError) as error:
        raise file.wrong(in_file_terms(error)) from error


def _node_config(file: File) -> dict[str, Any]:
    """Return the table [flower], after refusing keys that have no meaning with --flower."""
    for key in ("train", "evaluate"):
        if key in file.table("client"):
            raise file.wrong(f"client.{key}: is not for --flower, whose app trains and evaluates; leave it out")
    if "compression" in file.table("client"):
        raise file.wrong("client.compression: is not for --flower, whose messages are its app's; leave it out")
    if file.table("settings"):
        raise file.wrong("[settings]: is not for --flower; a node's config is the table [flower]")
    if "state" in file.table("client"):
        raise file.wrong("client.state: is not for --flower, which keeps nothing; leave it out")
    for name in ("training", "fit"):
        if file.table(name):
            raise file.wrong(f"[{name}]: is not for --flower, whose app runs in the agent's process; leave it out")
    for name, value in file.table("flower").items():
        right = isinstance(value, (bool, int, float, str))
        file.check(f"flower.{name}", value, right, "a text, a number, true or false")
    return file.table("flower")


def _import(name: str | None) -> tuple[fl.flower.ClientApp | fl.flower.ReceivedApps, str]:
    """Return the app that `--flower` names, and the version of its folder. Raises InvalidOption."""
    if name is None:
        raise InvalidOption("--flower: missing; expected an app's folder or MODULE:APP, or a file with a table [app]")
    if is_folder(name):
        folder = AppFolder.load(name)
        return folder.client_app(), folder.version
    app = named_object("--flower", name, "farm.client_app:app", "app")
    expect(is_client_app(app), "--flower", name, f"a flwr.clientapp.ClientApp, and this is {app!r}")
    return app, ""
