"""Typed access to a TOML file, with a clear error for each wrong value.

Called by netq/cli/exchange.py, fl/config/server.py and edge/config.py, which own the names of their tables and keys.
Every error is an InvalidOption that names the file and the key, the value, what was expected, and what to do. Paths are
relative to the folder of the file. Opens no connection and writes nothing; `function` imports the module that a value
names.
"""

from __future__ import annotations

import enum
import errno
import functools
import importlib
import math
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from netq.errors import InvalidOption, InvalidSecurity, NotNow
from netq.options import (
    CommunicatorOptions,
    ConnectionOptions,
    MqttOptions,
    NetworkLocation,
    Protocol,
    SealOptions,
    SecurityOptions,
)
from netq.proxy import ENVIRONMENT
from netq.proxy import check as check_proxy
from netq.text import describe, did_you_mean, parse_netloc, printable
from netq.utils.files import read_regular
from netq.validate import is_function, is_whole

T = TypeVar("T")
Choice = TypeVar("Choice", bound=enum.Enum)

_DEPTH = 50  # levels of tables and lists; more than any option has, and far from Python's limit of recursion
_TOO_DEEP = f"tables or lists are nested too deeply; expected {_DEPTH} levels at most"
_LONGEST, _LONGEST_VALUE = 10_000, 500  # characters of an error, and of a value in it

_PASSING = (errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ESTALE)  # of a file that may be right

# Option classes and transports name Class.option; in terms of the file this is table.key. "Server." only at the begin.
_OPTION = re.compile(
    r"\bCommunicatorOptions\.(?P<part>netloc|proxy|seal|security)"
    r"|\b(?P<table>Connection|Mqtt|Seal|Security)Options(?P<key>\.(?=[a-z]))?"
    r"|^(?:Server|Patience|simulate)\."
)


# The tables of a server's connection, each with its keys.
CONNECTION: dict[str, tuple[str, ...] | None] = {
    "security": tuple(option.name for option in fields(SecurityOptions)),
    "seal": tuple(option.name for option in fields(SealOptions)),
    "mqtt": (*(option.name for option in fields(MqttOptions)), "password_file"),
    "connection": tuple(option.name for option in fields(ConnectionOptions)),
}


class Override(NamedTuple):
    """The value of a key that replaces the file's."""

    table: str
    key: str
    value: Any
    origin: str  # as in "$EDGE_SERVER_PORT", for errors

    @classmethod
    def parse(cls, table: str, key: str, text: str, origin: str) -> Self:
        """Return the override of a text: a value as in TOML, or the text itself if it is none."""
        try:
            value = tomllib.loads(f"value = {text}")
            return cls(table, key, value["value"] if len(value) == 1 else text, origin)
        except ValueError:
            return cls(table, key, text, origin)


class File:
    """A parsed file. `what` describes it in errors, as in "the device's TOML file"; `content` is what was parsed.

    path:      None: there is no file, only the overrides. Paths are then relative to the current folder.
    overrides: values that replace those of the file.

    Methods that read a value raise InvalidOption if it is missing, unless their docstring says otherwise. `expected`
    describes a right value, for the error.
    """

    def __init__(self, path: Path | None, what: str, overrides: Iterable[Override] = ()) -> None:
        self.path = Path(what) if path is None else path
        self.content = b""
        self._origins: dict[str, str] = {}
        self.tables: dict[str, Any] = {} if path is None else self._parse(what)
        for table, key, value, origin in overrides:
            self._origins[f"{table}.{key}"] = origin
            values = self.tables.setdefault(table, {})
            if isinstance(values, dict):  # else `check_names` refuses it
                values[key] = value

    def _parse(self, what: str) -> dict[str, Any]:
        try:
            self.content = read_regular(self.path)
            tables = tomllib.loads(self.content.decode().removeprefix("\ufeff"))  # a byte order mark
        except FileNotFoundError:
            raise self.wrong(f"no such file; give the path of {what}") from None
        except OSError as error:
            text = f"cannot be read ({error.strerror}); give a TOML file that this user may read"
            raise self.wrong(text, NotNow if error.errno in _PASSING else InvalidOption) from None
        except UnicodeDecodeError as error:
            raise self.wrong(f"not UTF-8 at byte {error.start}; save it as UTF-8 text") from None
        except ValueError as error:  # or a whole number of 5,000 digits
            raise self.wrong(f"not TOML: {error}; {_toml_hint(str(error))}") from None
        except RecursionError:
            raise self.wrong(_TOO_DEEP) from None
        if _is_deeper(tables, _DEPTH):
            raise self.wrong(_TOO_DEEP)
        return tables

    def check_names(self, known: Mapping[str, Collection[str] | None]) -> None:
        """Refuse unknown tables and keys. `known`: the keys by table; None: any key."""
        for name, table in self.tables.items():
            if name not in known:
                homes = [f"[{home}]" for home, keys in known.items() if keys is not None and name in keys]
                if homes and not isinstance(table, dict):
                    raise self.wrong(f"{name}: is in no table; write it below the line {' or '.join(homes)}")
                raise self.wrong(f"[{name}]: no such table; {did_you_mean(name, known, '[{}]')}")
            if not isinstance(table, dict):
                raise self.wrong(f"{name}: {table!r}; expected a table: begin it with a line [{name}]")
            keys = known[name]
            for key in table:
                if keys is not None and key not in keys:
                    raise self.wrong(f"{name}.{key}: no such key; {did_you_mean(key, keys, name + '.{}')}")

    def table(self, name: str) -> dict[str, Any]:
        """Return a table; an empty one if the file does not have it."""
        table: dict[str, Any] = self.tables.get(name, {})
        return table

    def text(self, table: str, key: str, expected: str) -> str:
        """Return a text that is not empty."""
        return str(self._read(table, key, lambda text: isinstance(text, str) and text != "", expected))

    def whole(self, table: str, key: str, expected: str, least: float = -math.inf, most: float = math.inf) -> int:
        """Return a whole number from `least` to `most`."""
        return int(self._read(table, key, lambda number: is_whole(number, least, most), expected))

    def seconds(self, table: str, key: str, expected: str) -> float:
        """Return a number, whole or not."""
        seconds: float = self._read(table, key, lambda number: type(number) in (int, float), expected)
        return seconds

    def boolean(self, table: str, key: str) -> bool:
        """Return true or false."""
        return bool(self._read(table, key, lambda value: isinstance(value, bool), "true or false"))

    def addresses(self, table: str, key: str) -> list[NetworkLocation]:
        """Return the addresses of a list of texts; an empty list if the key is missing."""
        texts, form = self.table(table).get(key, []), 'a list of addresses, as in ["relay2.farm:51966"]'
        self.check(f"{table}.{key}", texts, isinstance(texts, list) and all(isinstance(t, str) for t in texts), form)
        try:
            found = [NetworkLocation(*parse_netloc(text)) for text in texts]
        except ValueError as error:
            raise self.wrong(f"{table}.{key}: {error}") from None
        self.check(f"{table}.{key}", texts, all(each.port for each in found), form)
        return found

    def choice(self, table: str, key: str, default: Choice) -> Choice:
        """Return a member of an enum whose values are texts; `default` if the key is missing."""
        names = [each.value for each in type(default)]
        name = self.table(table).get(key, default.value)
        self.check(f"{table}.{key}", name, name in names, " or ".join(f'"{name}"' for name in names))
        return type(default)(name)

    def output(self, table: str, key: str, *, folder: bool = False, suffix: str = "") -> Path | None:
        """Return the path of a file or folder to write; None if the key is missing. Its parent folder must exist.

        `suffix`: the longest suffix of the temporary files that are written next to it and then renamed.
        """
        if key not in self.table(table):
            return None
        path = self.path.parent / self.text(table, key, "a path, seen from the folder of this file")
        self.check_folders(f"{table}.{key}")
        expected = "a folder, and there is a file of this name" if folder else "a file, and this is a folder"
        self.check(f"{table}.{key}", str(path), os.path.isdir(path) == folder or not os.path.exists(path), expected)
        name = "a name that may be written to" + (", and so may be others beside it" if suffix else "")
        why = _unwritable(path, suffix)
        self.check(f"{table}.{key}", str(path), not why, f"{name} ({why})", NotNow)
        return path

    def check_folders(self, *keys: str) -> None:
        """Raise one InvalidOption for all outputs whose parent folder is not there. `keys`: as in "model.save"."""
        missing = []
        for key in keys:
            table, _, name = key.partition(".")
            value = self.table(table).get(name)
            path = self.path.parent / value if isinstance(value, str) and value else None
            if path is not None and not os.path.isdir(path.parent):  # not Path's, which raises for too long a name
                missing.append(f"{key}: {str(path)!r}; there is no folder {str(path.parent)!r}: make it")
        if missing:
            raise self.wrong("; ".join(missing), NotNow)

    def folder(self, table: str, key: str) -> Path:
        """Return the path of a folder that exists and is writable."""
        path = self.path.parent / self.text(table, key, "a path, seen from the folder of this file")
        why = _unwritable_in(path)
        expected = f"a folder that is there and that this user may write to ({why})"
        self.check(f"{table}.{key}", str(path), not why, expected)
        return path

    def existing(self, table: str, key: str, kind: str) -> Path:
        """Return the path of an existing file; `kind` is "PEM" or "text". Its content is not checked here."""
        expected = f"the path of a {kind} file that is there, seen from the folder of this file"
        path = self.path.parent / self.text(table, key, expected)
        self.check(f"{table}.{key}", self.table(table)[key], os.path.isfile(path), expected, NotNow)
        return path

    def communicator(self, netloc: NetworkLocation, protocol: Protocol) -> CommunicatorOptions:
        """Return the options of the tables of a connection, which are all optional."""
        return CommunicatorOptions(
            netloc=netloc,
            connection=self.options("connection", ConnectionOptions, self.table("connection")),
            security=self.security(),
            seal=self.seal(),
            mqtt=self.mqtt(protocol),
            proxy=self.proxy(),
        )

    def proxy(self) -> str:
        """Return server.proxy."""
        with self.named():
            return check_proxy("server.proxy", self.table("server").get("proxy", ENVIRONMENT))

    def security(self) -> SecurityOptions | None:
        """Return the options of [security]. The table turns TLS on: without it, None."""
        if "security" not in self.tables:
            return None
        values: dict[str, Any] = {}
        for key in self.table("security"):
            if key == "post_quantum":
                values[key] = self.text("security", key, '"prefer", "require" or "off"')
            else:
                values[key] = self.existing("security", key, "text" if key == "revoked" else "PEM")
        return self.options("security", SecurityOptions, values)

    def seal(self) -> SealOptions | None:
        """Return the options of [seal]. The table turns sealing on: without it, None."""
        if "seal" not in self.tables:
            return None
        values = {key: self.existing("seal", key, "PEM") for key in ("key", "certificate", "authority")}
        if "revoked" in self.table("seal"):
            values["revoked"] = self.existing("seal", "revoked", "text")
        return self.options("seal", SealOptions, values)

    def mqtt(self, protocol: Protocol) -> MqttOptions:
        """Return the options of [mqtt]. Refuses the table for other protocols."""
        if "mqtt" in self.tables and protocol is not Protocol.MQTT:
            hint = 'say protocol = "mqtt", or leave the table out'
            raise self.wrong(f'[mqtt]: server.protocol is "{protocol.value}"; {hint}')
        values = dict(self.table("mqtt"))
        if "password_file" in values:
            del values["password_file"]
            if "password" in values:
                raise self.wrong("mqtt.password_file: there is a password, too; leave one of them out")
            values["password"] = self.secret("mqtt", "password_file")
        return self.options("mqtt", MqttOptions, values)

    def secret(self, table: str, key: str) -> str:
        """Return the first line of the file that a key names."""
        path = self.existing(table, key, "text")
        try:
            return path.read_text(encoding="utf-8-sig").partition("\n")[0]
        except (OSError, UnicodeDecodeError) as error:
            text = f"{table}.{key}: {str(path)!r} cannot be read ({error}); expected a text file"
            raise self.wrong(text, NotNow) from None

    def options(self, table: str, kind: Callable[..., T], values: Mapping[str, Any]) -> T:
        """Return an options object. Its errors name Class.option; raise them with table.key instead."""
        try:
            return kind(**values)
        except InvalidSecurity:  # of the tables [security] and [seal]
            raise
        except InvalidOption as error:
            text = str(error).replace("True or False", "true or false")  # as TOML has it
            raise self.wrong(f"{table}.{text.partition('.')[2]}") from None

    def function(self, table: str, key: str, example: str) -> Callable[..., Any]:
        """Return the callable that a value "module:function" names; `example` is such a name, for the error."""
        where, name = f"{table}.{key}", self.table(table).get(key)
        if name is None:
            self.check(where, name, False, f'"module:function", as in "{example}"')
        with self.named():
            return function(where, name, example)

    def _read(self, table: str, key: str, is_right: Callable[[Any], bool], expected: str) -> Any:
        value = self.table(table).get(key)
        self.check(f"{table}.{key}", value, is_right(value), expected)
        return value

    def check(
        self, where: str, value: object, right: bool, expected: str, kind: type[InvalidOption] = InvalidOption
    ) -> None:
        """Raise InvalidOption, or that `kind` of it, unless the value is right. None means that it is missing."""
        if not right:
            shown = "missing" if value is None else printable(repr(value), _LONGEST_VALUE)
            raise self.wrong(f"{where}: {shown}; expected {expected}", kind)

    @contextmanager
    def named(self, where: str = "") -> Iterator[None]:
        """Raise an InvalidOption of the `with` block again as of this file. `where`: stands before its text."""
        try:
            yield
        except InvalidOption as error:
            raise self.wrong(f"{where}{in_file_terms(error)}") from error.__cause__

    def wrong(self, what: str, kind: type[InvalidOption] = InvalidOption) -> InvalidOption:
        """Return the InvalidOption that names this file, or where else a value came from, and what is wrong."""
        origin = self._origins.get(what.partition(":")[0], self.path)
        return kind(printable(f"{origin}: {what}", _LONGEST))


def _toml_hint(error: str) -> str:
    if error.startswith("Invalid value"):
        return 'correct it there; texts are in quotes, as in "localhost"'
    if error.startswith("Cannot overwrite"):
        return "the key is there twice: leave one out"
    return "correct it there"


def _is_deeper(value: object, levels: int) -> bool:
    """Return whether tables and lists are nested in more than this many levels."""
    if not isinstance(value, (dict, list)):
        return False
    each = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(inner, levels - 1) for inner in each)


def _unwritable(path: Path, suffix: str) -> str:
    """Return why no file or folder can be created or written here, "" if one can. With a suffix, it is always new."""
    try:
        os.lstat(f"{path}{suffix}")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # a name that is too long, or has a null byte
        return _reason(error)
    if suffix:
        path = Path(os.path.realpath(path))
        is_file = path.is_file() or not path.exists()
        return _unwritable_in(path.parent) if is_file else "it is a pipe or a device"
    if path.exists() and not path.is_dir():
        return "" if os.access(path, os.W_OK) else "this user may not"
    return _unwritable_in(path if os.path.isdir(path) else path.parent)


def _unwritable_in(folder: Path) -> str:
    """Return why no file can be created there. Found out by trying: for root, os.access says yes even of /proc."""
    import tempfile  # takes 1.3 MB, which an agent has to keep

    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except (OSError, ValueError) as error:
        return _reason(error)


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def in_file_terms(text: str | Exception) -> str:
    """Return the text of an error or a log line of netq with table.key in place of Class.option."""
    return _OPTION.sub(_table_and_key, str(text))


def _table_and_key(found: re.Match[str]) -> str:
    if part := found["part"]:
        return {"netloc": "[server]", "proxy": "server.proxy"}.get(part, f"[{part}]")
    if table := found["table"]:
        return f"{table.lower()}." if found["key"] else f"[{table.lower()}]"
    return "server."


def function(where: str, name: object, example: str) -> Callable[..., Any]:
    """Return the callable that "module:function" names. Raises InvalidOption with `where` and `example` in it."""
    found = named_object(where, name, example)
    if not is_function(found):
        kind = "async function" if callable(found) else type(found).__name__
        attribute = str(name).partition(":")[2]
        raise InvalidOption(f"{where}: {name!r}; expected a function, and {attribute} is a {kind}")
    callable_: Callable[..., Any] = found
    return callable_


def named_object(where: str, name: object, example: str, kind: str = "function") -> Any:
    """Return the object that "module:name" names, and import its module. Raises InvalidOption as `function` does."""
    if not isinstance(name, str) or not all(part.strip() for part in name.partition(":")):
        raise InvalidOption(f'{where}: {name!r}; expected "module:{kind}", as in "{example}"')
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the code of the module may raise anything
        raise _import_failed(f"{where}: {name!r}", module_name, error) from error
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise InvalidOption(f"{where}: {name!r}; {_no_function(module, attribute)}") from None


def _import_failed(what: str, module: str, error: BaseException) -> InvalidOption:
    """Return the error for a module that does not exist, or that raises an error, and where."""
    reason = describe(error)
    is_absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
    place = None if is_absent else _raised_at(error)
    if place is None:
        return NotNow(  # it may lie on a disk that is mounted later
            f"{what}; expected a module that can be imported from here, but {module} gives {reason}: "
            "correct the name, or set PYTHONPATH to the folder it lies in"
        )
    text = f"{what}; the module is there, but {place} raises {reason}: {_hint(error)}; --verbose shows the traceback"
    return NotNow(text)


def _hint(error: BaseException) -> str:
    if not isinstance(error, ModuleNotFoundError):
        return "correct it there"
    package, _, inside = (error.name or "").partition(".")
    if inside and package in sys.modules:
        return f"the {package} that is installed has no such module; correct it there, or install another release"
    return "install it"


def _raised_at(error: BaseException) -> str | None:
    """Return file and line of the module's own code that raised this during its import; None if none of it ran."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}, line {error.lineno},"
    frames = traceback.extract_tb(error.__traceback__)[2:]  # without named_object and import_module
    frames = [frame for frame in frames if not frame.filename.startswith("<frozen")]
    if not frames:
        return None
    folder = Path(frames[0].filename).parent  # that of the module, or of its package
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    last = [frame for frame in own if "site-packages" not in frame.filename[len(str(folder)) :]][-1]
    return f"{last.filename}, line {last.lineno},"


def _no_function(module: Any, name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, [each for each, value in vars(module).items() if callable(value)], n=1)
    file = getattr(module, "__file__", None)
    if file is None:  # a namespace package
        folder = next(iter(module.__path__))
        return f"expected a module, but {folder} is a folder without __init__.py: rename it, or correct the name"
    hint = f"did you mean {near[0]}?" if near else f"define it in {file}"
    return f"expected a function of that name, but {module.__name__} has no {name}: {hint}"
