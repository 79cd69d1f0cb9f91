"""The TOML file of a device: its tables and keys, and the objects that they describe.

fl/config/toml.py reads the values. Called by edge/__main__.py, by edge/flower.py, and by scripts before `edge.run`.
Opens no connection and starts nothing; it imports the modules that `train` and `evaluate` name.

[server]      host, port         address of the server. Required
              protocol           transport; default "tcp"
[client]      id                 this device's UUID; default: a new one each time the file is loaded. Not with a
                                 certificate of its own, which names its id
              train, evaluate    "module:function", as in "farm.training:train"
              compression        compression of this device's updates, as in { dtype = "int8" }; default: the server's
[security]    key, certificate, authority, post_quantum: see SecurityOptions; all but the last are paths of PEM files,
                                 relative to this file. The table turns TLS on, even if it is empty
[seal]        key, certificate, authority: see SealOptions; paths of PEM files, as above. The table turns sealing on
[mqtt]        any field of netq.MqttOptions, for the protocol "mqtt" only
[connection]  any field of netq.ConnectionOptions
[settings]    any keys; added to the config of train and evaluate. They override keys of the same name that the server
              sends
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fl.config.toml import File, in_file_terms
from netq.errors import SecurityError
from netq.options import (
    CommunicatorOptions,
    ConnectionOptions,
    MqttOptions,
    NetworkLocation,
    Protocol,
    SealOptions,
    SecurityOptions,
)
from netq.security.files import own_id

if TYPE_CHECKING:
    import fl

Train: TypeAlias = "Callable[[dict[str, Any], Mapping[str, Any]], fl.Update]"
Evaluate: TypeAlias = "Callable[[dict[str, Any], Mapping[str, Any]], fl.Report]"

_CERTIFIED = (Protocol.TCP, Protocol.GRPC)  # the server sees the certificate; with MQTT, only the broker does
FILE = "the device's TOML file"  # its description in errors
KEYS: dict[str, tuple[str, ...] | None] = {
    "server": ("host", "port", "protocol"),
    "client": ("id", "train", "evaluate", "compression"),
    "security": ("key", "certificate", "authority", "post_quantum"),
    "seal": ("key", "certificate", "authority"),
    "mqtt": tuple(option.name for option in fields(MqttOptions)),
    "connection": tuple(option.name for option in fields(ConnectionOptions)),
    "settings": None,  # any
}


@dataclass(frozen=True)
class Config:
    """The configuration of a device."""

    netloc: NetworkLocation
    protocol: Protocol = Protocol.TCP
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    train: Train | None = None
    evaluate: Evaluate | None = None
    compression: fl.Compression | None = None
    security: SecurityOptions | None = None
    seal: SealOptions | None = None
    mqtt: MqttOptions = field(default_factory=MqttOptions)
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Read a TOML file, and import the functions that it names.

        Raises InvalidOption, which names the file and the key, what was expected and what to do.
        """
        file = File(Path(path), FILE)
        if "flower" in file.tables:
            raise file.wrong("[flower]: is a Flower app's table; start it with --flower module:app, or leave it out")
        file.check_names(KEYS)
        if "round" in file.table("settings"):
            raise file.wrong("settings.round: the server gives the functions this value; use another name")
        return from_file(
            file,
            train=_function(file, "train"),
            evaluate=_function(file, "evaluate"),
            compression=_compression(file),
            settings=file.table("settings"),
        )

    def options(self) -> CommunicatorOptions:
        """Return the options of the device's communicator."""
        return CommunicatorOptions(
            id=self.id,
            netloc=self.netloc,
            connection=self.connection,
            security=self.security,
            mqtt=self.mqtt,
            seal=self.seal,
        )


def from_file(file: File, **fields: Any) -> Config:
    """Return a configuration with the tables that every kind of device has; `fields`: the fields of this kind."""
    protocol, security, seal = file.choice("server", "protocol", Protocol.TCP), file.security(), file.seal()
    return Config(
        netloc=_netloc(file),
        protocol=protocol,
        id=_id(file, protocol, security, seal),
        security=security,
        seal=seal,
        mqtt=file.mqtt(protocol),
        connection=file.options("connection", ConnectionOptions, file.table("connection")),
        **fields,
    )


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
            raise file.wrong(in_file_terms(error)) from error
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


def _function(file: File, key: str) -> Callable[..., Any] | None:
    return file.function("client", key, f"farm.training:{key}") if key in file.table("client") else None


def _compression(file: File) -> fl.Compression | None:
    if "compression" not in file.table("client"):
        return None
    from fl.config.strategy import compression

    return compression(file, "client")
