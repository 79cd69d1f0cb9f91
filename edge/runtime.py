"""Runs one device, from its first connection until the server ends the federation.

Adds the device's settings to the config of each task; fl.Client does the rest. Called by edge/__main__.py and by
users' scripts. Sets up no logging and handles no signals: those belong to the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fl
from edge.config import Config, Evaluate, Train


def run(train: Train, config: Config, evaluate: Evaluate | None = None) -> None:
    """Take part in the federation that `config` names, until its server ends it.

    Waits for a server that is not reachable yet. `train` and `evaluate` get the config that the server sends, with the
    device's settings added; a setting of the device overrides the server's. Raises what fl.Client.run raises.
    """

    def merged(task: Mapping[str, Any]) -> dict[str, Any]:
        return {**task, **config.settings}

    client = fl.Client(
        lambda model, task: train(model, merged(task)),
        None if evaluate is None else (lambda model, task: evaluate(model, merged(task))),
        config.compression,
    )
    client.run(config.options(), config.protocol)
