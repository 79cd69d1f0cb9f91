"""Functions that the agents of test_catalogue.py import by name: the trainings of sites with a fault."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fl
from tests.fl.federation import filled

OTHER = 65534  # a user without rights: nobody


def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
    config["state"]["count"] = count = config["state"].get("count", 0) + 1
    return fl.Update(filled(6), 1, {"count": count, "pid": os.getpid()})


def gated(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Train when the other end of the pipe `gate` is closed; without the pipe, at once."""
    with contextlib.suppress(FileNotFoundError):
        Path(config["gate"]).read_bytes()
    return train(model, config)


def gated_later(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Do this in the second round."""
    return train(model, config) if config["round"] == 1 else gated(model, config)


def without_accelerator(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Fail as a driver does whose device has vanished, while the file `fault` is there."""
    if Path(config["fault"]).exists():
        raise RuntimeError("Failed to initialize NVML: Unknown Error")
    return train(model, config)


def caching(model: Any, config: Mapping[str, Any]) -> fl.Update:
    Path(config["cache"], "scans").write_bytes(b"preprocessed")
    return train(model, config)


def bus_error(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Touch shared memory that is not there, in this process or in a worker of it, while the file `fault` is there."""
    if not (fault := Path(config["fault"])).exists():
        return train(model, config)
    if config["where"] == "worker":
        worker = os.fork()
        if worker:
            status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
            raise RuntimeError(f"DataLoader worker (pid {worker}) is killed by signal: {signal.Signals(-status).name}")
    with fault.open("r+b") as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as memory:
            file.truncate(0)
            memory[0] = 1
    raise AssertionError("there was memory")


def reading(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Read the file `data` as a user without rights, which root is not."""
    os.seteuid(OTHER)
    Path(config["data"]).read_bytes()
    return train(model, config)
