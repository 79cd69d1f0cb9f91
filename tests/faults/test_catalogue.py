"""What went wrong in a federation of hospitals, and what a user of fl and edge sees of it.

The failures are those that KatherLab/MediSwarm has published of its runs (docs/SWARM_FAILURE_MODES.md there): a slow
site, a lost tunnel, a stale certificate and so on. In each test the rounds go on with the others, no other client is
blamed, the affected one is named with the reason, and it takes part again without a restart of the federation.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

import edge
import fl
import netq
from fl.callbacks import jsonl
from fl.properties import title
from netq import NetworkLocation
from netq.security import certificates
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.faults import site
from tests.faults.conftest import Figure
from tests.fl.federation import IDS, QUICK, SHORT, SOON, A, B, C, D, Federation, adds, at, gives
from tests.pages import ROOT

pytestmark = pytest.mark.slow

LIMIT = 60.0  # seconds for steps that take one or two: a machine may be busy
PATIENT = 2.0  # seconds: a deadline that a quick training meets, also on a busy machine
DOWN = replace(QUICK, heartbeat=0.2, misses=3, handshake_timeout=1.0)  # notices a silent path soon
HERE = site.__name__

Proxies = Callable[[NetworkLocation], Proxy]


class States(fl.Callback):
    """The states of each client, in their order."""

    def __init__(self) -> None:
        self.of: dict[uuid.UUID, list[fl.ClientState]] = defaultdict(list)

    def client_is(self, client: uuid.UUID, state: fl.ClientState, size: int) -> None:
        self.of[client].append(state)


class Gate:
    """A pipe at which trainings wait."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gate"
        os.mkfifo(self.path)
        self._end: BinaryIO | None = None

    def wait_begun(self) -> None:
        """Return when a training waits."""
        self._end = self.path.open("wb")

    def open(self) -> None:
        """Let it go on, and all later ones."""
        assert self._end is not None
        self.path.unlink()
        self._end.close()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


@pytest.fixture
def agents() -> Iterator[LogRecorder]:
    """Listen to the logger of the agents."""
    with LogRecorder("edge") as log:
        yield log


def device(
    federation: Federation, folder: Path, train: str = "train", netloc: NetworkLocation | None = None, **options: Any
) -> Future[None]:
    """Start the agent of site C. What is in `settings` of the options, its training gets."""
    fields: dict[str, Any] = {
        "id": C,
        "connection": QUICK,
        "state": folder / "state",
        "training": edge.Limits(seconds=LIMIT),
        **options,
    }
    config = edge.Config(netloc or federation.server.netloc, train=f"{HERE}:{train}", **fields)
    return federation.start(edge.run, config)


def others(federation: Federation) -> None:
    """Start two sites without a fault."""
    federation.join(A, gives(2))
    federation.join(B, gives(4))


def until_counts(federation: Federation) -> fl.RoundReport:
    """Run rounds until the update of C is in the model, and the others' in each."""
    end = time.monotonic() + LIMIT
    while C not in (report := federation.server.round()).clients:
        assert {A, B} <= set(report.clients)
        assert time.monotonic() < end
    assert {A, B} <= set(report.clients)
    return report


def poll(true: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def shown(federation: Federation, stage: fl.Stage, why: str, *, suspended: bool = False) -> float:
    """Wait until the page, `fl status` and `members()` show site C so. Return the seconds."""
    begin = time.monotonic()

    def is_shown() -> bool:
        (found,) = [each for each in federation.server.members() if each.id == C]
        return (found.stage, found.suspended) == (stage, suspended) and re.search(why, found.reason) is not None

    poll(is_shown)
    return time.monotonic() - begin


def turned_away(federation: Federation, why: str) -> None:
    """Wait until they show a connection from this machine that was turned away."""
    poll(lambda: any(why in each.reason and "127.0.0.1:" in each.address for each in federation.server.refusals))


# Sites that are slow


def test_update_of_a_slow_site_counts_when_it_comes(tmp_path: Path, gate: Gate, figure: Figure) -> None:
    """It works longer than the deadline. The server says that it is late, and its connection says that it lives."""
    states = States()
    strategy = fl.FedAvg(staleness=fl.polynomial())
    with Federation(strategy=strategy, deadline=PATIENT, callbacks=[states]) as federation:
        others(federation)
        device(federation, tmp_path, "gated", settings={"gate": str(gate.path)})
        federation.server.wait(3, LIMIT)
        first = federation.server.round()
        assert set(first.clients) == {A, B}
        assert first.failures == {
            C: fl.ClientFailure(fl.FailureKind.LATE, f"no answer within {PATIENT:g} s (deadline)")
        }
        shown(federation, fl.Stage.TRAINING, r"no answer within 2 s \(deadline\)")
        gate.wait_begun()
        assert federation.server.statistics()[C].connected
        second = federation.server.round()
        assert (set(second.clients), second.failures, second.suspended) == ({A, B}, {}, ())
        gate.open()
        report = until_counts(federation)
        assert report.staleness[C] == report.number - 1
        assert report.client_metrics[C]["count"] == 1
        assert states.of[C][:2] == [fl.ClientState.TRAINING, fl.ClientState.FAILED]
        assert fl.ClientState.DONE in states.of[C]
        figure("slow site", f"late after {first.seconds:.2f} s (deadline {PATIENT:g} s); no further round waits for it")


def test_answer_to_an_old_round_ends_nothing(tmp_path: Path, gate: Gate, log: LogRecorder, figure: Figure) -> None:
    with Federation(deadline=PATIENT, suspend_after=100) as federation:
        others(federation)
        device(federation, tmp_path, "gated", settings={"gate": str(gate.path)})
        federation.server.wait(3, LIMIT)
        first = federation.server.round()
        assert (set(first.clients), first.failures[C].why) == ({A, B}, fl.FailureKind.LATE)
        gate.wait_begun()
        gate.open()
        report = until_counts(federation)
        log.wait(f"{title(C)}: its answer to round 1 (train) is not waited for (any more)")
        figure("answer to an old round", f"dropped with a line; counts in round {report.number}")


def test_site_that_starts_late_takes_part_from_the_next_round_on(log: LogRecorder, figure: Figure) -> None:
    with Federation() as federation:
        begun, go_on = threading.Event(), threading.Event()

        def train(model: Any, config: Mapping[str, Any]) -> Any:
            begun.set()
            assert go_on.wait(LIMIT)
            return gives(2)(model, config)

        federation.join(A, train)
        federation.join(B, gives(4))
        running = federation.start(federation.server.round)
        assert begun.wait(LIMIT)
        federation.join(C, gives(6))
        federation.server.wait(3, LIMIT)
        shown(federation, fl.Stage.READY, "^$")  # it has joined, and has no task
        go_on.set()
        report = running.result(LIMIT)
        assert (set(report.clients), report.failures) == ({A, B}, {})
        assert set(federation.server.round().clients) == {A, B, C}


def test_first_round_waits_for_the_slowest_to_start(log: LogRecorder) -> None:
    with Federation(wait=3) as federation:
        others(federation)
        running = federation.start(federation.server.round)
        log.wait("waiting for clients: 2 of 3 are connected")
        federation.join(C, gives(6))
        assert set(running.result(LIMIT).clients) == {A, B, C}


def test_registered_asked_failed_and_counted_clients_are_told_apart() -> None:
    states = States()
    with Federation(deadline=PATIENT, callbacks=[states]) as federation:
        go_on = threading.Event()

        def slow(model: Any, config: Mapping[str, Any]) -> Any:
            assert go_on.wait(LIMIT)
            return gives(2)(model, config)

        def fails(model: Any, config: Mapping[str, Any]) -> Any:
            federation.join(visitor, gives(8))
            federation.server.wait(5, LIMIT)
            raise OSError("the sensor does not answer")

        visitor = uuid.UUID(int=5)
        others(federation)
        federation.join(C, slow)
        federation.join(D, fails)
        federation.server.wait(4, LIMIT)
        report = federation.server.round()
        stages = {each.id: each.stage for each in federation.server.members()}
        counted = dict.fromkeys((A, B), fl.Stage.DONE)
        assert stages == {**counted, C: fl.Stage.LATE, D: fl.Stage.FAILED, visitor: fl.Stage.READY}
        go_on.set()
        assert set(federation.server.clients) == {A, B, C, D, visitor}
        assert set(report.clients) == {A, B}
        assert {peer: failure.why for peer, failure in report.failures.items()} == {
            C: fl.FailureKind.LATE,
            D: fl.FailureKind.FAILED,
        }
        training, done, failed = fl.ClientState.TRAINING, fl.ClientState.DONE, fl.ClientState.FAILED
        assert states.of == {A: [training, done], B: [training, done], C: [training, failed], D: [training, failed]}
        assert str(report).startswith("round 1: 2 clients, 2 failed, ")


# Sites whose training fails


def test_site_without_its_accelerator_is_suspended_until_it_is_back(
    tmp_path: Path, log: LogRecorder, figure: Figure
) -> None:
    fault, states = tmp_path / "fault", States()

    def as_slow(model: Any, config: Mapping[str, Any]) -> Any:
        poll(lambda: states.of[C][-1:] != [fl.ClientState.TRAINING])
        return gives(2)(model, config)

    with Federation(suspend_after=2, callbacks=[states]) as federation:
        federation.join(A, as_slow)
        federation.join(B, gives(4))
        device(
            federation,
            tmp_path,
            "without_accelerator",
            training=edge.Limits(keep=True, seconds=LIMIT),
            settings={"fault": str(fault)},
        )
        federation.server.wait(3, LIMIT)
        first = federation.server.round()
        assert (set(first.clients), first.failures) == ({A, B, C}, {})
        fault.touch()
        reports = [federation.server.round() for _ in range(5)]
        assert all(set(report.clients) == {A, B} for report in reports)
        failure = fl.ClientFailure(fl.FailureKind.FAILED, "RuntimeError: Failed to initialize NVML: Unknown Error")
        assert [report.failures for report in reports] == [{C: failure}] * 2 + [{}] * 3
        assert [report.suspended for report in reports] == [()] + [(C,)] * 4
        assert "0 failed, 1 suspended" in str(reports[-1])
        assert states.of[C][-1] is fl.ClientState.SUSPENDED
        log.wait(f"{title(C)}: suspended: no good answer to 2 of its last 16 trainings")
        assert federation.server.statistics()[C].connected
        shown(federation, fl.Stage.FAILED, "NVML: Unknown Error", suspended=True)
        fault.unlink()
        report = until_counts(federation)
        assert report.client_metrics[C]["pid"] != first.client_metrics[C]["pid"], "the driver is opened anew"
        figure(
            "accelerator vanishes",
            f"failed after {reports[0].seconds:.2f} s, suspended in round 3; counts in round {report.number}",
        )


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("training", "the training process was ended by SIGBUS"),
        ("worker", r"RuntimeError: DataLoader worker \(pid \d+\) is killed by signal: SIGBUS"),
    ],
    ids=["training", "worker"],
)
def test_bus_error_is_the_reason_of_a_failure(tmp_path: Path, figure: Figure, where: str, reason: str) -> None:
    fault = tmp_path / "fault"
    fault.touch()
    with Federation() as federation:
        others(federation)
        device(federation, tmp_path, "bus_error", settings={"fault": str(fault), "where": where})
        federation.server.wait(3, LIMIT)
        report = federation.server.round()
        assert set(report.clients) == {A, B}
        assert report.failures.keys() == {C}
        assert report.failures[C].why is fl.FailureKind.FAILED
        assert re.fullmatch(reason, str(report.failures[C]))
        shown(federation, fl.Stage.FAILED, reason)
        fault.unlink()
        assert set(federation.server.round().clients) == {A, B, C}
        figure(f"bus error of the {where}", f"failed after {report.seconds:.2f} s; counts in the next round")


def test_data_that_may_not_be_read_is_named(tmp_path: Path, figure: Figure) -> None:
    data = tmp_path / "scans"
    data.touch(mode=0o600)
    with Federation() as federation:
        others(federation)
        device(federation, tmp_path, "reading", settings={"data": str(data)})
        federation.server.wait(3, LIMIT)
        report = federation.server.round()
        reason = f"PermissionError: [Errno 13] Permission denied: '{data}'"
        assert report.failures == {C: fl.ClientFailure(fl.FailureKind.FAILED, reason)}
        assert set(report.clients) == {A, B}
        shown(federation, fl.Stage.FAILED, "Permission denied")
        figure("data may not be read", f"failed after {report.seconds:.2f} s")


# Files of a site


KEPT = "[training]\nkeep = true\n"  # one process for all trainings of a site


@contextlib.contextmanager
def process(
    netloc: NetworkLocation,
    folder: Path,
    train: str = "train",
    *before: str,
    id: uuid.UUID | None = C,
    more: str = "",
    **settings: str,
) -> Iterator[subprocess.Popen[str]]:
    """Run the agent of a site as a process of its own, with its state in `folder / "state"`.

    before: a command that runs the agent. more: tables of its file.
    """
    path, name = folder / "client.toml", train if ":" in train else f"{HERE}:{train}"
    path.write_text(
        f'[server]\nhost = "{netloc.host}"\nport = {netloc.port}\n[client]\ntrain = "{name}"\nstate = "state"\n'
        + ("" if id is None else f'id = "{id}"\n')
        + f"[connection]\nretry_max = 0.1\n{more}[settings]\n"
        + "".join(f"{name} = '{value}'\n" for name, value in settings.items())
    )
    command = [*before, sys.executable, "-m", "edge", "run", str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as made:
        try:
            yield made
        finally:
            made.kill()


def read_only(folder: Path) -> list[str]:
    """Return the beginning of a command that sees this folder as an empty one on a read-only mount."""
    folder.mkdir()
    script = 'mount -t tmpfs -o ro none "$1" && shift && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(folder)]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("mount namespaces need root, and unshare of util-linux")
    return command


def line_of(agent: subprocess.Popen[str], text: str) -> str:
    """Wait for a line on stderr that contains a text."""
    assert agent.stderr is not None
    read = []
    for line in agent.stderr:
        read.append(line)
        if text in line:
            return line
    raise AssertionError(read)


def test_site_starts_again_over_the_lock_of_a_killed_agent(
    tmp_path: Path, gate: Gate, log: LogRecorder, figure: Figure
) -> None:
    """It gets the task of the running round again: a lock belongs to a process, not to a file."""
    connection = replace(QUICK, takeover_grace=0.1)
    with Federation(connection=connection, grace=LIMIT, deadline=LIMIT) as federation:
        others(federation)
        with process(federation.server.netloc, tmp_path, "gated", gate=str(gate.path)) as agent:
            federation.server.wait(3, LIMIT)
            running = federation.start(federation.server.round)
            gate.wait_begun()
            agent.send_signal(signal.SIGKILL)
            killed = time.monotonic()
        gate.open()
        (tmp_path / "state" / "lock").write_text(f"{os.getpid()}\n")  # as a file with the id of a process, which lives
        (tmp_path / "state" / "record.new").write_bytes(b"half a record")
        with process(federation.server.netloc, tmp_path, "gated", gate=str(gate.path)):
            report = running.result(LIMIT)
            figure("lock file left behind", f"in the same round, {time.monotonic() - killed:.1f} s after the kill")
            assert (set(report.clients), report.failures) == ({A, B, C}, {})
            log.wait(f"{title(C)}: was started again, and gets its task again")
            federation.server.close(SOON)


def test_state_on_a_read_only_mount_is_named_and_keeps_no_site_away(tmp_path: Path, figure: Figure) -> None:
    with Federation() as federation:
        others(federation)
        begin = time.monotonic()
        with process(federation.server.netloc, tmp_path, "train", *read_only(tmp_path / "state")) as agent:
            line = line_of(agent, "Read-only file system")
            figure("state on a read-only mount", f"one line after {time.monotonic() - begin:.1f} s; takes part")
            assert f"{tmp_path / 'state'}: cannot be written" in line
            assert set(three(federation).clients) == {A, B, C}
            federation.server.close(SOON)


def test_cache_on_a_read_only_mount_is_the_reason_of_a_failure(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with Federation() as federation:
        others(federation)
        with process(federation.server.netloc, tmp_path, "caching", *read_only(cache), cache=str(cache)):
            report = three(federation)
            reason = f"OSError: [Errno 30] Read-only file system: '{cache / 'scans'}'"
            assert set(report.clients) == {A, B}
            assert report.failures == {C: fl.ClientFailure(fl.FailureKind.FAILED, reason)}
            shown(federation, fl.Stage.FAILED, "Read-only file system")
            federation.server.close(SOON)


def three(federation: Federation) -> fl.RoundReport:
    """Run a round when all three sites are connected."""
    federation.server.wait(3, LIMIT)
    return federation.server.round()


# Paths to the sites


@pytest.mark.parametrize("how", ["cut", "silent"])
def test_update_that_is_finished_during_an_outage_counts_in_its_round(
    tmp_path: Path, gate: Gate, proxies: Proxies, log: LogRecorder, agents: LogRecorder, figure: Figure, how: str
) -> None:
    with Federation(connection=DOWN, grace=LIMIT) as federation, path_to(federation, proxies) as path:
        others(federation)
        device(federation, tmp_path, "gated", path.netloc, connection=DOWN, settings={"gate": str(gate.path)})
        federation.server.wait(3, LIMIT)
        running = federation.start(federation.server.round)
        gate.wait_begun()
        take_down(path, how)
        seconds = shown(federation, fl.Stage.LOST, "no connection for")
        gate.open()
        agents.wait("the reply is stored")
        assert not running.done()
        bring_up(path)
        back = time.monotonic()
        report = running.result(LIMIT)
        again = f"in its round, {time.monotonic() - back:.2f} s after the path is back"
        figure(f"outage of a path, {how}", f"shown after {seconds:.2f} s; {again}")
        assert (set(report.clients), report.failures) == ({A, B, C}, {})
        assert report.client_metrics[C]["count"] == 1
        assert log.having(f"{C}: lost (")
        assert log.having("; trying again until it answers")


@pytest.mark.parametrize(
    ("options", "grace", "reason"),
    [
        ({}, SHORT, r"no connection for \d\.\d s \(grace 0\.4 s\)"),
        ({"session_timeout": SHORT}, LIMIT, "it has gone"),
    ],
    ids=["longer than grace", "longer than its session"],
)
def test_site_that_was_away_for_long_is_back_in_the_next_round(
    tmp_path: Path,
    gate: Gate,
    proxies: Proxies,
    log: LogRecorder,
    figure: Figure,
    request: pytest.FixtureRequest,
    options: dict[str, Any],
    grace: float,
    reason: str,
) -> None:
    connection = replace(QUICK, **options)
    with Federation(connection=connection, grace=grace) as federation, path_to(federation, proxies) as path:
        others(federation)
        device(federation, tmp_path, "gated", path.netloc, connection=connection, settings={"gate": str(gate.path)})
        federation.server.wait(3, LIMIT)
        running = federation.start(federation.server.round)
        gate.wait_begun()
        take_down(path, "cut")
        report = running.result(LIMIT)
        assert (set(report.clients), report.failures.keys()) == ({A, B}, {C})
        assert report.failures[C].why is fl.FailureKind.LOST
        assert re.fullmatch(reason, str(report.failures[C]))
        second = federation.server.round()
        assert (set(second.clients), second.failures) == ({A, B}, {})
        gate.open()
        bring_up(path)
        back = time.monotonic()
        again = until_counts(federation)
        seconds = time.monotonic() - back
        figure(
            f"outage {request.node.callspec.id}",
            f"lost after {report.seconds:.2f} s; counts in round {again.number}, {seconds:.2f} s after its end",
        )
        if not options:
            log.wait(f"{title(C)}: its answer to round 1 (train) is not waited for (any more)")


@contextlib.contextmanager
def path_to(federation: Federation, proxies: Proxies) -> Iterator[Proxy]:
    """Return a path to the server. It is up at the end: a client needs it to be told the end of the federation."""
    path = proxies(federation.server.netloc)
    try:
        yield path
    finally:
        bring_up(path)


def take_down(path: Proxy, how: str) -> None:
    if how == "cut":
        path.refusing = True
        path.cut()
    else:
        path.hold()


def bring_up(path: Proxy) -> None:
    path.refusing = False
    path.release()


def test_site_that_loses_its_link_between_two_rounds_is_in_the_next_one(proxies: Proxies, log: LogRecorder) -> None:
    with Federation(grace=LIMIT) as federation, path_to(federation, proxies) as path:
        others(federation)
        federation.start(fl.Client(gives(6)).run, at(path.netloc, C))
        assert set(three(federation).clients) == {A, B, C}
        take_down(path, "cut")
        poll(lambda: not federation.server.statistics()[C].connected)
        running = federation.start(federation.server.round)
        log.wait("round 2: train", 2)
        bring_up(path)
        report = running.result(LIMIT)
        assert (set(report.clients), report.failures) == ({A, B, C}, {})


def test_round_says_which_sites_of_the_last_one_it_lacks(proxies: Proxies, log: LogRecorder) -> None:
    with Federation(grace=0.0) as federation, path_to(federation, proxies) as path:
        others(federation)
        federation.start(fl.Client(gives(6)).run, at(path.netloc, C))
        assert set(three(federation).clients) == {A, B, C}
        take_down(path, "cut")
        poll(lambda: not federation.server.statistics()[C].connected)
        reports = [federation.server.round() for _ in range(2)]
        assert [set(report.clients) for report in reports] == [{A, B}] * 2
        line = f"round 2 begins without 1 of the 3 clients of the last one: {title(C)}"
        assert len(log.having("begins without")) == 1
        assert log.having(line)
        bring_up(path)
        until_counts(federation)


def test_outage_of_several_sites_while_they_send_costs_no_update(proxies: Proxies, log: LogRecorder) -> None:
    """A gateway resets the links of all its sites, each in the middle of its update."""
    size = 1_000_000  # elements: 4 MB, so that some updates are on their way
    model = {"w": np.zeros(size, np.float32)}
    sites = IDS[1:]
    with Federation(model, grace=LIMIT, deadline=LIMIT) as federation, path_to(federation, proxies) as gateway:
        federation.join(A, adds(1))
        for value, id in enumerate(sites, 2):
            federation.start(fl.Client(adds(value)).run, at(gateway.netloc, id))
        federation.server.wait(4, LIMIT)
        gateway.bandwidth = 20e6
        models = len(sites) * 4 * size
        gateway.reset_after(models + models // 3)  # all the models have passed, and a third of the updates
        report = federation.server.round()
        assert (set(report.clients), report.failures) == (set(IDS), {})
        assert len([id for id in sites if log.having(f"{id}: lost (")]) == len(sites)
        assert set(federation.w) == {2.5}


def test_rounds_go_on_with_who_is_left_of_a_long_outage_of_several_sites(proxies: Proxies, figure: Figure) -> None:
    with Federation(grace=0.0, void_pause=0.01) as federation, path_to(federation, proxies) as gateway:
        begun, go_on = threading.Barrier(3), threading.Event()

        def train(model: Any, config: Mapping[str, Any]) -> Any:
            if config["round"] == 1 and not go_on.is_set():
                begun.wait(LIMIT)
                assert go_on.wait(LIMIT)
            return gives(6)(model, config)

        others(federation)
        for id in (C, D):
            federation.start(fl.Client(train).run, at(gateway.netloc, id))
        federation.server.wait(4, LIMIT)
        running = federation.start(federation.server.round)
        begun.wait(LIMIT)
        take_down(gateway, "cut")
        report = running.result(LIMIT)
        assert set(report.clients) == {A, B}
        assert {peer: failure.why for peer, failure in report.failures.items()} == dict.fromkeys(
            (C, D), fl.FailureKind.LOST
        )
        assert set(federation.server.round().clients) == {A, B}
        go_on.set()
        bring_up(gateway)
        back = time.monotonic()
        federation.server.wait(4, LIMIT)
        report = federation.server.round()
        assert set(report.clients) == set(IDS)
        figure("outage of several sites", f"all in round {report.number}, {time.monotonic() - back:.2f} s after")


# Sites and servers that end


def test_dead_site_is_waited_for_once(tmp_path: Path, gate: Gate, figure: Figure) -> None:
    with Federation(grace=SHORT) as federation:
        others(federation)
        with process(federation.server.netloc, tmp_path, "gated", gate=str(gate.path)) as agent:
            federation.server.wait(3, LIMIT)
            running = federation.start(federation.server.round)
            gate.wait_begun()
            agent.kill()
            seconds = shown(federation, fl.Stage.LOST, "no connection for")
        report = running.result(LIMIT)
        assert (set(report.clients), report.failures.keys()) == ({A, B}, {C})
        assert report.failures[C].why is fl.FailureKind.LOST
        later = [federation.server.round() for _ in range(3)]
        assert [(set(each.clients), each.failures) for each in later] == [({A, B}, {})] * 3
        gate.open()
        lost = f"lost after {report.seconds:.2f} s (grace {SHORT:g} s)"
        figure("dead site", f"shown after {seconds:.2f} s; {lost}; no further round waits for it")


def test_site_that_crashes_at_its_start_holds_nothing(tmp_path: Path, figure: Figure) -> None:
    (tmp_path / "crashing.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    with Federation() as federation:
        others(federation)
        begin = time.monotonic()
        with process(federation.server.netloc, tmp_path, "crashing:train") as agent:
            line_of(agent, "the process that trains does not start: the training process was killed (SIGKILL)")
            figure("crash at the start", f"one line after {time.monotonic() - begin:.1f} s")
        assert set(federation.round(2).clients) == {A, B}
        with process(federation.server.netloc, tmp_path):
            assert set(three(federation).clients) == {A, B, C}
            federation.server.close(SOON)


SERVER = """
import sys
import numpy as np
import fl, netq

options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
model = {"w": np.zeros(3, np.float32)}
with fl.Server(model, options, wait=2, checkpoint=sys.argv[1]) as server:
    print(server.netloc.port, flush=True)
    for report in server.rounds(9):
        pass
"""


def test_sites_of_a_killed_server_go_on_with_its_successor(tmp_path: Path, figure: Figure) -> None:
    """It is killed while they train. No site is started again."""
    path, gates = tmp_path / "federation.ckpt", {}
    for id in (A, B):
        (folder := tmp_path / str(id)).mkdir()
        gates[id] = Gate(folder)
    command = [sys.executable, "-c", SERVER, str(path)]
    with contextlib.ExitStack() as stack:
        killed = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(killed.kill)
        assert killed.stdout is not None
        netloc = NetworkLocation("127.0.0.1", int(killed.stdout.readline()))
        for id, gate in gates.items():
            folder, settings = gate.path.parent, {"gate": str(gate.path)}
            stack.enter_context(process(netloc, folder, "gated_later", id=id, more=KEPT, **settings))
        for gate in gates.values():
            gate.wait_begun()
        killed.kill()
        killed.wait(LIMIT)
        for gate in gates.values():
            gate.open()
        begin = time.monotonic()
        with fl.Server.resume(path, at(netloc), wait=2, min_clients=2, patience=fl.Patience(deadline=LIMIT)) as server:
            report = server.round()
            figure("server killed", f"round 2 is done {time.monotonic() - begin:.2f} s after the next server's start")
            assert (report.number, set(report.clients), report.failures) == (2, {A, B}, {})
            assert [metrics["count"] for metrics in report.client_metrics.values()] == [3] * 2, "they train again"


def test_failures_of_single_sites_cost_the_others_nothing(proxies: Proxies) -> None:
    """In one round a training raises, a link is cut, and an answer is to another round than the task."""
    with Federation(grace=LIMIT) as federation, path_to(federation, proxies) as path:

        def fails(model: Any, config: Mapping[str, Any]) -> Any:
            if config["round"] == 2:
                raise RuntimeError("CUDA error: unspecified launch failure")
            return gives(6)(model, config)

        def drops(model: Any, config: Mapping[str, Any]) -> Any:
            if config["round"] == 2:
                path.reset()
            return gives(8)(model, config)

        others(federation)
        federation.join(C, fails)
        federation.start(fl.Client(drops).run, at(path.netloc, D))
        federation.server.wait(4, LIMIT)
        first, second, third = federation.server.rounds(3)
        assert set(first.clients) == set(third.clients) == set(IDS)
        assert set(second.clients) == {A, B, D}
        reason = "RuntimeError: CUDA error: unspecified launch failure"
        assert second.failures == {C: fl.ClientFailure(fl.FailureKind.FAILED, reason)}


# Two processes with one identity


def test_second_agent_of_a_state_folder_is_refused(tmp_path: Path) -> None:
    with Federation() as federation:
        others(federation)
        device(federation, tmp_path)
        federation.server.wait(3, LIMIT)
        with process(federation.server.netloc, tmp_path) as agent:
            assert "is in use by another agent" in line_of(agent, "client.state")
        assert set(three(federation).clients) == {A, B, C}


def test_second_process_of_an_id_waits_for_the_end_of_the_first(
    tmp_path: Path, log: LogRecorder, figure: Figure
) -> None:
    """The first one stands still for a while, and the second one has its place from then on: they do not alternate."""
    (tmp_path / "other").mkdir()
    with Federation(connection=replace(DOWN, takeover_grace=0.1), grace=LIMIT) as federation:
        others(federation)
        with process(federation.server.netloc, tmp_path, more=KEPT) as agent:
            first = [three(federation).client_metrics[C]["count"]]
            device(federation, tmp_path / "other", training=edge.Limits(keep=True, seconds=LIMIT))
            log.wait(f"the id {C} is in use by another client")
            turned_away(federation, "is in use by another client")
            first += [federation.server.round().client_metrics[C]["count"] for _ in range(2)]
            assert first == [1, 2, 3]
            agent.send_signal(signal.SIGSTOP)
            begin = time.monotonic()
            log.wait("has taken over this id")
            assert until_counts(federation).client_metrics[C]["count"] == 1
            figure(
                "two agents of one id", f"the second takes over {time.monotonic() - begin:.1f} s after the first stops"
            )
            agent.send_signal(signal.SIGCONT)
            line_of(agent, "another process")
            second = [federation.server.round().client_metrics[C]["count"] for _ in range(2)]
            assert second == [2, 3]


# Certificates and metrics


@pytest.mark.parametrize(
    ("trusted", "at_server", "at_site"),
    [
        (
            "old",
            "a client refused this side of the TLS connection: unknown ca",
            "the certificate of the server 127.0.0.1 is refused: self-signed certificate",
        ),
        (
            "new",
            "the certificate of a client is refused: unable to get local issuer certificate",
            "the server 127.0.0.1 refused this side of the TLS connection: unknown ca",
        ),
    ],
    ids=["old", "new"],
)
def test_certificate_of_a_replaced_authority_is_in_both_logs(
    tmp_path: Path, log: LogRecorder, figure: Figure, trusted: str, at_server: str, at_site: str
) -> None:
    """New files end it, without a restart. `trusted`: which of the two authorities the site itself trusts."""
    folder, board = tmp_path / "certificates", tmp_path / "board"
    board.mkdir()
    certificates.init(folder)
    files = certificates.issue(folder, "board")
    install(files, board)
    certificates.init(folder, overwrite=True)
    if trusted == "new":
        shutil.copy(files.authority, board)
    good = [certificates.issue(folder, name) for name in ("north", "south")]
    ids = {entry.name: entry.id for entry in certificates.show(folder) if entry.id is not None}
    security = netq.SecurityOptions(folder / "server-key.pem", folder / "server.pem", files.authority)
    table = '[security]\nauthority = "authority.pem"\nkey = "board-key.pem"\ncertificate = "board.pem"\n'
    with Federation(security=security) as federation:
        netloc = federation.server.netloc
        for name, (authority, key, certificate) in zip(("north", "south"), good, strict=True):
            own = replace(at(netloc, ids[name]), security=netq.SecurityOptions(key, certificate, authority))
            federation.start(fl.Client(gives(2)).run, own)
        begin = time.monotonic()
        with process(netloc, board, id=None, more=table) as agent:
            turned_away(federation, at_server)
            seconds = time.monotonic() - begin
            line = line_of(agent, at_site)
            assert f"{netloc.host}:{netloc.port}: " in line
            assert "trying again until it answers" in line
            log.wait(at_server, 3)
            (line,) = log.having(at_server, logging.WARNING)
            assert line.startswith("127.0.0.1:")
            assert set(federation.round(2).clients) == {ids["north"], ids["south"]}
            assert ids["board"] not in federation.server.statistics()
            begin = time.monotonic()
            install(certificates.issue(folder, "board", renew=True), board)
            federation.server.wait(3, LIMIT)
            again = f"connected {time.monotonic() - begin:.2f} s after the new files"
            figure(f"stale certificate, {trusted} trust", f"shown {seconds:.1f} s after its start; {again}")
            assert set(federation.server.round().clients) == {ids["north"], ids["south"], ids["board"]}
            federation.server.close(SOON)


def install(files: certificates.Files, folder: Path) -> None:
    """Copy the files of a site to it."""
    for file in files:
        shutil.copy(file, folder)


@pytest.mark.parametrize("is_first", [True, False])
def test_metrics_of_each_site_are_in_the_file_in_any_order_of_callbacks(tmp_path: Path, is_first: bool) -> None:
    path = tmp_path / "rounds.jsonl"
    callbacks = [jsonl.JsonLines(path, client_metrics=True), fl.EarlyStopping("loss", patience=1, lowest=True)]
    with Federation(callbacks=callbacks if is_first else callbacks[::-1]) as federation:
        federation.join(A, gives(2, loss=0.5))
        federation.join(B, gives(4, loss=1.5))
        *_, last = federation.server.rounds(9)
        assert last.number == 2
        found = jsonl.read(path)[-1]
    assert found.pop("time") > 0
    assert found == jsonl.record(last, client_metrics=True)
    assert found["client_metrics"] == {str(A): {"loss": 0.5}, str(B): {"loss": 1.5}}
