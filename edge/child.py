"""The agent's side of its child process: starts it, gives it tasks, waits for the answer, and says how it ended.

Owned by edge/agent.py, in its thread. The child (edge/worker.py) is a new interpreter: training has its own memory,
which goes back to the system, and cannot stop or end the agent.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from edge.group import Group
from edge.machine import Machine
from edge.worker import CHANNEL, Done, Failed, Order, Plan, Ready, Wrong, receive_answer, send
from netq.errors import InvalidOption
from netq.utils.stream import Stream

log = logging.getLogger("edge")

_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from edge.worker import main; main(int(sys.argv[1]))"
_TICK = 1.0  # seconds between checks whether the child has ended: processes that it started may keep its channel open
_WRITTEN_TO = "the training has written to the descriptor 3, which is the agent's"
_EXIT = 2.0  # seconds that a child has to exit by itself
_SHARE = 4  # a child that has at most this part of the memory stays


class Answer(NamedTuple):
    """A finished task. `fd`: of the file with its record, open for the receiver to close."""

    is_kept: bool
    fd: int


class ChildFailed(Exception):
    """There is no answer; the text says why."""


class Child:
    """The child process of an agent; at most one at a time.

    tick:  called while the child works; returns after how many seconds it wants to be called again, None: never.
    group: of its processes.
    """

    def __init__(self, plan: Plan, tick: Callable[[], float | None], group: Group) -> None:
        self._plan = plan
        self._tick = tick
        self._group = group
        self._pid: int | None = None
        self._channel: socket.socket | None = None
        self._status = 0
        self._has_state = False  # the child has got a task, and with it the last state
        self._machine = Machine()
        self._seconds = 0.0  # that the last start took, with its imports
        self._stayed: bool | None = None  # what `_stays` has said last; None: nothing

    def check(self) -> None:
        """Start the child, and end it unless it is kept.

        Raises InvalidOption if its plan is wrong, and ChildFailed if it takes longer than a task may, or ends for
        another reason, such as lack of memory: the file may be right, and the next start may succeed.
        """
        try:
            self._start(self._until())
        except ChildFailed as error:
            memory = self._plan.limits.memory
            hint = "" if memory is None else f"; training.memory is {memory} MB, which may be too little"
            raise ChildFailed(f"the process that trains does not start: {error}{hint}") from None
        self.rest()

    def do(self, order: Order, task: Stream, target: int, last: int | None) -> Answer:
        """Do a task, or store the last model. Raises ChildFailed.

        `task` is emptied, so that it does not take memory while the child works.

        After a failure the child exits, also one that is kept: the next one goes on from the last record, without what
        this one has changed.

        target: the file for the record. last: the file of the last record; None: there is none.
        """
        try:
            return self._do(order, task, target, last)
        except ChildFailed:
            self.end()
            raise
        except OSError as error:  # the system gives this process no more memory, or no other process
            self.kill()
            raise ChildFailed(f"the process that trains does not start: {error.strerror}") from error

    def _do(self, order: Order, task: Stream, target: int, last: int | None) -> Answer:
        until = self._until()
        if not self._is_running():
            try:
                self._start(until)
            except InvalidOption as error:  # it was right at the start of the agent, and may be so again
                raise ChildFailed(str(error)) from error
        assert self._channel is not None
        fds = [_file_of(task), target, *([last] if last is not None and not self._has_state else [])]
        try:
            send(self._channel, order, *fds)
        except OSError as error:  # it has just ended
            raise ChildFailed(self._how_it_ended()) from error
        finally:
            os.close(fds[0])
        self._has_state = True
        answer, received = self._wait(until)
        if isinstance(answer, Failed):
            raise ChildFailed(answer.why)
        if not isinstance(answer, Done):
            raise ChildFailed(_WRITTEN_TO)
        return Answer(answer.is_kept, received[0] if received else os.dup(target))

    def rest(self) -> None:
        """Let the child exit, unless it is kept."""
        if self._pid is None:
            return
        if self._stays(self._pid):
            self._group.reap(self._pid)
        else:
            self.end()

    def _stays(self, pid: int) -> bool:
        """Return whether the child waits for the next task. Logs why, when that changes."""
        if self._plan.limits.keep is not None:
            return self._plan.limits.keep
        size, total = self._machine.resident(pid), self._machine.memory()
        stays = total is not None and 0 < size <= total // _SHARE
        if self._has_state and stays is not self._stayed:  # a task has shown what the training needs
            self._stayed = stays
            what = f"the process that trains has {size / 1e6:.0f} MB, and took {self._seconds:.1f} s to start: it "
            if stays:
                log.info("%sstays for the next task; training.keep = false ends it after each", what)
            else:
                text = "%sends after each task, as it has more than a quarter of this machine's memory; "
                log.info(text + "training.keep = true keeps it", what)
        return stays

    def end(self) -> None:
        """Let the child exit, and kill it if it takes too long."""
        self._close()
        until = time.monotonic() + _EXIT
        while self._is_running() and time.monotonic() < until:
            time.sleep(0.01)
        self.kill()

    def kill(self) -> None:
        """Kill the child, and the processes that it has started."""
        self._close()
        if self._pid is not None:
            self._status = os.waitstatus_to_exitcode(self._group.kill(self._pid))
            self._pid = None

    def _until(self) -> float | None:
        """Return until when, by time.monotonic, a task that begins now may take."""
        seconds = self._plan.limits.seconds
        return None if seconds is None else time.monotonic() + seconds

    def _start(self, until: float | None) -> None:
        self._has_state, begin = False, time.monotonic()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-c", _PROGRAM, str(os.getpid()), *sys.path],
                {**os.environ, **self._plan.limits.environment()},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), CHANNEL),
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),  # reading a terminal would stop it
                ],
                setpgroup=0,  # so that it can be killed with all that it has started, and Ctrl-C reaches the agent only
            )
        self._group.add(self._pid)  # it waits for the plan before it does anything
        try:
            send(self._channel, self._plan)
        except ConnectionError:  # it has ended at once, which `_wait` reports
            pass
        except OSError as error:
            self.kill()
            if error.errno != errno.EMSGSIZE:  # the system gives no memory now
                raise
            raise InvalidOption(
                f"[settings]: they are too large for the process that trains ({error.strerror})"
            ) from error
        answer, _ = self._wait(until)
        if isinstance(answer, Wrong):
            self.end()
            raise InvalidOption(answer.why)
        if isinstance(answer, Failed):
            self.end()
            raise ChildFailed(answer.why)
        assert isinstance(answer, Ready)
        self._seconds = time.monotonic() - begin

    def _wait(self, until: float | None) -> tuple[Any, list[int]]:
        """Wait for a message of the child. Raises ChildFailed if it ends first, or takes longer than `until`."""
        assert self._channel is not None
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        while True:
            tick = self._tick()
            waits = [_TICK] if tick is None else [_TICK, tick]
            if until is not None:
                waits.append(until - time.monotonic())
                if waits[-1] <= 0:
                    self.kill()
                    raise ChildFailed(f"it took longer than training.seconds ({self._plan.limits.seconds:g}); killed")
            has_ended = self._has_ended()  # before the look at the channel, where its last message may be
            if poll.poll(0 if has_ended else max(1, 1000 * min(waits))):
                try:
                    return receive_answer(self._channel)
                except (EOFError, OSError):
                    raise ChildFailed(self._how_it_ended()) from None
                except Exception as error:  # of a pickle
                    raise ChildFailed(_WRITTEN_TO) from error
            if has_ended:
                raise ChildFailed(self._how_it_ended())

    def _is_running(self) -> bool:
        """Return whether the child runs. If it has ended, end the processes that it has started, too."""
        if self._has_ended():
            self.kill()
        return self._pid is not None

    def _has_ended(self) -> bool:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self._pid is not None and os.waitid(os.P_PID, self._pid, options) is not None

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _how_it_ended(self) -> str:
        """Wait for the end of the child, and say how it was."""
        self.end()
        if self._status == -signal.SIGKILL and self._group.ran_out():
            memory = self._plan.limits.memory
            return f"the training needed more than training.memory ({memory} MB) in all its processes; killed"
        if self._status == -signal.SIGKILL:
            return "the training process was killed (SIGKILL); the system does that when memory runs out"
        if self._status < 0:
            return f"the training process was ended by {signal.Signals(-self._status).name}"
        return f"the training process ended with status {self._status}"


def _file_of(task: Stream) -> int:
    """Return the descriptor of a file in memory with the bytes of a task, which is emptied."""
    fd = os.memfd_create("netq-task", os.MFD_CLOEXEC)
    for buffer in task.buffers:
        while buffer.nbytes:
            buffer = buffer[os.write(fd, buffer) :]
    task.buffers.clear()
    return fd
