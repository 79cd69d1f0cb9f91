"""What depends on several options of `netq bench`: checks, defaults, and what follows from them. Called by cli.py.

An option that has no effect where it is given is a mistake. To see that it was given, the parser sets None as its
default, and `fill` sets the documented one. netq checks the values of its own options itself.
"""

from __future__ import annotations

import argparse
import os

from netq.bench import output, plan
from netq.bench.resources import may_use
from netq.options import NetworkLocation, Protocol

PASSWORD = "NETQ_BENCH_PASSWORD"  # environment variable: other users of the machine can read a command line
PREFIX = "netq-bench"  # not an application's prefix, which a bench server would take over
TIMEOUT = 10  # seconds: default of --timeout

_STEPS = {"min_size": 0, "step_expo": 1.0, "seed": 0}  # defaults of the options that need --step-size
_NO_TLS = {  # protocols where a server has no certificate of its own, and why
    Protocol.MQTT: "with mqtt TLS is the broker's; both sides have --tls CA.pem",
    Protocol.SHM: "shared memory has no TLS: nothing leaves this machine",
}


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
    mqtt = options.protocol is Protocol.MQTT
    if mqtt and options.netloc is None:
        raise ValueError("mqtt needs --netloc, the broker's")
    if not mqtt and (options.user or options.password or options.prefix is not None):
        raise ValueError("--user, --password and --prefix are for mqtt")
    _check_tls(options)
    if options.purpose != "both" and getattr(options, "no_pin", False):
        see = "both" if options.work == "iops" else "--spawn"
        raise ValueError(f"--no-pin is for a server that is started here: see {see}")
    if options.work == "iops":
        _check_iops(options)
    if options.work == "sweep":
        _check_sweep(options)
    if options.netloc is not None:
        _check_netloc(options)
    if options.work == "server" and options.core is not None and not may_use(options.core):
        raise ValueError(f"--core {options.core}: expected a core of this machine that this process may use")
    if options.work == "load":
        _check_load(options)
    _check_files(options)


def _check_tls(options: argparse.Namespace) -> None:
    mqtt, shm = options.protocol is Protocol.MQTT, options.protocol is Protocol.SHM
    own_certificate = getattr(options, "key", None) or getattr(options, "certificate", None)
    secure = getattr(options, "secure", False)
    if options.protocol in _NO_TLS and (own_certificate or secure or (shm and options.tls)):
        raise ValueError(_NO_TLS[options.protocol])
    if secure and options.purpose != "both":
        raise ValueError(
            "--secure is for a server that is started here: give --key PEM and --certificate PEM to the server, "
            "--tls CA.pem to the client"
        )
    if options.purpose == "both" and not mqtt and (options.tls or own_certificate):
        raise ValueError("a server that is started here makes its own certificate: give --secure alone")
    if options.purpose == "server" and not mqtt and options.tls:
        raise ValueError("--tls is a client's: a server has --key and --certificate")
    if options.purpose == "client" and own_certificate:
        raise ValueError("--key and --certificate are a server's: a client has --tls CA.pem")


def _check_iops(options: argparse.Namespace) -> None:
    if options.purpose == "server" and options.timeout is not None:
        raise ValueError("--timeout is for client and both: a server waits for its clients")
    for name in _STEPS:
        if not options.step_size and getattr(options, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} needs --step-size, of 1 at least: without it all messages have --max-size")


def _check_sweep(options: argparse.Namespace) -> None:
    if options.min_size > options.max_size:
        smallest, largest = plan.format_size(options.min_size), plan.format_size(options.max_size)
        raise ValueError(f"--min-size {smallest} is above --max-size {largest}")


def _check_load(options: argparse.Namespace) -> None:
    count = max(options.rates or [options.rate or 0]) * options.seconds
    if count > plan.MOST_MESSAGES:
        raise ValueError(f"{count:,.0f} messages; expected {plan.MOST_MESSAGES:,} at most")
    for name, _ in output.named(options):
        if options.rates is None:
            raise ValueError(f"--{name} needs --rates: without them there is no table")


def _check_files(options: argparse.Namespace) -> None:
    names, paths = [*zip(*output.named(options), strict=True)] or [(), ()]
    if len({path.absolute() for path in paths}) < len(paths):
        raise ValueError(
            f"{' and '.join(f'--{name}' for name in names)}: the same file twice; expected a file for each"
        )
    plot = getattr(options, "plot", None)
    if plot is not None and plot.suffix.lower() not in output.PLOTS:
        raise ValueError(f"--plot {plot}: expected a name that ends in {' or '.join(output.PLOTS)}")


def _check_netloc(options: argparse.Namespace) -> None:
    host, port = options.netloc
    mqtt, is_path = options.protocol is Protocol.MQTT, host.startswith("/")
    if is_path and options.protocol is not Protocol.SHM:
        raise ValueError(f"--netloc {host}: a path is for shm; expected HOST:PORT")
    if port == 0 and not is_path and (mqtt or options.purpose == "client"):
        raise ValueError(f"--netloc {host}:0: expected the port at which the {'broker' if mqtt else 'server'} listens")
