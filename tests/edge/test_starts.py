"""`edge run` on a bad day: it waits until this has passed, and takes part. Nobody visits a board to start it again."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

import fl
import netq
from edge import __main__ as command
from edge.child import Child
from edge.patience import Patience
from edge.spool import Spool
from edge.supervisor import Supervisor
from fl.envelope import Introduction, Job
from fl.messages import MESSAGES, Reply, Task, Update
from netq.security import certificates
from tests.edge.disks import mounted
from tests.edge.pauses import Pauses
from tests.edge.test_agent import running
from tests.faults.test_time import DAY, FAKETIME, Clock
from tests.pages import ROOT

SOON = 60.0
# clock_nanosleep fails under libfaketime, if that leaves the monotonic clock as it is.
SLEEP = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds)\n"
TRAIN = "from tests.edge.training import train\n"


class Server:
    """A server whose tasks the test sends."""

    def __init__(self, port: int = 0, security: netq.SecurityOptions | None = None) -> None:
        self._sessions: SimpleQueue[uuid.UUID] = SimpleQueue()
        options = netq.CommunicatorOptions(
            netloc=netq.NetworkLocation("127.0.0.1", port),
            serialization=MESSAGES,
            security=security,
            events=netq.EventOptions(ini=self._sessions.put),
        )
        self.queue = netq.new(purpose=netq.Purpose.SERVER, options=options)
        self._client: uuid.UUID | None = None

    def answer(self, number: int = 1) -> object:
        """Give a task to the device, when it is there, and return what it answers."""
        if self._client is None:
            self._client = self._sessions.get(timeout=SOON)
        self.queue.put(Task(Job(7, number, "train"), {"w": np.zeros(3, np.float32)}, {}), self._client)
        while isinstance(reply := self.queue.get(timeout=SOON).data, Introduction):
            pass
        assert isinstance(reply, Reply)
        return reply.content

    def update(self, number: int = 1) -> Update:
        """Give a task to the device, when it is there, and return its update."""
        update = self.answer(number)
        assert isinstance(update, Update), update
        return update


class Device:
    """The file of a device, whose agent is a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}
        self.before: list[str] = []  # words before the command
        self.lines: list[str] = []
        (folder / "farm.py").write_text(TRAIN)

    def write(self, port: int, client: str = "", more: str = "", train: str = "farm:train") -> Path:
        path = self.folder / "client.toml"
        path.write_text(
            f'[server]\nhost = "127.0.0.1"\nport = {port}\n[client]\ntrain = "{train}"\n{client}'
            f"[connection]\nretry_max = 0.1\n[settings]\nmark = '{self.folder / 'mark'}'\n{more}"
        )
        return path

    @contextmanager
    def started(
        self, server: Server, client: str = "", more: str = "", train: str = "farm:train"
    ) -> Iterator[subprocess.Popen[str]]:
        path = self.write(server.queue.netloc.port, client, more, train)
        command = [*self.before, sys.executable, "-m", "edge", "run", str(path)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)]), **self.environment}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            self._process = process
            try:
                yield process
            finally:
                process.kill()

    def wait_for(self, text: str) -> str:
        """Return the next line of the agent's log with this text in it. Fails if the agent ends first."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"ended with status {self._process.wait()}, and without {text!r}: {''.join(self.lines)}")


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.queue.close(0)


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def authority(folder: Path) -> netq.SecurityOptions:
    """Return options of a server that wants certificates of its authority; the device's is there, too."""
    files = certificates.init(folder)
    certificates.issue(folder, "board", days=10)
    own = Path(shutil.copy(files.authority, folder / "of-server.pem"))  # a test breaks the device's
    return netq.SecurityOptions(key=files.key, certificate=files.certificate, authority=own)


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[Server]:
    found = Server(security=authority(tmp_path))
    yield found
    found.queue.close(0)


SECURITY = '[security]\nkey = "board-key.pem"\ncertificate = "board.pem"\nauthority = "authority.pem"\n'


@pytest.fixture
def waiting(
    device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Callable[..., contextlib.AbstractContextManager[fl.Server]]:
    """Run the agent in a thread of this process, with a server of fl; its pauses take no time, and mend the device."""

    @contextmanager
    def waiting(
        *mends: Callable[[int], object], security: netq.SecurityOptions | None = None, **wrong: str
    ) -> Iterator[fl.Server]:
        options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), security=security)
        patience = fl.Patience(deadline=SOON)
        with fl.Server({"w": np.zeros(3, np.float32)}, options, min_clients=1, patience=patience) as server:
            port = server.netloc.port
            pauses = Pauses(*(partial(mend, port) for mend in mends))
            monkeypatch.setattr(command, "Patience", partial(Patience, clock=pauses.clock, sleep=pauses.sleep))
            monkeypatch.syspath_prepend(device.folder)
            arguments = command._parser().parse_args(["run", str(device.write(port, **wrong))])
            with running(command._run, arguments, Supervisor(), False):
                yield server
                server.close()
        assert "not taking part: " in caplog.text
        assert "going on after " in caplog.text

    return waiting


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not start the process that trains: the device gets no task."""
    monkeypatch.setattr(Child, "check", lambda self: None)


Waiting = Callable[..., contextlib.AbstractContextManager[fl.Server]]


def put_right(clock: Clock, device: Device) -> None:
    clock.set(0.0)


def renew(clock: Clock, device: Device) -> None:
    certificates.issue(device.folder, "board", days=100, renew=True)


@pytest.mark.slow
@pytest.mark.skipif(FAKETIME is None, reason="needs libfaketime, as in Debian's package faketime")
@pytest.mark.parametrize(
    ("days", "said", "mend"),
    [
        (-2500, "is not yet valid, but from ", put_right),
        (20, "has expired on ", put_right),
        (20, "has expired on ", renew),
    ],
    ids=["clock before the certificate", "clock after it", "expired, then renewed"],
)
def test_certificate_of_another_day_is_waited_for(
    tls_server: Server, device: Device, days: int, said: str, mend: Callable[[Clock, Device], None]
) -> None:
    (device.folder / "sitecustomize.py").write_text(SLEEP)
    with Clock(device.folder / "clock") as clock:
        clock.set(days * DAY)
        device.environment = clock.environment
        with device.started(tls_server, more=SECURITY):
            line = device.wait_for("not taking part: security.certificate: ")
            assert said in line
            mend(clock, device)
            device.wait_for("going on after ")
            tls_server.update()


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize("name", ["board.pem", "board-key.pem", "authority.pem"])
@pytest.mark.parametrize("how", ["absent", "empty", "half"])
def test_file_that_is_being_replaced_is_waited_for(device: Device, waiting: Waiting, name: str, how: str) -> None:
    security = authority(device.folder)
    path = device.folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:200] if how == "half" else b"")
    if how == "absent":
        path.unlink()

    def replace(port: int) -> None:
        new = path.with_suffix(".new")
        new.write_bytes(whole)
        new.chmod(0o600)
        new.replace(path)

    with waiting(replace, security=security, more=SECURITY) as server:
        server.wait(1, SOON)


@pytest.mark.slow
def test_running_agent_outlives_a_certificate_that_cannot_be_used(tls_server: Server, device: Device) -> None:
    path = device.folder / "board.pem"
    whole = path.read_bytes()
    with device.started(tls_server, more=SECURITY):
        tls_server.update()
        path.write_bytes(b"")
        tls_server.queue.close(SOON)  # the next session has a new communicator
        device.wait_for("not taking part: security.certificate: ")
        path.write_bytes(whole)
        device.wait_for("going on after ")


@pytest.mark.slow
def test_service_with_a_copy_of_an_old_key_ends_to_get_the_new_one(tls_server: Server, device: Device) -> None:
    copy = device.folder / "credentials"
    copy.mkdir()
    shutil.copy(device.folder / "board-key.pem", copy / "security-key")
    device.environment = {
        "CREDENTIALS_DIRECTORY": str(copy),
        "EDGE_SECURITY_KEY": str(copy / "security-key"),
        "NOTIFY_SOCKET": str(device.folder / "absent"),
        "WATCHDOG_USEC": "200000",
    }
    with device.started(tls_server, more=SECURITY) as process:
        tls_server.update()
        certificates.issue(device.folder, "board", renew=True)
        device.wait_for("board-key.pem has changed, and this service has a copy")
        assert process.wait(SOON) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "filler"),
    [("size=64k", bytes(4096)), ("nr_inodes=8", b""), ("ro", None)],
    ids=["full", "no inodes", "read-only"],
)
def test_disk_that_fails_is_no_reason_to_stay_away(
    server: Server, device: Device, options: str, filler: bytes | None
) -> None:
    with mounted(device.folder / "disk", options) as disk:
        if filler is not None:
            fill(disk, filler)
        with device.started(server, 'state = "disk/state"\n', "[training]\nkeep = true\n"):
            assert server.update(1).metrics["count"] == 1
            assert server.update(2).metrics["count"] == 2
            device.wait_for("disk/state: cannot be written (")
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
            for each in disk.glob("filler*"):
                each.unlink()
            assert server.update(3).metrics["count"] == 3
            device.wait_for("disk/state: can be written again")
            assert (disk / "state" / "record").exists()


def fill(disk: Path, filler: bytes) -> None:
    with contextlib.suppress(OSError):
        for number in range(100):
            (disk / f"filler{number}").write_bytes(filler)


@pytest.mark.usefixtures("no_child")
def test_folder_on_a_disk_that_comes_later_is_waited_for(
    device: Device, waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    with waiting(lambda port: (device.folder / "disk").mkdir(), client='state = "disk/state"\n') as server:
        server.wait(1, SOON)
    assert "not taking part: client.state: " in caplog.text
    assert "there is no folder" in caplog.text
    assert (device.folder / "disk/state").exists()


@pytest.mark.usefixtures("no_child")
def test_agent_before_that_is_still_ending_is_waited_for(
    device: Device, waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.ExitStack() as before:
        before.enter_context(Spool(device.folder / "state"))
        with waiting(lambda port: before.close(), client='state = "state"\n') as server:
            server.wait(1, SOON)
    assert "is in use by another agent" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("raise OSError('the sensor does not answer')\n", "raises OSError: the sensor does not answer"),
        ("import os\nos.kill(os.getpid(), 9)\n", "the training process was killed (SIGKILL)"),
        ("raise MemoryError\n", "MemoryError"),
        ("", "farm gives ModuleNotFoundError: No module named 'farm': correct the name, or set PYTHONPATH"),
    ],
)
def test_training_that_cannot_be_imported_yet_is_waited_for(
    device: Device, waiting: Waiting, caplog: pytest.LogCaptureFixture, module: str, said: str
) -> None:
    """Without a text the module is not there: it may lie on a disk that comes later."""
    farm = device.folder / "farm.py"
    farm.unlink()
    if module:
        farm.write_text(module)
    with waiting(lambda port: farm.write_text(TRAIN), more="[training]\nkeep = true\n") as server:
        assert len(server.round().clients) == 1
    (line,) = [
        line for line in caplog.messages if line.startswith("not taking part: the process that trains does not ")
    ]
    assert said in line


@pytest.mark.slow
def test_module_that_is_half_written_while_the_agent_waits(
    device: Device, waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    farm = device.folder / "farm.py"
    farm.unlink()
    mends = [lambda port: farm.write_text(""), lambda port: farm.write_text(TRAIN)]
    with waiting(*mends, more="[training]\nkeep = true\n") as server:
        assert len(server.round().clients) == 1
    assert "not taking part: the process that trains does not start: " in caplog.text
    assert "farm has no train" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [{"train": "fram:train"}, {"client": 'state = "absent/state"\n'}, {"more": "[training]\nmemory = 10\n"}],
    ids=["module", "state", "memory"],
)
def test_file_that_is_corrected_while_the_agent_waits(
    device: Device, waiting: Waiting, caplog: pytest.LogCaptureFixture, wrong: dict[str, str]
) -> None:
    """It is read again, also if it is half written at first, and the agent is not started again."""
    mends = [
        lambda port: (device.folder / "client.toml").write_text('[server]\nhost = "127'),
        lambda port: device.write(port),
    ]
    with waiting(*mends, **wrong) as server:
        assert len(server.round().clients) == 1
    assert caplog.text.count("not taking part: ") == 2


@pytest.mark.slow
def test_training_that_leaves_no_memory_is_told_its_next_task(server: Server, device: Device) -> None:
    """The process that trains takes its orders also when it has no memory left."""
    (device.folder / "farm.py").write_text(
        "import re, resource\n"
        "from tests.edge import training\n"
        "def train(model, config):\n"
        "    update = training.train(model, config)\n"
        "    used = int(re.search(r'VmData:\\s*(\\d+)', open('/proc/self/status').read())[1]) * 1024\n"
        "    resource.setrlimit(resource.RLIMIT_DATA, (used, resource.getrlimit(resource.RLIMIT_DATA)[1]))\n"
        "    return update\n"
    )
    with device.started(server, more="[training]\nkeep = true\n") as process:
        for number in (1, 2):
            assert str(server.answer(number)).startswith("MemoryError: ")
        process.terminate()
        assert process.stderr is not None
        assert "recv" not in process.stderr.read()


@pytest.mark.slow
def test_absent_driver_is_waited_for(server: Server, device: Device) -> None:
    """This machine gets no thermal zone meanwhile: only that the agent waits is seen."""
    if any(Path("/sys/class/thermal").glob("thermal_zone*")):
        pytest.skip("this machine has a thermal zone")
    with device.started(server, more="[fit]\nmax_temperature = 75\n") as process:
        device.wait_for("not taking part: fit.max_temperature: this machine has no thermal zone")
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON) == 0


@pytest.mark.slow
def test_descriptors_that_cannot_be_had_are_waited_for(server: Server, device: Device) -> None:
    device.before = ["prlimit", "--nofile=6:100"]
    with device.started(server, more="[training]\nkeep = false\n") as process:  # a process that stays has its limits
        device.wait_for("not taking part: [Errno 24] Too many open files")
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (100, 100))
        server.update()
