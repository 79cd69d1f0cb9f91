"""The TOML file of a relay: its tables and keys, and the objects that they describe. See docs/how-to/relay.md.

[parent] is the server, or the relay, above. Its tables [parent.security], [parent.seal], [parent.mqtt] and
[parent.connection] are those of the connection up; the tables of these names without `parent` are those of the relay's
own clients. Loading opens no connection and starts nothing; it imports the module of a strategy of your own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fl
from fl.config import strategy
from fl.config.server import KEYS as SERVER_KEYS
from fl.config.server import CallbackOptions, callbacks, linger, netloc, settings
from fl.properties import checked, checked_name
from netq.errors import AddressError, InvalidOption, SecurityError
from netq.options import CommunicatorOptions, NetworkLocation, Protocol
from netq.toml_file import CONNECTION, File, in_file_terms

_OF_SIDE = re.compile(r"\b(?=(?:security|seal|mqtt|connection)[].])")  # the tables that each side has
_PATIENCE = ("deadline", "grace", "close_early", "suspend_after")
KEYS: dict[str, tuple[str, ...] | None] = {
    "parent": ("host", "port", "protocol", "proxy", "fallback", *CONNECTION),
    "relay": ("name", "properties"),
    "server": ("host", "port", "protocol", "min_clients", *_PATIENCE, "memory_limit", "relays", "linger"),
    "strategy": None,  # the options of the class
    **CONNECTION,
    "callbacks": SERVER_KEYS["callbacks"],
    "page": SERVER_KEYS["page"],
}


@dataclass(frozen=True)
class RelayConfig:
    """The configuration of a relay."""

    path: Path
    parent: CommunicatorOptions
    options: CommunicatorOptions
    parent_protocol: Protocol = Protocol.TCP
    protocol: Protocol = Protocol.TCP
    fallback: tuple[NetworkLocation, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    callbacks: CallbackOptions = field(default_factory=CallbackOptions)

    @classmethod
    def load(cls, path: str | Path) -> RelayConfig:
        """Read a TOML file. Raises InvalidOption, which names the file and the key, what was expected, what to do."""
        file = File(Path(path), "the relay's TOML file")
        file.check_names(KEYS)
        above = _Above(file)
        above.check_names({"server": KEYS["parent"], **CONNECTION})
        protocol = file.choice("server", "protocol", Protocol.TCP)
        parent_protocol = above.choice("server", "protocol", Protocol.TCP)
        return cls(
            path=file.path,
            parent=above.communicator(_parent(above), parent_protocol),
            options=file.communicator(netloc(file), protocol),
            parent_protocol=parent_protocol,
            protocol=protocol,
            fallback=tuple(above.addresses("server", "fallback")),
            settings={
                **settings(file),
                **_of_relay(file),
                "strategy": strategy.strategy(file),
                "linger": linger(file),
            },
            callbacks=callbacks(file),
        )

    def relay(self, callbacks: Iterable[fl.Callback] = ()) -> fl.Relay:
        """Return the relay. Raises InvalidOption as `load` does."""
        try:
            return fl.Relay(
                self.parent,
                self.options,
                protocol=self.protocol,
                parent_protocol=self.parent_protocol,
                fallback=self.fallback,
                callbacks=tuple(callbacks),
                **self.settings,
            )
        except InvalidOption as error:
            text = str(error).replace("Relay.strategy", "strategy").replace("Relay.parent", "parent.host")
            text = text.replace("Relay.fallback", "parent.fallback")
            raise InvalidOption(f"{self.path}: {text.replace('Relay.', 'server.')}") from error

    def in_its_terms(self, error: Exception) -> Exception:
        """Return an error of `run` with the names of the file's keys in it, if that is where the mistake is."""
        if isinstance(error, SecurityError | InvalidOption):
            _, is_own, rest = str(error).rpartition("Relay.options: ")
            text = in_file_terms(rest)
            return InvalidOption(f"{self.path}: {text if is_own else _OF_SIDE.sub('parent.', text)}")
        if isinstance(error, AddressError):
            return AddressError(f"{self.path}: {str(error).replace(' (netloc)', ' (server.host, server.port)')}")
        return error


class _Above(File):
    """The table [parent] as a file of its own: its keys as those of [server], and its tables."""

    def __init__(self, file: File) -> None:
        self.path, self.content, self._origins = file.path, file.content, {}
        parent = file.table("parent")
        tables = {name: parent[name] for name in CONNECTION if name in parent}
        own = {name: value for name, value in parent.items() if name not in tables}
        self.tables = {"server": own, **tables}

    def wrong(self, what: str, kind: type[InvalidOption] = InvalidOption) -> InvalidOption:
        """Name the key as it stands in the file."""
        what = _OF_SIDE.sub("parent.", what.removeprefix("server."))
        return super().wrong(what if what.startswith(("parent.", "[parent.")) else f"parent.{what}", kind)


def _parent(file: File) -> NetworkLocation:
    host = file.text("server", "host", 'the name of the server above, as in "10.0.0.1"')
    return NetworkLocation(host, file.whole("server", "port", "a whole number from 1 to 65535, as in 51966", 1, 65535))


def _of_relay(file: File) -> dict[str, Any]:
    table = file.table("relay")
    with file.named():
        properties = checked(table.get("properties", {}), "relay.properties")
        return {"name": checked_name(table.get("name", ""), "relay.name"), "properties": properties}
