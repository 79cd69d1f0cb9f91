"""What depends on several options of `netq bench`: checks, defaults, and what follows from them. Called by cli.py.

An option that has no effect where it is given is a mistake. To see that it was given, the parser sets None as its
default, and `fill` sets the documented one. netq checks the values of its own options itself.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from netq.bench import output, plan
from netq.bench.resources import may_use
from netq.options import NetworkLocation, Protocol

PASSWORD = "NETQ_BENCH_PASSWORD"  # environment variable: other users of the machine can read a command line
PREFIX = "netq-bench"  # not an application's prefix, which a bench server would take over
TIMEOUT = 10  # seconds: default of --timeout

_STEPS = {"min_size": 0, "step_expo": 1.0, "seed": 0}  # defaults of the options that need --step-size


def settle(options: argparse.Namespace) -> None:
    """Set `protocol`, `purpose` and `netloc`, on which the checks depend."""
    options.protocol = Protocol(options.protocol)
    if options.work in ("latency", "throughput", "sweep", "load"):
        options.purpose = "both" if options.spawn or options.netloc is None else "client"
    elif options.netloc is None and options.purpose != "both" and options.protocol is not Protocol.MQTT:
        options.netloc = NetworkLocation()


def fill(options: argparse.Namespace) -> None:
    """Set defaults, and what follows from several options. What has no effect becomes None."""
    mqtt = options.protocol is Protocol.MQTT
    if mqtt and options.user is not None:
        options.password = options.password or os.environ.get(PASSWORD)
    if options.prefix is None:  # several runs at one broker, each with its own server, do not meet
        options.prefix = f"{PREFIX}/{os.urandom(8).hex()}" if mqtt and options.purpose == "both" else PREFIX
    if options.work != "server" and options.timeout is None:
        options.timeout = TIMEOUT
    options.plan = None
    if options.work == "load" and (options.rate is not None or options.rates is not None):
        options.limit = None
    if options.work == "throughput":
        options.plan = plan.Plan(((options.size, options.count),))
    if options.work in ("iops", "sweep"):
        options.put_merge, options.get_merge = options.put_merge is not False, options.get_merge is not False
    if options.work == "iops":
        _fill_iops(options)
    if options.work == "sweep":
        options.left_out = {}
        options.sizes = plan.geometric(options.min_size, options.max_size, options.step)


def _fill_iops(options: argparse.Namespace) -> None:
    options.reps = options.reps or (1 if options.step_size else 4000)
    if options.step_size:
        for name, default in _STEPS.items():
            if getattr(options, name) is None:
                setattr(options, name, default)
        sizes = options.min_size, options.max_size, options.step_size, options.step_expo
        options.plan = plan.powers(*sizes, options.reps, options.seed)
    else:
        options.step_size = None
        options.plan = plan.Plan(((2**options.max_size, options.reps),))


def check(options: argparse.Namespace) -> None:
    """Raise ValueError for options that contradict each other and that netq cannot see: it checks the others itself."""
    works = {"iops": _iops, "server": _server, "sweep": _sweep, "load": _load}
    for rules in (_side, _netloc, works.get(options.work, lambda options: iter(())), _files):
        for is_wrong, why in rules(options):
            if is_wrong:
                raise ValueError(why)


_Rules = Iterator[tuple[object, str]]  # whether a rule is broken, and what it says; the first broken one is reported


def _side(options: argparse.Namespace) -> _Rules:
    """Yield the rules about brokers, TLS, and servers that are started here."""
    mqtt, shm = options.protocol is Protocol.MQTT, options.protocol is Protocol.SHM
    purpose, secure = options.purpose, getattr(options, "secure", False)
    own_certificate = getattr(options, "key", None) or getattr(options, "certificate", None)
    see = "both" if options.work == "iops" else "--spawn"
    of_mqtt = options.user or options.password or options.prefix is not None
    yield mqtt and options.netloc is None, "mqtt needs --netloc, the broker's"
    yield not mqtt and of_mqtt, "--user, --password and --prefix are for mqtt"
    yield mqtt and (own_certificate or secure), "with mqtt TLS is the broker's; both sides have --tls CA.pem"
    yield (
        shm and (own_certificate or secure or options.tls),
        "shared memory has no TLS: nothing leaves this machine",
    )
    yield (
        secure and purpose != "both",
        "--secure is for a server that is started here: give --key PEM and --certificate PEM to the server, "
        "--tls CA.pem to the client",
    )
    yield (
        purpose == "both" and not mqtt and (options.tls or own_certificate),
        "a server that is started here makes its own certificate: give --secure alone",
    )
    is_server = purpose == "server" and not mqtt
    yield is_server and options.tls, "--tls is a client's: a server has --key and --certificate"
    yield (
        purpose == "client" and own_certificate,
        "--key and --certificate are a server's: a client has --tls CA.pem",
    )
    yield (
        purpose != "both" and getattr(options, "no_pin", False),
        f"--no-pin is for a server that is started here: see {see}",
    )


def _netloc(options: argparse.Namespace) -> _Rules:
    if options.netloc is None:
        return
    (host, port), mqtt = options.netloc, options.protocol is Protocol.MQTT
    is_path, who = host.startswith("/"), "broker" if mqtt else "server"
    yield (
        is_path and options.protocol is not Protocol.SHM,
        f"--netloc {host}: a path is for shm; expected HOST:PORT",
    )
    yield (
        port == 0 and not is_path and (mqtt or options.purpose == "client"),
        f"--netloc {host}:0: expected the port at which the {who} listens",
    )


def _iops(options: argparse.Namespace) -> _Rules:
    is_server = options.purpose == "server"
    yield is_server and options.timeout is not None, "--timeout is for client and both: a server waits for its clients"
    for name in _STEPS:
        option = f"--{name.replace('_', '-')}"
        yield (
            not options.step_size and getattr(options, name) is not None,
            f"{option} needs --step-size, of 1 at least: without it all messages have --max-size",
        )


def _server(options: argparse.Namespace) -> _Rules:
    core = options.core
    yield (
        core is not None and not may_use(core),
        f"--core {core}: expected a core of this machine that this process may use",
    )


def _sweep(options: argparse.Namespace) -> _Rules:
    smallest, largest = plan.format_size(options.min_size), plan.format_size(options.max_size)
    yield options.min_size > options.max_size, f"--min-size {smallest} is above --max-size {largest}"


def _load(options: argparse.Namespace) -> _Rules:
    count = max(options.rates or [options.rate or 0]) * options.seconds
    yield count > plan.MOST_MESSAGES, f"{count:,.0f} messages; expected {plan.MOST_MESSAGES:,} at most"
    for name in output.named(options):
        yield options.rates is None, f"--{name} needs --rates: without them there is no table"


def _files(options: argparse.Namespace) -> _Rules:
    paths = output.named(options)
    same = len({path.absolute() for path in paths.values()}) < len(paths)
    yield same, "--csv and --plot: the same file twice; expected a file for each"
    plot = paths.get("plot")
    yield (
        plot is not None and plot.suffix.lower() not in output.PLOTS,
        f"--plot {plot}: expected a name that ends in {' or '.join(output.PLOTS)}",
    )
