"""edge: what runs on the device. `edge.run(train, config)` in a script, or `python -m edge client.toml`."""

from edge.config import Config
from edge.runtime import run

__all__ = ["Config", "run"]
