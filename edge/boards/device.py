"""The device's file, and by what the boards differ: id, state, model, audit log, `partition` and `partitions`.

All boards read the same file. Imports none of the modules that it names: the boards do.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

from edge.config import FILE, KEYS, Config, from_file
from edge.limits import Limits
from netq.options import ConnectionOptions, Protocol
from netq.toml_file import File

_LOCAL = "127.0.0.1"  # what the name of a server on this machine usually resolves to


@dataclass(frozen=True)
class Device:
    """A device's file, and the address of its server."""

    path: Path
    host: str  # as in the file
    port: int
    address: str  # IPv4, as this machine resolves the host
    is_certified: bool  # a certificate names the device's id
    training: Limits
    connection: ConnectionOptions
    model: Path | None  # the file for the last model
    audit: Path | None  # the file for the audit log

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
        model = file.output("model", "path", suffix=".new")
        config = from_file(file, settings=file.table("settings"), model=model)
        if config.protocol is Protocol.SHM:
            raise file.wrong('server.protocol: "shm"; expected a protocol that uses the network, as in "tcp"')
        is_certified = _is_certified(config)
        if is_certified and boards > 1:
            raise file.wrong(
                f"the device has a certificate, which names one id, and --boards is {boards}; expected --boards 1, or "
                "a server and a file without certificates of clients"
            )
        host, port = config.netloc
        address, audit = _resolve(file, host), config.policy.audit
        return cls(path, host, port, address, is_certified, config.training, config.connection, model, audit)

    @property
    def is_named(self) -> bool:
        """Whether the file has the server's name, not its address."""
        return self.host != self.address

    def overrides(self, board: int, boards: int, folder: Path, memory: int) -> dict[str, str]:
        """Return the environment variables by which a board differs from the others, and from this machine.

        folder: for the state of each board.
        memory: of each board, in bytes. Its agent does not see the cgroup, whose file system is out of its sight.
        """
        link = self.training.bound(self.connection, memory)
        own = {} if self.is_certified else {"EDGE_CLIENT_ID": str(uuid.uuid4())}
        for variable, path in (("EDGE_MODEL_PATH", self.model), ("EDGE_POLICY_AUDIT", self.audit)):
            if path is not None:
                own[variable] = json.dumps(str(path.absolute().with_stem(f"{path.stem}-{board}")))
        return {
            **own,
            "EDGE_CONNECTION_MESSAGE_SIZE": str(link.message_size),
            "EDGE_CONNECTION_MEMORY": str(link.memory),
            "EDGE_CLIENT_STATE": str(folder / f"board-{board}"),
            "EDGE_SETTINGS_PARTITION": str(board),
            "EDGE_SETTINGS_PARTITIONS": str(boards),
        }


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
    except (OSError, UnicodeError) as error:  # UnicodeError: an empty label, or one of more than 63 bytes
        raise file.wrong(
            f"server.host: {host!r} has no IPv4 address here ({getattr(error, 'strerror', error)}); correct the name, "
            "or add it to /etc/hosts"
        ) from None
    return str(found[0][4][0])
