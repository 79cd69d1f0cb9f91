"""edge: the agent of a device. `edge.run(train, config)` in a script, or the command `edge run client.toml`."""

from edge.config import Config
from edge.runtime import run

__all__ = ["Config", "run"]
