"""The reader below the TOML files of aggregator and device, whose own tests have the rest of its sentences."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netq.errors import InvalidOption
from netq.options import ConnectionOptions, Protocol, SecurityOptions
from netq.text import did_you_mean
from netq.toml_file import File, in_file_terms

WHAT = "the gate's TOML file"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def of(folder: Path, text: str) -> File:
    path = folder / "gate.toml"
    path.write_text(text)
    return File(path, WHAT)


@pytest.fixture
def file(tmp_path: Path) -> File:
    (tmp_path / "key.pem").write_text("PEM")
    return of(
        tmp_path,
        """
        [gate]
        name = "north"
        empty = ""
        width = 3
        delay = 0.5
        shut = false
        colour = "blue"
        log = "gate.log"
        far = "none/gate.log"
        here = "."
        key = "key.pem"
        open = "math:sqrt"
        close = "math.pi:sqrt"
        [security]
        key = "key.pem"
        [mqtt]
        prefix = "farm"
        [connection]
        misses = 0
        """,
    )


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda file: file.text("gate", "name", "a name"), "north"),
        (lambda file: file.whole("gate", "width", "a width"), 3),
        (lambda file: file.whole("gate", "width", "a width", 3, 3), 3),
        (lambda file: file.seconds("gate", "delay", "seconds"), 0.5),
        (lambda file: file.seconds("gate", "width", "seconds"), 3),
        (lambda file: file.boolean("gate", "shut"), False),
        (lambda file: file.choice("gate", "colour", Colour.RED), Colour.BLUE),
        (lambda file: file.choice("fence", "colour", Colour.RED), Colour.RED),
        (lambda file: file.output("gate", "log"), Path("gate.log")),
        (lambda file: file.output("gate", "nothing"), None),
        (lambda file: file.output("gate", "log", folder=True), Path("gate.log")),
        (lambda file: file.output("gate", "here", folder=True), Path()),
        (lambda file: file.folder("gate", "here"), Path()),
        (lambda file: file.mqtt(Protocol.MQTT).prefix, "farm"),
        (lambda file: file.existing("gate", "key", "PEM"), Path("key.pem")),
        (lambda file: file.function("gate", "open", "farm:open")(9), 3.0),
        (lambda file: file.table("fence"), {}),
    ],
)
def test_values_are_read(file: File, read: Callable[[File], Any], expected: Any) -> None:
    value = read(file)
    assert (value.relative_to(file.path.parent) if isinstance(value, Path) else value) == expected


def test_byte_order_mark_of_an_editor_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\nnote", encoding="utf-8-sig")
    path = tmp_path / "gate.toml"
    path.write_text('[mqtt]\nuser = "gate"\npassword_file = "password"', encoding="utf-8-sig")
    assert File(path, WHAT).mqtt(Protocol.MQTT).password == "s3cret"
    path.write_text("[gate]", encoding="utf-16")
    with pytest.raises(InvalidOption, match=r"gate\.toml: not UTF-8 at byte 0; save it as UTF-8 text"):
        File(path, WHAT)


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda file: file.text("gate", "empty", "a name"), "gate.empty: ''; expected a name"),
        (lambda file: file.text("fence", "name", "a name"), "fence.name: missing; expected a name"),
        (lambda file: file.whole("gate", "delay", "a width"), "gate.delay: 0.5; expected a width"),
        (lambda file: file.whole("gate", "shut", "a width"), "gate.shut: False; expected a width"),
        (lambda file: file.whole("gate", "width", "a width", 4), "gate.width: 3; expected a width"),
        (lambda file: file.whole("gate", "width", "a width", 0, 2), "gate.width: 3; expected a width"),
        (lambda file: file.seconds("gate", "shut", "seconds"), "gate.shut: False; expected seconds"),
        (lambda file: file.boolean("gate", "width"), "gate.width: 3; expected true or false"),
        (lambda file: file.choice("gate", "name", Colour.RED), 'gate.name: \'north\'; expected "red" or "blue"'),
        (lambda file: file.output("gate", "far"), "gate.far: "),
        (lambda file: file.output("gate", "here"), "gate.here: "),
        (lambda file: file.output("gate", "key", folder=True), "gate.key: "),
        (lambda file: file.folder("gate", "key"), "gate.key: "),
        (lambda file: file.folder("gate", "far"), "gate.far: "),
        (lambda file: file.mqtt(Protocol.GRPC), '[mqtt]: server.protocol is "grpc"; say protocol = "mqtt", or leave '),
        (
            lambda file: file.output("gate", "width"),
            "gate.width: 3; expected a path, seen from the folder of this file",
        ),
        (
            lambda file: file.existing("gate", "log", "text"),
            "gate.log: 'gate.log'; expected the path of a text file that is",
        ),
        (lambda file: file.function("gate", "name", "farm:open"), "gate.name: 'north'; expected "),
        (lambda file: file.function("gate", "close", "farm:open"), "gate.close: 'math.pi:sqrt'; expected a module"),
        (
            lambda file: file.options("connection", ConnectionOptions, file.table("connection")),
            "connection.misses: 0; expected a whole number from 1 to 1000",
        ),
        (lambda file: file.check_names({"gate": None, "security": ()}), "security.key: no such key; expected one of "),
        (lambda file: file.check_names({"gates": None}), "[gate]: no such table; did you mean [gates]?"),
    ],
)
def test_wrong_values_are_named_with_file_and_key(file: File, read: Callable[[File], Any], said: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file.path}: {said}")


def test_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    file = of(tmp_path, f"[security]\nkey = '{'k' * 5000}'\n")
    with pytest.raises(InvalidOption, match="expected the path of a PEM file that is there"):
        file.security()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("post_quantum = 'always'", "security.post_quantum: 'always'; expected 'prefer', 'require' or 'off'"),
        ("post_quantum = true", 'security.post_quantum: True; expected "prefer", "require" or "off"'),
        ("revoked = 'no.txt'", "security.revoked: 'no.txt'; expected the path of a text file that is there"),
        ("authority = 'no.pem'", "security.authority: 'no.pem'; expected the path of a PEM file that is there"),
    ],
)
def test_wrong_security_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = of(tmp_path, f"[security]\n{line}\n")
    with pytest.raises(InvalidOption) as caught:
        file.security()
    assert str(caught.value).startswith(f"{file.path}: {said}")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[gate]\nopen = localhost\n", 'texts are in quotes, as in "localhost"'),
        ('[gate]\nopen = "a"\nopen = "b"\n', "the key is there twice: leave one out"),
        ("[gate]\n[gate]\n", "correct it there"),
    ],
)
def test_mistake_in_toml_has_a_hint(tmp_path: Path, text: str, hint: str) -> None:
    with pytest.raises(InvalidOption, match=rf"gate\.toml: not TOML: .* \(at line .*\); .*{hint}$"):
        of(tmp_path, text)


def test_key_above_the_first_table_is_told_its_table(tmp_path: Path) -> None:
    file = of(tmp_path, 'key = "a.pem"\n')
    with pytest.raises(InvalidOption, match=r"key: is in no table; write it below the line \[security\] or \[seal\]$"):
        file.check_names({"gate": ("open",), "security": ("key",), "seal": ("key",), "settings": None})


def test_module_that_exits_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exits_at_once.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidOption, match=r"exits_at_once\.py, line 2, raises SystemExit: 3"):
        of(tmp_path, '[gate]\nopen = "exits_at_once:train"').function("gate", "open", "farm:open")


def test_value_that_cannot_be_parsed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"gate\.toml: not TOML: "):
        of(tmp_path, f"[gate]\nwidth = {'9' * 6000}\n")


@pytest.mark.parametrize(
    "line",
    [
        f"width = {'[' * 5000}{']' * 5000}",
        f"width = {'[' * 51}{']' * 51}",
        f"width = {'{a=' * 200}1{'}' * 200}",
        f"width.{'a.' * 5000}b = 1",
        f"[{'a.' * 5000}b]",
    ],
    ids=["lists", "levels", "tables", "keys", "names"],
)
def test_deep_nesting_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidOption, match=r"gate\.toml: tables or lists are nested too deeply; expected 50 levels"):
        of(tmp_path, f"[gate]\n{line}\n")


def test_nesting_that_is_not_too_deep_is_read(tmp_path: Path) -> None:
    assert of(tmp_path, f"[gate]\nwidth = {'[' * 48}{']' * 48}\n").table("gate")["width"]


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """Reading it would take for ever."""
    os.mkfifo(tmp_path / "gate.toml")
    with pytest.raises(InvalidOption, match=r"cannot be read \(a pipe or a device\); give a TOML file"):
        File(tmp_path / "gate.toml", WHAT)


def test_a_link_is_followed(file: File) -> None:
    link = file.path.with_name("link.toml")
    link.symlink_to(file.path)
    assert File(link, WHAT).tables == file.tables


@pytest.mark.parametrize("line", ['["\\u001b[31m"]', '[gate]\n"\\u001b[31m" = 1', '[gate]\nwidth = "\\u001b[31m"'])
def test_control_characters_of_a_file_are_escaped(tmp_path: Path, line: str) -> None:
    file = of(tmp_path, line)

    def read() -> None:
        file.check_names({"gate": ("width",)})
        file.whole("gate", "width", "a width")

    with pytest.raises(InvalidOption, match=r"x1b\[31m") as caught:
        read()
    assert str(caught.value).isprintable()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder_is_refused(file: File) -> None:
    file.path.parent.chmod(0o500)
    with pytest.raises(InvalidOption, match="expected a folder that is there and that this user may write to"):
        file.folder("gate", "here")


@pytest.mark.parametrize(
    ("said", "ours"),
    [
        ("SecurityOptions.key: None; a server needs it", "security.key: None; a server needs it"),
        ("CommunicatorOptions.security: none", "[security]: none"),
        ("Server.min_clients: 0", "server.min_clients: 0"),
        ("give it in SecurityOptions.authority, or set SealOptions", "give it in security.authority, or set [seal]"),
        ("round 3: Server.min_clients", "round 3: Server.min_clients"),
    ],
)
def test_errors_of_options_name_the_key(said: str, ours: str) -> None:
    assert in_file_terms(InvalidOption(said)) == ours


def test_free_table_accepts_any_key(file: File) -> None:
    file.check_names({"gate": None, "security": ("key", "certificate"), "mqtt": None, "connection": ("misses",)})


def test_security_table_turns_tls_on(file: File, tmp_path: Path) -> None:
    assert file.security() == SecurityOptions(key=tmp_path / "key.pem")
    assert of(tmp_path, "[security]").security() == SecurityOptions()
    (tmp_path / "revoked.txt").write_text("")
    text = "[security]\npost_quantum = 'require'\nrevoked = 'revoked.txt'\nauthority = 'key.pem'"
    expected = SecurityOptions(None, None, tmp_path / "key.pem", "require", tmp_path / "revoked.txt")
    assert of(tmp_path, text).security() == expected
    assert of(tmp_path, "").security() is None


def test_missing_file_is_described(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption) as caught:
        File(tmp_path / "no.toml", WHAT)
    assert str(caught.value) == f"{tmp_path / 'no.toml'}: no such file; give the path of {WHAT}"


def test_namespace_package_is_named_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder_alone").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidOption, match=r"folder_alone is a folder without __init__\.py: rename it"):
        of(tmp_path, '[gate]\nopen = "folder_alone:train"').function("gate", "open", "farm:open")


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        (
            "lacks_library",
            "import no_such_library",
            "ModuleNotFoundError: No module named 'no_such_library': install it",
        ),
        (
            "lacks_part_of_a_library",
            "import numpy.no_such_part",
            "ModuleNotFoundError: No module named 'numpy.no_such_part': the numpy that is installed has no such "
            "module; correct it there, or install another release",
        ),
        ("lacks_number", "int('x')", "ValueError: invalid literal for int() with base 10: 'x': correct it there"),
        ("lacks_bracket", "(", "SyntaxError: '(' was never closed (lacks_bracket.py, line 2): correct it there"),
    ],
)
def test_module_that_raises_is_told_from_an_absent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, said: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text(f"import json\n{code}\n")
    with pytest.raises(InvalidOption) as caught:
        of(tmp_path, f'[gate]\nopen = "{name}:train"').function("gate", "open", "farm:open")
    place = f"{tmp_path}/{name}.py, line 2, raises {said}; --verbose shows the traceback"
    assert str(caught.value).endswith(f"gate.open: '{name}:train'; the module is there, but {place}")


def test_line_is_that_of_the_module_and_not_of_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "misuses.py").write_text("import json\n\njson.loads('')\n")
    with pytest.raises(InvalidOption, match=r"misuses\.py, line 3, raises JSONDecodeError: Expecting value"):
        of(tmp_path, '[gate]\nopen = "misuses:train"').function("gate", "open", "farm:open")


def test_hint_is_the_nearest_name_or_all() -> None:
    assert did_you_mean("prot", ("host", "port"), "server.{}") == "did you mean server.port?"
    assert did_you_mean("banana", ("host", "port"), "[{}]") == "expected one of [host], [port]"
    assert did_you_mean("hots", ("host", "port")) == "did you mean host?"
