"""Functions that the child processes of tests/edge import by name."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fl
from edge.record import write
from edge.worker import Done, send
from fl.tensors.json_format import JsonSerializer
from netq.utils.stream import Stream


def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Add the step of the settings; count the rounds."""
    config["state"]["count"] = count = config["state"].get("count", 0) + 1
    metrics = {"round": config["round"], "count": count, "pid": os.getpid()}
    return fl.Update({"w": model["w"] + np.float32(config.get("step", 1))}, 1, metrics)


def keeps_a_head(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Add 1 to all tensors, also to the one that stays here."""
    model = {"head": np.zeros(2, np.float32), **model}
    return fl.Update({name: tensor + 1 for name, tensor in model.items()}, 1)


def adds_one(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Add 1 to what is of floats; to the others, if the settings say so."""
    change = {name: 1 if tensor.dtype.kind == "f" or "counts" in config else 0 for name, tensor in model.items()}
    changed = {name: (tensor + change[name]).astype(tensor.dtype) for name, tensor in model.items()}
    return fl.Update(changed, 5, {"loss": 0.5})


def skips_at_first(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Have no data in the first task, and note it."""
    update = train(model, config)
    if config["state"]["count"] == 1:
        raise fl.Skip("no new pictures")
    return update


def waits(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Train when the file of the settings is there."""
    while not Path(config["mark"]).exists():
        time.sleep(0.01)
    return train(model, config)


def evaluate(model: Any, config: Mapping[str, Any]) -> fl.Report:
    return fl.Report(1, {"accuracy": config["step"] / 4})


def columns(config: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a device: 100 ages, and what its settings say."""
    return {"age": np.arange(100), "settings": np.full(100, config["step"])}


def tells(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Fail with the config as the reason."""
    raise OSError(f"the sensor does not answer {sorted(config.items())}")


def stumbles(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Do once what the settings say, then train."""
    mark = Path(config["mark"])
    if not mark.exists():
        mark.touch()
        _misbehave(config["how"])
    return train(model, config)


def leaves_a_daemon(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Start a process that leaves group, session and parent, and note its id; then do what the settings say."""
    if os.fork() == 0:
        os.setsid()
        if (pid := os.fork()) == 0:
            time.sleep(1000)
        Path(config["mark"]).write_text(str(pid))
        os._exit(0)
    os.wait()
    if config["how"] == "hang":
        time.sleep(1000)
    return train(model, config)


def hangs(model: Any, config: Mapping[str, Any]) -> fl.Update:
    Path(config["mark"]).touch()
    time.sleep(1000)
    raise AssertionError


def forks(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Return in two processes."""
    os.fork()
    return train(model, config)


def forgets(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Change what the state has in it, and fail in the second round."""
    config["state"].setdefault("rounds", []).append(config["round"])
    if config["round"] == 2 and not Path(config["mark"]).exists():
        Path(config["mark"]).touch()
        raise OSError("the sensor does not answer")
    return fl.Update(model, 1, {"rounds": len(config["state"]["rounds"])})


def smuggles(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Send a secret where the settings say; of a part of the model, which is allowed, something else, too."""
    secret = np.arange(3, dtype=np.float32) + 40
    update = fl.Update({"w": model["w"] + np.float32(1)}, 1, {"loss": 0.5, "accuracy": 0.25})
    match config["how"]:
        case "tensor":
            update.model["body"] = secret
        case "extra":
            update.extra["w"] = secret
        case "metrics":
            return fl.Update(update.model, 1, {"loss": secret})
        case "numbers":
            return fl.Update(update.model, 1, {"loss": 0.5, **{f"x{each}": each for each in secret}})
        case "failure":
            raise OSError("the secret is 42")
        case "skip":
            raise fl.Skip("the secret is 42")
        case "status":
            os._exit(42)
        case "record":  # another process writes the record of the task
            _write_a_record()
    return update


def _write_a_record() -> None:
    """Answer the order in place of the child, with fields that no Reply has."""
    job = [7, 1, "train"]
    content = {"type": "Skip", "reason": "", "secret": 42}
    fd = os.memfd_create("forged")
    write(
        fd,
        "7 1 train 0",
        JsonSerializer().dump({"type": "Reply", "job": job, "content": content, "x": 42}),
        42,
        Stream(),
    )
    with socket.socket(fileno=os.dup(3)) as channel:
        send(channel, Done(is_kept=True), fd)
    time.sleep(1000)


def _misbehave(how: str) -> None:
    if how == "exit":
        os._exit(7)
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        time.sleep(1000)
    if how == "leave":  # its process group
        os.setpgid(0, os.getpgid(os.getppid()))
        time.sleep(1000)
    if how == "write":
        os.write(3, b"what the agent does not know")
    if how == "memory":
        np.ones(10**9)
    if how == "orphan":  # which keeps the channel of its parent open
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(7)
