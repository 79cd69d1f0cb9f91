"""The TOML file of a device: its tables and keys, and the objects that they describe.

netq/toml_file.py reads the values. Called by edge/__main__.py, by edge/flower.py, and by scripts before `edge.run`.
Opens no connection, starts nothing, and imports nothing of the user's.

[server]      host, port         address of the server. Required
              protocol           transport; default "tcp"
              fallback           addresses of other servers or relays, as in ["10.0.0.2:51966"]: one that has no
                                 connection for 10 seconds is given up for the next
              proxy              on the way to it: "http://HOST:PORT", "socks5://HOST:PORT" or "none"; default: what the
                                 variables https_proxy, all_proxy and no_proxy say
[client]      id                 this device's UUID; default: a new one each time the file is loaded. Not with a
                                 certificate of its own, which names its id
              name               what logs and reports call this device besides its id; default: the common name of its
                                 certificate
              train, evaluate    "module:function", as in "farm.training:train"
              columns            "module:function", which returns this device's data as arrays by name, for servers that
                                 ask for statistics; default: it gives none
              min_count          a column with fewer values is withheld from the server, and a smaller number of values
                                 is given as 0; default 10
              check              whether to train once with a model of zeros before the device takes part; default false
              compression        compression of this device's updates, as in { dtype = "int8" }; "auto": by the measured
                                 rate of the link; default: the server's
              properties         what the server's strategy may choose by, as in { region = "eu", memory_mb = 512 }
              state              folder for the last update, and for what training keeps from round to round;
                                 default: $STATE_DIRECTORY, which systemd sets; else they are kept in memory
[model]       path               file for the last model, .npz or .safetensors, which the server sends at the end
              hook               command that is run then, as in ["/usr/local/bin/use-model"]; the path of the file is
                                 added to it
[training]    any field of edge.Limits: memory, seconds, threads, nice, keep
[fit]         any field of edge.Fitness: when the device takes part
[security]    key, certificate, authority, post_quantum: see SecurityOptions; all but the last are paths of PEM files,
                                 relative to this file. The table turns TLS on, even if it is empty
[seal]        key, certificate, authority: see SealOptions; paths of PEM files, as above. The table turns sealing on
[secure]      any field of fl.SecurePolicy: required, min_clients, certificates, noise_multiplier; `key` is the path of
              the clients' file of fl secure-key, for homomorphic encryption
[policy]      any field of edge.Policy: what this device lets leave, whatever its server asks for; `audit` is a path
[mqtt]        any field of netq.MqttOptions, for the protocol "mqtt" only; password_file: a file that has the password
[connection]  any field of netq.ConnectionOptions; default of message_size and memory: what fits this machine
[settings]    any keys; added to the config of train, evaluate and columns. They override keys of the same name that
              the server sends

Environment variables replace values of the file: EDGE_SERVER_PORT=51966 is port in [server]. So do flags of the
command: --set server.port=51966. A flag is stronger than a variable. Both are read as TOML values, or else as texts.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from edge import fitness
from edge.fitness import Fitness
from edge.limits import Limits
from edge.machine import Machine
from edge.policy import Policy
from fl.envelope import RESERVED
from fl.properties import checked, checked_name
from fl.secure.options import SecurePolicy
from netq.errors import InvalidOption, NotNow, SecurityError
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
from netq.security.files import own_id
from netq.toml_file import CONNECTION, File, Override, in_file_terms

_CERTIFIED = (Protocol.TCP, Protocol.GRPC)  # the server sees the certificate; with MQTT, only the broker does
FILE = "the device's TOML file"  # its description in errors
SECRETS = ("security", "seal", "secure")  # tables whose `key` only root may read, if the agent is a service
KEYS: dict[str, tuple[str, ...] | None] = {
    "server": ("host", "port", "protocol", "fallback", "proxy"),
    "client": (
        *("id", "name", "train", "evaluate", "columns", "min_count", "check", "compression", "properties", "state"),
    ),
    "model": ("path", "hook"),
    "training": tuple(option.name for option in fields(Limits)),
    "fit": fitness.KEYS,
    "security": ("key", "certificate", "authority", "post_quantum"),
    "seal": ("key", "certificate", "authority"),
    "secure": tuple(option.name for option in fields(SecurePolicy)),
    "policy": tuple(option.name for option in fields(Policy)),
    "mqtt": CONNECTION["mqtt"],
    "connection": CONNECTION["connection"],
    "settings": None,  # any
}
FLOWER_KEYS: dict[str, tuple[str, ...] | None] = {"flower": None, "app": ("folder", "signer")}  # see edge/flower.py


@dataclass(frozen=True)
class Config:
    """The configuration of a device.

    name:            what logs and reports call this device besides its id. That of its certificate is stronger.
    train, evaluate, columns: "module:function"; imported by the process that does the tasks.
    min_count:       as of fl.Client.
    check:           whether to train once with a model like the server's, of zeros, before the device takes part.
    compression:     the fields of an fl.Compression by name, its text, or "auto"; None: as the server says.
    properties:      what the server and its strategy may choose by, as of fl.Client.
    fallback:        addresses of further servers or relays, as of fl.Client.run.
    settings:        joined to the config that train and evaluate get, and stronger than it.
    model:           file for the last model, .npz or .safetensors; None: the server sends none.
    hook:            command that is run with the path of that file, when it is there.
    state:           folder for the last update, and for what training keeps. None: in memory.
    """

    netloc: NetworkLocation
    protocol: Protocol = Protocol.TCP
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    name: str = ""
    train: str | None = None
    evaluate: str | None = None
    columns: str | None = None
    min_count: int = 10
    check: bool = False
    compression: Mapping[str, Any] | str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    model: Path | None = None
    hook: tuple[str, ...] = ()
    training: Limits = field(default_factory=Limits)
    fit: Fitness = field(default_factory=Fitness)
    state: Path | None = None
    security: SecurityOptions | None = None
    seal: SealOptions | None = None
    secure: SecurePolicy = field(default_factory=SecurePolicy)
    policy: Policy = field(default_factory=Policy)
    mqtt: MqttOptions = field(default_factory=MqttOptions)
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    proxy: str = ENVIRONMENT
    fallback: tuple[NetworkLocation, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path | None, overrides: Iterable[Override] = ()) -> Config:
        """Read a TOML file. None: there is none, only the overrides.

        Raises InvalidOption, which names the file and the key, what was expected and what to do.
        """
        file = open_file(path, overrides)
        if "flower" in file.tables:
            raise file.wrong("[flower]: is a Flower app's table; start it with --flower module:app, or leave it out")
        file.check_names(KEYS)
        for name, meaning in RESERVED.items():
            if name in file.table("settings"):
                raise file.wrong(f"settings.{name}: the functions get {meaning} under this name; use another one")
        return from_file(
            file,
            train=_function(file, "train"),
            evaluate=_function(file, "evaluate"),
            columns=_function(file, "columns"),
            min_count=_min_count(file),
            check="check" in file.table("client") and file.boolean("client", "check"),
            compression=_compression(file),
            properties=_properties(file),
            model=file.output("model", "path", suffix=".new"),
            hook=_hook(file),
            settings=file.table("settings"),
        )

    @property
    def largest(self) -> int:
        """The largest message that this device takes, in bytes."""
        return self.options().connection.message_size

    def options(self) -> CommunicatorOptions:
        """Return the options of the device's communicator, which takes no message that this machine has no room for."""
        return CommunicatorOptions(
            id=self.id,
            netloc=self.netloc,
            connection=self.training.bound(self.connection, Machine().memory()),
            security=self.security,
            mqtt=self.mqtt,
            seal=self.seal,
            proxy=self.proxy,
        )


def open_file(path: str | Path | None, overrides: Iterable[Override]) -> File:
    """Return the file of a device, with the overrides."""
    return File(None if path is None else Path(path), FILE, overrides)


def from_environment(environment: Mapping[str, str]) -> list[Override]:
    """Return the overrides of variables as EDGE_SERVER_PORT. Other names that begin with EDGE_ are left alone."""
    found = []
    for name, text in sorted(environment.items()):
        prefix, _, rest = name.partition("_")
        table, _, key = rest.lower().partition("_")
        if prefix == "EDGE" and key and (table in KEYS or table in FLOWER_KEYS):
            found.append(Override.parse(table, key, text, f"${name}"))
    return found


def from_flags(flags: Iterable[str]) -> list[Override]:
    """Return the overrides of flags as "server.port=51966". Raises InvalidOption."""
    found = []
    for flag in flags:
        name, is_set, text = flag.partition("=")
        table, _, key = name.strip().partition(".")
        if not (is_set and table and key):
            raise InvalidOption(f"--set: {flag!r}; expected TABLE.KEY=VALUE, as in server.port=51966")
        found.append(Override.parse(table, key, text, "--set"))
    return found


def from_file(file: File, **fields: Any) -> Config:
    """Return a configuration with the tables that every kind of device has; `fields`: the fields of this kind."""
    protocol = file.choice("server", "protocol", Protocol.TCP)
    policy, state = _policy(file), state_of(file)
    with file.named():
        policy.check(state, fields.get("compression"))
    options = file.communicator(_netloc(file), protocol)
    return Config(
        netloc=options.netloc,
        protocol=protocol,
        id=_id(file, protocol, options.security, options.seal),
        security=options.security,
        seal=options.seal,
        mqtt=options.mqtt,
        connection=options.connection,
        proxy=options.proxy,
        fallback=tuple(file.addresses("server", "fallback")),
        training=file.options("training", Limits, file.table("training")),
        fit=fitness.fitness(file),
        secure=_secure(file),
        policy=policy,
        state=state,
        name=_name(file),
        **fields,
    )


def _secure(file: File) -> SecurePolicy:
    values = dict(file.table("secure"))
    if "key" in values:
        values["key"] = file.existing("secure", "key", "JSON")
    return file.options("secure", SecurePolicy, values)


def _policy(file: File) -> Policy:
    values = {**file.table("policy"), "audit": file.output("policy", "audit")}
    return file.options("policy", Policy, values)


def _netloc(file: File) -> NetworkLocation:
    host = file.text("server", "host", 'the server\'s name, as in "10.0.0.1"')
    return NetworkLocation(host, file.whole("server", "port", "a whole number from 1 to 65535, as in 51966", 1, 65535))


def _id(file: File, protocol: Protocol, security: SecurityOptions | None, seal: SealOptions | None) -> uuid.UUID:
    text = file.table("client").get("id")
    own = _own_certificate(protocol, security, seal)
    if own is not None:
        if text is not None:
            raise file.wrong(f"client.id: {text!r}; the certificate names this device's id: leave it out")
        try:
            return own_id(*own)
        except SecurityError as error:
            raise file.wrong(in_file_terms(error), NotNow) from error
    if text is None:
        return uuid.uuid4()
    try:
        return uuid.UUID(text)
    except (ValueError, AttributeError, TypeError):
        example = uuid.UUID(int=2**127)
        raise file.wrong(
            f'client.id: {text!r}; expected a UUID, as in "{example}", or leave it out for a new one each time'
        ) from None


def _own_certificate(
    protocol: Protocol, security: SecurityOptions | None, seal: SealOptions | None
) -> tuple[str, Path] | None:
    """Return the certificate that the server sees, and the options that name it."""
    if seal is not None:
        return "SealOptions", seal.certificate
    own = None if security is None or security.authority is None else security.certificate
    return None if own is None or protocol not in _CERTIFIED else ("SecurityOptions", own)


def state_of(file: File) -> Path | None:
    """Return the folder, which is not tried here: an agent does without one that cannot be written to."""
    if "state" in file.table("client"):
        path = file.path.parent / file.text("client", "state", "a path, seen from the folder of this file")
        expected = "a folder, and there is a file of this name"
        file.check("client.state", str(path), os.path.isdir(path) or not os.path.exists(path), expected)
        return path
    systemd = os.environ.get("STATE_DIRECTORY")  # one or more absolute paths
    return Path(systemd.partition(":")[0]) if systemd else None


def _function(file: File, key: str) -> str | None:
    return (
        file.text("client", key, f'"module:function", as in "farm.training:{key}"')
        if key in file.table("client")
        else None
    )


def _min_count(file: File) -> int:
    is_set = "min_count" in file.table("client")
    return file.whole("client", "min_count", "a whole number, 1 or more", 1) if is_set else Config.min_count


def _name(file: File) -> str:
    with file.named():
        return checked_name(file.table("client").get("name", ""), "client.name")


def _properties(file: File) -> dict[str, Any]:
    with file.named():
        return checked(file.table("client").get("properties", {}), "client.properties")


def _hook(file: File) -> tuple[str, ...]:
    hook = file.table("model").get("hook", [])
    right = isinstance(hook, list) and all(isinstance(each, str) and each and "\0" not in each for each in hook)
    expected = 'a list of texts, as in ["/usr/local/bin/use-model"], which gets the path of the model as another one'
    file.check(
        "model.hook", hook, right and (not hook or "path" in file.table("model")), expected + "; with model.path"
    )
    return tuple(hook)


def _compression(file: File) -> Mapping[str, Any] | str | None:
    value: Mapping[str, Any] | str | None = file.table("client").get("compression")
    expected = 'a table as { dtype = "int8" }, its text, or "auto"'
    file.check("client.compression", value, isinstance(value, Mapping | str | None), expected)
    return value
