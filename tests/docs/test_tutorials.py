"""The tutorials' scripts run as they are on the page, and print what it shows."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.pages import Page, Scripts
from tests.servers import ports

LIMIT = 100.0  # seconds; the machine may be busy with other tests

pytestmark = pytest.mark.slow
Open = Callable[[str], Scripts]


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(Scripts(Page(f"docs/tutorials/{name}.md"), tmp_path))


def test_first_queue_says_hello(scripts: Open) -> None:
    run = scripts("first-queue")
    server, client = run.start("server.py"), run.start("client.py")
    assert client.communicate(timeout=LIMIT)[0] == run.page.output("python client.py")
    assert server.communicate(timeout=LIMIT)[0] == run.page.output("python server.py")


def test_first_queue_sums_arrays_and_ends(scripts: Open) -> None:
    run = scripts("first-queue")
    server, client = run.start("sums.py"), run.start("arrays.py")
    assert client.communicate(timeout=LIMIT)[0] == run.page.output("python arrays.py")
    patient = run.start("patient.py")
    assert patient.stdout is not None
    assert patient.stdout.readline() == "sum: 0\n"
    server.send_signal(signal.SIGINT)
    assert patient.communicate(timeout=LIMIT)[0].splitlines()[-1].startswith("the server has ended")


def test_a_federation_with_torch_learns_the_circle(scripts: Open) -> None:
    pytest.importorskip("torch")
    run = scripts("first-federation")
    aggregator, *devices = [run.start(*line.split()) for line in ("aggregator.py", "device.py left", "device.py right")]
    lines = aggregator.communicate(timeout=LIMIT)[0].splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"round {number}" for number in (10, 20, 30, 40)]
    assert float(lines[-1].split()[-1]) > 0.9
    assert "my points stayed on the left" in devices[0].communicate(timeout=LIMIT)[0]


def test_the_port_from_flower_runs(scripts: Open) -> None:
    run = scripts("from-flower")
    assert run.start("federation.py").communicate(timeout=LIMIT)[0] == run.page.output("python federation.py")
    (run.folder / "client.toml").write_text(*run.page.blocks("toml"))
    check = run.start("-c", "from edge.config import Config; print(Config.load('client.toml').settings)")
    assert check.communicate(timeout=LIMIT)[0] == "{'partition': 0}\n"


@pytest.mark.parametrize("names", [("zmq_server.py", "zmq_worker.py"), ("netq_server.py", "netq_worker.py")])
def test_both_programs_of_from_pyzmq_print_the_same(scripts: Open, names: tuple[str, str]) -> None:
    if "zmq_server.py" in names:
        pytest.importorskip("zmq")
    run = scripts("from-pyzmq")
    port = str(ports.free().port)  # the page's own may be in use here
    for script in map(run.folder.joinpath, names):
        script.write_text(script.read_text().replace("5555", port))
    server, worker = map(run.start, names)
    assert worker.communicate(timeout=LIMIT)[0] == run.page.output("python netq_worker.py")
    assert server.wait(LIMIT) == 0


def test_a_training_script_becomes_a_client(scripts: Open) -> None:
    pytest.importorskip("torch")
    run = scripts("training-script")
    assert run.start("client.py").communicate(timeout=LIMIT)[0].startswith("<Result: 3 rounds, 4 tensors of ")
