"""`edge install`: writes a systemd unit for a device, or a Containerfile. Starts nothing, and installs no package.

Called by edge/__main__.py. The texts are pure functions of what the device's file says.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.config import FILE, SECRETS, Config, open_file
from netq.errors import InvalidOption
from netq.toml_file import File
from netq.validate import expect
from netq.version import DISTRIBUTION

_WATCHDOG = 60  # seconds: longer than the disk takes to store an update
_PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")  # PrivateTmp, PrivateDevices
_OF_ROOT = "/root"
_FOR_ALL = {False: stat.S_IROTH, True: stat.S_IXOTH}  # what a file and a folder need for DynamicUser


def unit(file: Path, memory: str, devices: list[str]) -> str:
    """Return the text of a systemd unit that runs `edge run FILE`.

    memory:  MemoryMax, as in "80%" or "256M".
    devices: of accelerators, as in "/dev/apex_0". Without them, and without fit.idle, the process sees no hardware.
    """
    tables = File(file, FILE).tables
    keys = {table: tables[table]["key"] for table in SECRETS if "key" in tables.get(table, {})}
    credentials = "".join(
        f"LoadCredential={table}-key:{_path(f'{table}.key', file.parent / key)}\n"
        f"Environment=EDGE_{table.upper()}_KEY=%d/{table}-key\n"
        for table, key in keys.items()
    )
    last = "".join(
        f"Environment={_word(f'{variable}=%S/edge/' + _path(key, name))}\n" for key, variable, name in _outputs(tables)
    )
    needs_terminals = "idle" in tables.get("fit", {})
    hardware = "".join(f"DeviceAllow={device} rw\n" for device in devices)
    private = "DevicePolicy=closed" if devices or needs_terminals else "PrivateDevices=yes"
    paths = [Path(sys.prefix), Path(sys.base_prefix), file.parent, *map(Path, filter(None, sys.path))]
    return f"""\
# Written by `edge install`.
[Unit]
Description=Device of a federation (edge run {_path("FILE", file)})
Documentation=man:systemd.exec(5)
After=network-online.target time-sync.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={_word(_path("Python", sys.executable))} -m edge run {_word(_path("FILE", file)).replace("$", "$$")}
WorkingDirectory={_path("FILE", file.parent)}
WatchdogSec={_WATCHDOG}
# The end of a federation (status 0) is not the end of the device: the next server may be another federation's. Status 2
# is that of a file that a person has to correct, and of nothing else: what may pass by itself, the agent waits for.
Restart=always
RestartSec=10
RestartPreventExitStatus=2
# Longer than [connection] linger: the agent sends what it has before it ends.
TimeoutStopSec=30

DynamicUser=yes
StateDirectory=edge
# Stronger than client.state, model.path and policy.audit of the file: the rest of the disk is read-only.
Environment=EDGE_CLIENT_STATE=%S/edge
{last}UMask=0077
{credentials}
MemoryMax={memory}
TasksMax=256
OOMPolicy=continue
# The agent makes a cgroup for the training, so that its limits hold for all its processes. ProtectControlGroups would
# keep it from that; other cgroups belong to root.
Delegate=memory pids

ProtectSystem=strict
ProtectHome={_protect_home(paths)}
PrivateTmp=yes
{private}
{hardware}PrivateUsers=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
# MemoryDenyWriteExecute is left out: torch and other libraries compile code while they run.

[Install]
WantedBy=multi-user.target
"""


def containerfile(file: Path) -> str:
    """Return the text of a Containerfile for a device whose folder is the build's context."""
    found = _outputs(File(file, FILE).tables)
    paths = [(variable, json.dumps(f"/state/{name}").replace("$", "\\$")) for _, variable, name in found]  # no variable
    last = "".join(f"ENV {variable}={path}\n" for variable, path in paths)
    return f"""\
# Written by `edge install --container`. Build it in the device's folder, with the wheel of {DISTRIBUTION} in it:
#     podman build -t edge . && podman run --memory 256m --read-only --volume edge-state:/state edge
# The image has all files of this folder, also keys: keep those of other devices and of the authority elsewhere, or name
# them in .containerignore.
FROM docker.io/library/python:3.11-slim
COPY *.whl /tmp/
# What the training imports is to be added, as torch is: pip install … torch --index-url (its index for the CPU).
RUN pip install --no-cache-dir "$(ls /tmp/*.whl)[fl,security]" && rm /tmp/*.whl \\
 && useradd --system --no-create-home edge && install -d -o edge -m 700 /state
COPY --chown=edge . /device
USER edge
WORKDIR /device
ENV EDGE_CLIENT_STATE=/state
{last}VOLUME /state
STOPSIGNAL SIGTERM
ENTRYPOINT {json.dumps(["edge", "run", file.name])}
"""


def _outputs(tables: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the keys that name a file to write, the variables that replace them, and the names of the files."""
    keys = [(table, key) for table, key in (("model", "path"), ("policy", "audit")) if key in tables.get(table, {})]
    return [
        (f"{table}.{key}", f"EDGE_{table.upper()}_{key.upper()}", Path(tables[table][key]).name) for table, key in keys
    ]


def install(file: Path, *, name: str, folder: Path | None, memory: str, devices: list[str], container: bool) -> str:
    """Write the unit, or the Containerfile. Return what to do next.

    folder: where; None: the unit in /etc/systemd/system, the Containerfile next to the device's file.

    Raises InvalidOption for a wrong file, or a folder that cannot be written to.
    """
    file = file.resolve()
    _check(file)
    _check_options(name, memory, devices)
    if container:
        path = (folder or file.parent) / "Containerfile"
        _write(path, containerfile(file))
        return f"wrote {path}; its first lines say how to build and run it"
    path = (folder or Path("/etc/systemd/system")) / f"{name}.service"
    _write(path, unit(file, memory, devices))
    return f"wrote {path}; now: systemctl daemon-reload && systemctl enable --now {name}" + _doubt(file)


def _check_options(name: str, memory: str, devices: list[str]) -> None:
    """Raise InvalidOption for options that systemd would ignore."""
    right = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*", name) is not None
    expect(right, "--name", name, "letters, digits and . @ _ -")
    right = re.fullmatch(r"[1-9][0-9]*[KMGT]?|[1-9][0-9]?%|100%", memory) is not None
    expect(right, "--memory", memory, "bytes as 256M, or a part of the machine's memory as 80%")
    for device in devices:
        right = re.fullmatch(r"/dev/[A-Za-z0-9_/.:,+@=-]+", device) is not None
        expect(right, "--device", device, "a path below /dev, as /dev/apex_0")


def _doubt(file: Path) -> str:
    """Return why the service could not read the file, which has a user and a /tmp of its own; "" if it can."""
    for needed, what in ((file, str(file)), (Path(sys.prefix), f"the Python environment {sys.prefix}")):
        private = next((each for each in _PRIVATE if needed.is_relative_to(each)), None)
        if private is not None:
            return f"\nbut move {what} elsewhere first: the service has a {private} of its own"
    closed = [str(each) for each in (file, *file.parents) if not each.stat().st_mode & _FOR_ALL[each.is_dir()]]
    if _OF_ROOT in closed:
        return f"\nbut move {file} elsewhere first, as to /etc/edge: {_OF_ROOT} is root's, and the service is not root"
    return f"\nbut first let the service's user read it: chmod o+rX {shlex.join(closed)}" if closed else ""


def _check(file: Path) -> None:
    """Raise InvalidOption for a file with which `edge run` would not start."""
    if "app" in open_file(file, ()).tables:
        from edge.flower import load  # other devices do without

        load(file, None)
    else:
        Config.load(file)


def _path(option: str, path: Path | str) -> str:
    """Return a path as a line of a unit has it: a % begins a specifier (systemd.unit(5)).

    A line ends at a control character, goes on after a backslash at its end, and loses the spaces there.
    """
    text = str(path)
    right = text.isprintable() and "\\" not in text and text == text.strip()
    expect(right, option, text, "a path without control characters, backslashes, and spaces at its end")
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """Return an argument of a command line, quoted where it must be (systemd.service(5), Command lines)."""
    return text if re.fullmatch(r"[\w%$/.:,+@=-]+", text) else '"' + text.replace('"', '\\"') + '"'


def _protect_home(paths: list[Path]) -> str:
    """Return how the process may see /home, /root and /run/user: not at all, unless Python or the file is there."""
    homes = (Path("/home"), Path("/root"), Path("/run/user"))
    return "read-only" if any(path.resolve().is_relative_to(home) for path in paths for home in homes) else "yes"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        hint = (
            "run this as root, or name another folder with --output" if os.geteuid() else "name another with --output"
        )
        raise InvalidOption(f"{path}: cannot be written ({error.strerror}); {hint}") from None
