"""The child process of an agent: imports the training functions, and does tasks until its parent closes the channel.

Started by edge/child.py, with one end of a SOCK_SEQPACKET socket as descriptor 3. It gets a
Plan, answers Ready, Wrong or Failed, then answers each Order with Done or Failed. Tasks come, and records go, in files
whose descriptors travel with the messages: a task is mapped and read in place, and the training may change the model
there.

Limits itself before it imports anything of the user's. It ends with its parent, also if that is killed.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import importlib
import io
import logging
import mmap
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from edge.limits import Limits
from edge.record import Record, write_somewhere
from fl.envelope import Finished
from netq.cli.terminal import log_to_stderr
from netq.errors import InvalidOption, NotNow, Unreadable
from netq.text import describe
from netq.utils.stream import Stream

log = logging.getLogger("edge")

CHANNEL = 3  # the descriptor of the channel
LONGEST = 64 * 1024  # bytes of a message, and characters of a reason
_MOST = 1 << 20  # bytes of a message that is received; a plan has the settings of the device
_DESCRIPTORS = 3  # that come with a message, at most
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Tasks(Protocol):
    """What does the tasks: edge.tasks.TrainingTasks, or edge.flower_tasks.FlowerTasks."""

    def answer(self, task: Stream, rate: float | None) -> Finished | str:
        """Do a task. Return the reply as bytes, or the reason why there is none."""

    def keeps(self, answer: Finished) -> bool:
        """Return whether the agent is to keep a reply."""

    def store(self, final: Stream) -> None:
        """Write the last model to the file of the device's owner. Raises InvalidOption, OSError."""

    def save(self) -> Stream:
        """Return the state after the last task."""

    def restore(self, state: Stream) -> None:
        """Go on from a state. Raises ValueError, Unreadable."""


class Plan(NamedTuple):
    """What a child is to do."""

    tasks: str  # "module:class" of its Tasks
    arguments: Mapping[str, Any]
    limits: Limits
    level: int  # of the log


class Order(NamedTuple):
    """A task. The descriptors of its bytes, of the file for the record, and of the last record travel with it."""

    key: str
    rate: float | None = None  # of the link to the server, in bytes a second; None: not measured
    is_final: bool = False  # it is no task, but the last model, which is to be stored
    is_quiet: bool = False  # the log has said already why such a task fails


class Ready(NamedTuple):
    """The functions are imported."""


class Wrong(NamedTuple):
    """The plan is wrong: the text of an InvalidOption."""

    why: str


class Done(NamedTuple):
    """The record is written. If its file was full, the descriptor of another one travels with this message."""

    is_kept: bool


class Failed(NamedTuple):
    """There is no reply, and why."""

    why: str


def main(parent: int) -> None:
    """Serve the parent, the process of this id."""
    _end_with_parent(parent)
    os.set_inheritable(CHANNEL, False)
    with socket.socket(fileno=CHANNEL) as channel, contextlib.suppress(EOFError, ConnectionError):
        buffer = bytearray(_MOST)  # now: under the limits there may be no room for it
        plan: Plan = receive(channel, buffer)[0]
        log_to_stderr(plan.level)
        plan.limits.apply()
        try:
            module, _, name = plan.tasks.partition(":")
            tasks = getattr(importlib.import_module(module), name)(**plan.arguments)  # numpy is under the limits, too
        except InvalidOption as error:
            log.debug("where it happened", exc_info=error)
            send(channel, (Failed if isinstance(error, NotNow) else Wrong)(str(error)[: LONGEST // 4]))
            return
        except (ImportError, MemoryError) as error:  # of a library, which may have no memory
            log.debug("where it happened", exc_info=error)
            reason = error.__cause__ or error
            send(channel, Failed(describe(reason)[: LONGEST // 4]))
            return
        send(channel, Ready())
        process = os.getpid()
        while True:
            order, fds = receive(channel, buffer)
            _obey(channel, tasks, order, fds, process)


class _Answers(pickle.Unpickler):
    """Loads what a child answers, and no other object: the training may write to the channel, too."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class of an answer."""
        kinds = {kind.__name__: kind for kind in (Ready, Wrong, Done, Failed)}
        if module != __name__ or name not in kinds:
            raise pickle.UnpicklingError(f"{module}.{name} is no answer")
        return kinds[name]


def receive_answer(channel: socket.socket) -> tuple[Any, list[int]]:
    """Return the next answer of a child, and its descriptors. Raises EOFError at the end, and anything for others."""
    return receive(channel, load=lambda message: _Answers(io.BytesIO(message)).load())


def receive(
    channel: socket.socket, buffer: bytearray | None = None, load: Callable[[memoryview], Any] = pickle.loads
) -> tuple[Any, list[int]]:
    """Return the next message, and its descriptors. Raises EOFError at the end.

    buffer: for the message; its size bounds it.
    """
    buffer = bytearray(_MOST) if buffer is None else buffer
    fds = array.array("i")
    size, ancillary, _, _ = channel.recvmsg_into([buffer], socket.CMSG_SPACE(_DESCRIPTORS * fds.itemsize))
    for _, _, data in ancillary:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if not size:
        raise EOFError
    try:
        return load(memoryview(buffer)[:size]), list(fds)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def send(channel: socket.socket, message: Any, *fds: int) -> None:
    """Send a message. Raises OSError."""
    socket.send_fds(channel, [pickle.dumps(message)], fds)


def _obey(channel: socket.socket, tasks: Tasks, order: Order, fds: list[int], process: int) -> None:
    """Do a task. `process`: of this id; a copy that the training has forked, and that comes back here, ends."""
    task, target, *last = fds
    try:
        if last:
            _restore(tasks, last[0])
        if order.is_quiet:  # the agent ends this process after it
            logging.getLogger("netq.fl").setLevel(logging.CRITICAL)
        if order.is_final:
            send(channel, _stored(tasks, task))
            return
        answer = tasks.answer(_mapped(task), order.rate)
        if os.getpid() != process:
            os._exit(0)
        fallback = []
        if not isinstance(answer, str):
            fallback = write_somewhere(target, order.key, answer.message, answer.size, tasks.save())
    except MemoryError:
        answer, fallback = "MemoryError: the training has no memory left", []
    except Exception as error:  # of the user's objects, while they are serialised
        log.exception("the task cannot be finished")
        answer, fallback = describe(error), []
    finally:
        for fd in fds:
            os.close(fd)
    if isinstance(answer, str):
        send(channel, Failed(answer[: LONGEST // 4]))
    else:
        send(channel, Done(tasks.keeps(answer)), *fallback)
    for fd in fallback:
        os.close(fd)


def _stored(tasks: Tasks, final: int) -> Done | Failed:
    try:
        tasks.store(_mapped(final))
    except (InvalidOption, OSError) as error:
        return Failed(describe(error)[: LONGEST // 4])
    return Done(is_kept=False)


def _mapped(fd: int) -> Stream:
    return Stream.of(memoryview(mmap.mmap(fd, 0)))


def _restore(tasks: Tasks, fd: int) -> None:
    """Go on from the state of the last record. The mapping is private: the record does not change."""
    record = Record.read(fd, check=False)
    private = memoryview(mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE))
    try:
        tasks.restore(Stream.of(private[private.nbytes - record.state.nbytes :]))
    except (ValueError, Unreadable) as error:
        log.error("the state of the last update cannot be read, and is left out: %s", str(error))


def _end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended before
        sys.exit()
