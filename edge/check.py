"""`edge check`: prints what an agent would find if it were started now, a line each.

Does what the agent does, in its order: starts the child, reads the sensors, looks at the folder for the state, connects
to the server, and does a task. The task is a model of zeros like the server's, which the server describes on request
(envelope.Describe); it gives no task to a client that asks so. Needs numpy, unlike the agent. What is tried out here by
a person, the agent tries by itself with `client.check`.

Called by edge/__main__.py. Writes to stdout, and changes nothing in the folder for the state.
"""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import netq
from edge.agent import child_of
from edge.child import Child, ChildFailed
from edge.config import Config
from edge.group import Group
from edge.machine import Machine
from edge.masks import Masks
from edge.record import Record
from edge.supervisor import Supervisor
from edge.tasks import check_size, described_size
from edge.work import Work
from edge.worker import Order
from fl.envelope import Describe, Introduction
from fl.errors import InvalidUpdate
from fl.messages import MESSAGES, Description, Reply, Skip, Task, Update
from netq.cli.doctor import Reached, describe, reach
from netq.text import printable
from netq.toml_file import in_file_terms
from netq.utils.stream import Stream
from netq.version import VERSION

TIMEOUT = 10.0  # seconds in which the server has to answer
PATIENCE = 5.0  # seconds in which it has to describe its tasks; while it waits for clients, it looks every second
_SKEW = 60.0  # seconds; [fit] hours and certificates depend on the clock
_UPDATES = 2  # in the folder for the state: the last one, and the next one while it is written


class CheckFailed(Exception):
    """The agent could not take part; the text says why."""


class _Answer(NamedTuple):
    """What the server has described. `skew`: how far this clock is ahead, and how exact that is, in seconds."""

    description: Description
    skew: float
    error: float


def check(config: Config, work: Work, group: Group, *, train: bool = True) -> bool:
    """Print what the agent of `config` would find. Raises InvalidOption, ChildFailed, CheckFailed.

    Returns whether all was tried: False if a federation has not described its model.

    group: of the training's processes.
    train: whether to do a task.
    """
    Masks(config.secure, config.options(), work.reading).check()
    child = child_of(config, work, Supervisor(), group)
    try:
        _functions(work, child)
        if config.training.memory is not None:
            _show("limits", group.says())
        _show("fit", _fit(config))
        _show("state", _state(config.state))
        answer = _look_at_server(config, is_federation=config.train is not None)
        if answer is not None:
            received = _model_size(config, answer)
            sent = _train(child, answer.description) if train else 0
            _check_traffic(config, received + sent)
        return answer is not None or config.train is None
    finally:
        child.kill()


def _show(name: str, text: str) -> None:
    print(printable(f"{name:<10}{text}"), flush=True)


def _functions(work: Work, child: Child) -> None:
    print(printable(f"{'functions':<10}{work.title}: "), end="", flush=True)  # an import may hang
    begin = time.monotonic()
    try:
        child.check()
    except BaseException:
        print()
        raise
    print(f"imported in {time.monotonic() - begin:.1f} s", flush=True)


def _fit(config: Config) -> str:
    machine = Machine()
    config.fit.check(machine)
    reason = config.fit.reason(replace(machine.read(), traffic=0.0))
    return f"not now: {reason}" if reason else "now"


def _state(folder: Path | None) -> str:
    if folder is None:
        return "kept in memory: neither an update nor what training keeps survives a restart (client.state)"
    return f"{folder}: {_free(folder) / 1e6:.0f} MB free"


def _free(folder: Path) -> int:
    try:
        found = os.statvfs(folder if folder.exists() else folder.parent)
    except OSError as error:
        raise CheckFailed(f"client.state: {folder}: {error.strerror}") from error
    return found.f_bavail * found.f_frsize


def _look_at_server(config: Config, *, is_federation: bool) -> _Answer | None:
    """Connect under another id, so that the device itself may be running, and ask what tasks are like.

    is_federation: False: the server is a grid of Flower's messages, and is not asked.
    """
    answers: list[_Answer] = []

    def ask(queue: netq.Communicator) -> None:
        answers.extend(_described(queue, config) if is_federation else [])

    options = replace(config.options(), id=uuid.uuid4(), serialization=MESSAGES)
    found = reach(config.protocol, options, TIMEOUT, ask)
    host, port = config.netloc
    if isinstance(found, str):
        hint = (
            "; if the agent of this device runs, stop it first: they have one certificate" if "in use" in found else ""
        )
        raise CheckFailed(f"the file is right, but {host}:{port} {in_file_terms(found)}{hint}")
    _show("server", f"{host}:{port}{found.proxy} answers in {found.seconds * 1000:.1f} ms")
    _show("link", f"{config.protocol.value}, {_layers(found)}")
    if is_federation and not answers:
        _show("model", f"the server has not described it within {PATIENCE:g} s: it is busy, or no server of fl")
    return answers[0] if answers else None


def _layers(found: Reached) -> str:
    layers = [f"sealed by {found.seal.group} and {found.seal.cipher}"] if found.seal else []
    if found.security or not layers:
        layers.append(describe(found.security))
    return ", ".join(layers)


def _described(queue: netq.Communicator, config: Config) -> list[_Answer]:
    """Ask the server to describe its tasks. Return its answer, or nothing."""
    begin = time.monotonic()
    queue.put(Introduction(config.properties, name=config.name, version=VERSION, time=time.time()))
    queue.put(Describe("edge check"))
    while (left := begin + PATIENCE - time.monotonic()) > 0:
        try:
            message = queue.get(timeout=left).data
        except (TimeoutError, netq.Closed):
            break
        except netq.Unreadable:
            continue
        if isinstance(message, Task):  # given before the server had read the question
            queue.put(Reply(message.job, "this is edge check, which does no tasks"))
        elif isinstance(message, Description):
            error = (time.monotonic() - begin) / 2
            return [_Answer(message, time.time() - error - message.time, error)]
    return []


def _model_size(config: Config, answer: _Answer) -> int:
    """Show what the server has described, and return the bytes of its model. Raises CheckFailed for too large a one."""
    try:
        size = described_size(answer.description)
        _show_answer(config, answer, size)
        check_size(size, config.largest)
    except InvalidUpdate as error:
        raise CheckFailed(str(error)) from None
    return size


def _show_answer(config: Config, answer: _Answer, size: int) -> None:
    """Show what the server has described. `size`: bytes of its model."""
    description, skew, error = answer
    ahead = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the server's, ± {error:.1f} s"
    wrong = "; certificates and fit.hours need the right time" if abs(skew) - error > _SKEW else ""
    _show("clock", ahead + wrong)
    count = len(description.tensors)
    _show("model", f"{count} tensor{'s' * (count != 1)}, {size / 1e6:.3g} MB; the next round is {description.round}")
    if config.state is not None and _free(config.state) < _UPDATES * size:
        _show("state", f"{config.state}: too full for {_UPDATES} updates, which are then kept in memory")


def _train(child: Child, description: Description) -> int:
    """Try a training out, and show what it took. Return the bytes of the update. Raises CheckFailed, InvalidOption."""
    file = os.memfd_create("netq-check", os.MFD_CLOEXEC)
    begin = time.monotonic()
    try:
        answer = child.do(Order("check"), MESSAGES.dump(description), file, None)
    except ChildFailed as error:
        raise CheckFailed(f"the training fails: {error}") from None
    finally:
        os.close(file)
    seconds = time.monotonic() - begin
    with open(answer.fd, "rb"):  # which closes it
        reply = MESSAGES.load(Stream.of(Record.read(answer.fd, check=False).reply))
    assert isinstance(reply, Reply)
    if isinstance(reply.content, Skip):
        _show("training", f"{seconds:.1f} s; it skips this task: {reply.content}")
        return 0
    assert isinstance(reply.content, Update)
    used, size = reply.content.metrics, reply.content.nbytes
    processors, memory = used["usage.cpu_seconds"], used["usage.memory_mb"]
    text = f"{seconds:.1f} s, {processors:.1f} s of processors, {memory:.0f} MB; an update of {size / 1e6:.3g} MB"
    _show("training", text)
    return size


def _check_traffic(config: Config, size: int) -> None:
    """Raise CheckFailed if a round, of `size` bytes, is more than the device may move in an hour."""
    limit = config.fit.max_traffic
    if limit is not None and size > limit * 1e6:
        raise CheckFailed(
            f"fit.max_traffic is {limit:g} MB in 60 minutes, and one round has {size / 1e6:.3g} MB: the device would "
            "take part in one at most; give it more, or make updates smaller (client.compression)"
        )
