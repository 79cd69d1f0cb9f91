"""edge install: the unit and the Containerfile, and what systemd says of the unit."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import netq
from edge import __main__ as command
from edge.install import containerfile, install, unit
from netq.security import certificates
from tests.attacks import files

SERVER = '[server]\nhost = "10.0.0.1"\nport = 51966\n'


def write(folder: Path, more: str = "") -> Path:
    path = folder / "client.toml"
    path.write_text(SERVER + more)
    return path


def options_of(text: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def test_unit_runs_the_agent_with_this_python(tmp_path: Path) -> None:
    path = write(tmp_path)
    text = unit(path, "80%", [])
    assert options_of(text, "ExecStart") == [f"{sys.executable} -m edge run {path}"]
    assert options_of(text, "MemoryMax") == ["80%"]
    assert options_of(text, "PrivateDevices") == ["yes"]
    assert options_of(text, "LoadCredential") == []
    assert options_of(text, "Delegate") == ["memory pids"]
    assert options_of(text, "ProtectControlGroups") == []  # yes would make the delegated cgroup read-only


def test_keys_are_credentials(tmp_path: Path) -> None:
    text = unit(write(tmp_path, '[security]\nkey = "own.pem"\n[seal]\nkey = "/keys/seal.pem"\n'), "80%", [])
    assert options_of(text, "LoadCredential") == [f"security-key:{tmp_path}/own.pem", "seal-key:/keys/seal.pem"]
    assert options_of(text, "Environment") == [
        "EDGE_CLIENT_STATE=%S/edge",
        "EDGE_SECURITY_KEY=%d/security-key",
        "EDGE_SEAL_KEY=%d/seal-key",
    ]


@pytest.mark.parametrize(
    ("more", "devices"), [("", ["/dev/apex_0", "/dev/apex_1"]), ("[fit]\nidle = 300\n", [])], ids=["devices", "idle"]
)
def test_hardware_that_is_needed_is_allowed(tmp_path: Path, more: str, devices: list[str]) -> None:
    text = unit(write(tmp_path, more), "80%", devices)
    assert options_of(text, "DeviceAllow") == [f"{device} rw" for device in devices]
    assert options_of(text, "PrivateDevices") == []


def test_home_is_hidden_unless_something_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("prefix", "base_prefix"):
        monkeypatch.setattr(sys, name, "/opt/python")
    monkeypatch.setattr(sys, "path", ["/opt/python"])
    assert options_of(unit(write(tmp_path), "80%", []), "ProtectHome") == ["yes"]
    monkeypatch.setattr(sys, "path", ["/home/farm/code"])
    assert options_of(unit(write(tmp_path), "80%", []), "ProtectHome") == ["read-only"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here: install systemd")
@pytest.mark.parametrize("name", ["device", """a %n $HOME ${X} "b" 'c'; d"""])
@pytest.mark.parametrize("devices", [[], ["/dev/apex_0"]])
def test_systemd_accepts_the_unit(tmp_path: Path, devices: list[str], name: str) -> None:
    (tmp_path / name).mkdir()
    path = tmp_path / "edge.service"
    path.write_text(unit(write(tmp_path / name, '[security]\nkey = "own.pem"\n'), "256M", devices))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60)
    assert (done.stdout + done.stderr).strip() == ""
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(path)]  # tenths
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Overall exposure level" in done.stdout
    assert done.returncode == 0, done.stdout[-500:]


def test_command_writes_and_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    assert command.main(["install", str(path), "--output", str(tmp_path), "--name", "board", "--memory", "256M"]) == 0
    assert (tmp_path / "board.service").read_text() == unit(path, "256M", [])
    line = f"wrote {tmp_path}/board.service; now: systemctl daemon-reload && systemctl enable --now board"
    assert capsys.readouterr().out.splitlines()[0] == line


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--memory", "12q"),
        ("--memory", "128m"),
        ("--memory", "0"),
        ("--memory", "101%"),
        ("--memory", "1٣M"),
        ("--device", "/etc/passwd"),
        ("--name", "a/b"),
        ("--name", ""),
        ("--name", "tür"),
    ],
)
def test_wrong_option_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert command.main(["install", str(write(tmp_path)), "--output", str(tmp_path), option, value]) == 2
    assert capsys.readouterr().err.startswith(f"edge: {option}: {value!r}; expected ")


def test_state_and_model_are_in_the_folder_of_the_service(tmp_path: Path) -> None:
    path = write(tmp_path, '[client]\ntrain = "a:b"\nstate = "state"\n[model]\npath = "last 5%.npz"\n')
    where = ["EDGE_CLIENT_STATE=%S/edge", '"EDGE_MODEL_PATH=%S/edge/last 5%%.npz"']
    assert options_of(unit(path, "80%", []), "Environment") == where
    assert 'ENV EDGE_CLIENT_STATE=/state\nENV EDGE_MODEL_PATH="/state/last 5%.npz"\n' in containerfile(path)


def test_device_that_gets_its_app_from_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, '[app]\nfolder = "apps"\nsigner = "author.pem"\n[flower]\npartition-id = 1\n')
    assert command.main(["install", str(path), "--output", str(tmp_path)]) == 2
    assert "app.signer: 'author.pem'; expected the path of a PEM file that is there" in capsys.readouterr().err
    (tmp_path / "author.pem").write_text("PEM")
    assert command.main(["install", str(path), "--output", str(tmp_path)]) == 0


def test_container_is_written_beside_the_file(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert command.main(["install", str(path), "--container"]) == 0
    text = (tmp_path / "Containerfile").read_text()
    assert text == containerfile(path)
    assert text.endswith('ENTRYPOINT ["edge", "run", "client.toml"]\n')


def test_file_that_the_service_cannot_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)

    def doubts() -> list[str]:
        said = install(path, name="edge", folder=tmp_path, memory="80%", devices=[], container=False)
        return said.splitlines()[1:]

    monkeypatch.setattr("edge.install._PRIVATE", (str(tmp_path.parent),))
    assert doubts() == [f"but move {path} elsewhere first: the service has a {tmp_path.parent} of its own"]
    monkeypatch.setattr("edge.install._PRIVATE", ())
    monkeypatch.setattr("edge.install._FOR_ALL", {False: stat.S_IROTH, True: 0o7777})  # pytest's folders are 0700
    path.chmod(0o644)
    assert doubts() == []
    path.chmod(0o600)
    assert doubts() == [f"but first let the service's user read it: chmod o+rX {path}"]
    monkeypatch.setattr("edge.install._FOR_ALL", {False: stat.S_IROTH, True: stat.S_IXOTH})
    monkeypatch.setattr("edge.install._OF_ROOT", str(tmp_path))
    tmp_path.chmod(0o700)
    (said,) = doubts()
    assert said.startswith(f"but move {path} elsewhere first, as to /etc/edge: {tmp_path} is root's")
    monkeypatch.setattr("edge.install._PRIVATE", ("/tmp/of-python",))
    monkeypatch.setattr("sys.prefix", "/tmp/of-python/venv")
    (said,) = doubts()
    assert said.startswith(
        "but move the Python environment /tmp/of-python/venv elsewhere first: the service has a /tmp"
    )


@pytest.mark.parametrize(
    ("more", "folder", "line"),
    [
        ("[serve]\n", ".", "[serve]: no such table; did you mean [server]?"),
        ("", "absent", "absent/edge.service: cannot be written (No such file or directory); "),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, more: str, folder: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, more)
    assert command.main(["install", str(path), "--output", str(tmp_path / folder)]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


def test_key_of_the_unit_is_found_by_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates.init(tmp_path)
    own = certificates.issue(tmp_path, "board")
    path = write(
        tmp_path, f'[security]\nkey = "absent.pem"\ncertificate = "{own.certificate}"\nauthority = "{own.authority}"\n'
    )
    credential = tmp_path / "security-key"
    credential.write_bytes(own.key.read_bytes())
    monkeypatch.setenv("EDGE_SECURITY_KEY", str(credential))
    from edge.config import Config, from_environment

    config = Config.load(path, from_environment({"EDGE_SECURITY_KEY": str(credential)}))
    assert config.security is not None
    assert config.security.key == credential


def test_no_path_ends_a_line_of_the_unit(tmp_path: Path) -> None:
    found = files.unit(tmp_path)
    assert found.came_through == ""
    assert found.honest == "a good device is installed, 12 of 14 others are refused"


def test_paths_are_written_as_systemd_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / """a %n $HOME ${X} "b" 'c'; d"""
    folder.mkdir()
    text = unit(write(folder, '[security]\nkey = "k %i.pem"\n'), "80%", [])
    shown = str(folder).replace("%", "%%")
    assert options_of(text, "WorkingDirectory") == [shown]
    assert options_of(text, "LoadCredential") == [f"security-key:{shown}/k %%i.pem"]
    assert options_of(text, "Description") == [f"Device of a federation (edge run {shown}/client.toml)"]
    argument = f"{shown}/client.toml".replace("$", "$$").replace('"', '\\"')
    assert options_of(text, "ExecStart") == [f'{sys.executable} -m edge run "{argument}"']


def test_no_option_ends_a_line_of_the_unit(tmp_path: Path) -> None:
    device = "/dev/x rw\nExecStartPre=+/bin/touch /run/pwned\n#"
    with pytest.raises(netq.InvalidOption, match="--device"):
        install(write(tmp_path), name="edge", folder=tmp_path, memory="80%", devices=[device], container=False)


def test_name_of_the_file_is_one_word_of_the_container(tmp_path: Path) -> None:
    path = tmp_path / """a"b\nRUN c"""
    path.write_text(SERVER)
    text = containerfile(path)
    assert json.loads(re.findall("ENTRYPOINT (.*)", text)[0])[2] == """a"b\nRUN c"""
