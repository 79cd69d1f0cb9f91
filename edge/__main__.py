"""The command `edge`: runs a device as a service, checks its file, installs it, and simulates slow boards; approves
sources of tasks, and verifies audit logs.

Owns the process: arguments, log lines on stderr, signals, and the exit status. edge.config and edge.agent do the
work; with --flower, edge.flower. `python -m edge` is the same.

status  when
0       the server has ended the federation, or SIGTERM came; of `check` and `install`: all is well
1       an unforeseen error; of `check`: the device could not take part; of `audit`: the log was changed.
        One line says why
2       the file or the command line is wrong: one line on stderr says where. Of `check` also what the file names
130     Ctrl-C

What may pass by itself is none of these: `run` waits for it (edge/patience.py).

--verbose adds the traceback to a line on stderr.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from edge.agent import Agent
from edge.config import FLOWER_KEYS, KEYS, SECRETS, Config, from_environment, from_flags, open_file, state_of
from edge.group import Group
from edge.patience import FileChanged, Patience, Watched
from edge.supervisor import Supervisor
from edge.work import Work, federation
from netq.cli.terminal import fail, log_to_stderr, outlive_readers, stop
from netq.errors import InvalidOption, SecurityError
from netq.toml_file import Override, in_file_terms
from netq.version import VERSION

log = logging.getLogger("edge")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    if arguments is None:
        outlive_readers()
    options = _parser().parse_args(arguments)
    if options.command == "simulate":
        from edge.boards.command import main_simulate  # asyncio, which an agent does not need

        return main_simulate(options)
    log_to_stderr(logging.DEBUG if options.verbose else logging.INFO, in_file_terms)
    signal.signal(signal.SIGTERM, stop)
    # A parent may have left it ignored: then no process can wait for its children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        command = {"install": _install, "approve": _approve, "audit": _verify}.get(options.command)
        return _work(options, arguments is None) if command is None else command(options)
    except InvalidOption as error:
        return fail("edge", error, 2)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the process ends here; one line in the log is enough
        return fail("edge", error, 1)


class _Version(argparse.Action):
    """Prints the version, which is looked up then: an agent does not keep the modules that this needs."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print, and end the process."""
        print(f"edge {VERSION}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "edge", description="The agent of a device in a federation.", epilog="example: edge run client.toml"
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, help in (
        ("run", "take part in the federation until the server ends it"),
        ("check", "show what the agent would find: functions, folder, server, clock, and a training of the model"),
    ):
        command = commands.add_parser(name, help=help, description=help, epilog=f"example: edge {name} client.toml")
        command.add_argument("config", metavar="CLIENT.toml", nargs="?", help="the device's file")
        command.add_argument(
            "--set",
            metavar="TABLE.KEY=VALUE",
            action="append",
            default=[],
            help="replaces a value of the file, as in server.port=51966. So does a variable as EDGE_SERVER_PORT",
        )
        command.add_argument("--flower", metavar="APP", help="a Flower app's folder, or a ClientApp as MODULE:APP")
        command.add_argument(
            "--node-config", metavar="PAIRS", default="", help="as in 'partition-id=0 num-partitions=2'"
        )
        command.add_argument("--verbose", action="store_true", help="log more, and tracebacks")
        if name == "check":
            command.add_argument("--no-train", action="store_true", help="do not train")
    _add_approve(commands.add_parser("approve", help="show what waits for approval on a device, or approve it"))
    _add_audit(commands.add_parser("audit", help="verify the audit log of a device"))
    _add_install(commands.add_parser("install", help="write a systemd unit, or a Containerfile, for a device"))
    _add_simulate(commands.add_parser("simulate", help="run agents as if each were on a slow board"))
    return parser


def _add_approve(command: argparse.ArgumentParser) -> None:
    command.description = "show the sources of tasks that a device has seen (policy.approve), or approve one"
    command.epilog = "example: edge approve client.toml"
    command.add_argument("config", metavar="CLIENT.toml", help="the device's file")
    command.add_argument("hash", metavar="HASH", nargs="?", help="of a source, as it is shown: approve it")
    command.add_argument("--revoke", action="store_true", help="let it wait again")
    command.add_argument("--verbose", action="store_true", help="log tracebacks")


def _add_audit(command: argparse.ArgumentParser) -> None:
    command.description = "verify the audit log of a device (policy.audit): each line has the hash of the one before"
    command.epilog = "example: edge audit verify audit.jsonl"
    command.add_argument("action", choices=("verify",))
    command.add_argument("file", metavar="FILE", type=Path, help="the log")
    command.add_argument("--verbose", action="store_true", help="log tracebacks")


def _add_install(command: argparse.ArgumentParser) -> None:
    command.description = "write a systemd unit, or a Containerfile, for a device"
    command.epilog = "example: edge install /etc/farm/client.toml"
    command.add_argument("config", metavar="CLIENT.toml", help="the device's file")
    command.add_argument("--container", action="store_true", help="a Containerfile, next to the device's file")
    command.add_argument("--name", default="edge", help="of the unit; edge")
    command.add_argument("--output", metavar="FOLDER", type=Path, help="where to write; /etc/systemd/system")
    command.add_argument("--memory", default="80%", help="of agent and training, as in 256M or 80%%, the default")
    command.add_argument(
        "--device", metavar="PATH", action="append", default=[], help="an accelerator, as in /dev/apex_0"
    )
    command.add_argument("--verbose", action="store_true", help="log tracebacks")


def _add_simulate(command: argparse.ArgumentParser) -> None:
    command.description = "run agents as if each were on a slow board, on this machine"
    command.epilog = "example: edge simulate client.toml --boards 8 --memory 128M"
    command.add_argument("config", metavar="CLIENT.toml", help="the device's file")
    command.add_argument("--boards", metavar="N", required=True, help="number of boards, as in 8")
    command.add_argument("--cpus", metavar="CORES", default="0.25", help="of each board; 0.25")
    command.add_argument("--memory", metavar="SIZE", default="128M", help="of each board, with K, M or G; 128M")
    command.add_argument(
        "--bandwidth", metavar="RATE", default="1Mbit", help="of each board, each way, with kbit, Mbit or Gbit; 1Mbit"
    )
    command.add_argument("--delay", metavar="TIME", default="0ms", help="each way, with ms or s; 0ms")


def _approve(options: argparse.Namespace) -> int:
    from edge.approvals import Approvals, shown

    file = open_file(options.config, from_environment(os.environ))
    file.check_names({**KEYS, **FLOWER_KEYS})
    state = state_of(file)
    if state is None:
        raise file.wrong("client.state: missing; the approvals are in this folder: name it, or set $STATE_DIRECTORY")
    if options.revoke and options.hash is None:
        raise InvalidOption("--revoke: give the HASH, too")
    approvals = Approvals(state)
    try:
        found = [approvals.decide(options.hash, approve=not options.revoke)] if options.hash else approvals.entries()
        lines = [shown(each) for each in found]
    except OSError as error:
        raise InvalidOption(f"{error.filename}: {error.strerror}; run it as the agent's user, or as root") from None
    print("\n".join(lines or ["nothing waits for approval"]))
    return 0


def _verify(options: argparse.Namespace) -> int:
    from edge.audit import verify

    is_whole, lines = verify(options.file)
    print("\n".join(f"{options.file}: {line}" for line in lines))
    return 0 if is_whole else 1


def _install(options: argparse.Namespace) -> int:
    from edge.install import install  # which an agent does not need

    print(
        install(
            Path(options.config),
            name=options.name,
            folder=options.output,
            memory=options.memory,
            devices=options.device,
            container=options.container,
        )
    )
    return 0


def _work(options: argparse.Namespace, owns_process: bool) -> int:
    """Run, or check. Raises InvalidOption, which names the file: `run` only if a person has to correct it."""
    if options.command == "check":
        config, work = _read(options)
        open_file(options.config, _overrides(options)).output("client", "state", folder=True)  # it can be written to
        with _file_is_named(options):
            return _check(options, config, work, _group(config, owns_process))
    supervisor = Supervisor.from_environment()
    try:
        return _run(options, supervisor, owns_process)
    finally:
        supervisor.stopping()


def _group(config: Config, owns_process: bool) -> Group:
    return Group.of_this_process(config.training) if owns_process else Group()


def _run(options: argparse.Namespace, supervisor: Supervisor, owns_process: bool) -> int:
    """Run the agent, and begin anew if its file has changed while it waits."""
    watched = Watched(None if options.config is None else Path(options.config))
    patience = Patience(supervisor, watched)
    group: Group | None = None
    agent: Agent | None = None

    def begin() -> Agent:
        nonlocal group
        watched.seen()
        config, work = _read(options)
        if group is None:  # only once: a process divides its cgroup, and gets its copies of keys at its start
            group = _group(config, owns_process)
            supervisor.has_copied(_copied_keys(options))
        group.limit(config.training)
        return Agent(config, work, supervisor, group, patience, None if agent is None else agent.final)

    while True:
        try:
            agent = patience.until(begin)
            with _file_is_named(options):
                agent.run()
        except FileChanged:
            continue
        log.info("the federation is over")
        return 0


@contextmanager
def _file_is_named(options: argparse.Namespace) -> Iterator[None]:
    """Let errors of the transport, such as a file that is no certificate, name the device's file."""
    try:
        yield
    except (InvalidOption, SecurityError) as error:
        text = in_file_terms(error).replace("SecurePolicy.", "secure.", 1)
        file = open_file(options.config, _overrides(options))
        raise (InvalidOption(text) if text.startswith(("--", "$")) else file.wrong(text)) from error


def _copied_keys(options: argparse.Namespace) -> list[Path]:
    """Return the private keys of which systemd has given copies to this service, as the unit says (edge/install.py)."""
    if "CREDENTIALS_DIRECTORY" not in os.environ or options.config is None:
        return []
    file = open_file(options.config, ())
    return [file.path.parent / file.table(table)["key"] for table in SECRETS if "key" in file.table(table)]


def _read(options: argparse.Namespace) -> tuple[Config, Work]:
    return _load_flower(options) if _is_flower(options) else _load(options)


def _load(options: argparse.Namespace) -> tuple[Config, Work]:
    path, overrides = options.config, _overrides(options)
    if path is None and not overrides:
        raise InvalidOption("CLIENT.toml: missing; give the path of the device's file: see docs/reference/edge.md")
    if options.node_config:
        raise InvalidOption("--node-config: is for --flower; the settings of a device are the table [settings]")
    config = Config.load(path, overrides)
    if config.train is None:
        file = open_file(path, overrides)
        raise file.wrong('client.train: missing; expected "module:function", as in "farm.training:train"')
    return config, federation(config)


def _overrides(options: argparse.Namespace) -> list[Override]:
    return [*from_environment(os.environ), *from_flags(options.set)]


def _is_flower(options: argparse.Namespace) -> bool:
    """Return whether the device runs a Flower app: the command names one, or the file has the table [app]."""
    return options.flower is not None or (
        options.config is not None and "app" in open_file(options.config, _overrides(options)).tables
    )


def _load_flower(options: argparse.Namespace) -> tuple[Config, Work]:
    from edge.flower import load  # of the app's folder; other devices do without

    overrides = _overrides(options)
    config, work = load(options.config, options.flower, options.node_config, overrides)
    if options.config is None and not overrides:
        log.info("no CLIENT.toml was given: the server is one of this machine")
    return config, work


def _check(options: argparse.Namespace, config: Config, work: Work, group: Group) -> int:
    from edge.check import CheckFailed, check  # numpy, which an agent does not need

    try:
        is_whole = check(config, work, group, train=not options.no_train)
    except CheckFailed as error:
        return fail("edge", error, 1)
    print("all is well" if is_whole else "all is well so far; the model, and a training of it, were not tried")
    return 0


if __name__ == "__main__":
    sys.exit(main())
