"""Starts one process of a simulation, as a fork or as a new interpreter, and ends it.

Used by fl/simulation/network.py and fl/simulation/pool.py. Each process has one pipe to this one, and ends when the
pipe does. docs/explanation/design.md, "Libraries taken and not taken", says why this is not multiprocessing.Process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Literal, TypeAlias, get_args

import netq
from netq.validate import expect

Method: TypeAlias = Literal["fork", "spawn"]
Work: TypeAlias = Callable[[Connection], None]  # what a process does; it gets its end of the pipe

_PIPE = 3  # the file descriptor of a spawned process's pipe
_PROGRAM = f"""
import sys
from multiprocessing.connection import Connection
pipe = Connection({_PIPE})
sys.path[:] = pipe.recv()
from fl.simulation.launch import run_unpickled
run_unpickled(pipe)
"""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Process:
    """A process that runs `work`. Make it in `deferred_sigint`, until it is where it will be ended.

    others: this process's ends of the pipes of other such processes.
    """

    def __init__(self, how: Method, work: Work, others: Sequence[Connection]) -> None:
        expect(how in get_args(Method), "simulate.start", how, "'fork' or 'spawn'")
        launch = _fork if how == "fork" else _spawn
        self.pipe, theirs = Pipe()
        self._status: int | None = None  # the exit status, once the process was waited for
        try:
            with theirs:
                self._pid = launch(work, theirs, [*others, self.pipe])
        except BaseException:
            self.pipe.close()
            raise

    def send(self, message: object) -> None:
        """Send it a message. If it has ended, that is seen at the end of its pipe."""
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def end(self) -> None:
        """Kill the process if it runs, wait until it has ended, and make `recv` reach the end of its pipe."""
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            with socket.socket(fileno=os.dup(self.pipe.fileno())) as pipe:
                pipe.shutdown(socket.SHUT_RDWR)  # a process that it has forked may still hold the other end

    @property
    def fate(self) -> str:
        """How the process ended."""
        status = self._status or 0
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return f"{how}; its log, or the system's, may say why"


@contextlib.contextmanager
def deferred_sigint() -> Iterator[None]:
    """Defer Ctrl-C until a new process is recorded here, and ignores SIGINT itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork(work: Work, theirs: Connection, ours: Sequence[Connection]) -> int:
    """Start a copy of this process, and return its id."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # otherwise both processes write what is buffered
    with warnings.catch_warnings():
        # Of Python 3.12, about threads: see docs/how-to/simulation.md.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid != 0:
        return pid
    status = 1
    try:
        for pipe in ours:
            pipe.close()  # otherwise the pipes stay open when the parent ends
        _run(work, theirs)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # exit handlers belong to the parent


def _spawn(work: Work, theirs: Connection, ours: Sequence[Connection]) -> int:
    """Start a new interpreter, and return its process id. Raises InvalidOption."""
    try:
        pickled = pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise netq.InvalidOption(
            f"simulate.clients: cannot be pickled: {error}; expected functions of a module, or start='fork'"
        ) from error
    inherited = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), _PIPE)]
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", _PROGRAM], os.environ, file_actions=inherited)
    theirs.close()  # otherwise a large send waits for ever if the process ends at once
    with contextlib.suppress(OSError):  # which is seen at the end of its pipe
        ours[-1].send(sys.path)
        ours[-1].send_bytes(pickled)
    return pid


def run_unpickled(pipe: Connection) -> None:
    """Receive what this process does through the pipe, then do it."""
    try:
        work: Work = pickle.loads(pipe.recv_bytes())
    except Exception as error:  # raised by the user's module during its import
        hint = "the clients cannot be unpickled; expected functions of a module that can be imported, or start='fork'"
        pipe.send(f"{hint}\n{''.join(traceback.format_exception(error))}")
        return
    _run(work, pipe)


def _run(work: Work, pipe: Connection) -> None:
    # Processes that a client starts do not get the pipe, whose end means that this process has ended.
    os.set_inheritable(pipe.fileno(), False)
    os.register_at_fork(after_in_child=pipe.close)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which then ends this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if "torch" in sys.modules:
        # A fork does not inherit the threads of torch's pool, and each process has one core for itself.
        sys.modules["torch"].set_num_threads(1)
    work(pipe)
