"""A device that runs a Flower ClientApp: `edge run --flower APP CLIENT.toml`; APP is an app's folder, or "module:app".

Without a file, the server is one of this machine. The file is that of edge/config.py, without the keys that a ClientApp
replaces (client.train, client.evaluate, client.compression, client.properties, [model], [settings]), and with more:

[training]    as in edge/config.py
[flower]      the node's config, as in partition-id = 0; the app reads it from context.node_config
[app]         folder, signer: instead of --flower. The server delivers its app: `folder` is where this device keeps the
              apps that it got, `signer` a file with the certificates of those whose apps may run here

Called by edge/__main__.py. The app runs in the child process (edge/flower_tasks.py), which needs Flower:
`pip install 'flwr>=1.39,<2'`. This module does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import netq
from edge.approvals import Source, of_app
from edge.config import FLOWER_KEYS, KEYS, Config, from_file, open_file
from edge.guard import Rules
from edge.masks import Reading
from edge.outgoing import of_flower
from edge.policy import Policy
from edge.work import Work
from fl.conversation import Conversation, KnownServer
from fl.flower.app_folder import AppFolder, is_folder, parse_config
from fl.flower.envelope import ENVELOPES, Ask
from fl.flower.inbox import Inbox
from fl.flower.signed_app import is_stored
from fl.membership import Membership
from netq.errors import InvalidOption
from netq.options import NetworkLocation
from netq.toml_file import File, Override
from netq.utils.stream import Stream


def load(
    path: str | Path | None, app: str | None, node_config: str = "", overrides: Iterable[Override] = ()
) -> tuple[Config, Work]:
    """Read a TOML file. Raises InvalidOption, which says what is wrong and where.

    path:        None: there is no file; without overrides, the server is at 127.0.0.1:51966.
    app:         the app's folder, or "module:app". None: the file has the table [app].
    node_config: more of the node's config, as in "partition-id=0 num-partitions=2"; it overrides the file's.
    """
    overrides = tuple(overrides)
    if path is None and not overrides:
        config, received = Config(NetworkLocation()), None
    else:
        config, received = _read(open_file(path, overrides), app)
    config = replace(config, settings={**config.settings, **parse_config("--node-config", node_config)})
    if app is None and received is None:
        raise InvalidOption("--flower: missing; expected an app's folder or MODULE:APP, or a file with a table [app]")
    return config, _work(config, app, *(received or (None, None)))


def _work(config: Config, app: str | None, folder: Path | None, signer: Path | None) -> Work:
    arguments: Mapping[str, Any] = {
        "app": app,
        "folder": None if folder is None else str(folder),
        "signer": None if signer is None else str(signer),
        "node": str(config.id),
        "config": config.settings,
    }
    version = AppFolder.load(app).version if app is not None and is_folder(app) else ""
    has = None if folder is None else partial(is_stored, folder)

    def converse(grid: netq.Communicator, membership: Membership, link: KnownServer, question: str) -> Conversation:
        inbox = Inbox(grid, version, has, config.options().connection.memory)
        return Conversation(grid, membership, link, inbox=inbox)

    return Work(
        noun="run",
        messages=ENVELOPES,
        converse=converse,
        tasks="edge.flower_tasks:FlowerTasks",
        arguments=arguments,
        title=f"the apps in {folder}" if app is None else app,
        rules=Rules(partial(_source, folder), of_flower, _noised),
        reading=_reading,
    )


def _noised(policy: Policy, task: Stream, reply: Stream) -> Stream:
    from edge import noising  # numpy

    return noising.of_flower(policy, task, reply)


def _reading() -> Reading:
    from fl.flower import masked  # numpy

    return Reading(
        lambda message: masked.task_of(masked.load(message)),
        lambda reply, masking: masked.update_of(masked.load(reply), masking.start),
        masked.finished,
    )


def _source(folder: Path | None, ask: Ask, _: Any) -> Source:
    assert folder is not None  # policy.approve is for apps that arrive
    return of_app(folder, ask.app)


def _read(file: File, app: str | None) -> tuple[Config, tuple[Path, Path] | None]:
    file.check_names({**KEYS, **FLOWER_KEYS})
    if "app" in file.tables and app is not None:
        raise file.wrong(f"[app]: the server delivers the app, and --flower {app} names one; leave one of them out")
    if app is not None and file.table("policy").get("approve"):
        raise file.wrong(
            f"policy.approve: is for apps that the server delivers, and --flower {app} names one; leave it out"
        )
    if "key" in file.table("secure"):
        raise file.wrong("secure.key: is not for --flower, whose messages have masks, and no encryption; leave it out")
    config = from_file(file, settings=_node_config(file))
    return config, _received(file) if app is None else None


def _received(file: File) -> tuple[Path, Path]:
    folder = file.output("app", "folder", folder=True)
    if folder is None:
        raise file.wrong("app.folder: missing; expected a folder for the apps that arrive")
    return folder, file.existing("app", "signer", "PEM")


def _node_config(file: File) -> dict[str, Any]:
    """Return the table [flower], after refusing keys that have no meaning with --flower."""
    for key in ("train", "evaluate", "columns", "min_count", "check"):
        if key in file.table("client"):
            raise file.wrong(f"client.{key}: is not for --flower, whose app trains and evaluates; leave it out")
    for key in ("compression", "properties", "name"):
        if key in file.table("client"):
            raise file.wrong(f"client.{key}: is not for --flower, whose messages are its app's; leave it out")
    if file.table("settings"):
        raise file.wrong("[settings]: is not for --flower; a node's config is the table [flower]")
    if file.table("model"):
        raise file.wrong("[model]: is not for --flower, whose server sends no last model; leave it out")
    for name, value in file.table("flower").items():
        right = isinstance(value, (bool, int, float, str))
        file.check(f"flower.{name}", value, right, "a text, a number, true or false")
    return file.table("flower")
