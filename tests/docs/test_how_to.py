"""The how-to pages' scripts run as they are on the page; their unit files start programs that exist."""

from __future__ import annotations

import configparser
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from netq.security import certificates
from tests.pages import Page, Scripts

NO_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
LIMIT = 100.0  # seconds; the machine may be busy with other tests

Open = Callable[[str], Scripts]


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(Scripts(Page(f"docs/how-to/{name}.md"), tmp_path))


@pytest.mark.slow
def test_tls_connects_with_the_files_of_the_page(scripts: Open) -> None:
    run = scripts("tls")

    def shell(block: str) -> str:
        for command in block.splitlines():
            program, *arguments = shlex.split(command)
            process = run.start("-m", program, *arguments)
            out, errors = process.communicate(timeout=LIMIT)
            assert (process.returncode, errors) == (0, ""), command
        return out

    def connect() -> str:
        server, client = run.start("server.py"), run.start("client.py")
        assert client.communicate(timeout=LIMIT)[0] == "hello, board\n"
        return str(server.communicate(timeout=LIMIT)[0])

    make, ask, renew, revoke = run.page.blocks("sh")
    shell(make)
    assert "board-8.pem" in shell(ask)
    printed = connect()
    assert NO_ID.sub("…", printed) == NO_ID.sub("…", run.page.output("python server.py"))
    shell(renew)
    assert connect() == printed  # with the same id
    assert "REVOKED" in shell(revoke)
    server, client = run.start("server.py"), run.start("client.py")
    assert client.stderr is not None
    assert any("is revoked" in line for line in client.stderr)  # perhaps after "Connection refused"
    assert (client.poll(), server.poll()) == (None, None)


@pytest.mark.slow
def test_seals_connect_with_the_files_of_the_page(scripts: Open) -> None:
    run = scripts("seal")
    for command in run.page.blocks("sh")[0].splitlines():
        program, *arguments = shlex.split(command)
        process = run.start("-m", program, *arguments)
        assert (process.communicate(timeout=LIMIT)[1], process.returncode) == ("", 0)
    server, client = run.start("server.py"), run.start("client.py")
    assert client.communicate(timeout=LIMIT)[0] == "hello, board\n"
    printed = NO_ID.sub("…", str(server.communicate(timeout=LIMIT)[0]))
    cipher = re.compile("(AES_256_GCM|CHACHA20_POLY1305)")  # this machine's processor decides
    assert cipher.sub("…", printed) == cipher.sub("…", NO_ID.sub("…", run.page.output("python server.py")))


@pytest.mark.slow
def test_serialisers_print_what_the_page_shows(scripts: Open) -> None:
    run = scripts("serialisers")
    server, client = run.start("collector.py"), run.start("sensor.py")
    assert (client.communicate(timeout=LIMIT)[0], client.returncode) == ("", 0)
    assert server.communicate(timeout=LIMIT)[0] == run.page.output("python collector.py")


@pytest.mark.slow
@pytest.mark.parametrize("client", ["awaiting_client.py", "client_in_trio.py"])
def test_clients_in_event_loops_print_what_the_page_shows(scripts: Open, client: str) -> None:
    if "trio" in client:
        pytest.importorskip("trio")
    run = scripts("asyncio")
    server = run.start("awaiting_server.py")
    process = run.start(client)  # it may be first, and log that it tries again
    out = process.communicate(timeout=LIMIT)[0]
    assert (out, process.returncode) == (run.page.output(f"python {client}"), 0)
    assert server.communicate(timeout=LIMIT) == ("", "")


@pytest.mark.slow
def test_exchange_prints_what_the_page_shows(scripts: Open, tmp_path: Path) -> None:
    run = scripts("exchange")
    certificates.init(tmp_path / "certificates")
    (text,) = run.page.blocks("toml")
    plain = text.replace("51966", str(run.port)).partition("[allow.boards]")[0]
    secured = text.replace("51966", "0")
    printed = ""
    for name, content in (("secured.toml", secured), ("plain.toml", plain)):
        (tmp_path / name).write_text(content)
        exchange = run.start("-m", "netq", "exchange", name)
        assert exchange.stderr is not None
        assert any("an exchange waits for clients at 0.0.0.0:" in line for line in exchange.stderr)
        if name == "plain.toml":
            printed = run.start("plant.py").communicate(timeout=LIMIT)[0]
        exchange.send_signal(signal.SIGTERM)
        exchange.communicate(timeout=LIMIT)
        assert exchange.returncode == 0
    assert printed == run.page.output("python plant.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bulletin.py", "asking.py"])
def test_server_of_many_clients_prints_what_the_page_shows(scripts: Open, name: str) -> None:
    run = scripts("many-clients")
    assert run.start(name).communicate(timeout=LIMIT) == (run.page.output(f"python {name}"), "")


@pytest.mark.slow
def test_a_tree_of_relays_prints_what_the_page_shows(scripts: Open) -> None:
    run = scripts("relay")
    out, _ = run.start("tree.py").communicate(timeout=LIMIT)
    assert out == run.page.output("python tree.py")


@pytest.mark.slow
def test_checks_print_what_the_page_shows(scripts: Open) -> None:
    run = scripts("check")
    (device,) = run.page.blocks("toml")
    (run.folder / "client.toml").write_text(device.replace("51966", str(run.port)))
    for command in run.page.blocks("sh")[0].splitlines():
        program, *arguments = shlex.split(command)
        assert run.start("-m", program, *arguments).wait(LIMIT) == 0
    run.start("aggregator.py")
    for block, status in zip(run.page.blocks("console"), (0, 2, 1, 1), strict=True):
        command, _, shown = block.removeprefix("$ ").partition("\n")
        check = run.start("-m", *shlex.split(command))
        out, errors = check.communicate(timeout=LIMIT)
        last = [line for line in errors.splitlines() if line.startswith("edge: ")]
        assert masked("\n".join([*out.splitlines(), *last])) == masked(shown.rstrip())
        assert check.returncode == status


def masked(text: str) -> str:
    """Hide the numbers, and which of two clocks is ahead."""
    return re.sub(r"\d+(\.\d+)?", "#", re.sub("ahead of|behind", "…", text))


DEVICE = """
import fl

fl.Client(lambda model, config: fl.Update(model, 1)).run()
"""


@pytest.mark.slow
def test_checkpoints_continue_a_killed_aggregator(scripts: Open) -> None:
    run = scripts("checkpoints")
    prologue, _, _ = (run.folder / "aggregator.py").read_text().partition("# aggregator.py")
    (run.folder / "device.py").write_text(prologue + DEVICE)
    first, *devices = [run.start(name) for name in ("aggregator.py", "device.py", "device.py")]
    assert first.stdout is not None
    assert first.stdout.readline() == "round 1\n"
    first.send_signal(signal.SIGKILL)
    seen = ["round 1", *first.communicate(timeout=LIMIT)[0].splitlines()]
    second = run.start("aggregator.py").communicate(timeout=LIMIT)[0].splitlines()
    assert second[-1:] == ["round 20"] or seen[-1] == "round 20"
    assert len(set(seen) & set(second)) <= 1  # a round that had counted is not repeated, but for one that was not saved
    assert [device.wait(LIMIT) for device in devices] == [0, 0]


@pytest.mark.slow
def test_compression_saves_bytes(scripts: Open) -> None:
    out, errors = scripts("compression").start("simulated.py").communicate(timeout=LIMIT)
    sizes = [float(line.split(" kB")[0].split()[-1]) for line in out.splitlines()]
    assert len(sizes) == 4, errors
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.slow
def test_ring_sockets_answer_and_the_pure_ring_delivers(scripts: Open) -> None:
    run = scripts("ring")
    server = run.start("ring_server.py")
    assert server.stdout is not None
    assert server.stdout.readline() == "listening\n"
    for name in ("ring_client.py", "pure_ring.py"):
        assert run.start(name).communicate(timeout=LIMIT) == (run.page.output(f"python {name}"), "")
    assert server.wait(LIMIT) == 0


@pytest.mark.slow
def test_the_strategy_gives_each_client_the_same_weight(scripts: Open) -> None:
    run = scripts("strategy")
    assert run.start("uniform.py").communicate(timeout=LIMIT)[0] == run.page.output("python uniform.py")


@pytest.mark.slow
def test_unit_files_start_programs_that_exist(scripts: Open) -> None:
    run = scripts("systemd")
    commands = []
    for block in run.page.blocks("ini"):
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(block)
        commands.append(shlex.split(unit["Service"]["ExecStart"]))
    programs = [[Path(program).name, *words] for program, *words in commands]
    assert programs == [["fl", "serve", "aggregator.toml"]]
    for command in programs:
        assert run.start("-m", *command).wait(LIMIT) == 2  # there is no such file here


@pytest.mark.slow
@pytest.mark.parametrize("script", ["taken", "adapter", "personal"])
def test_models_are_taken_out_and_trained_in_part(scripts: Open, script: str) -> None:
    pytest.importorskip("torch")
    run = scripts("models")
    assert run.start(f"{script}.py").communicate(timeout=LIMIT)[0] == run.page.output(f"python {script}.py")


@pytest.mark.slow
def test_own_callback_sees_clients_and_failures(scripts: Open, tmp_path: Path) -> None:
    run = scripts("callbacks")
    out = run.start("watch.py").communicate(timeout=LIMIT)[0].splitlines()
    assert len([line for line in out if line.endswith(" is here")]) == 3
    assert out[-1] == "OSError: no such disk"


@pytest.mark.slow
def test_statistics_are_those_of_the_page(scripts: Open) -> None:
    run = scripts("statistics")
    server, *hospitals = run.start("server.py"), run.start("hospital.py", "1"), run.start("hospital.py", "2")
    assert server.communicate(timeout=LIMIT)[0] == run.page.output("python server.py")
    assert [hospital.wait(LIMIT) for hospital in hospitals] == [0, 0]
