"""What goes with what on the command line, and what this machine has room for. Nothing that is said is passed over.

arguments.py reads the words; `given` are the options among them.
"""

from __future__ import annotations

import argparse
import os

from netq.bench import plan
from netq.bench.usage import free_memory, may_use
from netq.options import Protocol

PASSWORD = "NETQ_BENCH_PASSWORD"  # in the environment: what is on a command line, all users of the machine can read
PREFIX = "netq-bench"  # not that of an application: a server that comes takes a prefix over
_NEED_STEPS = ("--min-size", "--step-expo", "--seed")
_OF_MQTT = ("--user", "--password", "--prefix")
_OF_TLS = ("--tls", "--key", "--certificate")


class BadInput(ValueError):
    """The command line is wrong; the text is one line."""


def check(said: argparse.Namespace) -> None:
    """Raise BadInput for options that do not go together. Settles `protocol`, `purpose` and `netloc`."""
    said.protocol = Protocol(said.protocol)
    if said.work == "iops":
        if said.purpose == "both" and "--netloc" not in said.given:
            said.netloc = None
        _check_iops(said)
    elif said.work != "server":
        said.purpose = "both" if said.spawn or said.netloc is None else "client"
    if said.work == "load" and said.rate is not None:
        _check_rate(said)
    _check_mqtt(said)
    _check_netloc(said)
    _check_cores(said)
    _check_tls(said)


def fill(said: argparse.Namespace) -> None:
    """Make the plan, and settle what depends on other options. What has no part in this work becomes None."""
    if said.protocol is Protocol.MQTT:
        said.password = said.password or (None if said.user is None else os.environ.get(PASSWORD))
        if said.purpose == "both" and "--prefix" not in said.given:
            said.prefix = f"{PREFIX}/{os.urandom(8).hex()}"
    said.plan = None
    if said.work == "load" and said.rate is not None:
        said.limit = None
    if said.work == "throughput":
        said.plan = plan.Plan(((said.size, said.count),))
    if said.work == "iops":
        _fill_iops(said)


def check_memory(said: argparse.Namespace) -> None:
    """Raise BadInput if what this machine must hold at once is more than it has free."""
    size, free, copies, option = largest(said), free_memory(), _copies(said), size_option(said)
    if free is not None and size * copies > free:
        raise BadInput(
            f"{option}: messages of {plan.format_size(size)} need {plan.about(size * copies)} of this machine's "
            f"memory, of which {plan.about(free)} are free; choose a smaller {option}"
        )


def largest(said: argparse.Namespace) -> int:
    """Return the bytes of the largest message that a client asks for, or that a server takes."""
    size: int = said.max_message if said.work == "server" else said.plan.largest if said.plan else said.size
    return size


def size_option(said: argparse.Namespace) -> str:
    """Return which option says it."""
    return "--max-size" if said.work == "iops" else "--size"


def _fill_iops(said: argparse.Namespace) -> None:
    said.put_merge, said.get_merge = said.put_merge is not False, said.get_merge is not False
    said.reps = said.reps or (1 if said.step_size else 4000)
    if said.step_size:
        said.plan = plan.powers(said.min_size, said.max_size, said.step_size, said.step_expo, said.reps, said.seed)
    else:
        said.min_size = said.step_size = said.step_expo = said.seed = None
        said.plan = plan.Plan(((2**said.max_size, said.reps),))


def _copies(said: argparse.Namespace) -> int:
    """Return how many of the largest message are on this machine at once, at least: an echo has its own memory."""
    is_echo = said.work in ("latency", "load")
    is_both = getattr(said, "direction", None) == "both" or getattr(said, "mode", None) == "async"
    ours = 2 if is_echo or is_both else 1
    theirs = 2 if is_both else 1
    copies: int = said.clients * (ours + (theirs if said.purpose == "both" else 0))
    return copies


def _check_rate(said: argparse.Namespace) -> None:
    _refuse("--limit" in said.given, "--limit is for a search: leave it out, or --rate")
    count = said.rate * said.seconds
    _refuse(count > plan.MOST_MESSAGES, f"{count:,.0f} messages; expected {plan.MOST_MESSAGES:,} at most")


def _check_iops(said: argparse.Namespace) -> None:
    for name in _NEED_STEPS if not said.step_size else ():
        _refuse(name in said.given, f"{name} needs --step-size, of 1 at least: without it all have --max-size")
    is_server = said.purpose == "server"
    _refuse(is_server and "--timeout" in said.given, "--timeout is for client and both: a server waits for its clients")
    if said.secure:
        _check_secure(said)


def _check_secure(said: argparse.Namespace) -> None:
    _refuse(said.protocol is Protocol.MQTT, "--secure: with mqtt TLS is the broker's; both sides have --tls CA.pem")
    _refuse(said.protocol is Protocol.SHM, "--secure is not for shm: nothing leaves this machine")
    for name in _OF_TLS:
        _refuse(name in said.given, f"{name} does not go with --secure, which makes a certificate for this run")
    _refuse(
        said.purpose != "both",
        "--secure is for both: give --key PEM and --certificate PEM to the server, --tls CA.pem to the client",
    )


def _check_mqtt(said: argparse.Namespace) -> None:
    if said.protocol is Protocol.MQTT:
        _refuse("--netloc" not in said.given, "mqtt needs --netloc, the broker's")
        _refuse("--password" in said.given and said.user is None, "--password needs --user")
        _refuse(said.key is not None, "--key: with mqtt TLS is the broker's; both sides have --tls CA.pem")
        _refuse(said.certificate is not None, "--certificate: with mqtt TLS is the broker's; both sides have --tls")
    for name in _OF_MQTT:
        _refuse(said.protocol is not Protocol.MQTT and name in said.given, f"{name} is for mqtt")


def _check_netloc(said: argparse.Namespace) -> None:
    if said.netloc is None:
        return
    host, port = said.netloc
    is_path = host.startswith("/")
    _refuse(
        is_path and said.protocol is not Protocol.SHM,
        f"--netloc {host}: a path is for shm; expected HOST:PORT",
    )
    listens_here = said.protocol is not Protocol.MQTT and said.purpose != "client"
    who = "broker" if said.protocol is Protocol.MQTT else "server"
    _refuse(
        port == 0 and not is_path and not listens_here,
        f"--netloc {host}:0: expected the port at which the {who} listens",
    )


def _check_cores(said: argparse.Namespace) -> None:
    if said.work == "server" and said.core is not None and not may_use(said.core):
        raise BadInput(f"--core {said.core}: expected a core of this machine that this process may use")
    if said.work != "server" and said.purpose != "both":
        see = "both" if said.work == "iops" else "--spawn"
        _refuse(said.no_pin, f"--no-pin is for a server that is started here: see {see}")


def _check_tls(said: argparse.Namespace) -> None:
    if said.protocol is Protocol.SHM:
        for name in _OF_TLS:
            _refuse(name in said.given, f"{name} is not for shm: nothing leaves this machine")
    if said.protocol is Protocol.MQTT:
        return
    is_server = said.purpose == "server"
    _refuse((said.key is None) != (said.certificate is None), "--key and --certificate go together")
    _refuse(said.key is not None and said.purpose == "client", "--key is a server's: a client has --tls CA.pem")
    _refuse(is_server and said.tls is not None, "--tls is a client's: a server has --key and --certificate")
    _refuse(
        said.purpose == "both" and (said.tls is None) != (said.key is None),
        "--tls, --key and --certificate go together where the server is started here",
    )


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise BadInput(why)
