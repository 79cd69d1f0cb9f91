"""A Flower app's folder: its config is read as Flower reads it, its apps are imported, and mistakes are sentences."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.config_utils import load_and_validate
from flwr.common.config import get_fused_config_from_dir, parse_config_args
from flwr.serverapp import ServerApp

import netq
from fl.flower.app_folder import AppFolder, is_folder, parse_config

EXAMPLE = Path(__file__).parents[3] / "examples/flower_app"
APP = '[tool.flwr.app.components]\nserverapp = "{0}.apps:server"\nclientapp = "{0}.apps:client"\n'
MODULE = """
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from {0} import task

client, server = ClientApp(), ServerApp()
"""


@pytest.fixture(autouse=True)
def _imports_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def write(folder: Path, package: str, *, config: str = "", module: str = MODULE, task: str = "") -> Path:
    """An app's folder. Each test has its own package, because an imported module stays."""
    (folder / package).mkdir()
    (folder / "pyproject.toml").write_text(APP.format(package) + config)
    for name, text in (("__init__", ""), ("apps", module.format(package)), ("task", task)):
        (folder / package / f"{name}.py").write_text(text)
    return folder


@pytest.mark.parametrize("text", ["", "num-server-rounds=2", "train.steps=7 train.learning-rate=1e-2"])
def test_config_is_that_of_flwr_run(text: str) -> None:
    load_and_validate(EXAMPLE / "pyproject.toml")
    config = AppFolder.load(EXAMPLE).run_config(parse_config("--run-config", text))
    assert config == get_fused_config_from_dir(EXAMPLE, parse_config_args([text]))
    assert "train.learning-rate" in config


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("rounds=3 lr=0.1 name='a b' quick=true", {"rounds": 3, "lr": 0.1, "name": "a b", "quick": True}),
        ("rounds = 3, lr = 0.1", {"rounds": 3, "lr": 0.1}),
        ("train.lr=1 train.steps=2", {"train.lr": 1, "train.steps": 2}),
        ('  name="a=b, c"  ', {"name": "a=b, c"}),
        ("", {}),
    ],
)
def test_pairs_are_read(text: str, config: dict[str, Any]) -> None:
    assert parse_config("--run-config", text) == config


def test_config_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("rounds = 2\n[train]\nlr = 0.5\n")
    assert parse_config("--run-config", str(tmp_path / "run.toml")) == {"rounds": 2, "train.lr": 0.5}
    (tmp_path / "run.toml").write_text("x = [1]\n")
    with pytest.raises(netq.InvalidOption, match=r"run\.toml: x: \[1\]; expected a text, a number, true or false"):
        parse_config("--run-config", str(tmp_path / "run.toml"))
    with pytest.raises(netq.InvalidOption, match=r"no\.toml: no such file; give the path of a TOML file for --run-co"):
        parse_config("--run-config", str(tmp_path / "no.toml"))


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 5000, "x = " + "9" * 6000, "x =", "x", "x=1 y", "x=abc", "x=1 x=2", "x='a"]
)
def test_wrong_pairs_are_one_line(text: str) -> None:
    with pytest.raises(netq.InvalidOption, match=r"^--run-config: .*x.*; expected pairs, as in 'rounds=3 lr") as caught:
        parse_config("--run-config", text)
    assert len(str(caught.value)) < 600


def test_value_that_is_no_scalar_is_refused() -> None:
    with pytest.raises(netq.InvalidOption, match=r"^--node-config: x: \[1\]; expected a text, a number, true or false"):
        parse_config("--node-config", "x=[1]")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 'tool.flwr.app.components.serverapp: missing; expected "module:app", as in "farm.server_app:app"'),
        ("[tool.flwr]\napp = 7\n", "tool.flwr.app.config: 7; expected a table: begin it with a line [tool.flwr.app.c"),
        (APP.format("absent"), "tool.flwr.app.components.serverapp: 'absent.apps:server'; expected a module that can"),
        (APP.format("x") + "[tool.flwr.app.config.a]\nb = [1]\n", "tool.flwr.app.config.a.b: [1]; expected a text"),
        (
            "[tool.flwr.app]\nconfig = 1\n",
            "tool.flwr.app.config: 1; expected a table: begin it with a line [tool.flwr.app.c",
        ),
        ('[tool.flwr.app.components]\nserverapp = "json:dumps"\n', "tool.flwr.app.components.serverapp: <function dum"),
    ],
)
def test_mistake_in_pyproject_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(netq.InvalidOption) as caught:
        AppFolder.load(tmp_path).server_app()
    assert str(caught.value).startswith(f"{tmp_path}/pyproject.toml: {line}")


def test_folder_without_pyproject_is_refused(tmp_path: Path) -> None:
    with pytest.raises(netq.InvalidOption, match=r"pyproject\.toml: no such file; give the path of a Flower app's fo"):
        AppFolder.load(tmp_path / "absent")


def test_key_that_the_app_does_not_have_is_refused(tmp_path: Path) -> None:
    app = AppFolder.load(write(tmp_path, "keys", config="[tool.flwr.app.config]\nrounds = 1\n"))
    with pytest.raises(netq.InvalidOption, match=r"'round'; .*pyproject\.toml has no such key: did you mean rounds\?"):
        app.run_config({"round": 2})


def test_apps_are_imported_from_the_folder(tmp_path: Path) -> None:
    app = AppFolder.load(write(tmp_path, "imported"))
    assert isinstance(app.server_app(), ServerApp)
    assert app.client_app() is sys.modules["imported.apps"].client
    assert sys.path.count(str(tmp_path)) == 1


@pytest.mark.parametrize(
    ("package", "task", "place"),
    [
        (
            "import_fails",
            "\nimport absent_library\n",
            "ModuleNotFoundError: No module named 'absent_library': install it",
        ),
        (
            "code_fails",
            "\nimport json\njson.loads('')\n"[1:],
            "JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        ),
        ("syntax_fails", "\n1 +\n", "SyntaxError: invalid syntax (task.py, line 2): correct it there"),
    ],
)
def test_error_in_a_module_names_its_line(tmp_path: Path, package: str, task: str, place: str) -> None:
    app = AppFolder.load(write(tmp_path, package, task=task))
    with pytest.raises(netq.InvalidOption) as caught:
        app.client_app()
    told = f"but {tmp_path}/{package}/task.py, line 2, raises {place}"
    assert told in str(caught.value)
    assert "--verbose shows the traceback" in str(caught.value)


def test_module_that_is_absent_is_a_wrong_name(tmp_path: Path) -> None:
    write(tmp_path, "absent_module")
    (tmp_path / "absent_module" / "apps.py").unlink()
    with pytest.raises(
        netq.InvalidOption, match=r"expected a module that can be imported from here, but absent_module"
    ):
        AppFolder.load(tmp_path).client_app()


def test_argument_is_a_folder_or_an_app(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    assert is_folder(".")
    assert is_folder(str(tmp_path / "a:b"))
    assert not is_folder("farm.server_app:app")


def test_version_is_that_of_the_python_files(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        write(folder, "versioned")
    version = AppFolder.load(one).version
    assert len(version) == 16
    assert AppFolder.load(other).version == version
    for ignored in ("pyproject.toml", "notes.md", ".git/hook.py", "__pycache__/apps.py", ".venv/lib.py", "env/lib.py"):
        file = other / ignored
        file.parent.mkdir(exist_ok=True)
        (other / "env" / "pyvenv.cfg").parent.mkdir(exist_ok=True)
        (other / "env" / "pyvenv.cfg").touch()
        file.write_text((file.read_text() if file.exists() else "") + "\n# changed\n")
        assert AppFolder.load(other).version == version, ignored
    (other / "linked.py").symlink_to(one / "pyproject.toml")
    assert AppFolder.load(other).version == version
    seen = {version}
    for changed in ("versioned/task.py", "new.py"):
        (other / changed).write_text("value = 1\n")
        found = AppFolder.load(other).version
        assert found not in seen
        seen.add(found)
    (other / "new.py").rename(other / "renamed.py")
    assert AppFolder.load(other).version not in seen
