"""Devices that run a Flower ClientApp, each a process: `edge run --flower`, and `edge run` with a table [app]."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fl.flower
from tests.pages import ROOT

SOON = 60.0  # seconds in which all happens that does happen: a device imports Flower

APP = """
    import os, time
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    app = ClientApp()
    server = ServerApp()
    number = 7


    @app.train()
    def train(message, context):
        weights = message.content["arrays"]["w"].numpy() + context.node_config["step"]
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(weights)}), "metrics": metrics}), reply_to=message)


    @app.query()
    def hang(message, context):
        open(context.node_config["mark"], "w").close()
        time.sleep(1000)


    @app.query("count")
    def count(message, context):
        number = context.state["count"]["n"] + 1 if "count" in context.state else 1
        context.state["count"] = MetricRecord({"n": number})
        return Message(RecordDict({"m": MetricRecord({"n": number, "pid": os.getpid()})}), reply_to=message)


    @app.query("die")
    def die(message, context):
        os.kill(os.getpid(), 9)


    @app.query("fill")
    def fill(message, context):
        bytearray(2_000_000_000)
"""


def install(folder: Path) -> None:
    """Write the app, "farm_app:app", where the devices of this folder import it."""
    (folder / "farm_app.py").write_text(textwrap.dedent(APP))


class Device:
    """A device, and the file that it is given.

    more: lines of the file: first of the table [client], then other tables.
    app:  None: the server delivers it.
    """

    def __init__(self, folder: Path, port: int, more: str = "", *, app: str | None = "farm_app:app", **config: Any):
        self.id = uuid.uuid4()
        self.path = folder / f"{self.id}.toml"
        self.mark = folder / f"{self.id}.mark"
        self._app = [] if app is None else ["--flower", app]
        lines = [f"{name} = {value!r}" for name, value in {**config, "mark": str(self.mark)}.items()]
        self.path.write_text(
            f'[server]\nhost = "127.0.0.1"\nport = {port}\n[client]\nid = "{self.id}"\n{more}'
            "[connection]\nretry_max = 0.2\n[flower]\n" + "\n".join(lines)
        )

    @property
    def node(self) -> int:
        return fl.flower.node_id(self.id)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        folder = self.path.parent
        command = [sys.executable, "-m", "edge", "run", *self._app, str(self.path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=_environment(folder)) as process:
            try:
                yield process
            finally:
                process.kill()


def edge(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "edge", *arguments],
        capture_output=True,
        text=True,
        timeout=SOON,
        env=_environment(folder),
        cwd=folder,
        check=False,
    )


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
