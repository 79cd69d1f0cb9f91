"""The device's file, and a copy of it for each board.

A copy has the board's own id and, in [settings], its `partition` and the number of `partitions`. Paths in a copy are
absolute, because it lies in another folder. Imports none of the modules that the file names: the boards do.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.config import FILE, KEYS, Config, from_file
from fl.config.toml import File
from netq.options import Protocol

_PATHS = {"security": ("key", "certificate", "authority"), "seal": ("key", "certificate", "authority")}
_LOCAL = "127.0.0.1"  # what the name of a server on this machine usually resolves to


@dataclass(frozen=True)
class Device:
    """The tables of a device's file, and the address of its server."""

    path: Path
    tables: Mapping[str, Mapping[str, Any]]
    host: str  # as in the file
    port: int
    address: str  # IPv4, as this machine resolves the host
    is_certified: bool  # a certificate names the device's id

    @classmethod
    def load(cls, path: Path, boards: int) -> Device:
        """Read the file and resolve the server's name. Raises InvalidOption."""
        file = File(path, FILE)
        for table in ("flower", "app"):
            if table in file.tables:
                raise file.wrong(f"[{table}]: is a Flower app's table; `fl flower simulate APP` simulates Flower apps")
        file.check_names(KEYS)
        if "train" not in file.table("client"):
            raise file.wrong('client.train: missing; expected "module:function", as in "farm.training:train"')
        config = from_file(file, settings=file.table("settings"))
        if config.protocol is Protocol.SHM:
            raise file.wrong('server.protocol: "shm"; expected a protocol that uses the network, as in "tcp"')
        is_certified = _is_certified(config)
        if is_certified and boards > 1:
            raise file.wrong(
                f"the device has a certificate, which names one id, and --boards is {boards}; expected --boards 1, or "
                "a server and a file without certificates of clients"
            )
        host, port = config.netloc
        return cls(path, file.tables, host, port, _resolve(file, host), is_certified)

    @property
    def is_named(self) -> bool:
        """Whether the file has the server's name, not its address."""
        return self.host != self.address

    def write_copy(self, path: Path, board: int, boards: int) -> None:
        """Write the file of one board, readable by this user only: it may have a password."""
        tables = {name: dict(table) for name, table in self.tables.items()}
        if not self.is_certified:
            tables["client"]["id"] = str(uuid.uuid4())
        tables["settings"] = {**tables.get("settings", {}), "partition": board, "partitions": boards}
        for name, keys in _PATHS.items():
            table = tables.get(name, {})
            table |= {key: str((self.path.parent / table[key]).absolute()) for key in keys if key in table}
        path.touch(mode=0o600)
        path.write_text(to_toml(tables), encoding="utf-8")


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables as TOML text."""
    return "\n".join(
        "\n".join([f"[{_text(name)}]", *(f"{_text(key)} = {_value(value)}" for key, value in table.items()), ""])
        for name, table in tables.items()
    )


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)} = {_value(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, (datetime.date, datetime.time)):  # a datetime is a date
        return value.isoformat()
    return repr(value)  # int, float, inf, nan


def _text(text: str) -> str:
    """Return a basic string of TOML: JSON's escapes, but DEL must be escaped, and there are no surrogates."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_certified(config: Config) -> bool:
    """Return whether the server learns the id from a certificate; with MQTT, only the broker sees that of TLS."""
    if config.seal is not None:
        return True
    security = config.security
    own = security is not None and security.authority is not None and security.certificate is not None
    return own and config.protocol in (Protocol.TCP, Protocol.GRPC)


def _resolve(file: File, host: str) -> str:
    try:
        if ipaddress.ip_address(host).version == 6:
            raise file.wrong(f"server.host: {host!r}; expected a name or an IPv4 address: boards have no IPv6")
    except ValueError:
        pass  # a name
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise file.wrong(
            f"server.host: {host!r} has no IPv4 address here ({error.strerror}); correct the name, or add it to "
            "/etc/hosts"
        ) from None
    return str(found[0][4][0])
