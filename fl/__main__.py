"""fl serve | relay | statistics | simulate | export | secure-key | plot | page | status | flower: all of an aggregator.

Owns the process: arguments, environment, log lines on stderr, signals, and the exit status. fl.config.server,
fl.server, fl.simulation, fl.callbacks.plots and fl.flower do the work. Needs typer. `python -m fl` is the same.

status  when
0       all rounds are done, or SIGTERM came: the clients wait for the next server
1       it cannot continue: one line on stderr says why. The clients wait for the next server
2       the file or the command line is wrong: one line on stderr says where
130     Ctrl-C

--verbose adds the traceback to a line on stderr.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from netq.version import DISTRIBUTION, VERSION

try:
    import typer
    import typer.core
except ImportError:
    sys.exit(f"fl: the command line needs typer: pip install '{DISTRIBUTION}[serve]'")

import fl
from fl.callbacks import plots
from fl.callbacks.best import EarlyStopping, SaveBest
from fl.callbacks.jsonl import JsonLines, Measured
from fl.callbacks.mlflow import MLflow
from fl.callbacks.progress import Progress
from fl.callbacks.prometheus import Prometheus
from fl.callbacks.tensorboard import TensorBoard
from fl.config.relay import RelayConfig
from fl.config.server import Config, load_flower
from fl.errors import CheckpointError, InvalidUpdate
from fl.homomorphic.client import Encrypting
from fl.homomorphic.codec import HEADER
from fl.homomorphic.context import new_key
from fl.homomorphic.options import EVERYTHING, PARAMETERS, Homomorphic
from fl.server.checkpoint import load
from fl.tensors import files
from fl.tensors.spec import Model
from netq.cli.terminal import fail, log_to_stderr, outlive_readers, told_if_slow
from netq.errors import AddressError, InvalidOption, NetqError, SecurityError
from netq.io.interrupts import outside_steps
from netq.options import CommunicatorOptions, Protocol
from netq.text import describe, did_you_mean
from netq.toml_file import function, in_file_terms, named_object

log = logging.getLogger("fl")


class _Commands(typer.core.TyperGroup):
    """Commands that are listed if a name is wrong."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # ctx: of click, or of the click inside typer
        """Return the command that the first argument names."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {args[0]!r}; expected {', '.join(self.list_commands(ctx))}.")
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=_Commands, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True)
flower = typer.Typer(cls=_Commands, help="Flower apps over netq.", rich_markup_mode=None, no_args_is_help=True)
app.add_typer(flower, name="flower")

_MLFLOW = {  # MLflow's client reads these from the environment. Its defaults retry for four minutes
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
}

_OF_COMMAND = re.compile(r"simulate\.(engine|processes|address|devices|seed):")  # options of the command line
_LOCAL = CommunicatorOptions()  # 127.0.0.1:51966

_Verbose = Annotated[bool, typer.Option("--verbose", help="log more, and tracebacks")]


def _show_version(show: bool) -> None:
    if show:
        print(f"fl {VERSION}")
        raise typer.Exit


@app.callback(epilog="Example: fl serve aggregator.toml")
def _describe(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version, and exit.")
    ] = False,
) -> None:
    """Federated learning: run an aggregator or a relay, simulate its clients, export its model, plot its rounds."""


@app.command(epilog="Example: fl serve aggregator.toml")
def serve(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="see docs/how-to/aggregator.md")],
    verbose: _Verbose = False,
) -> None:
    """Run an aggregator, until its rounds are done."""
    _on_signals(_stop)
    with _command(verbose):
        _serve(_load(config))


@app.command(epilog="Example: fl relay relay.toml")
def relay(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="see docs/how-to/relay.md")],
    verbose: _Verbose = False,
) -> None:
    """Run a relay: a client of an aggregator, or of another relay, that answers for clients of its own."""
    _on_signals(_stop)
    with _command(verbose):
        with told_if_slow(log, f"importing what {config} names"):
            loaded = RelayConfig.load(config)
        with ExitStack() as stack:
            made = loaded.relay(_callbacks(loaded, stack))
            try:
                made.run()
            except NetqError as error:
                raise loaded.in_its_terms(error) from error
            except (SystemExit, KeyboardInterrupt):
                log.info("stopped: its clients go on to their next address, or wait for a relay here")
                raise
        log.info("the federation is over")


@app.command(epilog="Example: fl statistics aggregator.toml")
def statistics(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="an aggregator's file, with [statistics]")],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, with the histograms")] = False,
    verbose: _Verbose = False,
) -> None:
    """Ask the clients for statistics of their data, before anything is trained, and print a table.

    Listens in the aggregator's place, waits for as many clients as its first round would, and ends. The clients then
    wait for the aggregator.
    """
    _on_signals(_stop)
    with _command(verbose):
        loaded = _load(config)
        if not loaded.statistics:
            raise InvalidOption(f"{config}: [statistics]: missing; expected the table, with the columns to ask for")
        server = loaded.server()
        try:
            log.info("listening at %s:%d", *server.netloc)
            report = server.statistics_of(**loaded.statistics)
        finally:
            server.close(0.0)  # the federation goes on: the clients wait for the next server
        print(json.dumps(report.plain()) if as_json else report)
        if not report.columns:
            raise InvalidUpdate("no client has given statistics that can be shown; the lines above say why")


@app.command(epilog="Example: fl simulate aggregator.toml --train farm.training:train --clients 8")
def simulate(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="an aggregator's file")],
    train: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", help="the train function of the clients")],
    evaluate: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="their evaluate function, for server.evaluate")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="number of clients")] = 4,
    engine: Annotated[str, typer.Option(help="processes, ray or network: docs/how-to/simulation.md")] = "processes",
    processes: Annotated[int | None, typer.Option(min=1, help="processes for them; default: one a core")] = None,
    address: Annotated[str | None, typer.Option(help="of a Ray cluster, as in 'auto'; default: this machine")] = None,
    devices: Annotated[Path | None, typer.Option(metavar="CSV", help="a table of devices, for a virtual clock")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="of their random numbers; default: a new one")] = None,
    verbose: _Verbose = False,
) -> None:
    """Run an aggregator's rounds with clients in processes of this machine, or in actors of Ray.

    Model, strategy, rounds and callbacks are those of the file; its address, checkpoint, TLS, memory_limit and wait are
    not used. The names of the files that it writes begin with `simulated-`. Each client finds its number in its config,
    as `partition`, and their number as `partitions`.
    """
    with _command(verbose):
        train_function = function("--train", train, "farm.training:train")
        evaluate_function = None if evaluate is None else function("--evaluate", evaluate, "farm.training:evaluate")
        loaded = _load(config).simulated()
        if loaded.settings.get("evaluate") and evaluate is None:
            log.info("server.evaluate is not used: --evaluate MODULE:FUNCTION gives the clients a function for it")
            loaded = replace(loaded, settings={**loaded.settings, "evaluate": False})
        simulated = [fl.Client(train_function, evaluate_function) for _ in range(clients)]
        options: dict[str, Any] = {"engine": engine, "processes": processes, "address": address, "seed": seed}
        _simulate(loaded, simulated, **options, devices=None if devices is None else _devices(devices))


_RunConfig = Annotated[
    str, typer.Option(metavar="PAIRS", help="overrides of the app's config, as in 'rounds=3 lr=0.1'; or a TOML file")
]


@flower.command("run", epilog="Example: fl flower run quickstart server.toml --nodes 2")
def run_flower(
    app: Annotated[str, typer.Argument(metavar="APP", help="a Flower app's folder, or a ServerApp as MODULE:APP")],
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="SERVER.toml",
            help="[server], [secure], [security], [seal], [mqtt], [connection]; without it, this machine's nodes only",
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="nodes to wait for")] = 1,
    run_config: _RunConfig = "",
    stay: Annotated[bool, typer.Option("--stay", help="the nodes wait for the next run")] = False,
    deliver: Annotated[
        bool, typer.Option("--deliver", help="send the app's files, which are signed, to nodes that ask for them")
    ] = False,
    verbose: _Verbose = False,
) -> None:
    """Run a Flower ServerApp for the nodes that connect: edge run --flower APP CLIENT.toml."""
    with _command(verbose):
        import fl.flower  # needs Flower

        options, protocol, masks = (_LOCAL, Protocol.TCP, {}) if config is None else load_flower(config)
        server_app, values, version = _server_app(app, run_config)
        delivery = _signed(app) if deliver else None
        only = "" if config else " (of this machine only: no SERVER.toml was given)"
        log.info("waiting for %d node%s at %s:%d%s", nodes, "s"[: nodes > 1], *options.netloc, only)
        fl.flower.run(
            _with_traceback(server_app),
            options,
            protocol,
            min_nodes=nodes,
            run_config=values,
            app_version=version,
            delivery=delivery,
            stay=stay,
            **masks,
        )
        log.info("the run is done%s", "; the nodes wait for the next one" if stay else "")


@flower.command("sign", epilog="Example: fl flower sign quickstart author-key.pem")
def sign_flower(
    app: Annotated[Path, typer.Argument(metavar="APPFOLDER", help="a Flower app's folder")],
    key: Annotated[Path, typer.Argument(metavar="KEY.pem", help="the author's private key, from netq certs issue")],
    verbose: _Verbose = False,
) -> None:
    """Sign a Flower app's files, for `fl flower run --deliver`. Writes app.signature into the folder."""
    with _command(verbose, logging.WARNING):
        from fl.flower.app_folder import AppFolder
        from fl.flower.signed_app import NAME, sign

        try:
            version = sign(AppFolder.load(app), key)
        except SecurityError as error:
            raise InvalidOption(str(error)) from error
        print(f"{app / NAME}: the signature of the app's version {version}")


@flower.command("simulate", epilog="Example: fl flower simulate quickstart --nodes 10")
def simulate_flower(
    app: Annotated[Path, typer.Argument(metavar="APPFOLDER", help="a Flower app's folder")],
    nodes: Annotated[int, typer.Option(min=1, help="number of nodes")] = 10,
    engine: Annotated[str, typer.Option(help="processes, ray or network: docs/how-to/simulation.md")] = "processes",
    processes: Annotated[int | None, typer.Option(min=1, help="processes for them; default: one a core")] = None,
    address: Annotated[str | None, typer.Option(help="of a Ray cluster, as in 'auto'; default: this machine")] = None,
    run_config: _RunConfig = "",
    verbose: _Verbose = False,
) -> None:
    """Run a Flower app with its nodes in processes of this machine, or in actors of Ray.

    Each node finds its number in its config, as `partition-id`, and their number as `num-partitions`.
    """
    if not verbose:
        logging.getLogger("netq").setLevel(logging.WARNING)  # not a line for each node and message
    with _command(verbose):
        import fl.flower
        from fl.flower.app_folder import AppFolder, parse_config

        folder = AppFolder.load(app)
        values = folder.run_config(parse_config("--run-config", run_config))
        server_app, client_app = folder.server_app(), folder.client_app()
        log.info("simulating %d nodes", nodes)
        options: dict[str, Any] = {"engine": engine, "processes": processes, "address": address}
        fl.flower.simulate(_with_traceback(server_app), client_app, nodes, run_config=values, **options)
        log.info("the run is done")


@app.command(epilog="Example: fl export federation.ckpt model.safetensors")
def export(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="what a server has written")],
    out: Annotated[Path, typer.Argument(metavar="MODEL", help="the file to write: .npz or .safetensors")],
    key: Annotated[
        Path | None, typer.Option(metavar="KEY", help="the clients' file of `fl secure-key`, for an encrypted model")
    ] = None,
    verbose: _Verbose = False,
) -> None:
    """Write the model of a checkpoint to a file. The server may be running."""
    with _command(verbose, logging.WARNING):
        files.check_name(out, "MODEL")
        if not out.parent.is_dir():
            raise InvalidOption(f"MODEL: {str(out)!r}; there is no folder {str(out.parent)!r}: make it")
        number, model = _checkpointed(checkpoint)
        if HEADER in model:
            model = _decrypted(checkpoint, model, key)
        files.check(out, model, "MODEL")
        files.save(out, model)
        print(f"{out}: the model of round {number}, {len(model)} tensors")


@app.command("secure-key", epilog="Example: fl secure-key clients.key server.context")
def secure_key(
    key: Annotated[Path, typer.Argument(metavar="KEY", help="the clients' file to write, with the secret key")],
    context: Annotated[Path, typer.Argument(metavar="CONTEXT", help="the server's file to write")],
    parameters: Annotated[str, typer.Option(metavar="NAME", help=f"of CKKS: {' or '.join(PARAMETERS)}")] = "ciber-cafe",
    encrypt: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="a tensor to encrypt, or several by * and ?; repeatable; default: all"),
    ] = None,
    verbose: _Verbose = False,
) -> None:
    """Make a key of homomorphic encryption: one file for all clients, and one for the server.

    Who has the clients' file reads every update that the server or the network sees: the server must not have it.
    """
    with _command(verbose, logging.WARNING):
        if parameters not in PARAMETERS:
            raise InvalidOption(f"--parameters: {parameters!r}; {did_you_mean(parameters, PARAMETERS)}")
        made = new_key(PARAMETERS[parameters], encrypt or EVERYTHING)
        made.write(key)
        try:
            replace(made, secret=None).write(context)
        except InvalidOption:
            key.unlink()  # half of a pair is of no use
            raise
        what = f"; encrypts only {', '.join(map(repr, encrypt))}" if encrypt else ""
        print(f"{key}: for the clients only; {context}: for the server{what}")


@app.command(epilog="Example: fl plot rounds.jsonl --metric accuracy --out rounds.png")
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="ROUNDS.jsonl...", help="what [callbacks] json has written")],
    out: Annotated[Path, typer.Option(help="PNG, SVG or PDF")] = Path("rounds.png"),
    metric: Annotated[str | None, typer.Option(help="name of a metric; default: the first")] = None,
    by: Annotated[str, typer.Option(help="round, or seconds since the first one began")] = "round",
    verbose: _Verbose = False,
) -> None:
    """Draw a metric and the bytes, by round or by time."""
    with _command(verbose, logging.WARNING):
        if not out.parent.is_dir():
            raise InvalidOption(f"--out: {str(out)!r}; there is no folder {str(out.parent)!r}: make it")
        try:
            plots.rounds({str(run): run for run in runs}, metric=metric, by=by, out=out)
        except FileNotFoundError as error:
            raise InvalidOption(
                f"{error.filename}: no such file; give one that [callbacks] json has written"
            ) from error
        except ValueError as error:
            raise InvalidOption(str(error)) from error


@app.command(epilog="Example: fl page rounds.jsonl")
def page(
    rounds: Annotated[Path, typer.Argument(metavar="ROUNDS.jsonl", help="what [callbacks] json has written")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="of this machine; 0: one that is free")] = 8080,
    verbose: _Verbose = False,
) -> None:
    """Show the rounds of a file in a browser, until Ctrl-C. Follows a file that grows.

    The page of a running server is `[callbacks] page`, or fl.Page.
    """
    with _command(verbose, logging.WARNING):
        from fl.page.file import FileSource
        from fl.page.history import History
        from fl.page.overview import Overview
        from fl.page.server import PageServer

        history = History()
        try:
            source = FileSource(rounds, history)
        except FileNotFoundError as error:
            raise InvalidOption(f"{rounds}: no such file; give one that [callbacks] json has written") from error
        except ValueError as error:
            raise InvalidOption(str(error)) from error
        with ExitStack() as stack:
            stack.callback(source.close)
            pages = PageServer(history, Overview(history), port)
            stack.callback(pages.close)
            print(f"http://127.0.0.1:{pages.port}/ until Ctrl-C", flush=True)
            while True:  # a signal just before a wait without end would be seen at its end
                time.sleep(1.0)


@app.command(epilog="Example: fl status 127.0.0.1:8080")
def status(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="of a server's page")],
    stage: Annotated[str, typer.Option(help="only clients of this stage, as in 'no connection'")] = "",
    authority: Annotated[Path | None, typer.Option(metavar="PEM", help="TLS: what has signed its certificate")] = None,
    key: Annotated[Path | None, typer.Option(metavar="PEM", help="the key of a certificate of this side")] = None,
    certificate: Annotated[Path | None, typer.Option(metavar="PEM", help="the certificate of this side")] = None,
    password_file: Annotated[Path | None, typer.Option(metavar="FILE", help="its first line is the password")] = None,
    json: Annotated[bool, typer.Option("--json", help="print the page's JSON")] = False,
    verbose: _Verbose = False,
) -> None:
    """Show where the clients of a running server stand. Its page is `[callbacks] page`, or fl.Page."""
    with _command(verbose, logging.WARNING):
        from fl.page.client import show

        show(address, stage, authority, key, certificate, password_file, as_json=json)


def _load(path: Path) -> Config:
    with told_if_slow(log, f"importing what {path} names"):
        return Config.load(path)


def _serve(config: Config) -> None:
    if config.save is None and config.checkpoint is None:
        is_encrypted = isinstance(config.settings.get("secure"), Homomorphic)
        way = "" if is_encrypted else 'model.save, as in save = "model.npz", or '
        log.warning("%s: the last model will be dropped; to keep it set %sserver.checkpoint", config.path, way)
    with ExitStack() as stack:
        server = stack.enter_context(config.server(_measured(config, stack)))
        path = config.checkpoint
        of = f" ({path}; move it away to begin anew)" if server.number and path is not None else ""
        log.info("listening at %s:%d; %d of %d rounds are done%s", *server.netloc, server.number, config.rounds, of)
        was_over = server.is_over and bool(config.stop_early)  # without `stop_early` the rounds go on
        left = 0 if was_over else config.rounds - server.number
        try:
            for _ in server.rounds(left):
                pass  # the callbacks report it
        except (SystemExit, KeyboardInterrupt):
            saved = "" if path is None or not server.number else f"; the last one is in {path}"
            log.info("stopped: %d of %d rounds are done%s", server.number, config.rounds, saved)
            raise
        if config.save is not None:
            files.save(config.save, server.model)
        log.info("all rounds are done" if server.number >= config.rounds else "no further rounds are needed")
        if left <= 0:  # a server before this one has done them; some of its clients may not know
            log.info("for %g s, clients that connect are told that the federation is over", config.linger)
            server.linger(config.linger)


def _measured(config: Config, stack: ExitStack) -> list[fl.Callback]:
    callbacks: list[fl.Callback] = [] if config.save is None else [_Save(config.save)]
    callbacks += _callbacks(config, stack)
    if config.save_best:
        callbacks.append(SaveBest(**config.save_best))
    if config.stop_early:
        callbacks.append(EarlyStopping(**config.stop_early))
    return callbacks if config.measure is None else [Measured(config.measure, callbacks)]


def _callbacks(config: Config | RelayConfig, stack: ExitStack) -> Iterator[fl.Callback]:
    options = config.callbacks
    if options.json is not None:
        # Before those that log: what is said of a round is then in the file.
        yield JsonLines(options.json, client_metrics=options.client_metrics)
    yield stack.enter_context(Progress()) if options.progress else _Logged()
    if options.tensorboard is not None:
        yield stack.enter_context(TensorBoard(options.tensorboard))
    if options.prometheus is not None:
        host, port = options.prometheus
        yield stack.enter_context(Prometheus(port, host))
    if options.page:
        try:
            yield stack.enter_context(fl.Page(**options.page))
        except (InvalidOption, SecurityError) as error:
            text = str(error).replace("SecurityOptions.", "page.").replace("Page.host", "callbacks.page")
            raise InvalidOption(f"{config.path}: {text.replace('Page.', 'page.')}") from error
    if options.mlflow is not None:
        yield stack.enter_context(_mlflow(config, options.mlflow))
    for make in options.own:
        callback = make()
        yield stack.enter_context(callback) if isinstance(callback, AbstractContextManager) else callback


def _mlflow(config: Config | RelayConfig, uri: str) -> MLflow:
    for name, value in _MLFLOW.items():
        os.environ.setdefault(name, value)
    try:
        return MLflow(uri)
    except AddressError as error:
        raise AddressError(f"{config.path}: callbacks.mlflow: {error}") from error


def _devices(path: Path) -> fl.Devices:
    try:
        return fl.Devices.from_csv(path)
    except OSError as error:
        raise InvalidOption(f"--devices: {str(path)!r}: {error.strerror}; expected a CSV file") from error


def _simulate(config: Config, clients: list[fl.Client], **options: Any) -> None:
    with ExitStack() as stack:
        callbacks = _measured(config, stack)
        try:
            result = fl.simulate(
                config.initial_model(),
                clients,
                config.rounds,
                strategy=config.strategy,
                callbacks=callbacks,
                **options,
                **config.settings,
            )
        except InvalidOption as error:
            text = str(error)
            if text.startswith("Devices."):
                raise InvalidOption(f"--devices: {text}") from error
            if _OF_COMMAND.match(text):
                raise InvalidOption(text.replace("simulate.", "--", 1)) from error
            raise InvalidOption(f"{config.path}: {in_file_terms(error)}") from error
        if config.save is not None:
            files.save(config.save, result.model)
        log.info("all rounds are done")


def _server_app(name: str, run_config: str) -> tuple[Callable[..., Any], dict[str, Any], str]:
    """Return the ServerApp that a folder or "module:app" names, its run config, and the version of a folder."""
    from fl.flower.app_folder import AppFolder, is_folder, parse_config
    from fl.flower.apps import check_server_app

    overrides = parse_config("--run-config", run_config)
    if not is_folder(name):
        app = named_object("APP", name, "farm.server_app:app", "app")
        check_server_app("APP", app)
        return app, overrides, ""
    folder = AppFolder.load(name)
    return folder.server_app(), folder.run_config(overrides), folder.version


def _signed(name: str) -> Any:
    from fl.flower.app_folder import AppFolder, is_folder
    from fl.flower.signed_app import SignedApp

    if not is_folder(name):
        raise InvalidOption(f"--deliver: {name!r}; expected an app's folder, which fl flower sign has signed")
    return SignedApp.load(AppFolder.load(name))


def _with_traceback(server_app: Callable[..., Any]) -> Callable[[Any, Any], None]:
    """Return a ServerApp that does the same, and logs the traceback of its error, which is its author's to mend."""

    def run(grid: Any, context: Any) -> None:
        try:
            server_app(grid, context)
        except NetqError:  # the server is closed, or a process of a simulation has ended
            raise
        except Exception as error:
            log.error("the ServerApp failed", exc_info=error)
            raise RuntimeError(f"the ServerApp raised {describe(error)}") from None

    return run


class _Logged(fl.Callback):
    """Logs one line a round."""

    def round_ends(self, report: fl.RoundReport, model: Model) -> None:
        log.info("%s", report)


class _Save(fl.Callback):
    """Refuses a model that the file of `save` cannot hold, before it is trained."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, model: Model) -> None:
        files.check(self._path, model, "model.save")


def _checkpointed(path: Path) -> tuple[int, Model]:
    """Return the round and the model of a checkpoint. Raises InvalidOption."""
    with suppress(ImportError):
        import torch  # noqa: F401  # else its tensors are loaded as arrays, which have no bfloat16
    try:
        state = load(path)
    except CheckpointError as error:
        raise InvalidOption(str(error)) from error
    match state:
        case {"number": int(number), "model": dict(model)} if model:
            return number, model
    raise InvalidOption(f"{path}: has no model; expected a checkpoint of an fl.Server")


def _decrypted(checkpoint: Path, model: Model, key: Path | None) -> Model:
    """Return an encrypted model decrypted. Raises InvalidOption."""
    if key is None:
        raise InvalidOption(f"{checkpoint}: its model is encrypted; expected --key with the clients' file")
    try:
        return Encrypting(key).model(model)
    except InvalidUpdate as error:
        raise InvalidOption(f"{checkpoint}: {error}") from None


@contextmanager
def _command(verbose: bool, level: int = logging.INFO) -> Iterator[None]:
    """Log to stderr. Exit with the status of an error, and print its line."""
    log_to_stderr(logging.DEBUG if verbose else level, in_file_terms, present=True)
    logging.getLogger("flwr").propagate = False  # Flower writes its lines to stderr itself
    if not verbose:  # one warning per failed call to MLflow; fl.MLflow logs the outage once
        logging.getLogger("urllib3").setLevel(logging.ERROR)
    try:
        yield
    except InvalidOption as error:
        raise typer.Exit(fail("fl", error, 2)) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as error:  # the process ends here; one line in the log is enough
        raise typer.Exit(fail("fl", error, 1)) from None


def _on_signals(do: Callable[[int, FrameType | None], None]) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # a shell ignores SIGINT for a process in the background
            signal.signal(signum, do)


@outside_steps
def _stop(signum: int, frame: FrameType | None) -> None:
    """Unwind the stack. The clients wait for the next server, which has the checkpoint."""
    _on_signals(_end)
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(0)


def _end(signum: int, frame: FrameType | None) -> None:
    """Exit at once: this is the second signal."""
    os._exit(0 if signum == signal.SIGTERM else 130)


def main() -> int:
    """Run the command; typer exits with its status."""
    outlive_readers()
    app(prog_name="fl")
    return 0


if __name__ == "__main__":
    main()
