"""The device's TOML file: what it gives when it is right, and what is said when it is not."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path

import pytest

import edge
from edge.__main__ import main
from edge.config import KEYS
from edge.machine import Machine
from netq.errors import InvalidOption
from netq.options import ConnectionOptions, MqttOptions, NetworkLocation, Protocol, SealOptions, SecurityOptions
from netq.security import certificates
from tests.pages import Page
from tests.programs.in_process import own_process

SERVER = '[server]\nhost = "10.0.0.1"\nport = 51966\n'
ID = uuid.UUID("7a9c1f0e-52a4-4c1b-9d55-0a4f6a1d2b3c")


def write(folder: Path, text: str) -> Path:
    path = folder / "device.toml"
    path.write_text(text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InvalidOption) as caught:
        edge.Config.load(path)
    return str(caught.value)


def test_full_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "trusted.pem").write_text("PEM")
    path = write(
        tmp_path,
        f"""
        [server]
        host = "aggregator.local"
        port = 4433
        protocol = "mqtt"
        [client]
        id = "{ID}"
        train = "numpy:mean"
        evaluate = "numpy:linalg.norm"
        compression = "int8, zstd=3"
        state = "kept"
        [training]
        memory = 512
        seconds = 600
        threads = 2
        nice = 10
        keep = true
        [security]
        certificate = "trusted.pem"
        [mqtt]
        prefix = "farm"
        user = "board"
        password = "secret"
        [connection]
        heartbeat = 5
        put_merge = false
        [settings]
        partition = 3
        field = {{ name = "north" }}
        """,
    )
    config = edge.Config.load(path)
    assert config.protocol is Protocol.MQTT
    assert config.compression == "int8, zstd=3"
    assert (config.train, config.evaluate) == ("numpy:mean", "numpy:linalg.norm")
    assert config.state == tmp_path / "kept"
    assert config.training == edge.Limits(memory=512, seconds=600, threads=2, nice=10, keep=True)
    assert config.settings == {"partition": 3, "field": {"name": "north"}}
    options = config.options()
    assert options.id == ID
    assert options.netloc == NetworkLocation("aggregator.local", 4433)
    assert config.connection == ConnectionOptions(heartbeat=5, put_merge=False)
    assert options.connection.heartbeat == 5
    assert options.mqtt == MqttOptions("farm", "board", "secret")
    assert options.security is not None
    assert options.security.key is None
    assert options.security.certificate == tmp_path / "trusted.pem"


def test_minimal_file_has_a_server(tmp_path: Path) -> None:
    config = edge.Config.load(write(tmp_path, SERVER))
    assert (config.train, config.evaluate, config.compression, config.settings) == (None, None, None, {})
    assert config.options().security is None
    assert config.connection == ConnectionOptions()


def test_messages_are_no_larger_than_training_or_machine_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes(more: str) -> tuple[int, int]:
        connection = edge.Config.load(write(tmp_path, SERVER + more)).options().connection
        return connection.message_size, connection.memory

    monkeypatch.setattr(Machine, "memory", lambda self: 500_000_000)
    assert sizes("") == (100_000_000, 100_000_000)
    assert sizes("[training]\nmemory = 30\n") == (30_000_000, 30_000_000)
    assert sizes("[training]\nmemory = 300\n") == (100_000_000, 100_000_000)
    assert sizes("[connection]\nmessage_size = 200_000_000\n") == (200_000_000, 100_000_000)
    monkeypatch.setattr(Machine, "memory", lambda self: 50_000_000_000)
    assert sizes("") == (10_000_000_000, ConnectionOptions().memory)
    monkeypatch.setattr(Machine, "memory", lambda self: None)
    assert sizes("") == (ConnectionOptions().message_size, ConnectionOptions().memory)
    assert sizes("[training]\nmemory = 30\n") == (30_000_000, 30_000_000)


def test_proxy_is_for_the_connection(tmp_path: Path) -> None:
    (text,) = Page("docs/how-to/proxy.md").blocks("toml")
    assert edge.Config.load(write(tmp_path, text)).options().proxy == "http://proxy.hospital.example:3128"
    assert edge.Config.load(write(tmp_path, SERVER)).options().proxy == "environment"


def test_default_id_is_new_each_time(tmp_path: Path) -> None:
    path = write(tmp_path, SERVER)
    assert edge.Config.load(path).id != edge.Config.load(path).id


def test_empty_security_table_trusts_system_certificates(tmp_path: Path) -> None:
    security = edge.Config.load(write(tmp_path, SERVER + "[security]\n")).options().security
    assert security is not None
    assert security.certificate is None


def test_every_connection_option_can_be_set(tmp_path: Path) -> None:
    lines = [f"{key} = {str(getattr(ConnectionOptions(), key)).lower()}" for key in KEYS["connection"] or ()]
    config = edge.Config.load(write(tmp_path, SERVER + "[connection]\n" + "\n".join(lines)))
    assert len(lines) > 5
    assert config.connection == ConnectionOptions()


@pytest.mark.parametrize(
    ("text", "key", "expectation"),
    [
        ("[server\n", "line 1", "correct it there"),
        ("[sever]\n", "[sever]", "did you mean [server]?"),
        ("[banana]\n", "[banana]", "expected one of [server], [client]"),
        ('server = "10.0.0.1"\n', "server: ", "expected a table"),
        ("[server]\nprot = 1\n", "server.prot: ", "did you mean server.port?"),
        (
            "[security]\nkey_of_the_house = 1\n",
            "security.key_of_the_house",
            "expected one of security.key, security.certificate, ",
        ),
        ("[server]\nport = 1\n", "server.host: missing", "the server's name"),
        ("[server]\nhost = 1\nport = 1\n", "server.host: 1", "the server's name"),
        ('[server]\nhost = "a"\n', "server.port: missing", "a whole number from 1 to 65535"),
        ('[server]\nhost = "a"\nport = "1"\n', "server.port: '1'", "a whole number from 1 to 65535"),
        ('[server]\nhost = "a"\nport = true\n', "server.port: True", "a whole number from 1 to 65535"),
        ('[server]\nhost = "a"\nport = 65536\n', "server.port: 65536", "a whole number from 1 to 65535"),
        (SERVER + 'protocol = "pigeon"\n', "server.protocol: 'pigeon'", 'expected "tcp" or "mqtt" or "grpc" or "shm"'),
        (SERVER + "protocol = [1]\n", "server.protocol: [1]", 'expected "tcp"'),
        (SERVER + "proxy = 8\n", "server.proxy: 8", 'expected "http://HOST:PORT"'),
        (SERVER + 'proxy = "https://p:1"\n', "server.proxy: 'https://p:1'", "only what passes it"),
        (SERVER + '[client]\nid = "7a9c"\n', "client.id: '7a9c'", "expected a UUID"),
        (SERVER + "[client]\nid = 7\n", "client.id: 7", "expected a UUID"),
        (SERVER + "[client]\ntrain = 7\n", "client.train: 7", 'expected "module:function"'),
        (SERVER + "[client]\ncompression = 8\n", "client.compression: 8; expected", "a table"),
        (SERVER + "[client]\nproperties = 8\n", "client.properties: 8; expected", "numbers, texts, True or False"),
        (SERVER + "[client]\nproperties = { a = [] }\n", "client.properties: 'a': []; expected", "numbers, texts"),
        (SERVER + '[model]\nhook = ["true"]\n', "model.hook: ['true']", "; with model.path"),
        (SERVER + '[model]\npath = "m.npz"\nhook = "true"\n', "model.hook: 'true'", "a list of texts, as in"),
        (SERVER + '[model]\npath = "m.npz"\nhook = [""]\n', "model.hook: ['']", "a list of texts, as in"),
        (SERVER + '[model]\npath = "no/m.npz"\n', "model.path: ", "there is no folder"),
        (SERVER + '[client]\nstate = "device.toml"\n', "client.state: ", "expected a folder, and there is a file"),
        (SERVER + "[training]\nmemory = 0\n", "training.memory: 0", "a whole number above 0"),
        (SERVER + "[training]\nseconds = -1\n", "training.seconds: -1", "more than 0"),
        (SERVER + "[training]\nnice = 20\n", "training.nice: 20", "from 0 to 19"),
        (SERVER + "[training]\nkeep = 1\n", "training.keep: 1", "true or false"),
        (SERVER + "[settings]\nround = 7\n", "settings.round: ", "the number of the round"),
        (SERVER + "[settings]\nstate = 7\n", "settings.state: ", "keep between rounds"),
        (SERVER + "[security]\ncertificate = 1\n", "security.certificate: 1", "the path of a PEM file"),
        (SERVER + '[security]\ncertificate = "no.pem"\n', "security.certificate: 'no.pem'", "the path of a PEM file"),
        (SERVER + "[connection]\nheartbeat = -1\n", "connection.heartbeat: -1", "expected seconds, from 0.001"),
        (SERVER + '[connection]\nwindow = "big"\n', "connection.window: 'big'", "expected a whole number"),
        (SERVER + "[connection]\nretry_max = 0.01\n", "connection.retry_max: 0.01", "at least retry_min"),
        (SERVER + 'protocol = "mqtt"\n[mqtt]\nprefix = "a#"\n', "mqtt.prefix: 'a#'", "none of + # and NUL"),
        (SERVER + "[mqtt]\n", '[mqtt]: server.protocol is "tcp"', 'say protocol = "mqtt", or leave the table out'),
        (SERVER + 'protocol = "shm"\n[mqtt]\n', '[mqtt]: server.protocol is "shm"', "or leave the table out"),
        (SERVER + "[flower]\npartition-id = 0\n", "[flower]: ", "start it with --flower module:app"),
        (SERVER + '[mqtt]\nprefx = "a"\n', "mqtt.prefx", "did you mean mqtt.prefix?"),
        (SERVER + "[connection]\nheartbeet = 1\n", "connection.heartbeet", "did you mean connection.heartbeat?"),
    ],
)
def test_wrong_values_are_named_with_file_and_key(tmp_path: Path, text: str, key: str, expectation: str) -> None:
    path = write(tmp_path, text)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert key in message
    assert expectation in message
    assert "\n" not in message


def test_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    assert refusal(path) == f"{path}: no such file; give the path of the device's TOML file"


def test_folder_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path).startswith(f"{tmp_path}: cannot be read")


def test_wrong_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    path.write_bytes(b'[server]\nhost = "\xe9"\n')
    assert refusal(path) == f"{path}: not UTF-8 at byte 17; save it as UTF-8 text"


def run_edge(*arguments: str, command: str = "run") -> tuple[int, str, str]:
    """Run the command in this process; return its status, stdout and stderr."""
    with own_process() as (out, errors):
        status = main([command, *arguments])
    return status, out.getvalue(), errors.getvalue()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[server]\nhost = "a"\n', "server.port: missing; expected a whole number from 1 to 65535, as in 51966"),
        (SERVER, 'client.train: missing; expected "module:function", as in "farm.training:train"'),
        (
            SERVER + '[client]\ntrain = "numpy"\n',
            'client.train: \'numpy\'; expected "module:function", as in "farm.training:train"',
        ),
    ],
)
def test_wrong_file_is_one_line_and_status_2(tmp_path: Path, text: str, line: str) -> None:
    path = write(tmp_path, text)
    assert run_edge(str(path)) == (2, "", f"edge: {path}: {line}\n")


@pytest.mark.parametrize(
    ("protocol", "security", "said"),
    [
        ("shm", "", "[security]: shared memory takes none"),
        ("mqtt", 'post_quantum = "require"\n', "security.post_quantum: 'require'; with MQTT"),
    ],
)
def test_errors_of_transports_are_in_file_terms(tmp_path: Path, protocol: str, security: str, said: str) -> None:
    text = f'{SERVER}protocol = "{protocol}"\n[client]\ntrain = "builtins:dict"\n[security]\n{security}'
    path = write(tmp_path, text)
    status, _, errors = run_edge(str(path))
    assert status == 2
    assert errors.splitlines()[-1].startswith(f"edge: {path}: {said}")


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ('state = "no/such"\n', "client.state: '{0}/no/such'; there is no folder '{0}/no': make it"),
        (
            '[security]\ncertificate = "no.pem"\n',
            "security.certificate: 'no.pem'; expected the path of a PEM file",
        ),
        ('[security]\ncertificate = "device.toml"\n', "security.certificate: {0}/device.toml: no certificate in PEM"),
    ],
)
def test_check_ends_for_what_run_waits_for(tmp_path: Path, more: str, line: str) -> None:
    path = write(tmp_path, f'{SERVER}[client]\ntrain = "builtins:dict"\n{more}')
    status, _, errors = run_edge(str(path), command="check")
    assert status == 2
    assert errors.startswith(f"edge: {path}: {line.format(tmp_path)}")


def test_verbose_adds_the_traceback(tmp_path: Path) -> None:
    status, _, errors = run_edge("--verbose", str(write(tmp_path, '[server]\nhost = "a"\n')))
    assert status == 2
    assert "Traceback" in errors


def certified(folder: Path, *more: str, table: str = "security") -> Path:
    """Write the file of a device with a certificate of its own."""
    certificates.init(folder)
    files = certificates.issue(folder, "board")
    lines = [f'{name} = "{path.name}"' for name, path in files._asdict().items()]
    return write(folder, "\n".join([SERVER, f"[{table}]", *lines, *more]))


def test_certificate_names_the_id_of_the_device(tmp_path: Path) -> None:
    path = certified(tmp_path, 'post_quantum = "require"')
    config = edge.Config.load(path)
    assert config.id == certificates.show(tmp_path)[-1].id
    key, certificate, authority = (tmp_path / name for name in ("board-key.pem", "board.pem", "authority.pem"))
    assert config.security == SecurityOptions(key, certificate, authority, "require")


@pytest.mark.parametrize("protocol", ["tcp", "mqtt"])
def test_sealed_device_has_the_id_of_its_certificate(tmp_path: Path, protocol: str) -> None:
    path = certified(tmp_path, table="seal")
    path.write_text(path.read_text().replace("port = 51966", f'port = 51966\nprotocol = "{protocol}"'))
    config = edge.Config.load(path)
    assert config.id == config.options().id == certificates.show(tmp_path)[-1].id
    key, certificate, authority = (tmp_path / name for name in ("board-key.pem", "board.pem", "authority.pem"))
    assert config.options().seal == SealOptions(key, certificate, authority)
    assert config.security is None


def test_seal_needs_all_files(tmp_path: Path) -> None:
    path = certified(tmp_path, table="seal")
    path.write_text("\n".join(line for line in path.read_text().splitlines() if "authority" not in line))
    assert refusal(path).startswith(f"{path}: seal.authority: missing; expected the path of a PEM file that is there")


@pytest.mark.parametrize("table", ["security", "seal"])
def test_id_beside_a_certificate_is_refused(tmp_path: Path, table: str) -> None:
    path = certified(tmp_path, f'[client]\nid = "{ID}"', table=table)
    assert refusal(path) == f"{path}: client.id: '{ID}'; the certificate names this device's id: leave it out"


def test_certificate_without_an_id_is_refused(tmp_path: Path) -> None:
    path = certified(tmp_path)
    (tmp_path / "board.pem").write_bytes((tmp_path / "authority.pem").read_bytes())
    assert refusal(path).startswith(f"{path}: security.certificate: {tmp_path / 'board.pem'}: names no client")


def test_device_of_a_broker_has_the_id_of_the_file(tmp_path: Path) -> None:
    path = certified(tmp_path, f'[client]\nid = "{ID}"')
    path.write_text(path.read_text().replace("port = 51966", 'port = 51966\nprotocol = "mqtt"'))
    assert edge.Config.load(path).id == ID


@pytest.mark.slow
def test_sigterm_ends_a_waiting_device_with_status_0(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and never listens, so connections are refused
        server = f'[server]\nhost = "127.0.0.1"\nport = {bound.getsockname()[1]}\n'
        path = write(tmp_path, server + '[client]\ntrain = "numpy:mean"\n')
        with subprocess.Popen(
            [sys.executable, "-m", "edge", "run", str(path)], stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            lines = [process.stderr.readline() for _ in range(2)]
            process.terminate()
            _, rest = process.communicate(timeout=60)
    assert "INFO edge: device " in lines[0]
    assert "WARNING netq" in lines[1]
    assert "Traceback" not in rest
    assert process.returncode == 0


def test_page_of_the_agent_names_every_key() -> None:
    (example,) = Page("docs/reference/edge.md").blocks("toml")
    assert "mqtt" not in tomllib.loads(example)
    tables = tomllib.loads(re.sub(r"^# ", "", example, flags=re.MULTILINE))
    assert set(tables) == set(KEYS)
    for name, known in KEYS.items():
        if known is not None and name != "connection":
            assert set(tables[name]) == set(known)
    ConnectionOptions(**tables["connection"])
