"""The TOML file of an aggregator: its tables and keys, and the objects that they describe.

netq/toml_file.py reads the values. Called by fl/__main__.py and by scripts. Loading opens no connection and starts
nothing; it imports the modules that the file names. Paths are relative to the folder of the file. `KEYS` has the
tables, and docs/how-to/aggregator.md what they mean; fl.Server and the classes of the options document most keys.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import fl
from fl.callbacks.best import EarlyStopping, SaveBest
from fl.callbacks.jsonl import Measure, name_of
from fl.config import statistics, strategy
from fl.errors import InvalidUpdate
from fl.page.server import check as check_page
from fl.schedules import from_table
from fl.secure.options import check_max_examples
from fl.server.checkpoint import is_there
from fl.server.validation import checked_evaluation
from fl.tensors.files import check_name
from fl.tensors.roles import ROLES, assign, check_values
from netq.errors import AddressError, InvalidOption, SecurityError
from netq.options import CommunicatorOptions, NetworkLocation, Protocol, SecurityOptions
from netq.text import describe
from netq.toml_file import CONNECTION, File, in_file_terms, named_object

log = logging.getLogger("fl")

_PATIENCE = tuple(each.name for each in fields(fl.Patience))
_COUNTS = ("min_clients", "wait", "suspend_after", "void_rounds")
_TABLES = {
    "server.privacy: ": "[privacy]: ",
    "server.secure: ": "[secure]: ",
    "DifferentialPrivacy.": "privacy.",
    "Homomorphic.": "secure.",
    "SecureAggregation.": "secure.",
}
_SETTINGS = ("min_clients", "wait", *_PATIENCE, "evaluate", "memory_limit", "relays")


@dataclass(frozen=True)
class CallbackOptions:
    """Which callbacks the server gets.

    progress:    True: progress on the terminal; False: one log line a round.
    json:        path of a file for fl.JsonLines.
    client_metrics: whether fl.JsonLines writes the metrics and the number of examples of each client.
    tensorboard: path of a folder for fl.TensorBoard.
    prometheus:  host and port for fl.Prometheus.
    mlflow:      address of a server for fl.MLflow.
    page:        arguments of fl.Page; empty: none.
    own:         callbacks of the user's, and what makes them.
    """

    progress: bool = False
    json: Path | None = None
    client_metrics: bool = False
    tensorboard: Path | None = None
    prometheus: tuple[str, int] | None = None
    mlflow: str | None = None
    page: Mapping[str, Any] = field(default_factory=dict)
    own: tuple[Callable[[], fl.Callback], ...] = ()


KEYS: dict[str, tuple[str, ...] | None] = {
    "server": ("host", "port", "rounds", "stop_early", "linger", "protocol", "proxy", *_SETTINGS, "checkpoint"),
    "model": ("initial", "measure", "save", "save_best"),
    "roles": None,  # the model's names
    "strategy": None,  # the options of the class
    "secure": (*(option.name for option in fields(fl.SecureAggregation)), "context"),
    "privacy": tuple(option.name for option in fields(fl.DifferentialPrivacy)),
    "statistics": ("columns", "min_count"),
    **CONNECTION,
    "callbacks": tuple(option.name for option in fields(CallbackOptions)),
    "page": ("password_file", "key", "certificate", "authority"),
}


@dataclass(frozen=True)
class Config:
    """The configuration of an aggregator."""

    path: Path
    options: CommunicatorOptions
    rounds: int
    initial: Callable[[], Any]
    protocol: Protocol = Protocol.TCP
    linger: float = 60.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Path | None = None
    measure: Measure | None = None
    save: Path | None = None
    save_best: Mapping[str, Any] = field(default_factory=dict)  # arguments of fl.SaveBest; empty: none
    stop_early: Mapping[str, Any] = field(default_factory=dict)  # arguments of fl.EarlyStopping; empty: none
    strategy: fl.Strategy = field(default_factory=fl.FedAvg)
    callbacks: CallbackOptions = field(default_factory=CallbackOptions)
    statistics: Mapping[str, Any] = field(default_factory=dict)  # arguments of Server.statistics_of; empty: none

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Read a TOML file, and import the modules that it names.

        Raises InvalidOption, which names the file and the key, what was expected and what to do.
        """
        file = File(Path(path), "the aggregator's TOML file")
        file.check_names(KEYS)
        file.check_folders("server.checkpoint", "model.save", "callbacks.json", "callbacks.tensorboard")
        protocol = file.choice("server", "protocol", Protocol.TCP)
        return cls(
            path=file.path,
            options=file.communicator(netloc(file), protocol),
            rounds=file.whole("server", "rounds", "a whole number, 1 or more", 1),
            initial=_called_with(file, "initial"),
            protocol=protocol,
            linger=linger(file),
            settings=settings(file),
            checkpoint=file.output("server", "checkpoint", suffix=".previous"),
            measure=_called_with(file, "measure", "model") if "measure" in file.table("model") else None,
            save=(save := _save(file)),
            save_best=_save_best(file, save),
            stop_early=_stop_early(file),
            strategy=strategy.strategy(file),
            callbacks=callbacks(file),
            statistics=statistics.statistics(file),
        )

    def server(self, callbacks: Iterable[fl.Callback] = ()) -> fl.Server:
        """Return a listening server. It resumes from the checkpoint if that exists.

        Raises InvalidOption as `load` does, also for certificates; CheckpointError; AddressError.
        """
        settings = {
            **self.settings,
            "strategy": self.strategy,
            "protocol": self.protocol,
            "checkpoint": self.checkpoint,
            "callbacks": tuple(callbacks),
        }
        if self.checkpoint is not None and is_there(self.checkpoint):
            make = partial(fl.Server.resume, self.checkpoint)
        else:
            make = partial(fl.Server, self.initial_model())
        try:
            return make(self.options, **settings)
        except (InvalidOption, SecurityError) as error:
            raise InvalidOption(f"{self.path}: {_in_terms(error)}") from error
        except AddressError as error:
            raise AddressError(
                f"{self.path}: {str(error).replace(' (netloc)', ' (server.host, server.port)')}"
            ) from error

    def simulated(self) -> Config:
        """Return this configuration with other names for what it writes, so that a service's files stay as they are."""
        json, tensorboard = _simulated(self.callbacks.json), _simulated(self.callbacks.tensorboard)
        callbacks = replace(self.callbacks, json=json, tensorboard=tensorboard)
        best = dict(self.save_best)
        if best:
            best["path"] = _simulated(best["path"])
        patience = replace(self.settings.get("patience", fl.Patience()), void_pause=0.0)  # nothing would change in it
        unused = ("memory_limit", "wait", "relays", "secure")  # no server sees an update
        if "secure" in self.settings:
            more = ", and noise under masks is more than here" if "privacy" in self.settings else ""
            log.warning("[secure] is not used: a simulation has no server that updates are kept from%s", more)
        settings = {name: value for name, value in self.settings.items() if name not in unused}
        settings["patience"] = patience
        return replace(self, settings=settings, save=_simulated(self.save), save_best=best, callbacks=callbacks)

    def initial_model(self) -> Mapping[str, Any]:
        """Return the first model. Raises InvalidOption if `model.initial` does not return one."""
        try:
            model = self.initial()
        except Exception as error:  # the user's code may raise anything
            what = f"{name_of(self.initial)} raised {describe(error)}"
            raise InvalidOption(f"{self.path}: model.initial: {what}; --verbose shows the traceback") from error
        if not isinstance(model, Mapping):
            kind = type(model).__name__
            raise InvalidOption(f"{self.path}: model.initial: returned a {kind}; expected a dict of arrays by name")
        try:
            check_values(model, assign(model, self.settings.get("roles")))
        except InvalidUpdate as error:
            raise InvalidOption(f"{self.path}: model.initial: {error}") from None
        except InvalidOption as error:
            raise InvalidOption(f"{self.path}: {error}") from None
        return model


def _in_terms(error: Exception) -> str:
    """Return the text of an error of fl.Server, with the tables of the file."""
    text = in_file_terms(error)
    for name, table in _TABLES.items():
        text = text.replace(name, table)
    return text


def _simulated(path: Path | None) -> Path | None:
    """Return the name of a simulation's file or folder. A device, such as /dev/null, keeps its name."""
    if path is None or (path.exists() and not path.is_file() and not path.is_dir()):
        return path
    return path.with_name(f"simulated-{path.name}")


def load_flower(path: str | Path) -> tuple[CommunicatorOptions, Protocol, dict[str, Any]]:
    """Read the file of a server of Flower apps: its connection, and arguments for masks. Raises InvalidOption."""
    file = File(Path(path), "the server's TOML file")
    secure = (*(option.name for option in fields(fl.SecureAggregation)), "max_examples")
    file.check_names({**CONNECTION, "server": ("host", "port", "protocol", "proxy"), "secure": secure})
    protocol = file.choice("server", "protocol", Protocol.TCP)
    return file.communicator(netloc(file), protocol), protocol, _masks(file) if "secure" in file.tables else {}


def _masks(file: File) -> dict[str, Any]:
    table = dict(file.table("secure"))
    most = table.pop("max_examples", None)
    with file.named():
        check_max_examples("secure.max_examples", most)
    return {"secure": file.options("secure", fl.SecureAggregation, table), "max_examples": most}


def netloc(file: File) -> NetworkLocation:
    """Return where a server listens."""
    host = file.text("server", "host", 'where to listen, as in "0.0.0.0"')
    expected = "a whole number from 1 to 65535, as in 51966, or 0 for one that is free"
    return NetworkLocation(host, file.whole("server", "port", expected, 0, 65535))


def _called_with(file: File, key: str, *arguments: str) -> Callable[..., Any]:
    """Return a function of [model] that accepts these arguments."""
    function = file.function("model", key, f"farm.model:{key}")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        form = f"{key}({', '.join(arguments)})"
        raise file.wrong(f"model.{key}: {error}; expected a function that can be called as {form}") from None
    except ValueError:  # a function written in C without a signature
        pass
    return function


def _save(file: File) -> Path | None:
    path = file.output("model", "save", suffix=".new")
    if path is not None:
        with file.named():
            check_name(path, "model.save")
    return path


def _save_best(file: File, save: Path | None) -> dict[str, Any]:
    if save is None and "save_best" in file.table("model"):
        raise file.wrong("model.save_best: needs model.save, next to which the best model is written; set it")
    expected = 'a metric, as in "server_accuracy", or { metric = "server_distance", lowest = true }'
    path = None if save is None else save.with_name(f"{save.stem}-best{save.suffix}")
    return _watched(file, "model", "save_best", SaveBest, expected, path=path)


def _stop_early(file: File) -> dict[str, Any]:
    known = "metric, patience, min_delta, lowest, of, source"
    expected = f'a table of {known}, as in {{ metric = "server_accuracy", patience = 10 }}'
    return _watched(file, "server", "stop_early", EarlyStopping, expected)


def _watched(
    file: File, table: str, key: str, kind: Callable[..., object], expected: str, **more: object
) -> dict[str, Any]:
    """Return the arguments of a callback that watches a metric, after a trial; empty without the key."""
    value = file.table(table).get(key)
    if value is None:
        return {}
    options = {"metric": value} if isinstance(value, str) and more else value
    known = inspect.signature(kind).parameters.keys() - more.keys()
    right = isinstance(options, dict) and "metric" in options and options.keys() <= known
    file.check(f"{table}.{key}", value, right, expected)
    try:
        kind(**more, **options)
    except InvalidOption as error:
        raise file.wrong(f"{table}.{key}: {str(error).partition('.')[2]}") from None
    return {**more, **options}


def linger(file: File) -> float:
    """Return server.linger."""
    seconds: float = file.table("server").get("linger", Config.linger)
    right = type(seconds) in (int, float) and seconds >= 0
    file.check("server.linger", seconds, right, "seconds, 0 or more, as in 60.0")
    return seconds


def settings(file: File) -> dict[str, Any]:
    """Return arguments of fl.Server that are passed on unchanged. It checks their ranges itself."""
    readers: dict[str, Callable[[str, str], Any]] = {
        **dict.fromkeys(_COUNTS, partial(file.whole, expected="a whole number")),
        "deadline": partial(_seconds_by_round, file),
        "close_early": file.boolean,
        "void_pause": partial(file.seconds, expected="seconds, as in 1.0"),
        "grace": partial(file.seconds, expected="seconds, as in 10.0"),
        "evaluate": partial(_evaluate, file),
        "memory_limit": partial(file.whole, expected="a whole number of bytes"),
        "relays": partial(_relays, file),
    }
    found = {key: readers[key]("server", key) for key in _SETTINGS if key in file.table("server")}
    patience = {key: found.pop(key) for key in _PATIENCE if key in found}
    if patience:
        found["patience"] = file.options("server", fl.Patience, patience)
    if "secure" in file.tables:
        found["secure"] = _secure(file)
    if "privacy" in file.tables:
        found["privacy"] = _privacy(file)
    return {**found, **_roles(file)}


def _privacy(file: File) -> fl.DifferentialPrivacy:
    """Return the options of [privacy]. Without a noise_multiplier: the least one for which all rounds fit."""
    table, form = dict(file.table("privacy")), "a number above 0, as in 1.0"
    file.check("privacy.clip", table.get("clip"), "clip" in table, form)
    if "noise_multiplier" in table:
        return file.options("privacy", fl.DifferentialPrivacy, table)
    form += "; or max_epsilon, for which it is found"
    file.check("privacy.noise_multiplier", None, "max_epsilon" in table, form)
    file.options("privacy", fl.DifferentialPrivacy, {**table, "noise_multiplier": 1.0})  # checks the others
    rounds, epsilon = file.whole("server", "rounds", "a whole number, 1 or more", 1), table.pop("max_epsilon")
    try:
        return fl.DifferentialPrivacy.for_rounds(rounds, epsilon, masks="secure" in file.tables, **table)
    except InvalidOption as error:
        raise file.wrong(f"privacy.max_epsilon: {str(error).partition('epsilon: ')[2]}") from None


def _secure(file: File) -> fl.SecureAggregation | fl.Homomorphic:
    """Return what [secure] says: with `context` it is homomorphic encryption, which has no other option."""
    table = file.table("secure")
    if "context" not in table:
        return file.options("secure", fl.SecureAggregation, table)
    others = [f"secure.{key}" for key in table if key != "context"]
    reads = [f"model.{key}" for key in ("measure", "save", "save_best") if key in file.table("model")]
    for key, why in (
        *((key, "is of masks, and secure.context of homomorphic encryption") for key in others),
        *((key, "needs a model, and the server has ciphertexts only") for key in reads),
    ):
        raise file.wrong(f"{key}: {why}: leave it out")
    return fl.Homomorphic(file.existing("secure", "context", "JSON"))


def _seconds_by_round(file: File, table: str, key: str) -> Any:
    value = file.table(table)[key]
    if not isinstance(value, dict):
        return file.seconds(table, key, 'seconds, as in 600.0, or { schedule = "step", start = 600.0, … }')
    with file.named(f"{table}.{key}: "):
        return from_table(value)


def _relays(file: File, table: str, key: str) -> Any:
    relays = file.table(table)[key]
    right = isinstance(relays, bool) or (isinstance(relays, list) and all(isinstance(each, str) for each in relays))
    form = 'true, false, or a list of names or ids, as in ["relay-north"]'
    file.check(f"{table}.{key}", relays, right, form)
    return relays


def _roles(file: File) -> dict[str, Any]:
    """Return the roles as an argument of fl.Server, which knows the model's names; empty without the table."""
    roles = file.table("roles")
    for pattern, role in roles.items():
        expected = f'one of {", ".join(ROLES)}, as in "head.*" = "local", with the name in quotes'
        file.check(f"roles.{pattern}", role, isinstance(role, str) and role in ROLES, expected)
    return {"roles": dict(roles)} if roles else {}


def _evaluate(file: File, table: str, key: str) -> Any:
    value = file.table(table)[key]
    expected = "true, false, or a table, as in { fraction = 0.2, every = 5 }"
    file.check(f"{table}.{key}", value, isinstance(value, bool | dict), expected)
    with file.named():
        checked_evaluation(value)
    return value


def callbacks(file: File) -> CallbackOptions:
    """Return what [callbacks] and [page] say."""
    readers: dict[str, Callable[[str, str], Any]] = {
        "progress": file.boolean,
        "json": file.output,
        "client_metrics": file.boolean,
        "tensorboard": partial(file.output, folder=True),
        "prometheus": partial(_host_and_port, file, 9100),
        "page": partial(_page, file),
        "own": partial(_own, file),
        "mlflow": partial(_mlflow, file),
    }
    if "page" in file.tables and "page" not in file.table("callbacks"):
        raise file.wrong("[page]: needs callbacks.page, the port of the page; set it, or leave the table out")
    return CallbackOptions(**{key: readers[key]("callbacks", key) for key in file.table("callbacks")})


def _own(file: File, table: str, key: str) -> tuple[Callable[[], fl.Callback], ...]:
    """Return what makes the user's callbacks: "module:name" is an object, or a class or function without arguments."""
    names, form = file.table(table)[key], 'a list of "module:name", as in ["farm.callbacks:Wandb"]'
    file.check(f"{table}.{key}", names, isinstance(names, list), form)
    with file.named():
        return tuple(
            partial(_made, file, name, named_object(f"{table}.{key}", name, "farm.callbacks:Wandb", "callback"))
            for name in names
        )


def _made(file: File, name: str, found: Any) -> fl.Callback:
    """Return a callback of the user's. Raises InvalidOption if its class or function raises, or it is none."""
    try:
        callback = found if isinstance(found, fl.Callback) else found()
    except Exception as error:  # the user's code may raise anything
        raise file.wrong(f"callbacks.own: {name!r} raised {describe(error)}; --verbose shows the traceback") from error
    if not isinstance(callback, fl.Callback):
        expected = "expected a class that inherits from fl.Callback, or a function that returns an object of one"
        raise file.wrong(f"callbacks.own: {name!r} gives {type(callback).__name__}; {expected}")
    return callback


def _page(file: File, table: str, key: str) -> dict[str, Any]:
    """Return the arguments of fl.Page."""
    host, port = _host_and_port(file, 8080, table, key)
    found: dict[str, Any] = {"host": host, "port": port}
    keys = [each for each in ("key", "certificate", "authority") if each in file.table("page")]
    if keys:
        paths: dict[str, Any] = {each: file.existing("page", each, "PEM") for each in keys}
        found["security"] = file.options("page", SecurityOptions, paths)
    if "password_file" in file.table("page"):
        found["password"] = file.secret("page", "password_file")
    with file.named():
        check_page(**{"password": None, "security": None, **found})
    return found


def _host_and_port(file: File, example: int, table: str, key: str) -> tuple[str, int]:
    value = file.table(table)[key]
    host, _, port = f"127.0.0.1:{value}".rpartition(":") if type(value) is int else str(value).rpartition(":")
    right = host != "" and port.isascii() and port.isdigit() and int(port) <= 65535
    file.check(f"{table}.{key}", value, right, f'a port, as in {example}, or "host:port", as in "0.0.0.0:{example}"')
    return host, int(port)


def _mlflow(file: File, table: str, key: str) -> str:
    uri = file.table(table)[key]
    right = isinstance(uri, str) and re.fullmatch(r"https?://[^/\s]\S*", uri) is not None
    file.check(f"{table}.{key}", uri, right, 'the address of an MLflow server, as in "http://localhost:5000"')
    return str(uri)
