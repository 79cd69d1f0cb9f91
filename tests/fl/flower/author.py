"""An author who signs Flower apps, which servers deliver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fl.flower.app_folder import AppFolder
from fl.flower.signed_app import ReceivedApps, SignedApp, sign
from netq.security import certificates

PROJECT = '[tool.flwr.app.components]\nserverapp = "farm.app:server"\nclientapp = "farm.app:client"\n'
MODULE = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from farm.task import value

client = ClientApp()


@client.query()
def query(message, context):
    return Message(RecordDict({{"it": ConfigRecord({{"value": value + {0}}})}}), reply_to=message)
"""

TRAINS = """
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

client = ClientApp()


@client.train()
def train(message, context):
    metrics = MetricRecord({{"num-examples": 1, "loss": float({0})}})
    return Message(RecordDict({{"arrays": message.content["arrays"], "metrics": metrics}}), reply_to=message)
"""


class Author:
    """A person who signs apps, and the boards' folder for them."""

    def __init__(self, folder: Path, name: str = "author", algorithm: str = "p256") -> None:
        self.folder = folder
        if not (folder / "certs").exists():
            certificates.init(folder / "certs", algorithm=algorithm)
        self.files = certificates.issue(folder / "certs", name)

    def app(self, add: int, *, name: str = "app", value: int = 0, module: str = MODULE) -> AppFolder:
        folder = self.folder / name
        (folder / "farm").mkdir(parents=True, exist_ok=True)
        (folder / "pyproject.toml").write_text(PROJECT)
        for file, text in (("__init__", ""), ("app", module.format(add)), ("task", f"value = {value}\n")):
            (folder / "farm" / f"{file}.py").write_text(text)
        return AppFolder.load(folder)

    def signed(self, add: int, **more: Any) -> SignedApp:
        app = self.app(add, **more)
        sign(app, self.files.key)
        return SignedApp.load(app)

    def board(self) -> ReceivedApps:
        return ReceivedApps(self.folder / "apps", self.files.certificate)
